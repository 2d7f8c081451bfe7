// The mixers of a plan: sizes, weights and numbers of each.
#include <cmath>
#include <limits>

#include "model/plan_validator.h"

namespace adder {

void Validator::CheckAdapter(const char* field, const Adapter& adapter, int64_t rows,
                             int64_t cols) {
  const auto parts = static_cast<int64_t>(adapter.b.size());
  Range(Concat(field, " rank").c_str(), adapter.rank, 1, kMaxSize);
  Range(Concat(field, " parts").c_str(), parts, 1, 16);
  Divides(field, rows, "its number of parts", parts);
  CheckLinear(Concat(field, " a").c_str(), adapter.a, parts * adapter.rank, cols);
  for (const MatrixId id : adapter.b) {
    CheckMatrix(Concat(field, " b").c_str(), id, rows / parts, adapter.rank);
  }
}

void Validator::Check(const Attention& mixer) {
  Range("heads", mixer.heads, 1, kMaxSize);
  Range("kv_heads", mixer.kv_heads, 1, kMaxSize);
  Range("head_dim", mixer.head_dim, 1, kMaxHeadDim);
  Divides("heads", mixer.heads, "kv_heads", mixer.kv_heads);
  Finite("scale", mixer.scale);
  if (mixer.rope) CheckRope(*mixer.rope, mixer.head_dim);
  if (mixer.rope && mixer.rope->factor != 1 && mixer.qk_norm_after_rope) {
    Fail(where_, "its rotary embedding (", mixer.rope->scaling, ") multiplies by ",
         mixer.rope->factor, ", which is not implemented with norms after it.");
  }
  if (mixer.q_norm) CheckHeadNorm("q_norm", *mixer.q_norm, mixer.head_dim, mixer.heads);
  if (mixer.k_norm) CheckHeadNorm("k_norm", *mixer.k_norm, mixer.head_dim, mixer.kv_heads);
  if (mixer.v_norm) CheckHeadNorm("v_norm", *mixer.v_norm, mixer.head_dim, mixer.kv_heads);
  Range("window", mixer.window, 0, std::numeric_limits<int64_t>::max());
  if (!mixer.owns_kv()) CheckSharedKv(mixer);
  if (mixer.mixing) CheckMixing(mixer, *mixer.mixing);
  if (mixer.output_gate && mixer.mixing) {
    Fail(where_, "an output_gate beside mixing is not implemented.");
  }
  if (mixer.qk_norm_after_rope && !mixer.rope) {
    Fail(where_, "qk_norm_after_rope is set, but there is no rope.");
  }
  CheckLinear("qkv", mixer.qkv, mixer.qkv_rows(), input_width_);
  if (mixer.qkv_adapter) {
    CheckAdapter("qkv_adapter", *mixer.qkv_adapter, mixer.qkv_rows(), input_width_);
  }
  CheckLinear("output", mixer.output, plan_.hidden, mixer.heads * mixer.head_dim);
}

void Validator::CheckMixing(const Attention& mixer, const HeadMixing& mixing) {
  if (!mixer.owns_kv() || mixer.values_from_keys) {
    Fail(where_, "mixing needs keys and values of its own.");
  }
  Divides("kv_heads x head_dim", mixer.kv_width(), "2", 2);
  Range("taps", mixing.taps, 1, 1024);
  Range("group_taps", mixing.group_taps, 1, 1024);
  const int64_t channels = mixer.q_width() + mixer.kv_width();
  CheckVector("conv_weight", mixing.conv_weight, mixing.taps * channels);
  CheckVector("conv_bias", mixing.conv_bias, channels);
  CheckVector("group_weight", mixing.group_weight, mixing.group_taps * mixer.head_dim * channels);
  CheckVector("group_bias", mixing.group_bias, channels);
}

void Validator::CheckSharedKv(const Attention& mixer) const {
  Range("shared_kv_block", mixer.shared_kv_block, 0, block_index_ - 1);
  if (mixer.k_norm || mixer.v_norm || mixer.values_from_keys) {
    Fail(where_, "it has a k_norm, a v_norm or values_from_keys, but no keys of its own.");
  }
  const Block& block = plan_.blocks[static_cast<size_t>(mixer.shared_kv_block)];
  const Attention* owner =
      block.mixers.size() == 1 ? std::get_if<Attention>(&block.mixers[0]) : nullptr;
  if (owner == nullptr || !owner->owns_kv()) {
    Fail(where_, "shared_kv_block (", mixer.shared_kv_block,
         ") is no block of one Attention with keys of its own.");
  }
  Equal("kv_heads", mixer.kv_heads, "that of shared_kv_block", owner->kv_heads);
  Equal("head_dim", mixer.head_dim, "that of shared_kv_block", owner->head_dim);
}

void Validator::CheckRope(const Rope& rope, int64_t head_dim) const {
  Range("rope rotary_dim", rope.rotary_dim, 2, head_dim);
  Divides("rope rotary_dim", rope.rotary_dim, "2", 2);
  Finite("rope theta", rope.theta);
  Equal("number of rope inverse_frequencies", static_cast<int64_t>(rope.inverse_frequencies.size()),
        "half of rotary_dim", rope.rotary_dim / 2);
  for (float frequency : rope.inverse_frequencies) Finite("rope inverse_frequencies", frequency);
  Finite("rope factor", rope.factor);
}

void Validator::Check(const LatentAttention& mixer) {
  Range("heads", mixer.heads, 1, kMaxHeadsInAll);
  heads_in_all_ += mixer.heads;
  Range("heads of all layers so far", heads_in_all_, 1, kMaxHeadsInAll);
  Range("latent", mixer.latent, 1, kMaxHeadDim);
  Range("nope_dim", mixer.nope_dim, 1, kMaxHeadDim);
  Range("rope_dim", mixer.rope_dim, 0, kMaxHeadDim);
  Range("value_dim", mixer.value_dim, 1, kMaxHeadDim);
  Range("q_rank", mixer.q_rank, 0, kMaxSize);
  Finite("scale", mixer.scale);
  if (mixer.rope) {
    CheckRope(*mixer.rope, mixer.rope_dim);
    Equal("rope rotary_dim", mixer.rope->rotary_dim, "rope_dim", mixer.rope_dim);
  }
  if (mixer.q_rank > 0) {
    CheckLinear("q_a", mixer.q_a, mixer.q_rank, plan_.hidden);
    if (mixer.q_norm) CheckNorm("q_norm", *mixer.q_norm, mixer.q_rank);
  } else if (mixer.q_a.weight != kNoId || mixer.q_norm) {
    Fail(where_, "it has a q_a or a q_norm, but q_rank is 0.");
  }
  CheckLinear("q_b", mixer.q_b, mixer.heads * mixer.query_dim(),
              mixer.q_rank > 0 ? mixer.q_rank : plan_.hidden);
  CheckLinear("kv_a", mixer.kv_a, mixer.key_dim(), plan_.hidden);
  CheckNorm("kv_norm", mixer.kv_norm, mixer.latent);
  Equal("number of absorb matrices", static_cast<int64_t>(mixer.absorb.size()), "heads",
        mixer.heads);
  Equal("number of expand matrices", static_cast<int64_t>(mixer.expand.size()), "heads",
        mixer.heads);
  for (const MatrixId id : mixer.absorb) CheckMatrix("absorb", id, mixer.latent, mixer.nope_dim);
  for (const MatrixId id : mixer.expand) CheckMatrix("expand", id, mixer.value_dim, mixer.latent);
  CheckLinear("output", mixer.output, plan_.hidden, mixer.heads * mixer.value_dim);
}

void Validator::Check(const LightningAttention& mixer) {
  Range("heads", mixer.heads, 1, kMaxSize);
  Range("head_dim", mixer.head_dim, 1, kMaxHeadDim);
  const std::optional<int64_t> state = ElementCount({mixer.heads, mixer.head_dim, mixer.head_dim});
  if (!state || *state > kMaxStateSize) {
    Fail(where_, "a state of heads x head_dim x head_dim is larger than ", kMaxStateSize,
         " elements.");
  }
  Equal("number of slopes", static_cast<int64_t>(mixer.slopes.size()), "heads", mixer.heads);
  for (const float slope : mixer.slopes) {
    // Written so that NaN fails.
    if (!(slope >= 0) || !std::isfinite(slope)) {
      Fail(where_, "a slope is ", slope, ", it should be a number of at least 0.");
    }
  }
  CheckLinear("qkv", mixer.qkv, 3 * mixer.width(), plan_.hidden);
  CheckNorm("norm", mixer.norm, mixer.width());
  CheckLinear("gate", mixer.gate, mixer.width(), plan_.hidden);
  CheckLinear("output", mixer.output, plan_.hidden, mixer.width());
}

void Validator::Check(const Mamba2& mixer) {
  Range("heads", mixer.heads, 1, kMaxSize);
  Range("head_dim", mixer.head_dim, 1, kMaxSize);
  Range("d_state", mixer.d_state, 1, kMaxSize);
  Range("groups", mixer.groups, 1, kMaxSize);
  Range("d_conv", mixer.d_conv, 1, 1024);
  Range("chunk", mixer.chunk, 1, kMaxSize);
  Divides("heads", mixer.heads, "groups", mixer.groups);
  Finite("dt_min", mixer.dt_min);
  // Written so that NaN fails.
  if (!(mixer.dt_min >= 0)) Fail(where_, "dt_min is ", mixer.dt_min, ", below 0.");
  if (!(mixer.dt_max >= mixer.dt_min)) {
    Fail(where_, "dt_max is ", mixer.dt_max, ", it should be at least dt_min (", mixer.dt_min,
         ").");
  }
  if (mixer.selection) Range("selection dt_rank", mixer.selection->dt_rank, 1, kMaxSize);
  const std::optional<int64_t> state = ElementCount({mixer.heads, mixer.d_state, mixer.head_dim});
  if (!state || *state > kMaxStateSize) {
    Fail(where_, "a state of heads x d_state x head_dim = ",
         ShapeString({mixer.heads, mixer.d_state, mixer.head_dim}), " is larger than ",
         kMaxStateSize, " elements.");
  }
  CheckLinear("in_proj", mixer.in_proj, mixer.in_proj_rows(), plan_.hidden);
  CheckVector("conv_weight", mixer.conv_weight, mixer.d_conv * mixer.conv_channels());
  if (mixer.conv_bias != kNoId) CheckVector("conv_bias", mixer.conv_bias, mixer.conv_channels());
  CheckVector("dt_bias", mixer.dt_bias, mixer.heads);
  CheckVector("a", mixer.a, mixer.heads);
  CheckVector("d", mixer.d, mixer.heads);
  if (mixer.selection) CheckSelection(mixer, *mixer.selection);
  if (mixer.gated_norm) CheckNorm("gated_norm", *mixer.gated_norm, mixer.inner());
  if (mixer.norm_before_gate && !mixer.gated_norm) {
    Fail(where_, "norm_before_gate is set, but there is no gated_norm.");
  }
  if (mixer.norm_before_gate && mixer.selection) {
    Fail(where_, "norm_before_gate is set, which a mixer with a selection cannot have.");
  }
  CheckLinear("out_proj", mixer.out_proj, plan_.hidden, mixer.inner());
}

void Validator::CheckSelection(const Mamba2& mixer, const Mamba2Selection& selection) {
  const int64_t states = mixer.groups * mixer.d_state;
  CheckLinear("selection proj", selection.proj, mixer.selection_rows(), mixer.inner());
  if (selection.b_norm) CheckNorm("selection b_norm", *selection.b_norm, states);
  if (selection.c_norm) CheckNorm("selection c_norm", *selection.c_norm, states);
  if (selection.dt_norm) CheckNorm("selection dt_norm", *selection.dt_norm, selection.dt_rank);
  CheckLinear("selection dt_proj", selection.dt_proj, mixer.heads, selection.dt_rank);
}

void Validator::Check(const ShortConv& mixer) {
  Range("channels", mixer.channels, 1, kMaxSize);
  Range("d_conv", mixer.d_conv, 1, 1024);
  CheckLinear("in_proj", mixer.in_proj, 3 * mixer.channels, plan_.hidden);
  CheckVector("conv_weight", mixer.conv_weight, mixer.d_conv * mixer.channels);
  if (mixer.conv_bias != kNoId) CheckVector("conv_bias", mixer.conv_bias, mixer.channels);
  CheckLinear("out_proj", mixer.out_proj, plan_.hidden, mixer.channels);
}

void Validator::Check(const Mamba1& mixer) {
  Range("inner", mixer.inner, 1, kMaxSize);
  Range("d_state", mixer.d_state, 1, kMaxSize);
  Range("d_conv", mixer.d_conv, 1, 1024);
  Range("dt_rank", mixer.dt_rank, 1, kMaxSize);
  const std::optional<int64_t> state = ElementCount({mixer.d_state, mixer.inner});
  if (!state || *state > kMaxStateSize) {
    Fail(where_, "a state of d_state x inner = ", ShapeString({mixer.d_state, mixer.inner}),
         " is larger than ", kMaxStateSize, " elements.");
  }
  CheckLinear("in_proj", mixer.in_proj, mixer.in_proj_rows(), plan_.hidden);
  CheckVector("conv_weight", mixer.conv_weight, mixer.d_conv * mixer.inner);
  if (mixer.conv_bias != kNoId) CheckVector("conv_bias", mixer.conv_bias, mixer.inner);
  CheckLinear("x_proj", mixer.x_proj, mixer.x_proj_rows(), mixer.inner);
  CheckPlainNorm("dt_norm", mixer.dt_norm, mixer.dt_rank);
  CheckPlainNorm("b_norm", mixer.b_norm, mixer.d_state);
  CheckPlainNorm("c_norm", mixer.c_norm, mixer.d_state);
  CheckLinear("dt_proj", mixer.dt_proj, mixer.inner, mixer.dt_rank);
  CheckVector("a", mixer.a, mixer.d_state * mixer.inner);
  CheckVector("d", mixer.d, mixer.inner);
  CheckLinear("out_proj", mixer.out_proj, plan_.hidden, mixer.inner);
}

void Validator::CheckLowRank(const char* field, const LowRank& low_rank, int64_t rows) {
  // The rank is whatever `down` has.
  const MatrixId down = low_rank.down.weight;
  const bool known = down >= 0 && down < static_cast<int64_t>(plan_.matrices.size());
  const int64_t rank = known ? plan_.matrices[down].rows : 0;
  CheckLinear(Concat(field, " down").c_str(), low_rank.down, rank, plan_.hidden);
  CheckLinear(Concat(field, " up").c_str(), low_rank.up, rows, rank);
}

void Validator::Check(const RgLru& mixer) {
  Range("width", mixer.width, 1, kMaxSize);
  Range("heads", mixer.heads, 1, kMaxSize);
  Divides("width", mixer.width, "heads", mixer.heads);
  Range("d_conv", mixer.d_conv, 1, 1024);
  Finite("decay_scale", mixer.decay_scale);
  CheckLinear("in_proj", mixer.in_proj, 2 * mixer.width, plan_.hidden);
  CheckVector("conv_weight", mixer.conv_weight, mixer.d_conv * mixer.width);
  if (mixer.conv_bias != kNoId) CheckVector("conv_bias", mixer.conv_bias, mixer.width);
  CheckVector("input_weight", mixer.input_weight, mixer.width * mixer.block());
  CheckVector("input_bias", mixer.input_bias, mixer.width);
  CheckVector("recurrent_weight", mixer.recurrent_weight, mixer.width * mixer.block());
  CheckVector("recurrent_bias", mixer.recurrent_bias, mixer.width);
  CheckVector("decay", mixer.decay, mixer.width);
  CheckLinear("out_proj", mixer.out_proj, plan_.hidden, mixer.width);
}

void Validator::Check(const Rwkv7& mixer) {
  Range("heads", mixer.heads, 1, kMaxSize);
  Range("head_dim", mixer.head_dim, 1, kMaxSize);
  const std::optional<int64_t> state = ElementCount({mixer.heads, mixer.head_dim, mixer.head_dim});
  if (!state || *state > kMaxStateSize) {
    Fail(where_, "a state of heads x head_dim x head_dim = ",
         ShapeString({mixer.heads, mixer.head_dim, mixer.head_dim}), " is larger than ",
         kMaxStateSize, " elements.");
  }
  if (mixer.value_mix && first_values_ == 0) {
    Fail(where_, "value_mix is set, but no mixer before it has values to mix.");
  }
  if (mixer.value_mix) Equal("inner", mixer.inner(), "that of the first mixer", first_values_);
  if (!mixer.value_mix && first_values_ != 0) {
    Fail(where_, "value_mix is missing, which only the first mixer may lack.");
  }
  first_values_ = mixer.inner();
  CheckVector("shift_mix", mixer.shift_mix, 6 * plan_.hidden);
  CheckLinear("r", mixer.r, mixer.inner(), plan_.hidden);
  CheckLinear("k", mixer.k, mixer.inner(), plan_.hidden);
  CheckLinear("v", mixer.v, mixer.inner(), plan_.hidden);
  CheckLowRank("decay", mixer.decay, mixer.inner());
  CheckLowRank("rate", mixer.rate, mixer.inner());
  CheckLowRank("gate", mixer.gate, mixer.inner());
  if (mixer.value_mix) CheckLowRank("value_mix", *mixer.value_mix, mixer.inner());
  CheckVector("key_scale", mixer.key_scale, mixer.inner());
  CheckVector("key_rate", mixer.key_rate, mixer.inner());
  CheckVector("bonus", mixer.bonus, mixer.inner());
  CheckNorm("norm", mixer.norm, mixer.inner(), true);
  Equal("groups of norm", mixer.norm.groups, "heads", mixer.heads);
  if (!mixer.norm.centered) Fail(where_, "norm should be centered and have a bias.");
  CheckLinear("output", mixer.output, plan_.hidden, mixer.inner());
}

void Validator::Check(const GatedDelta& mixer) {
  Range("key_heads", mixer.key_heads, 1, kMaxSize);
  Range("value_heads", mixer.value_heads, 1, kMaxSize);
  Divides("value_heads", mixer.value_heads, "key_heads", mixer.key_heads);
  Range("key_dim", mixer.key_dim, 1, kMaxSize);
  Range("value_dim", mixer.value_dim, 1, kMaxSize);
  Range("d_conv", mixer.d_conv, 1, 1024);
  Finite("query_scale", mixer.query_scale);
  Finite("beta_scale", mixer.beta_scale);
  // Written so that NaN fails.
  if (!(mixer.qk_eps >= 0) || !std::isfinite(mixer.qk_eps)) {
    Fail(where_, "qk_eps is ", mixer.qk_eps, ", it should be a number of at least 0.");
  }
  const std::optional<int64_t> state =
      ElementCount({mixer.value_heads, mixer.key_dim, mixer.value_dim});
  if (!state || *state > kMaxStateSize) {
    Fail(where_, "a state of value_heads x key_dim x value_dim = ",
         ShapeString({mixer.value_heads, mixer.key_dim, mixer.value_dim}), " is larger than ",
         kMaxStateSize, " elements.");
  }
  CheckLinear("in_proj", mixer.in_proj, mixer.in_proj_rows(), plan_.hidden);
  CheckVector("conv_weight", mixer.conv_weight, mixer.d_conv * mixer.conv_channels());
  if (mixer.conv_bias != kNoId) CheckVector("conv_bias", mixer.conv_bias, mixer.conv_channels());
  if (mixer.decay_proj) CheckLowRank("decay_proj", *mixer.decay_proj, mixer.decay_rows());
  if (mixer.gate_proj) CheckLowRank("gate_proj", *mixer.gate_proj, mixer.values());
  CheckVector("dt_bias", mixer.dt_bias, mixer.decay_rows());
  CheckVector("a", mixer.a, mixer.value_heads);
  CheckNorm("norm", mixer.norm, mixer.value_dim);
  CheckLinear("out_proj", mixer.out_proj, plan_.hidden, mixer.values());
}

void Validator::CheckHeadNorm(const char* field, const RmsNorm& norm, int64_t head_dim,
                              int64_t heads) {
  if (norm.weight == kNoId) return CheckNormNumbers(field, norm, head_dim);
  const bool known = norm.weight >= 0 && norm.weight < static_cast<int64_t>(plan_.vectors.size());
  const bool each = known && VectorSize(plan_.vectors[norm.weight]) == head_dim;
  CheckNorm(field, norm, each ? head_dim : heads * head_dim);
}

void Validator::Check(const DenseMlp& mixer) {
  Range("intermediate", mixer.intermediate, 1, kMaxSize);
  const int64_t rows = mixer.gated ? 2 * mixer.intermediate : mixer.intermediate;
  CheckLinear("gate_up", mixer.gate_up, rows, plan_.hidden);
  if (mixer.gate_up_adapter) {
    CheckAdapter("gate_up_adapter", *mixer.gate_up_adapter, rows, plan_.hidden);
  }
  CheckLinear("down", mixer.down, plan_.hidden, mixer.intermediate);
  if (mixer.layer_input >= 0) {
    if (!plan_.layer_inputs || mixer.gated) {
      Fail(where_, "layer_input needs layer_inputs and an MLP without a gate.");
    }
    Range("layer_input", mixer.layer_input, 0, plan_.layer_inputs->parts - 1);
    Equal("intermediate", mixer.intermediate, "the width of layer_inputs",
          plan_.layer_inputs->width);
  }
  if (mixer.shift_mix != kNoId) {
    CheckVector("shift_mix", mixer.shift_mix, plan_.hidden);
    if (mixer.gate_up_adapter) {
      Fail(where_, "a gate_up_adapter beside a shift_mix is not implemented.");
    }
  }
  if (mixer.output_gate.weight == kNoId) return;
  if (mixer.shift_mix != kNoId)
    Fail(where_, "an output_gate beside a shift_mix is not implemented.");
  CheckLinear("output_gate", mixer.output_gate, 1, plan_.hidden);
  if (mixer.down.bias != kNoId) Fail(where_, "down has a bias, which output_gate does not allow.");
}

void Validator::CheckRouting(const Routing& routing, int64_t experts, int64_t top_k) {
  if (routing.choice_bias != kNoId) CheckVector("choice_bias", routing.choice_bias, experts);
  Range("routing groups", routing.groups, 1, experts);
  Range("routing top_groups", routing.top_groups, 1, routing.groups);
  Divides("experts", experts, "routing groups", routing.groups);
  if (routing.top_groups < routing.groups) {
    Range("experts of a routing group", experts / routing.groups, 2, experts);
    Range("top_k", top_k, 1, routing.top_groups * (experts / routing.groups));
  }
  Finite("routing scale", routing.scale);
  CheckOptional("routing expert_scale", routing.expert_scale, experts);
  // Written so that NaN fails.
  if (!(routing.normalize_eps >= 0) || !std::isfinite(routing.normalize_eps)) {
    Fail(where_, "routing normalize_eps is ", routing.normalize_eps,
         ", it should be a number of at least 0.");
  }
}

void Validator::CheckRouterMlp(const RouterMlp& mlp) {
  Range("router_mlp width", mlp.width, 1, kMaxSize);
  CheckLinear("router_mlp down", mlp.down, mlp.width, plan_.hidden);
  if (mlp.carried_scale != kNoId) {
    CheckVector("router_mlp carried_scale", mlp.carried_scale, mlp.width);
    Equal("router_mlp width", mlp.width, "that of the router before", router_width_);
  }
  router_width_ = mlp.width;
  CheckNorm("router_mlp norm", mlp.norm, mlp.width);
  CheckLinear("router_mlp fc1", mlp.fc1, mlp.width, mlp.width);
  CheckLinear("router_mlp fc2", mlp.fc2, mlp.width, mlp.width);
}

void Validator::Check(const MoeMlp& mixer) {
  Range("experts", mixer.experts, 1, kMaxExpertsInAll);
  experts_in_all_ += mixer.experts;
  Range("experts of all layers so far", experts_in_all_, 1, kMaxExpertsInAll);
  Range("top_k", mixer.top_k, 1, mixer.experts);
  Range("intermediate", mixer.intermediate, 1, kMaxSize);
  Range("idle", mixer.routing.idle, 0, mixer.experts);
  const int64_t classes = mixer.experts + mixer.routing.idle;
  CheckLinear("router", mixer.router, classes,
              mixer.router_mlp ? mixer.router_mlp->width : plan_.hidden);
  if (mixer.router_norm) CheckNorm("router_norm", *mixer.router_norm, plan_.hidden);
  if (mixer.router_mlp) CheckRouterMlp(*mixer.router_mlp);
  CheckRouting(mixer.routing, classes, mixer.top_k);
  const int64_t rows = mixer.gated ? 2 * mixer.intermediate : mixer.intermediate;
  Equal("number of gate_up matrices", static_cast<int64_t>(mixer.gate_up.size()), "experts",
        mixer.experts);
  Equal("number of down matrices", static_cast<int64_t>(mixer.down.size()), "experts",
        mixer.experts);
  for (int64_t expert = 0; expert < mixer.experts; ++expert) {
    CheckMatrix("gate_up", mixer.gate_up[expert], rows, plan_.hidden);
    CheckMatrix("down", mixer.down[expert], plan_.hidden, mixer.intermediate);
  }
}

}  // namespace adder
