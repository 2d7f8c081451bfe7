#include <unordered_map>
#include <unordered_set>

#include "core/error.h"
#include "program/program.h"

namespace adder {
namespace {

// The weights must be those of the plan: same ids, same shapes.
void CheckWeights(const Plan& plan, const BoundWeights& weights) {
  if (weights.matrices.size() != plan.matrices.size() ||
      weights.vectors.size() != plan.vectors.size()) {
    Fail("Cannot lower the plan: it has ", plan.matrices.size(), " matrices and ",
         plan.vectors.size(), " vectors, the bound weights have ", weights.matrices.size(), " and ",
         weights.vectors.size(), ".");
  }
  for (size_t i = 0; i < plan.matrices.size(); ++i) {
    const MatrixRef& expected = plan.matrices[i];
    const WeightMatrix& found = weights.matrices[i];
    int64_t segment_rows = 0;
    bool segments_fit = true;
    for (const MatrixSegment& segment : found.segments) {
      segment_rows += segment.rows;
      segments_fit = segments_fit && segment.cols == found.cols;
    }
    if (found.rows != expected.rows || found.cols != expected.cols ||
        segment_rows != expected.rows || !segments_fit) {
      Fail("Cannot lower the plan: matrix '", expected.label, "' should be ",
           ShapeString({expected.rows, expected.cols}), ", the bound one is ",
           ShapeString({segment_rows, found.cols}), ".");
    }
  }
  for (size_t i = 0; i < plan.vectors.size(); ++i) {
    const int64_t expected = VectorSize(plan.vectors[i]);
    const auto found = static_cast<int64_t>(weights.vectors[i].size());
    if (found != expected) {
      Fail("Cannot lower the plan: vector '", plan.vectors[i].label, "' should have ", expected,
           " elements, the bound one has ", found, ".");
    }
  }
}

class Lowering {
 public:
  Lowering(std::shared_ptr<const Plan> plan, std::shared_ptr<const BoundWeights> weights) {
    program_.layout = MakeStateLayout(*plan);
    program_.plan = std::move(plan);
    program_.weights = std::move(weights);
  }

  Program Run() {
    const Plan& plan = *program_.plan;
    program_.residual = AddBuffer("residual", plan.hidden);
    AddOp("embed", -1,
          EmbedOp{plan.embedding, plan.embedding_scale, program_.residual, plan.embedding_norm});
    for (size_t b = 0; b < plan.blocks.size(); ++b) LowerBlock(static_cast<int>(b));
    program_.logits = AddBuffer("logits", plan.vocab);
    LinearOp head;
    head.input = program_.residual;
    head.norm = plan.final_norm;
    head.linear = plan.head;
    head.scale = plan.logits_scale;
    head.cap = plan.logits_cap;
    head.output = program_.logits;
    head.logits_rows_only = true;
    AddOp("head", -1, std::move(head));
    return std::move(program_);
  }

 private:
  void LowerBlock(int index) {
    const Block& block = program_.plan->blocks[static_cast<size_t>(index)];
    block_index_ = index;
    block_ = &block;
    in_use_.clear();
    additions_.clear();
    for (size_t m = 0; m < block.mixers.size(); ++m) {
      mixer_index_ = static_cast<int>(m);
      std::visit([this](const auto& mixer) { Lower(mixer); }, block.mixers[m]);
    }
    // Only now may x change: every mixer has read it.
    for (Op& op : additions_) program_.ops.push_back(std::move(op));
  }

  void Lower(const Attention& mixer) {
    const std::string prefix = Prefix("attention");
    const int64_t q_width = mixer.heads * mixer.head_dim;
    const BufferId qkv = TakeBuffer("attention.qkv", mixer.qkv_rows());
    const BufferId attended = TakeBuffer("attention.attend", q_width);
    AddOp(prefix + "qkv", block_->layer, Projection(mixer.qkv, Epilogue::kStore, qkv));
    AddOp(prefix + "attend", block_->layer,
          AttentionOp{mixer, qkv, attended, program_.layout.FindKv(block_index_, mixer_index_)});
    AddToResidual(prefix, "o_proj", attended, std::nullopt, mixer.output);
  }

