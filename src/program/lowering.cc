#include "program/lowering.h"

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

}  // namespace

Program Lowering::Run() {
  const Plan& plan = *program_.plan;
  program_.residual = AddBuffer("residual", plan.hidden);
  AddOp("embed", -1,
        EmbedOp{plan.embedding, plan.embedding_scale, program_.residual, plan.embedding_norm});
  if (plan.embedding_bias != kNoId || plan.embedding_factor != kNoId) {
    UpdateOp update;
    update.input = update.output = program_.residual;
    update.add_bias = plan.embedding_bias;
    update.add_scale = plan.embedding_factor;
    update.keep = 0;
    AddOp("embed_scale", -1, std::move(update));
  }
  if (plan.layer_inputs) LowerLayerInputs(*plan.layer_inputs);
  for (const Block& block : plan.blocks) {
    if (block.input == BlockInput::kResidualAndEmbedding && embedding_ == kNoId) {
      embedding_ = AddBuffer("embedding", plan.hidden);
      AddOp("embed_copy", -1, JoinOp{{program_.residual}, embedding_});
    }
  }
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

void Lowering::LowerBlock(int index) {
  const Block& block = program_.plan->blocks[static_cast<size_t>(index)];
  block_index_ = index;
  block_ = &block;
  in_use_.clear();
  additions_.clear();
  const bool one = block.mixers.size() == 1;
  const bool expert = std::holds_alternative<MoeMlp>(block.mixers[0]);
  apart_ = block.rule != ResidualRule{} || !block.branch_norms.empty() ||
           (block.post_norm && (!one || expert));
  if (apart_) {
    residual_prefix_ = Prefix("residual");
    sum_ = TakeBuffer("residual.sum", program_.plan->hidden);
  }
  LowerInput(block);
  for (size_t m = 0; m < block.mixers.size(); ++m) {
    mixer_index_ = static_cast<int>(m);
    branch_ = block.branch_norms.empty() ? BranchNorms{} : block.branch_norms[m];
    norm_ = std::nullopt;
    if (!block.skip_pre_norm && !block.rule.normed) norm_ = block.pre_norm;
    if (branch_.pre) norm_ = branch_.pre;
    std::visit([this](const auto& mixer) { Lower(mixer); }, block.mixers[m]);
  }
  // Only now may x change: every mixer has read it.
  for (Op& op : additions_) program_.ops.push_back(std::move(op));
  if (!apart_) return;
  const ResidualRule& rule = block.rule;
  AddOp(residual_prefix_ + "update", block.layer,
        UpdateOp{sum_, block.post_norm, rule.add_bias, rule.add_scale, block.residual_scale,
                 rule.keep, rule.keep_bias, rule.keep_scale, rule.total, program_.residual});
}

void Lowering::LowerLayerInputs(const LayerInputs& inputs) {
  const int64_t width = inputs.parts * inputs.width;
  layer_inputs_ = AddBuffer("layer_inputs", width);
  const BufferId projected = AddBuffer("layer_inputs.projection", width);
  AddOp("layer_inputs.embed", -1,
        EmbedOp{inputs.embedding, inputs.embedding_scale * inputs.scale, layer_inputs_});
  LinearOp projection;
  projection.input = program_.residual;
  projection.linear = inputs.projection;
  projection.output = projected;
  AddOp("layer_inputs.projection", -1, std::move(projection));
  UpdateOp sum;
  sum.input = projected;
  sum.norm = inputs.norm;
  sum.norm->groups = inputs.parts;
  sum.scale = inputs.scale;
  sum.output = layer_inputs_;
  AddOp("layer_inputs.sum", -1, std::move(sum));
}

void Lowering::LowerInput(const Block& block) {
  if (block.rule.normed) {
    UpdateOp norm;
    norm.input = norm.output = program_.residual;
    norm.norm = block.pre_norm;
    norm.keep = 0;
    AddOp(residual_prefix_ + "norm", block.layer, std::move(norm));
  }
  const int64_t hidden = program_.plan->hidden;
  const auto buffer = [this](BufferId& id, const char* name, int64_t width) {
    if (id == kNoId) id = AddBuffer(name, width);
    return id;
  };
  switch (block.input) {
    case BlockInput::kResidual:
      input_ = program_.residual;
      break;
    case BlockInput::kResidualAndEmbedding:
      input_ = buffer(joined_, "join", 2 * hidden);
      AddOp(Concat("layers.", block.layer, ".join"), block.layer,
            JoinOp{{program_.residual, embedding_}, input_});
      break;
    case BlockInput::kSide:
      input_ = side_;
      break;
    case BlockInput::kResidualPlusSide: {
      const std::string prefix = Prefix("side");
      input_ = buffer(with_side_, "side.sum", hidden);
      AddOp(prefix + "copy", block.layer, JoinOp{{program_.residual}, input_});
      LinearOp projection;
      projection.input = side_;
      projection.linear = block.side_projection;
      projection.epilogue = Epilogue::kAdd;
      projection.output = input_;
      AddOp(prefix + "projection", block.layer, std::move(projection));
      break;
    }
  }
  if (block.to_side) buffer(side_, "side", hidden);
}

int64_t Lowering::RowsOf(const Linear& linear) const {
  return program_.plan->matrices[static_cast<size_t>(linear.weight)].rows;
}

LinearOp Lowering::Projection(const Linear& linear, Epilogue epilogue, BufferId output) const {
  LinearOp op;
  op.input = input_;
  op.norm = norm_;
  op.linear = linear;
  op.epilogue = epilogue;
  op.output = output;
  return op;
}

void Lowering::AddToResidual(const std::string& prefix, const char* name, BufferId input,
                             const std::optional<RmsNorm>& norm, const Linear& linear) {
  LinearOp op;
  op.input = input;
  op.norm = norm;
  op.linear = linear;
  if (block_->to_side) {
    op.output = side_;
    additions_.push_back({prefix + name, block_->layer, std::move(op)});
    return;
  }
  if (apart_) {
    const Target target = TakeTarget();
    op.output = target.output;
    if (target.add) op.epilogue = Epilogue::kAdd;
    additions_.push_back({prefix + name, block_->layer, std::move(op)});
    AddBranchNorm(prefix, target);
    return;
  }
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

Lowering::Target Lowering::TakeTarget() {
  if (branch_.post) return {TakeBuffer("residual.branch", program_.plan->hidden), false};
  return {sum_, mixer_index_ > 0};
}

void Lowering::AddBranchNorm(const std::string& prefix, const Target& target) {
  if (!branch_.post) return;
  UpdateOp update;
  update.input = target.output;
  update.norm = branch_.post;
  update.keep = mixer_index_ > 0 ? 1.0f : 0.0f;
  update.output = sum_;
  additions_.push_back({prefix + "post_norm", block_->layer, std::move(update)});
}

std::string Lowering::Prefix(const std::string& kind) {
  const std::string prefix = Concat("layers.", block_->layer, ".", kind);
  const int count = ++mixers_by_prefix_[prefix];
  return count > 1 ? Concat(prefix, "_", count, ".") : prefix + ".";
}

BufferId Lowering::TakeBuffer(const std::string& role, int64_t width) {
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

BufferId Lowering::AddBuffer(std::string name, int64_t width) {
  program_.buffers.push_back({std::move(name), width});
  return static_cast<BufferId>(program_.buffers.size() - 1);
}

void Lowering::AddOp(std::string name, int64_t layer, OpBody body) {
  program_.ops.push_back({std::move(name), layer, std::move(body)});
}

Program LowerPlan(std::shared_ptr<const Plan> plan, std::shared_ptr<const BoundWeights> weights) {
  ValidatePlan(*plan);
  CheckWeights(*plan, *weights);
  Program program = Lowering(std::move(plan), std::move(weights)).Run();
  VerifyProgram(program);
  return program;
}

}  // namespace adder
