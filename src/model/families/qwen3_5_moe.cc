// Qwen3.5 with experts beside a gated shared one in every layer. The text model of multimodal
// checkpoints.
#include "model/qwen_hybrid_fields.h"

namespace adder {
namespace {

Plan Build(const JsonObject& config, const TensorNames& names) {
  return BuildQwenHybridText({"qwen3_5_moe", /*fused_inputs=*/false, /*has_experts=*/true}, config,
                             names);
}

}  // namespace

extern const Family kFamily_qwen3_5_moe;
const Family kFamily_qwen3_5_moe = {
    "qwen3_5_moe",
    "Qwen3.5: gated delta rule and gated attention, mixture of experts (text)",
    {"Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeForCausalLM"},
    Build,
    {"qwen3_5_moe_text"},
};

}  // namespace adder
