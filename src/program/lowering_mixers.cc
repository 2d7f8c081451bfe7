// The ops of each mixer.

#include "program/lowering.h"

namespace adder {

BufferId Lowering::LowerAdapter(const Adapter& adapter, const std::string& prefix,
                                const std::string& kind, int64_t rows) {
  const auto parts = static_cast<int64_t>(adapter.b.size());
  const BufferId low_rank = TakeBuffer(kind + ".adapter_a", parts * adapter.rank);
  const BufferId addend = TakeBuffer(kind + ".adapter_b", rows);
  AddOp(prefix + "adapter_a", block_->layer, Projection(adapter.a, Epilogue::kStore, low_rank));
  AddOp(prefix + "adapter_b", block_->layer,
        HeadsLinearOp{low_rank, adapter.rank, adapter.b, addend});
  return addend;
}

void Lowering::Lower(const Attention& mixer) {
  const std::string prefix = Prefix("attention");
  const BufferId qkv = TakeBuffer("attention.qkv", mixer.qkv_rows());
  const BufferId attended = TakeBuffer("attention.attend", mixer.q_width());
  LinearOp projection = Projection(mixer.qkv, Epilogue::kStore, qkv);
  if (mixer.qkv_adapter) {
    projection.addend = LowerAdapter(*mixer.qkv_adapter, prefix, "attention", mixer.qkv_rows());
  }
  if (mixer.mixing) projection.output = TakeBuffer("attention.mix", mixer.qkv_rows());
  const BufferId unmixed = projection.output;
  AddOp(prefix + "qkv", block_->layer, std::move(projection));
  if (mixer.mixing) {
    AddOp(prefix + "mix", block_->layer,
          HeadMixOp{mixer, unmixed, qkv,
                    program_.layout.FindRecurrent(block_index_, mixer_index_, "conv"),
                    program_.layout.FindRecurrent(block_index_, mixer_index_, "value")});
  }
  AddOp(prefix + "attend", block_->layer,
        AttentionOp{mixer, qkv, attended,
                    mixer.owns_kv()
                        ? program_.layout.FindKv(block_index_, mixer_index_)
                        : program_.layout.FindKv(static_cast<int>(mixer.shared_kv_block), 0)});
  AddToResidual(prefix, "o_proj", attended, std::nullopt, mixer.output);
}

void Lowering::Lower(const LatentAttention& mixer) {
  const std::string prefix = Prefix("latent");
  const BufferId query = TakeBuffer("latent.q_b", mixer.heads * mixer.query_dim());
  const BufferId kv = TakeBuffer("latent.kv_a", mixer.key_dim());
  const BufferId absorbed = TakeBuffer("latent.absorb", mixer.heads * mixer.latent);
  const BufferId attended = TakeBuffer("latent.attend", mixer.heads * mixer.latent);
  const BufferId expanded = TakeBuffer("latent.expand", mixer.heads * mixer.value_dim);
  LinearOp q_b = Projection(mixer.q_b, Epilogue::kStore, query);
  if (mixer.q_rank > 0) {
    q_b.input = TakeBuffer("latent.q_a", mixer.q_rank);
    q_b.norm = mixer.q_norm;
    AddOp(prefix + "q_a", block_->layer, Projection(mixer.q_a, Epilogue::kStore, q_b.input));
  }
  // Beside q_a, or q_b of the same activations: a backend may make both in one launch.
  AddOp(prefix + "kv_a", block_->layer, Projection(mixer.kv_a, Epilogue::kStore, kv));
  AddOp(prefix + "q_b", block_->layer, std::move(q_b));
  AddOp(prefix + "absorb", block_->layer,
        HeadsLinearOp{query, mixer.query_dim(), mixer.absorb, absorbed});
  AddOp(prefix + "attend", block_->layer,
        LatentAttentionOp{mixer, query, absorbed, kv, attended,
                          program_.layout.FindKv(block_index_, mixer_index_)});
  AddOp(prefix + "expand", block_->layer,
        HeadsLinearOp{attended, mixer.latent, mixer.expand, expanded});
  AddToResidual(prefix, "o_proj", expanded, std::nullopt, mixer.output);
}

void Lowering::Lower(const LightningAttention& mixer) {
  const std::string prefix = Prefix("lightning");
  const BufferId qkv = TakeBuffer("lightning.qkv", 3 * mixer.width());
  const BufferId scanned = TakeBuffer("lightning.scan", mixer.width());
  const BufferId gated = TakeBuffer("lightning.gate", mixer.width());
  LinearOp projection = Projection(mixer.qkv, Epilogue::kActivate, qkv);
  projection.activation = mixer.activation;
  AddOp(prefix + "qkv", block_->layer, std::move(projection));
  AddOp(prefix + "scan", block_->layer,
        LightningOp{mixer, qkv, scanned,
                    program_.layout.FindRecurrent(block_index_, mixer_index_, "h")});
  LinearOp gate = Projection(mixer.gate, Epilogue::kActivate, gated);
  gate.activation = Activation::kSigmoid;
  gate.factor = scanned;
  AddOp(prefix + "gate", block_->layer, std::move(gate));
  AddToResidual(prefix, "out_proj", gated, std::nullopt, mixer.output);
}

void Lowering::Lower(const Mamba2& mixer) {
  if (mixer.selection) return LowerSelected(mixer);
  const std::string prefix = Prefix("mamba2");
  const BufferId projected = TakeBuffer("mamba2.in_proj", mixer.in_proj_rows());
  const BufferId scanned = TakeBuffer("mamba2.scan", mixer.inner());
  AddOp(prefix + "in_proj", block_->layer, Projection(mixer.in_proj, Epilogue::kStore, projected));
  AddOp(prefix + "scan", block_->layer,
        Mamba2Op{mixer, projected, scanned,
                 program_.layout.FindRecurrent(block_index_, mixer_index_, "conv"),
                 program_.layout.FindRecurrent(block_index_, mixer_index_, "ssm")});
  AddToResidual(prefix, "out_proj", scanned,
                mixer.norm_before_gate ? std::nullopt : mixer.gated_norm, mixer.out_proj);
}

void Lowering::LowerSelected(const Mamba2& mixer) {
  const std::string prefix = Prefix("mamba2");
  const BufferId projected = TakeBuffer("mamba2.in_proj", mixer.in_proj_rows());
  const BufferId convolved = TakeBuffer("mamba2.conv", mixer.inner());
  const BufferId selected = TakeBuffer("mamba2.selection", mixer.selection_rows());
  const BufferId scanned = TakeBuffer("mamba2.scan", mixer.inner());
  AddOp(prefix + "in_proj", block_->layer, Projection(mixer.in_proj, Epilogue::kStore, projected));
  CausalConvOp conv = Conv(mixer, mixer.inner(), projected, convolved);
  conv.x = mixer.inner();
  conv.silu = true;
  AddOp(prefix + "conv", block_->layer, conv);
  LinearOp select;
  select.input = convolved;
  select.linear = mixer.selection->proj;
  select.output = selected;
  AddOp(prefix + "selection", block_->layer, std::move(select));
  AddOp(prefix + "scan", block_->layer,
        Mamba2SelectedOp{mixer, projected, convolved, selected, scanned,
                         program_.layout.FindRecurrent(block_index_, mixer_index_, "ssm")});
  AddToResidual(prefix, "out_proj", scanned, mixer.gated_norm, mixer.out_proj);
}

void Lowering::Lower(const ShortConv& mixer) {
  const std::string prefix = Prefix("short_conv");
  const BufferId projected = TakeBuffer("short_conv.in_proj", 3 * mixer.channels);
  const BufferId convolved = TakeBuffer("short_conv.conv", mixer.channels);
  AddOp(prefix + "in_proj", block_->layer, Projection(mixer.in_proj, Epilogue::kStore, projected));
  CausalConvOp conv = Conv(mixer, mixer.channels, projected, convolved);
  conv.gate_before = 0;
  conv.gate_after = mixer.channels;
  conv.x = 2 * mixer.channels;
  AddOp(prefix + "conv", block_->layer, conv);
  AddToResidual(prefix, "out_proj", convolved, std::nullopt, mixer.out_proj);
}

void Lowering::Lower(const Mamba1& mixer) {
  const std::string prefix = Prefix("mamba1");
  const BufferId projected = TakeBuffer("mamba1.in_proj", mixer.in_proj_rows());
  const BufferId convolved = TakeBuffer("mamba1.conv", mixer.inner);
  const BufferId selected = TakeBuffer("mamba1.x_proj", mixer.x_proj_rows());
  const BufferId scanned = TakeBuffer("mamba1.scan", mixer.inner);
  AddOp(prefix + "in_proj", block_->layer, Projection(mixer.in_proj, Epilogue::kStore, projected));
  CausalConvOp conv = Conv(mixer, mixer.inner, projected, convolved);
  conv.silu = true;
  AddOp(prefix + "conv", block_->layer, conv);
  LinearOp x_proj;
  x_proj.input = convolved;
  x_proj.linear = mixer.x_proj;
  x_proj.output = selected;
  AddOp(prefix + "x_proj", block_->layer, std::move(x_proj));
  AddOp(prefix + "scan", block_->layer,
        Mamba1ScanOp{mixer, projected, convolved, selected, scanned,
                     program_.layout.FindRecurrent(block_index_, mixer_index_, "ssm")});
  AddToResidual(prefix, "out_proj", scanned, std::nullopt, mixer.out_proj);
}

void Lowering::Lower(const GatedDelta& mixer) {
  const std::string prefix = Prefix("gated_delta");
  GatedDeltaOp scan;
  scan.mixer = mixer;
  scan.projected = TakeBuffer("gated_delta.in_proj", mixer.in_proj_rows());
  scan.convolved = TakeBuffer("gated_delta.conv", mixer.conv_channels());
  AddOp(prefix + "in_proj", block_->layer,
        Projection(mixer.in_proj, Epilogue::kStore, scan.projected));
  if (mixer.decay_proj) scan.decay = LowerLowRank(prefix, "decay", *mixer.decay_proj);
  if (mixer.gate_proj) scan.gate = LowerLowRank(prefix, "gate", *mixer.gate_proj);
  CausalConvOp conv = Conv(mixer, mixer.conv_channels(), scan.projected, scan.convolved);
  conv.silu = true;
  AddOp(prefix + "conv", block_->layer, conv);
  scan.output = TakeBuffer("gated_delta.scan", mixer.values());
  scan.state = program_.layout.FindRecurrent(block_index_, mixer_index_, "delta");
  const BufferId output = scan.output;
  AddOp(prefix + "scan", block_->layer, std::move(scan));
  AddToResidual(prefix, "out_proj", output, std::nullopt, mixer.out_proj);
}

BufferId Lowering::LowerLowRank(const std::string& prefix, const std::string& name,
                                const LowRank& low_rank) {
  const std::string role = Concat("gated_delta.", name);
  LinearOp down = Projection(low_rank.down, Epilogue::kStore, kNoId);
  return LowerLowRank(prefix, role, name, low_rank, std::move(down));
}

BufferId Lowering::LowerLowRank(const std::string& prefix, const std::string& role,
                                const std::string& name, const LowRank& low_rank, LinearOp down) {
  down.linear = low_rank.down;
  down.output = TakeBuffer(role + "_down", RowsOf(low_rank.down));
  if (low_rank.activation) {
    down.epilogue = Epilogue::kActivate;
    down.activation = *low_rank.activation;
  }
  LinearOp up;
  up.input = down.output;
  up.linear = low_rank.up;
  up.output = TakeBuffer(role + "_up", RowsOf(low_rank.up));
  const BufferId output = up.output;
  AddOp(prefix + name + "_down", block_->layer, std::move(down));
  AddOp(prefix + name + "_up", block_->layer, std::move(up));
  return output;
}

void Lowering::Lower(const RgLru& mixer) {
  const std::string prefix = Prefix("rg_lru");
  RgLruOp scan;
  scan.mixer = mixer;
  scan.projected = TakeBuffer("rg_lru.in_proj", 2 * mixer.width);
  scan.convolved = TakeBuffer("rg_lru.conv", mixer.width);
  scan.output = TakeBuffer("rg_lru.scan", mixer.width);
  scan.state = program_.layout.FindRecurrent(block_index_, mixer_index_, "lru");
  AddOp(prefix + "in_proj", block_->layer,
        Projection(mixer.in_proj, Epilogue::kStore, scan.projected));
  AddOp(prefix + "conv", block_->layer, Conv(mixer, mixer.width, scan.projected, scan.convolved));
  const BufferId output = scan.output;
  AddOp(prefix + "scan", block_->layer, std::move(scan));
  AddToResidual(prefix, "out_proj", output, std::nullopt, mixer.out_proj);
}

BufferId Lowering::LowerShift(const std::string& prefix, const char* role, VectorId mix,
                              int64_t parts) {
  TokenShiftOp op;
  op.input = input_;
  op.norm = norm_;
  op.mix = mix;
  op.parts = parts;
  op.output = TakeBuffer(role, parts * program_.plan->hidden);
  op.state = program_.layout.FindRecurrent(block_index_, mixer_index_, "shift");
  const BufferId output = op.output;
  AddOp(prefix + "shift", block_->layer, std::move(op));
  return output;
}

void Lowering::Lower(const Rwkv7& mixer) {
  const std::string prefix = Prefix("rwkv7");
  const BufferId shifted = LowerShift(prefix, "rwkv7.shift", mixer.shift_mix, 6);
  // What reads the given part of the shifted input.
  const auto from = [&](int64_t part) {
    LinearOp op;
    op.input = shifted;
    op.input_begin = part * program_.plan->hidden;
    return op;
  };
  const auto project = [&](const char* name, int64_t part, const Linear& linear, BufferId output) {
    LinearOp op = from(part);
    op.linear = linear;
    op.output = output;
    AddOp(prefix + name, block_->layer, std::move(op));
    return output;
  };
  const auto low_rank = [&](const char* name, int64_t part, const LowRank& matrices) {
    return LowerLowRank(prefix, Concat("rwkv7.", name), name, matrices, from(part));
  };
  Rwkv7Op scan;
  scan.mixer = mixer;
  scan.r = project("r", 0, mixer.r, TakeBuffer("rwkv7.r", mixer.inner()));
  scan.k = project("k", 2, mixer.k, TakeBuffer("rwkv7.k", mixer.inner()));
  // The first mixer's v stays for the others.
  const bool first = !mixer.value_mix;
  scan.v = project("v", 3, mixer.v, TakeBuffer(first ? "rwkv7.first_v" : "rwkv7.v", mixer.inner()));
  if (first) first_value_ = scan.v;
  scan.decay = low_rank("decay", 1, mixer.decay);
  scan.rate = low_rank("rate", 4, mixer.rate);
  scan.gate = low_rank("gate", 5, mixer.gate);
  if (mixer.value_mix) {
    scan.value_mix = low_rank("value_mix", 3, *mixer.value_mix);
    scan.first_value = first_value_;
  }
  scan.output = TakeBuffer("rwkv7.scan", mixer.inner());
  scan.state = program_.layout.FindRecurrent(block_index_, mixer_index_, "wkv");
  const BufferId output = scan.output;
  AddOp(prefix + "scan", block_->layer, std::move(scan));
  AddToResidual(prefix, "output", output, std::nullopt, mixer.output);
}

void Lowering::Lower(const DenseMlp& mixer) {
  const std::string prefix = Prefix("mlp");
  const BufferId activated = TakeBuffer("mlp.gate_up", mixer.intermediate);
  LinearOp gate_up =
      Projection(mixer.gate_up, mixer.gated ? Epilogue::kGated : Epilogue::kActivate, activated);
  gate_up.activation = mixer.activation;
  if (mixer.shift_mix != kNoId) {
    gate_up.input = LowerShift(prefix, "mlp.shift", mixer.shift_mix, 1);
    gate_up.norm = std::nullopt;
  }
  if (mixer.layer_input >= 0) {
    gate_up.factor = layer_inputs_;
    gate_up.factor_column = mixer.layer_input * mixer.intermediate;
  }
  if (mixer.gate_up_adapter) {
    const int64_t rows = mixer.gated ? 2 * mixer.intermediate : mixer.intermediate;
    gate_up.addend = LowerAdapter(*mixer.gate_up_adapter, prefix, "mlp", rows);
  }
  if (mixer.output_gate.weight != kNoId) {
    gate_up.row_gate = TakeBuffer("mlp.output_gate", 1);
    AddOp(prefix + "output_gate", block_->layer,
          Projection(mixer.output_gate, Epilogue::kStore, gate_up.row_gate));
  }
  AddOp(prefix + "gate_up", block_->layer, std::move(gate_up));
  AddToResidual(prefix, "down", activated, std::nullopt, mixer.down);
}

void Lowering::Lower(const MoeMlp& mixer) {
  const std::string prefix = Prefix("moe");
  const BufferId routing = TakeBuffer("moe.router", 2 * mixer.top_k);
  const BufferId activated = TakeBuffer("moe.gate_up", mixer.top_k * mixer.intermediate);
  RouterOp router{input_,       mixer.router_norm ? mixer.router_norm : norm_,
                  mixer.router, mixer.experts,
                  mixer.top_k,  mixer.routing,
                  routing};
  if (mixer.router_mlp) {
    router.input = LowerRouterMlp(*mixer.router_mlp, prefix, router.norm);
    router.norm = std::nullopt;
  }
  AddOp(prefix + "router", block_->layer, std::move(router));
  AddOp(prefix + "gate_up", block_->layer,
        ExpertGateUpOp{input_, norm_, routing, mixer.top_k, mixer.intermediate, mixer.activation,
                       mixer.gated, mixer.gate_up, activated});
  ExpertDownOp down{activated,  routing, mixer.top_k, mixer.intermediate,
                    mixer.down, 1,       kNoId,       false};
  if (apart_) {
    const Target target = TakeTarget();
    down.output = target.output;
    down.store = !target.add;
    additions_.push_back({prefix + "down", block_->layer, std::move(down)});
    AddBranchNorm(prefix, target);
    return;
  }
  down.scale = block_->residual_scale;
  down.output = program_.residual;
  additions_.push_back({prefix + "down", block_->layer, std::move(down)});
}

BufferId Lowering::LowerRouterMlp(const RouterMlp& mlp, const std::string& prefix,
                                  const std::optional<RmsNorm>& norm) {
  // Kept from router to router of a token.
  if (router_state_ == kNoId) router_state_ = AddBuffer("moe.router_state", mlp.width);
  const bool carried = mlp.carried_scale != kNoId;
  LinearOp down = Projection(mlp.down, Epilogue::kStore,
                             carried ? TakeBuffer("moe.router_down", mlp.width) : router_state_);
  down.norm = norm;
  const BufferId projected = down.output;
  AddOp(prefix + "router_down", block_->layer, std::move(down));
  if (carried) {
    UpdateOp carry;
    carry.input = projected;
    carry.keep_scale = mlp.carried_scale;
    carry.output = router_state_;
    AddOp(prefix + "router_carry", block_->layer, std::move(carry));
  }
  const auto layer = [&](const char* name, const Linear& linear, BufferId input) {
    LinearOp op;
    op.input = input;
    op.linear = linear;
    op.epilogue = Epilogue::kActivate;
    op.activation = mlp.activation;
    op.output = TakeBuffer(Concat("moe.", name), mlp.width);
    if (input == router_state_) op.norm = mlp.norm;
    const BufferId output = op.output;
    AddOp(prefix + name, block_->layer, std::move(op));
    return output;
  };
  return layer("router_fc2", mlp.fc2, layer("router_fc1", mlp.fc1, router_state_));
}

}  // namespace adder
