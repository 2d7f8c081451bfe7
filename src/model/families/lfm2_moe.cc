// LFM2-MoE: layers of a gated short convolution or attention with norms of q and k. The first
// layers have a gated MLP, the others experts behind a router of sigmoids, whose bias takes part in
// the choice of experts but not in their weights.
//
// Hugging Face files have one module per expert (experts.E.w1), MLX files stack the experts
// (switch_mlp.gate_proj).
#include "core/error.h"
#include "model/family_fields.h"
#include "model/lfm2_fields.h"

namespace adder {
namespace {

MoeMlp ReadExperts(const JsonObject& config, int64_t layers) {
  MoeMlp moe;
  moe.experts = config.Int({"num_experts"}, 1, kMaxExpertsInAll / layers);
  moe.top_k = config.Int({"num_experts_per_tok"}, 1, moe.experts);
  moe.intermediate = ReadSize(config, {"moe_intermediate_size"});
  moe.routing.scores = RouterScores::kSigmoid;
  moe.routing.normalize = config.Bool({"norm_topk_prob"}, true);
  // The references add it to the sum of the chosen scores.
  moe.routing.normalize_eps = moe.routing.normalize ? 1e-6f : 0;
  moe.routing.scale = ReadScale(config, {"routed_scaling_factor"}, 1.0);
  return moe;
}

// The matrices of one expert.
struct ExpertParts {
  MatrixPart gate;
  MatrixPart up;
  MatrixPart down;
};

ExpertParts PartsOf(const std::string& prefix, const MoeMlp& moe, int64_t hidden, bool stacked,
                    int64_t expert) {
  const int64_t rows = moe.intermediate;
  if (stacked) {
    const std::string all = prefix + ".switch_mlp.";
    return {{all + "gate_proj", rows, 0, rows, moe.experts, expert},
            {all + "up_proj", rows, 0, rows, moe.experts, expert},
            {all + "down_proj", hidden, 0, hidden, moe.experts, expert}};
  }
  const std::string one = Concat(prefix, ".experts.", expert, ".");
  return {
      {one + "w1", rows, 0, rows}, {one + "w3", rows, 0, rows}, {one + "w2", hidden, 0, hidden}};
}

MoeMlp AddMoe(Plan& plan, const TensorNames& names, const std::string& prefix, const MoeMlp& sizes,
              bool choice_bias) {
  MoeMlp moe = sizes;
  moe.router = AddLinear(plan, prefix + ".gate", moe.experts, plan.hidden, false);
  if (choice_bias) {
    moe.routing.choice_bias =
        plan.AddVector(LabelOf(prefix) + ".expert_bias", prefix + ".expert_bias", moe.experts);
  }
  const bool stacked = names.Uses(prefix + ".switch_mlp.gate_proj.weight", true);
  for (int64_t expert = 0; expert < moe.experts; ++expert) {
    const std::string label = Concat(LabelOf(prefix), ".experts.", expert);
    ExpertParts parts = PartsOf(prefix, moe, plan.hidden, stacked, expert);
    moe.gate_up.push_back(plan.AddMatrix(MatrixRef{label + ".gate_up",
                                                   2 * moe.intermediate,
                                                   plan.hidden,
                                                   {std::move(parts.gate), std::move(parts.up)}}));
    moe.down.push_back(plan.AddMatrix(
        MatrixRef{label + ".down", plan.hidden, moe.intermediate, {std::move(parts.down)}}));
  }
  return moe;
}

Plan Build(const JsonObject& config, const TensorNames& names) {
  Plan plan;
  plan.family = "lfm2_moe";
  const Lfm2Layers layers = StartLfm2(config, names, plan);
  const auto count = static_cast<int64_t>(layers.is_attention.size());
  const int64_t dense_layers = config.Int({"num_dense_layers"}, 0, kMaxLayers, 2);
  const int64_t intermediate = ReadSize(config, {"intermediate_size"});
  const MoeMlp experts = ReadExperts(config, count);
  const bool choice_bias = config.Bool({"use_expert_bias"}, true);
  for (int64_t layer = 0; layer < count; ++layer) {
    AddLfm2Mixer(plan, layers, layer);
    const std::string prefix = "model.layers." + std::to_string(layer);
    const std::string mlp = prefix + ".feed_forward";
    Mixer mixer;
    if (layer < dense_layers) {
      mixer = AddLfm2Mlp(plan, names.Uses(mlp + ".gate_proj.weight", true), mlp, intermediate);
    } else {
      mixer = AddMoe(plan, names, mlp, experts, choice_bias);
    }
    plan.blocks.push_back(
        MakeBlock(plan, layer, prefix + ".ffn_norm", layers.eps, {std::move(mixer)}, 1));
  }
  ValidatePlan(plan);
  return plan;
}

}  // namespace

extern const Family kFamily_lfm2_moe;
const Family kFamily_lfm2_moe = {
    "lfm2_moe",
    "LFM2-MoE: short convolutions and attention, MLP and mixture of experts",
    {"Lfm2MoeForCausalLM"},
    Build,
};

}  // namespace adder
