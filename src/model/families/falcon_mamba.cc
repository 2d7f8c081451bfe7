// Falcon Mamba: Mamba in the Hugging Face form, with norms without weights on dt, B and C.
#include "model/state_space_fields.h"

namespace adder {
namespace {

Plan Build(const JsonObject& config, const TensorNames& names) {
  return BuildMamba1Model("falcon_mamba", config, names, ReadEps(config, {"mixer_rms_eps"}, 1e-6));
}

}  // namespace

extern const Family kFamily_falcon_mamba;
const Family kFamily_falcon_mamba = {
    "falcon_mamba",
    "Falcon Mamba: Mamba with norms on dt, B and C",
    {"FalconMambaForCausalLM"},
    Build,
};

}  // namespace adder
