#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "model/plan_validator.h"

namespace adder {

void Validator::Run() {
  Enter("");
  Range("vocab", plan_.vocab, 1, kMaxRows);
  Range("hidden", plan_.hidden, 1, kMaxSize);
  Range("max_positions", plan_.max_positions, 0, std::numeric_limits<int64_t>::max());
  Range("number of blocks", static_cast<int64_t>(plan_.blocks.size()), 0, 4 * kMaxLayers);
  Finite("embedding_scale", plan_.embedding_scale);
  Finite("logits_scale", plan_.logits_scale);
  Finite("logits_cap", plan_.logits_cap);
  if (plan_.logits_cap < 0) Fail(where_, "logits_cap is ", plan_.logits_cap, ", below 0.");
  CheckMatrices();
  CheckVectors();
  CheckTotal();

  Enter("");
  CheckMatrix("embedding", plan_.embedding, plan_.vocab, plan_.hidden);
  if (plan_.embedding_norm) CheckNorm("embedding_norm", *plan_.embedding_norm, plan_.hidden, true);
  CheckNorm("final_norm", plan_.final_norm, plan_.hidden, true);
  CheckLinear("head", plan_.head, plan_.vocab, plan_.hidden);
  CheckOptional("embedding_bias", plan_.embedding_bias, plan_.hidden);
  CheckOptional("embedding_factor", plan_.embedding_factor, plan_.hidden);
  if (plan_.layer_inputs) CheckLayerInputs(*plan_.layer_inputs);
  for (size_t i = 0; i < plan_.blocks.size(); ++i) CheckBlock(i);
  CheckAllUsed();
}

void Validator::CheckMatrices() {
  if (plan_.matrices.size() > static_cast<size_t>(std::numeric_limits<MatrixId>::max())) {
    Fail(where_, "there are too many matrices.");
  }
  for (const MatrixRef& matrix : plan_.matrices) {
    Enter(Concat("matrix \"", matrix.label, "\""));
    Range("rows", matrix.rows, 1, kMaxRows);
    Range("cols", matrix.cols, 1, kMaxRows);
    if (matrix.parts.empty()) Fail(where_, "it has no parts.");
    int64_t rows = 0;
    for (const MatrixPart& part : matrix.parts) {
      if (part.module.empty()) Fail(where_, "a part names no module.");
      Enter(Concat("matrix \"", matrix.label, "\", part ", part.module));
      if (part.transposed && (matrix.parts.size() != 1 || part.experts > 0)) {
        Fail(where_, "a transposed part is the only one, and has no experts.");
      }
      Range("rows", part.rows, 1, kMaxRows);
      Range("row_begin", part.row_begin, 0, part.rows - 1);
      Range("row_count", part.row_count, 1, part.rows - part.row_begin);
      Range("experts", part.experts, 0, kMaxExpertsInAll);
      Range("expert", part.expert, 0, part.experts > 0 ? part.experts - 1 : 0);
      const int64_t cols = part.transposed ? matrix.rows : matrix.cols;
      if (!ElementCount({std::max<int64_t>(part.experts, 1), part.rows, cols})) {
        Fail(where_, "the number of elements overflows.");
      }
      rows += part.row_count;
      if (rows > kMaxRows) Fail(where_, "the parts have more than ", kMaxRows, " rows.");
    }
    Enter(Concat("matrix \"", matrix.label, "\""));
    if (matrix.parts.front().transposed) {
      Equal("cols", matrix.cols, "its part's number of rows", rows);
    } else {
      Equal("rows", matrix.rows, "the sum of its parts' rows", rows);
    }
  }
}

void Validator::CheckVectors() {
  if (plan_.vectors.size() > static_cast<size_t>(std::numeric_limits<VectorId>::max())) {
    Fail(where_, "there are too many vectors.");
  }
  for (const VectorRef& vector : plan_.vectors) {
    Enter(Concat("vector \"", vector.label, "\""));
    for (const VectorPart& part : vector.parts) {
      if (part.tensor.empty()) Fail(where_, "a part names no tensor.");
    }
    Range("repeat", vector.repeat, 1, kMaxSize);
    if (vector.last) Finite("last", *vector.last);
    const int64_t size = VectorSize(vector);
    if (size < 0) Fail(where_, "its shapes are missing, disagree or overflow.");
    Finite("offset", vector.offset);
    Range("size", size, 1, kMaxRows);
    if (vector.transform == VectorTransform::kNegativeExpTransposed) {
      // The loader transposes one [channels, d_state] tensor.
      if (vector.parts.size() != 1 || vector.parts[0].shapes.size() != 1 ||
          vector.parts[0].shapes[0].size() != 2) {
        Fail(where_, "a decay to be transposed has exactly one part of two dimensions.");
      }
    }
    if (vector.transform == VectorTransform::kGroupedConvTimeMajor) {
      if (vector.parts.size() != 1 || vector.parts[0].shapes.size() != 1 ||
          vector.parts[0].shapes[0].size() != 3) {
        Fail(where_, "a grouped convolution weight has exactly one part of three dimensions.");
      }
    }
    if (vector.transform != VectorTransform::kConvTimeMajor) continue;
    // The loader transposes [channels, 1, taps] or [channels, taps, 1] tensors.
    const Shape& first = vector.parts[0].shapes[0];
    for (const VectorPart& part : vector.parts) {
      for (const Shape& shape : part.shapes) {
        if (shape.size() != 3 || (shape[1] != 1 && shape[2] != 1)) {
          Fail(where_, "the convolution weight's shape is ", ShapeString(shape),
               ", it should be [channels, 1, taps] or [channels, taps, 1].");
        }
        if (shape[1] * shape[2] != first[1] * first[2]) {
          Fail(where_, "its parts have ", shape[1] * shape[2], " and ", first[1] * first[2],
               " taps, they should have as many.");
        }
      }
    }
  }
}

void Validator::CheckTotal() {
  Enter("");
  int64_t total = 0;
  bool overflow = false;
  for (const MatrixRef& matrix : plan_.matrices) {
    overflow |= __builtin_add_overflow(total, matrix.rows * matrix.cols, &total);
  }
  for (const VectorRef& vector : plan_.vectors) {
    overflow |= __builtin_add_overflow(total, VectorSize(vector), &total);
  }
  if (overflow) Fail(where_, "the number of parameters overflows.");
}

void Validator::CheckMatrix(const char* field, MatrixId id, int64_t rows, int64_t cols) {
  if (id < 0 || id >= static_cast<int64_t>(plan_.matrices.size())) {
    Fail(where_, field, " has the matrix id ", id, ", the plan has ", plan_.matrices.size(),
         " matrices.");
  }
  const MatrixRef& matrix = plan_.matrices[id];
  if (matrix.rows != rows || matrix.cols != cols) {
    Fail(where_, field, " is \"", matrix.label, "\" of shape ",
         ShapeString({matrix.rows, matrix.cols}), ", it should be ", ShapeString({rows, cols}),
         ".");
  }
  matrix_used_[id] = true;
}

void Validator::CheckVector(const char* field, VectorId id, int64_t size) {
  if (id < 0 || id >= static_cast<int64_t>(plan_.vectors.size())) {
    Fail(where_, field, " has the vector id ", id, ", the plan has ", plan_.vectors.size(),
         " vectors.");
  }
  const VectorRef& vector = plan_.vectors[id];
  if (VectorSize(vector) != size) {
    Fail(where_, field, " is \"", vector.label, "\" of size ", VectorSize(vector),
         ", it should be ", size, ".");
  }
  vector_used_[id] = true;
}

void Validator::CheckOptional(const char* field, VectorId id, int64_t size) {
  if (id != kNoId) CheckVector(field, id, size);
}

void Validator::CheckLayerInputs(const LayerInputs& inputs) {
  Range("layer_inputs parts", inputs.parts, 1, kMaxLayers);
  Range("layer_inputs width", inputs.width, 1, kMaxSize);
  const int64_t rows = inputs.parts * inputs.width;
  Finite("layer_inputs embedding_scale", inputs.embedding_scale);
  Finite("layer_inputs scale", inputs.scale);
  CheckMatrix("layer_inputs embedding", inputs.embedding, plan_.vocab, rows);
  CheckLinear("layer_inputs projection", inputs.projection, rows, plan_.hidden);
  CheckNorm("layer_inputs norm", inputs.norm, inputs.width);
  Equal("layer_inputs norm groups", inputs.norm.groups, "the number it may have", 1);
}

void Validator::CheckLinear(const char* field, const Linear& linear, int64_t rows, int64_t cols) {
  CheckMatrix(field, linear.weight, rows, cols);
  if (linear.bias != kNoId) CheckVector(Concat(field, " bias").c_str(), linear.bias, rows);
  Finite(Concat(field, " input_scale").c_str(), linear.input_scale);
  if (linear.row_scales.empty()) return;
  int64_t scaled = 0;
  for (const RowScale& scale : linear.row_scales) {
    Finite(Concat(field, " row_scales").c_str(), scale.factor);
    Range(Concat(field, " rows of row_scales").c_str(), scale.rows, 1, rows - scaled);
    scaled += scale.rows;
  }
  Equal(Concat(field, " rows of row_scales").c_str(), scaled, "the number of rows", rows);
}

void Validator::CheckNorm(const char* field, const RmsNorm& norm, int64_t size, bool may_center) {
  CheckVector(field, norm.weight, size);
  if (norm.centered && !may_center) Fail(where_, "a centered ", field, " is not implemented.");
  CheckNormNumbers(field, norm, size);
}

void Validator::CheckPlainNorm(const char* field, const std::optional<RmsNorm>& norm,
                               int64_t size) {
  if (!norm) return;
  if (norm->centered) Fail(where_, "a centered ", field, " is not implemented.");
  if (norm->weight != kNoId) CheckVector(field, norm->weight, size);
  CheckNormNumbers(field, *norm, size);
}

void Validator::CheckNormNumbers(const char* field, const RmsNorm& norm, int64_t size) {
  if (norm.centered != (norm.bias != kNoId)) {
    Fail(where_, field, " should be centered and have a bias, or neither.");
  }
  if (norm.bias != kNoId) {
    CheckVector(Concat(field, " bias").c_str(), norm.bias, size);
  }
  if (!std::isfinite(norm.eps) || norm.eps < 0) {
    Fail(where_, field, " eps is ", norm.eps, ", it should be a number of at least 0.");
  }
  Range(Concat(field, " groups").c_str(), norm.groups, 1, size);
  Divides(field, size, "groups", norm.groups);
}

void Validator::CheckBlock(size_t index) {
  const Block& block = plan_.blocks[index];
  const std::string place = Concat("block ", index, " (layer ", block.layer, ")");
  Enter(place);
  Range("layer", block.layer, 0, kMaxLayers - 1);
  CheckSide(block);
  if (!block.skip_pre_norm) CheckNorm("pre_norm", block.pre_norm, input_width_, true);
  Finite("residual_scale", block.residual_scale);
  if (block.mixers.empty()) Fail(where_, "it has no mixers.");
  if (block.post_norm) CheckNorm("post_norm", *block.post_norm, plan_.hidden);
  if (!block.branch_norms.empty()) {
    Equal("number of branch_norms", static_cast<int64_t>(block.branch_norms.size()),
          "the number of mixers", static_cast<int64_t>(block.mixers.size()));
  }
  for (const BranchNorms& norms : block.branch_norms) {
    if (norms.pre) CheckNorm("branch_norms pre", *norms.pre, input_width_);
    if (norms.post) CheckNorm("branch_norms post", *norms.post, plan_.hidden);
  }
  CheckRule(block);
  block_index_ = static_cast<int64_t>(index);
  for (size_t i = 0; i < block.mixers.size(); ++i) {
    Enter(Concat(place, ", mixer ", i, " (", MixerName(block.mixers[i]), ")"));
    std::visit([this](const auto& mixer) { Check(mixer); }, block.mixers[i]);
  }
}

void Validator::CheckSide(const Block& block) {
  const bool joined = block.input == BlockInput::kResidualAndEmbedding;
  input_width_ = joined ? 2 * plan_.hidden : plan_.hidden;
  for (const Mixer& mixer : block.mixers) {
    if (joined && !std::holds_alternative<Attention>(mixer)) {
      Fail(where_, MixerName(mixer), " cannot read the residual and the embedding.");
    }
  }
  const bool reads_side =
      block.input == BlockInput::kSide || block.input == BlockInput::kResidualPlusSide;
  if (reads_side && !has_side_) Fail(where_, "no block before it goes to_side.");
  if (block.input == BlockInput::kResidualPlusSide) {
    CheckLinear("side_projection", block.side_projection, plan_.hidden, plan_.hidden);
  }
  if (!block.to_side) return;
  has_side_ = true;
  if (block.mixers.size() != 1 || std::holds_alternative<MoeMlp>(block.mixers[0]) ||
      block.post_norm || block.residual_scale != 1 || !block.branch_norms.empty() ||
      block.rule != ResidualRule{}) {
    Fail(where_,
         "a block that goes to_side has one mixer other than MoeMlp, and nothing that "
         "changes how x is added to.");
  }
}

void Validator::CheckRule(const Block& block) {
  const ResidualRule& rule = block.rule;
  Finite("keep", rule.keep);
  CheckOptional("keep_bias", rule.keep_bias, plan_.hidden);
  CheckOptional("keep_scale", rule.keep_scale, plan_.hidden);
  CheckOptional("add_bias", rule.add_bias, plan_.hidden);
  CheckOptional("add_scale", rule.add_scale, plan_.hidden);
  CheckOptional("total", rule.total, 1);
  if (!rule.normed) return;
  if (block.skip_pre_norm || block.input != BlockInput::kResidual) {
    Fail(where_, "x cannot become its pre_norm in a block without one, or that reads more than x.");
  }
  for (const BranchNorms& norms : block.branch_norms) {
    if (norms.pre) Fail(where_, "x becomes its pre_norm, but a mixer has another.");
  }
}

void Validator::CheckAllUsed() {
  Enter("");
  for (size_t i = 0; i < matrix_used_.size(); ++i) {
    if (!matrix_used_[i]) {
      Fail(where_, "the matrix \"", plan_.matrices[i].label, "\" is used nowhere.");
    }
  }
  for (size_t i = 0; i < vector_used_.size(); ++i) {
    if (!vector_used_[i]) {
      Fail(where_, "the vector \"", plan_.vectors[i].label, "\" is used nowhere.");
    }
  }
}

void ValidatePlan(const Plan& plan) { Validator(plan).Run(); }

}  // namespace adder
