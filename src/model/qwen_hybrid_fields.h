// What Qwen3-Next and Qwen3.5 share: layers of a gated delta rule or gated attention, each followed
// by an MLP or by a mixture of experts beside a gated shared one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/json.h"
#include "model/family.h"
#include "model/plan.h"

namespace adder {

// In which the model types differ.
struct QwenHybridForm {
  std::string_view family;
  // q, k, v and z of a key head's group come from one module in_proj_qkvz, b and a from in_proj_ba;
  // else from in_proj_qkv, in_proj_z, in_proj_b and in_proj_a.
  bool fused_inputs = false;
  bool has_experts = false;
};

// Plan of the text model whose fields are in `config`. A checkpoint with other parts (vision) is
// one whose tensors begin with model.language_model (Hugging Face) or language_model.model (MLX).
// Tensors of prediction heads and of vision are ignored.
Plan BuildQwenHybrid(const QwenHybridForm& form, const JsonObject& config, bool tied_by_default,
                     const TensorNames& names);

// The same for a config whose text model's fields may lie below text_config.
Plan BuildQwenHybridText(const QwenHybridForm& form, const JsonObject& config,
                         const TensorNames& names);

}  // namespace adder