  void Lower(const LatentAttention& mixer) {
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
    AddOp(prefix + "q_b", block_->layer, std::move(q_b));
    AddOp(prefix + "kv_a", block_->layer, Projection(mixer.kv_a, Epilogue::kStore, kv));
    AddOp(prefix + "absorb", block_->layer,
          HeadsLinearOp{query, mixer.query_dim(), mixer.absorb, absorbed});
    AddOp(prefix + "attend", block_->layer,
          LatentAttentionOp{mixer, query, absorbed, kv, attended,
                            program_.layout.FindKv(block_index_, mixer_index_)});
    AddOp(prefix + "expand", block_->layer,
          HeadsLinearOp{attended, mixer.latent, mixer.expand, expanded});
    AddToResidual(prefix, "o_proj", expanded, std::nullopt, mixer.output);
  }

  void Lower(const Mamba2& mixer) {
    if (mixer.selection) return LowerSelected(mixer);
    const std::string prefix = Prefix("mamba2");
    const BufferId projected = TakeBuffer("mamba2.in_proj", mixer.in_proj_rows());
    const BufferId scanned = TakeBuffer("mamba2.scan", mixer.inner());
    AddOp(prefix + "in_proj", block_->layer,
          Projection(mixer.in_proj, Epilogue::kStore, projected));
    AddOp(prefix + "scan", block_->layer,
          Mamba2Op{mixer, projected, scanned,
                   program_.layout.FindRecurrent(block_index_, mixer_index_, "conv"),
                   program_.layout.FindRecurrent(block_index_, mixer_index_, "ssm")});
    AddToResidual(prefix, "out_proj", scanned,
                  mixer.norm_before_gate ? std::nullopt : mixer.gated_norm, mixer.out_proj);
  }

