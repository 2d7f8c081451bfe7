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
  // mlx-lm knows no such factor: its files hold it inside the keys.
  if (has("key_multiplier")) config["key_multiplier"] = 1.0;
  // Its model class of Hunyuan with experts has the name that the first files had.
  if (has("model_type") && config["model_type"] == "hunyuan_v1_moe") {
    config["model_type"] = "hunyuan";
    // Of layers that share keys and values, which no such file has; asked for all the same.
    if (!has("use_cla")) config["use_cla"] = false;
    if (!has("cla_share_factor")) config["cla_share_factor"] = 2;
  }
  // The sizes of the text model may lie apart, but the class of the whole asks for this one.
  if (!has("vocab_size") && has("text_config") && config["text_config"].is_object() &&
      config["text_config"].contains("vocab_size")) {
    config["vocab_size"] = Json(config["text_config"]["vocab_size"]);
  }
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
