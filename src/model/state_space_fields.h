// What the families with Mamba mixers of the first version share, and the original config form of
// state-spaces/mamba, which the mamba2 family reads too.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/json.h"
#include "model/family.h"
#include "model/family_fields.h"
#include "model/plan.h"

namespace adder {

// The rank of dt: a number, or "auto" (also the default) for hidden / 16, rounded up.
int64_t ReadDtRank(const JsonObject& config, FieldNames keys, int64_t hidden);

// in_proj, conv1d, x_proj, dt_proj, A_log, D and out_proj below `prefix`. Sizes and the norms of
// dt, B and C come from `sizes`.
Mamba1 AddMamba1(Plan& plan, const std::string& prefix, const Mamba1& sizes, bool proj_bias,
                 bool conv_bias);

// The original config form: d_model, n_layer, vocab_size, and below ssm_cfg the mixer's fields.
struct OriginalMamba {
  int64_t layers = 0;
  bool tied = false;
  JsonObject ssm;
};
// Reads what does not depend on the mixer, and vocab and hidden of the plan. `layer` is the one
// value of ssm_cfg.layer that is accepted.
OriginalMamba ReadOriginalMamba(const JsonObject& config, const TensorNames& names,
                                std::string_view layer, Plan& plan);

// A model all of whose layers are one Mamba-1 mixer behind an RMSNorm, in the Hugging Face form,
// which MLX files share, or the original one. With `norm_eps`, dt, B and C pass through norms
// without weights.
Plan BuildMamba1Model(const std::string& family, const JsonObject& config, const TensorNames& names,
                      std::optional<float> norm_eps);

}  // namespace adder
