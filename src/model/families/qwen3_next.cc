// Qwen3-Next: three layers of a gated delta rule to one of gated attention, with experts beside a
// gated shared one in every layer. The projections into the delta rule lie in the files key head by
// key head.
#include "model/qwen_hybrid_fields.h"

namespace adder {
namespace {

Plan Build(const JsonObject& config, const TensorNames& names) {
  return BuildQwenHybrid({"qwen3_next", /*fused_inputs=*/true, /*has_experts=*/true}, config, false,
                         names);
}

}  // namespace

extern const Family kFamily_qwen3_next;
const Family kFamily_qwen3_next = {
    "qwen3_next",
    "Qwen3-Next: gated delta rule and gated attention, mixture of experts",
    {"Qwen3NextForCausalLM"},
    Build,
};

}  // namespace adder
