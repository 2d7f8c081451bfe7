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
    AddOp("embed", -1, EmbedOp{plan.embedding, plan.embedding_scale, program_.residual});
    for (size_t b = 0; b < plan.blocks.size(); ++b) LowerBlock(static_cast<int>(b));
    program_.logits = AddBuffer("logits", plan.vocab);
    LinearOp head;
    head.input = program_.residual;
    head.norm = plan.final_norm;
    head.linear = plan.head;
    head.scale = plan.logits_scale;
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
    const int64_t qkv_width = q_width + 2 * mixer.kv_heads * mixer.head_dim;
    const BufferId qkv = TakeBuffer("attention.qkv", qkv_width);
    const BufferId attended = TakeBuffer("attention.attend", q_width);
    AddOp(prefix + "qkv", block_->layer, Projection(mixer.qkv, Epilogue::kStore, qkv));
    AddOp(prefix + "attend", block_->layer,
          AttentionOp{mixer, qkv, attended, program_.layout.FindKv(block_index_, mixer_index_)});
    AddToResidual(prefix, "o_proj", attended, std::nullopt, mixer.output);
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

  void Lower(const DenseMlp& mixer) {
    const std::string prefix = Prefix("mlp");
    const BufferId activated = TakeBuffer("mlp.gate_up", mixer.intermediate);
    LinearOp gate_up =
        Projection(mixer.gate_up, mixer.gated ? Epilogue::kGated : Epilogue::kActivate, activated);
    gate_up.activation = mixer.activation;
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
          RouterOp{program_.residual, block_->pre_norm, mixer.router, mixer.experts, mixer.top_k,
                   mixer.routing, routing});
    AddOp(prefix + "gate_up", block_->layer,
          ExpertGateUpOp{program_.residual, block_->pre_norm, routing, mixer.top_k,
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

  LinearOp Projection(const Linear& linear, Epilogue epilogue, BufferId output) const {
    LinearOp op;
    op.input = program_.residual;
    op.norm = block_->pre_norm;
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
  std::vector<Op> additions_;  // the ops of the block that add to the residual
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
