#include "checkpoint/mlx_config.h"

namespace adder {

void CompleteMlxConfig(const Plan& plan, Json& config) {
  config["tie_word_embeddings"] = plan.head.weight == plan.embedding;
  bool has_mamba = false;
  int64_t mlp_size = 0, inner_size = 0;
  for (const Block& block : plan.blocks) {
    for (const Mixer& mixer : block.mixers) {
      if (const DenseMlp* mlp = std::get_if<DenseMlp>(&mixer)) mlp_size = mlp->intermediate;
      if (const Mamba2* mamba = std::get_if<Mamba2>(&mixer)) {
        has_mamba = true;
        inner_size = mamba->inner();
      }
      if (const Mamba1* mamba = std::get_if<Mamba1>(&mixer)) inner_size = mamba->inner;
    }
  }
  const auto has = [&](const char* key) { return config.contains(key) && !config[key].is_null(); };
  // In mlx-lm's pure Mamba models it is the inner width, which it could compute but asks for.
  const int64_t intermediate = mlp_size > 0 ? mlp_size : inner_size;
  if (!has("intermediate_size") && intermediate > 0) config["intermediate_size"] = intermediate;
  if (!has("rope_theta") && has("rope_parameters") && config["rope_parameters"].is_object() &&
      config["rope_parameters"].contains("rope_theta")) {
    config["rope_theta"] = Json(config["rope_parameters"]["rope_theta"]);
  }
  if (has_mamba && has("layer_types") && config["layer_types"].is_array()) {
    for (Json& kind : config["layer_types"]) {
      if (kind == "linear_attention") kind = "mamba";
      if (kind == "full_attention") kind = "attention";
    }
  }
}

}  // namespace adder
