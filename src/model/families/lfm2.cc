// LFM2: layers of a gated short convolution or attention with norms of q and k, each followed by a
// gated MLP. Hugging Face and MLX files differ only in the layout of the convolution's weight.
#include "core/error.h"
#include "model/family_fields.h"
#include "model/lfm2_fields.h"

namespace adder {
namespace {

// The width of the MLPs: block_ff_dim or intermediate_size, or with block_auto_adjust_ff_dim two
// thirds of it, times a factor, rounded up to a multiple.
int64_t ReadIntermediate(const JsonObject& config) {
  const int64_t stated = ReadSize(config, {"block_ff_dim", "intermediate_size"});
  if (!config.Bool({"block_auto_adjust_ff_dim"}, true)) return stated;
  const int64_t multiple = ReadSize(config, {"block_multiple_of"}, 256);
  const double factor = config.Number({"block_ffn_dim_multiplier"}, 1.0);
  const double scaled = factor * static_cast<double>(2 * stated / 3);
  // Written so that NaN fails.
  if (!(scaled >= 1 && scaled <= static_cast<double>(kMaxSize))) {
    Fail(config.where(), ": the field block_ffn_dim_multiplier is ", factor,
         ", which makes the MLPs ", scaled, " wide.");
  }
  return (static_cast<int64_t>(scaled) + multiple - 1) / multiple * multiple;
}

Plan Build(const JsonObject& config, const TensorNames& names) {
  Plan plan;
  plan.family = "lfm2";
  const Lfm2Layers layers = StartLfm2(config, names, plan);
  const int64_t intermediate = ReadIntermediate(config);
  RequireBool(config, "block_use_swiglu", true);
  // A null here means no rounding to Transformers and rounding to MLX.
  if (config.value().contains("block_ffn_dim_multiplier") &&
      !config.Has("block_ffn_dim_multiplier")) {
    Fail(config.where(),
         ": the field block_ffn_dim_multiplier is null; only a number is implemented.");
  }
  for (int64_t layer = 0; layer < static_cast<int64_t>(layers.is_attention.size()); ++layer) {
    AddLfm2Mixer(plan, layers, layer);
    const std::string prefix = "model.layers." + std::to_string(layer);
    plan.blocks.push_back(
        MakeBlock(plan, layer, prefix + ".ffn_norm", layers.eps,
                  {AddLfm2Mlp(plan, names.HasOptional(prefix + ".feed_forward.gate_proj.weight"),
                              prefix + ".feed_forward", intermediate)},
                  1));
  }
  ValidatePlan(plan);
  return plan;
}

}  // namespace

extern const Family kFamily_lfm2;
const Family kFamily_lfm2 = {
    "lfm2",
    "LFM2: short convolutions and attention with MLPs",
    {"Lfm2ForCausalLM"},
    Build,
};

}  // namespace adder
