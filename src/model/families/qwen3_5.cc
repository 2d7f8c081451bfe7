// Qwen3.5, dense: as Qwen3-Next, with MLPs and with the projections of the delta rule apart. The
// text model of multimodal checkpoints.
#include "model/qwen_hybrid_fields.h"

namespace adder {
namespace {

Plan Build(const JsonObject& config, const TensorNames& names) {
  return BuildQwenHybridText({"qwen3_5", /*fused_inputs=*/false, /*has_experts=*/false}, config,
                             names);
}

}  // namespace

extern const Family kFamily_qwen3_5;
const Family kFamily_qwen3_5 = {
    "qwen3_5",
    "Qwen3.5: gated delta rule and gated attention, MLP (text)",
    {"Qwen3_5ForConditionalGeneration", "Qwen3_5ForCausalLM"},
    Build,
    {"qwen3_5_text"},
};

}  // namespace adder