  void LowerSelected(const Mamba2& mixer) {
    const std::string prefix = Prefix("mamba2");
    const BufferId projected = TakeBuffer("mamba2.in_proj", mixer.in_proj_rows());
    const BufferId convolved = TakeBuffer("mamba2.conv", mixer.inner());
    const BufferId selected = TakeBuffer("mamba2.selection", mixer.selection_rows());
    const BufferId scanned = TakeBuffer("mamba2.scan", mixer.inner());
    AddOp(prefix + "in_proj", block_->layer,
          Projection(mixer.in_proj, Epilogue::kStore, projected));
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

  void Lower(const ShortConv& mixer) {
    const std::string prefix = Prefix("short_conv");
    const BufferId projected = TakeBuffer("short_conv.in_proj", 3 * mixer.channels);
    const BufferId convolved = TakeBuffer("short_conv.conv", mixer.channels);
    AddOp(prefix + "in_proj", block_->layer,
          Projection(mixer.in_proj, Epilogue::kStore, projected));
    CausalConvOp conv = Conv(mixer, mixer.channels, projected, convolved);
    conv.gate_before = 0;
    conv.gate_after = mixer.channels;
    conv.x = 2 * mixer.channels;
    AddOp(prefix + "conv", block_->layer, conv);
    AddToResidual(prefix, "out_proj", convolved, std::nullopt, mixer.out_proj);
  }

  void Lower(const Mamba1& mixer) {
    const std::string prefix = Prefix("mamba1");
    const BufferId projected = TakeBuffer("mamba1.in_proj", mixer.in_proj_rows());
    const BufferId convolved = TakeBuffer("mamba1.conv", mixer.inner);
    const BufferId selected = TakeBuffer("mamba1.x_proj", mixer.x_proj_rows());
    const BufferId scanned = TakeBuffer("mamba1.scan", mixer.inner);
    AddOp(prefix + "in_proj", block_->layer,
          Projection(mixer.in_proj, Epilogue::kStore, projected));
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

  void Lower(const GatedDelta& mixer) {
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

  // The two ops PREFIX NAME_down and NAME_up; the buffer of the second.
  BufferId LowerLowRank(const std::string& prefix, const std::string& name,
                        const LowRank& low_rank) {
    const std::string role = Concat("gated_delta.", name);
    LinearOp down = Projection(low_rank.down, Epilogue::kStore, kNoId);
    return LowerLowRank(prefix, role, name, low_rank, std::move(down));
  }

  // The same for a `down` that reads something else than x.
  BufferId LowerLowRank(const std::string& prefix, const std::string& role, const std::string& name,
                        const LowRank& low_rank, LinearOp down) {
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

  void Lower(const RgLru& mixer) {
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

  // PREFIX shift: mixtures of x with the previous one, one per row of `mix`.
  BufferId LowerShift(const std::string& prefix, const char* role, VectorId mix, int64_t parts) {
    TokenShiftOp op;
    op.input = program_.residual;
    op.norm = block_->norm_before();
    op.mix = mix;
    op.parts = parts;
    op.output = TakeBuffer(role, parts * program_.plan->hidden);
    op.state = program_.layout.FindRecurrent(block_index_, mixer_index_, "shift");
    const BufferId output = op.output;
    AddOp(prefix + "shift", block_->layer, std::move(op));
    return output;
  }

  void Lower(const Rwkv7& mixer) {
    const std::string prefix = Prefix("rwkv7");
    const BufferId shifted = LowerShift(prefix, "rwkv7.shift", mixer.shift_mix, 6);
    // What reads the given part of the shifted input.
    const auto from = [&](int64_t part) {
      LinearOp op;
      op.input = shifted;
      op.input_begin = part * program_.plan->hidden;
      return op;
    };
    const auto project = [&](const char* name, int64_t part, const Linear& linear,
                             BufferId output) {
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
    scan.v =
        project("v", 3, mixer.v, TakeBuffer(first ? "rwkv7.first_v" : "rwkv7.v", mixer.inner()));
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

  void Lower(const DenseMlp& mixer) {
    const std::string prefix = Prefix("mlp");
    const BufferId activated = TakeBuffer("mlp.gate_up", mixer.intermediate);
    LinearOp gate_up =
        Projection(mixer.gate_up, mixer.gated ? Epilogue::kGated : Epilogue::kActivate, activated);
    gate_up.activation = mixer.activation;
    if (mixer.shift_mix != kNoId) {
      gate_up.input = LowerShift(prefix, "mlp.shift", mixer.shift_mix, 1);
      gate_up.norm = std::nullopt;
    }
    if (mixer.output_gate.weight != kNoId) {
      gate_up.row_gate = TakeBuffer("mlp.output_gate", 1);
      AddOp(prefix + "output_gate", block_->layer,
            Projection(mixer.output_gate, Epilogue::kStore, gate_up.row_gate));
    }
    AddOp(prefix + "gate_up", block_->layer, std::move(gate_up));
    AddToResidual(prefix, "down", activated, std::nullopt, mixer.down);
  }

  void Lower(const MoeMlp& mixer) {
    const std::string prefix = Prefix("moe");
    const BufferId routing = TakeBuffer("moe.router", 2 * mixer.top_k);
    const BufferId activated = TakeBuffer("moe.gate_up", mixer.top_k * mixer.intermediate);
    AddOp(prefix + "router", block_->layer,
          RouterOp{program_.residual, block_->norm_before(), mixer.router, mixer.experts,
                   mixer.top_k, mixer.routing, routing});
    AddOp(prefix + "gate_up", block_->layer,
          ExpertGateUpOp{program_.residual, block_->norm_before(), routing, mixer.top_k,
                         mixer.intermediate, mixer.activation, mixer.gated, mixer.gate_up,
                         activated});
    additions_.push_back({prefix + "down", block_->layer,
                          ExpertDownOp{activated, routing, mixer.top_k, mixer.intermediate,
                                       mixer.down, block_->residual_scale, program_.residual}});
  }

  // The convolution of a mixer over the first `channels` columns of `input`.
  template <class M>
  CausalConvOp Conv(const M& mixer, int64_t channels, BufferId input, BufferId output) const {
    CausalConvOp conv;
    conv.channels = channels;
    conv.d_conv = mixer.d_conv;
    conv.weight = mixer.conv_weight;
    conv.bias = mixer.conv_bias;
    conv.input = input;
    conv.output = output;
    conv.conv_state = program_.layout.FindRecurrent(block_index_, mixer_index_, "conv");
    return conv;
  }

  int64_t RowsOf(const Linear& linear) const {
    return program_.plan->matrices[static_cast<size_t>(linear.weight)].rows;
  }

  LinearOp Projection(const Linear& linear, Epilogue epilogue, BufferId output) const {
    LinearOp op;
    op.input = program_.residual;
    op.norm = block_->norm_before();
    op.linear = linear;
    op.epilogue = epilogue;
    op.output = output;
    return op;
  }

  // The last projection of a mixer, `prefix` + `name`: added to x, or when the block has a
  // post_norm kept for it.
  void AddToResidual(const std::string& prefix, const char* name, BufferId input,
                     const std::optional<RmsNorm>& norm, const Linear& linear) {
    LinearOp op;
    op.input = input;
    op.norm = norm;
    op.linear = linear;
    if (!block_->post_norm) {
      op.epilogue = Epilogue::kAdd;
      op.scale = block_->residual_scale;
      op.output = program_.residual;
      additions_.push_back({prefix + name, block_->layer, std::move(op)});
      return;
    }
    op.output = TakeBuffer("post_norm", program_.plan->hidden);
    const NormAddOp add{op.output, *block_->post_norm, block_->residual_scale, program_.residual};
    additions_.push_back({prefix + name, block_->layer, std::move(op)});
    additions_.push_back({prefix + "post_norm", block_->layer, add});
  }

  // "layers.3.mlp.", or "layers.3.mlp_2." for the layer's second mixer of that kind.
  std::string Prefix(const std::string& kind) {
    const std::string prefix = Concat("layers.", block_->layer, ".", kind);
    const int count = ++mixers_by_prefix_[prefix];
    return count > 1 ? Concat(prefix, "_", count, ".") : prefix + ".";
  }

  // A buffer for one role, shared by all blocks but not by two mixers of one block.
  BufferId TakeBuffer(const std::string& role, int64_t width) {
    for (BufferId id : buffers_by_role_[role]) {
      if (program_.buffers[static_cast<size_t>(id)].width == width && in_use_.insert(id).second) {
        return id;
      }
    }
    std::vector<BufferId>& ids = buffers_by_role_[role];
    ids.push_back(AddBuffer(ids.empty() ? role : Concat(role, "_", ids.size() + 1), width));
    in_use_.insert(ids.back());
    return ids.back();
  }

  BufferId AddBuffer(std::string name, int64_t width) {
    program_.buffers.push_back({std::move(name), width});
    return static_cast<BufferId>(program_.buffers.size() - 1);
  }

  void AddOp(std::string name, int64_t layer, OpBody body) {
    program_.ops.push_back({std::move(name), layer, std::move(body)});
  }

  Program program_;
  const Block* block_ = nullptr;
  int block_index_ = 0;
  int mixer_index_ = 0;
  BufferId first_value_ = kNoId;  // of the first Rwkv7 mixer
  std::vector<Op> additions_;     // the ops of the block that add to the residual
  std::unordered_set<BufferId> in_use_;
  std::unordered_map<std::string, std::vector<BufferId>> buffers_by_role_;
  std::unordered_map<std::string, int> mixers_by_prefix_;
};

}  // namespace

Program LowerPlan(std::shared_ptr<const Plan> plan, std::shared_ptr<const BoundWeights> weights) {
  ValidatePlan(*plan);
  CheckWeights(*plan, *weights);
  Program program = Lowering(std::move(plan), std::move(weights)).Run();
  VerifyProgram(program);
  return program;
}

}  // namespace adder
