#include "model/plan.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "core/error.h"

namespace adder {

MatrixId Plan::AddMatrix(MatrixRef matrix) {
  matrices.push_back(std::move(matrix));
  return static_cast<MatrixId>(matrices.size() - 1);
}

MatrixId Plan::AddMatrix(std::string label, std::string module, int64_t rows, int64_t cols) {
  MatrixPart part;
  part.module = std::move(module);
  part.rows = rows;
  part.row_count = rows;
  return AddMatrix(MatrixRef{std::move(label), rows, cols, {std::move(part)}});
}

VectorId Plan::AddVector(VectorRef vector) {
  vectors.push_back(std::move(vector));
  return static_cast<VectorId>(vectors.size() - 1);
}

VectorId Plan::AddVector(std::string label, std::string tensor, int64_t size,
                         VectorTransform transform) {
  return AddVector(
      VectorRef{std::move(label), {VectorPart{std::move(tensor), {Shape{size}}}}, transform});
}

void OpenForPositions(Plan& plan, int64_t positions) {
  std::vector<Rope*> ropes;
  for (Block& block : plan.blocks) {
    for (Mixer& mixer : block.mixers) {
      auto* attention = std::get_if<Attention>(&mixer);
      auto* latent = std::get_if<LatentAttention>(&mixer);
      if (attention != nullptr && attention->rope) ropes.push_back(&*attention->rope);
      if (latent != nullptr && latent->rope) ropes.push_back(&*latent->rope);
    }
  }
  const bool stretches = std::any_of(ropes.begin(), ropes.end(),
                                     [](const Rope* rope) { return rope->dynamic_factor > 0; });
  if (positions < 1 || positions > kMaxSize ||
      (plan.max_positions > 0 && positions > plan.max_positions && !stretches)) {
    Fail("The model cannot be opened for texts of ", positions, " tokens; it has ",
         plan.max_positions > 0 && !stretches ? Concat(plan.max_positions, " positions.")
                                              : Concat("1 to ", kMaxSize, " positions."));
  }
  plan.max_positions = positions;
  for (Rope* rope : ropes) FitRope(*rope, positions);
}

int64_t VectorSize(const VectorRef& vector) {
  int64_t size = 0;
  for (const VectorPart& part : vector.parts) {
    if (part.shapes.empty()) return -1;
    const std::optional<int64_t> count = ElementCount(part.shapes.front());
    for (const Shape& shape : part.shapes) {
      if (ElementCount(shape) != count) return -1;
    }
    if (!count || __builtin_add_overflow(size, *count, &size)) return -1;
  }
  if (vector.parts.empty() || __builtin_mul_overflow(size, vector.repeat, &size)) return -1;
  return size;
}

int64_t ParameterCount(const Plan& plan) {
  // A validated plan's total fits: ValidatePlan has added it up with overflow checks.
  int64_t count = 0;
  for (const MatrixRef& matrix : plan.matrices) count += matrix.rows * matrix.cols;
  for (const VectorRef& vector : plan.vectors) count += VectorSize(vector) / vector.repeat;
  return count;
}

std::string MixerName(const Mixer& mixer) {
  struct Namer {
    std::string operator()(const Attention&) const { return "Attention"; }
    std::string operator()(const LatentAttention&) const { return "LatentAttention"; }
    std::string operator()(const LightningAttention&) const { return "LightningAttention"; }
    std::string operator()(const Mamba2&) const { return "Mamba2"; }
    std::string operator()(const Mamba1&) const { return "Mamba1"; }
    std::string operator()(const ShortConv&) const { return "ShortConv"; }
    std::string operator()(const GatedDelta&) const { return "GatedDelta"; }
    std::string operator()(const RgLru&) const { return "RgLru"; }
    std::string operator()(const Rwkv7&) const { return "Rwkv7"; }
    std::string operator()(const DenseMlp&) const { return "DenseMlp"; }
    std::string operator()(const MoeMlp&) const { return "MoeMlp"; }
  };
  return std::visit(Namer{}, mixer);
}

std::string ActivationName(Activation activation) {
  switch (activation) {
    case Activation::kSilu:
      return "silu";
    case Activation::kGelu:
      return "gelu";
    case Activation::kGeluTanh:
      return "gelu_tanh";
    case Activation::kRelu2:
      return "relu2";
    case Activation::kSigmoid:
      return "sigmoid";
    case Activation::kTanh:
      return "tanh";
  }
  return "unknown";
}

}  // namespace adder
