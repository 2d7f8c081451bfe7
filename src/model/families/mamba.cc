// Mamba, the first version: every layer is one Mamba-1 mixer behind an RMSNorm. Files come in the
// Hugging Face form, which MLX files share, and in the original one of state-spaces/mamba.
#include "model/state_space_fields.h"

namespace adder {
namespace {

Plan Build(const JsonObject& config, const TensorNames& names) {
  return BuildMamba1Model("mamba", config, names, std::nullopt);
}

}  // namespace

extern const Family kFamily_mamba;
const Family kFamily_mamba = {
    "mamba",
    "Mamba, in the Hugging Face and the original state-spaces form",
    {"MambaForCausalLM"},
    Build,
};

}  // namespace adder
