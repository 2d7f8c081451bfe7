#include "program/interpreter.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "program/batch_checks.h"
#include "program/formulas.h"
#include "program/interpreter_ops.h"

namespace adder {
namespace {

// cap * tanh(x / cap), or x without a cap.
double Capped(double cap, double x) { return cap > 0 ? cap * std::tanh(x / cap) : x; }

}  // namespace

int64_t Interpreter::WeightBytes() const {
  int64_t total = VectorBytes();
  for (const WeightMatrix& matrix : program_.weights->matrices) total += matrix.bytes();
  return total;
}

void Interpreter::Forward(const Batch& batch) {
  Prepare(batch);
  RunOps(static_cast<int>(program_.ops.size()) - 1);
  for (const BatchEntry& entry : batch) {
    state_.Advance(entry.sequence, static_cast<int64_t>(entry.tokens.size()));
  }
}

std::vector<float> Interpreter::ForwardUntil(const Batch& batch, int last_op) {
  CheckLastOp(program_, last_op);
  Prepare(batch);
  RunOps(last_op);
  return Values(OutputOf(program_.ops[static_cast<size_t>(last_op)]));
}

std::span<const float> Interpreter::Logits(int64_t row) const {
  CheckLogitsRow(*this, row);
  const auto vocab = static_cast<size_t>(program_.plan->vocab);
  return std::span<const float>(buffers_[static_cast<size_t>(program_.logits)])
      .subspan(static_cast<size_t>(row) * vocab, vocab);
}

void Interpreter::Prepare(const Batch& batch) {
  CheckBatch(*this, batch);
  rows_.clear();
  logits_rows_.clear();
  for (const BatchEntry& entry : batch) {
    state_.Reserve(entry.sequence, static_cast<int64_t>(entry.tokens.size()));
    const int64_t position = state_.Position(entry.sequence);
    for (size_t i = 0; i < entry.tokens.size(); ++i) {
      const bool last = i + 1 == entry.tokens.size();
      if (entry.logits == LogitsRows::kAll || (entry.logits == LogitsRows::kLast && last)) {
        logits_rows_.push_back(rows_.size());
      }
      rows_.push_back({entry.sequence, position + static_cast<int64_t>(i), entry.tokens[i]});
    }
  }
  for (size_t b = 0; b < buffers_.size(); ++b) {
    const size_t count =
        static_cast<BufferId>(b) == program_.logits ? logits_rows_.size() : rows_.size();
    buffers_[b].assign(count * static_cast<size_t>(program_.buffers[b].width), 0.0f);
  }
}

void Interpreter::RunOps(int last_op) {
  for (int i = 0; i <= last_op; ++i) {
    std::visit([this](const auto& op) { Run(op); }, program_.ops[static_cast<size_t>(i)].body);
  }
}

std::vector<double> Interpreter::Normalized(const float* x, int64_t width,
                                            const std::optional<RmsNorm>& norm) const {
  std::vector<double> out(x, x + width);
  if (!norm) return out;
  const size_t size = out.size() / static_cast<size_t>(norm->groups);
  for (size_t begin = 0; begin < out.size(); begin += size) {
    double mean = 0;
    for (size_t i = begin; norm->centered && i < begin + size; ++i) {
      mean += out[i] / static_cast<double>(size);
    }
    double squares = 0;
    for (size_t i = begin; i < begin + size; ++i) {
      out[i] -= mean;
      squares += out[i] * out[i];
    }
    const double factor = 1.0 / std::sqrt(squares / static_cast<double>(size) + norm->eps);
    for (size_t i = begin; i < begin + size; ++i) {
      if (norm->weight == kNoId) {
        out[i] *= factor;
      } else {
        out[i] *= factor * Vector(norm->weight)[i % VectorSize(norm->weight)];
      }
      if (norm->bias != kNoId) out[i] += Vector(norm->bias)[i];
    }
  }
  return out;
}

std::vector<std::vector<double>> Interpreter::Multiply(
    MatrixId id, const std::vector<std::vector<double>>& inputs) const {
  const WeightMatrix& matrix = Matrix(id);
  std::vector<std::vector<double>> out(inputs.size(),
                                       std::vector<double>(static_cast<size_t>(matrix.rows)));
  std::vector<float> weights(static_cast<size_t>(matrix.cols));
  for (int64_t r = 0; r < matrix.rows; ++r) {
    DequantizeRow(matrix, r, weights.data());
    for (size_t i = 0; i < inputs.size(); ++i) {
      double sum = 0;
      for (size_t k = 0; k < weights.size(); ++k) sum += weights[k] * inputs[i][k];
      out[i][static_cast<size_t>(r)] = sum;
    }
  }
  return out;
}

std::vector<std::vector<double>> Interpreter::Apply(
    const Linear& linear, const std::vector<std::vector<double>>& inputs) const {
  std::vector<std::vector<double>> out = Multiply(linear.weight, inputs);
  for (std::vector<double>& y : out) {
    for (double& value : y) value *= linear.input_scale;
    for (size_t r = 0; linear.bias != kNoId && r < y.size(); ++r) y[r] += Vector(linear.bias)[r];
    size_t row = 0;
    for (const RowScale& scale : linear.row_scales) {
      for (int64_t i = 0; i < scale.rows; ++i) y[row++] *= scale.factor;
    }
  }
  return out;
}

void Interpreter::Run(const EmbedOp& op) {
  for (size_t i = 0; i < rows_.size(); ++i) {
    float* out = RowOf(op.output, i);
    DequantizeRow(Matrix(op.embedding), rows_[i].token, out);
    for (int64_t k = 0; k < Width(op.output); ++k) out[k] *= op.scale;
    const std::vector<double> normed = NormalizedRow(op.output, i, op.norm);
    std::transform(normed.begin(), normed.end(), out,
                   [](double x) { return static_cast<float>(x); });
  }
}

void Interpreter::Run(const LinearOp& op) {
  std::vector<std::vector<double>> inputs;
  if (op.logits_rows_only) {
    for (size_t row : logits_rows_) inputs.push_back(NormalizedRow(op.input, row, op.norm));
  } else {
    for (size_t i = 0; i < rows_.size(); ++i) {
      inputs.push_back(NormalizedRow(op.input, i, op.norm));
    }
  }
  if (op.input_begin != -1) {
    const int64_t cols = Matrix(op.linear.weight).cols;
    for (std::vector<double>& x : inputs) {
      x.erase(x.begin(), x.begin() + op.input_begin);
      x.resize(static_cast<size_t>(cols));
    }
  }
  std::vector<std::vector<double>> results = Apply(op.linear, inputs);
  for (size_t i = 0; i < results.size(); ++i) {
    std::vector<double>& y = results[i];
    for (size_t r = 0; op.addend != kNoId && r < y.size(); ++r) y[r] += RowOf(op.addend, i)[r];
    float* out = RowOf(op.output, i);
    const auto width = static_cast<size_t>(Width(op.output));
    const double gate = op.row_gate == kNoId ? 1.0 : Sigmoid(RowOf(op.row_gate, i)[0]);
    for (size_t r = 0; r < width; ++r) {
      switch (op.epilogue) {
        case Epilogue::kStore:
          out[r] = static_cast<float>(Capped(op.cap, op.scale * y[r]));
          break;
        case Epilogue::kAdd:
          out[r] = static_cast<float>(out[r] + op.scale * y[r]);
          break;
        case Epilogue::kGated:
          out[r] = static_cast<float>(gate * Activate(op.activation, y[r]) * y[width + r]);
          break;
        case Epilogue::kActivate:
          out[r] = static_cast<float>(
              gate * Activate(op.activation, y[r]) *
              (op.factor == kNoId ? 1.0f : RowOf(op.factor, i)[op.factor_column + r]));
          break;
      }
    }
  }
}

void Interpreter::Run(const UpdateOp& op) {
  const auto at = [this](VectorId id, size_t k, double absent) {
    return id == kNoId ? absent : static_cast<double>(Vector(id)[k]);
  };
  const double total = at(op.total, 0, 1);
  for (size_t i = 0; i < rows_.size(); ++i) {
    const std::vector<double> y = NormalizedRow(op.input, i, op.norm);
    float* out = RowOf(op.output, i);
    for (size_t k = 0; k < y.size(); ++k) {
      double sum = op.scale * (y[k] + at(op.add_bias, k, 0)) * at(op.add_scale, k, 1);
      if (op.keep != 0) {
        sum += op.keep * (out[k] + at(op.keep_bias, k, 0)) * at(op.keep_scale, k, 1);
      }
      out[k] = static_cast<float>(total * sum);
    }
  }
}

void Interpreter::Run(const JoinOp& op) {
  for (size_t i = 0; i < rows_.size(); ++i) {
    float* out = RowOf(op.output, i);
    for (const BufferId input : op.inputs) {
      out = std::copy(RowOf(input, i), RowOf(input, i) + Width(input), out);
    }
  }
}

void Interpreter::Run(const NormAddOp& op) {
  for (size_t i = 0; i < rows_.size(); ++i) {
    const std::vector<double> y = NormalizedRow(op.input, i, op.norm);
    float* out = RowOf(op.output, i);
    for (size_t k = 0; k < y.size(); ++k) out[k] = static_cast<float>(out[k] + op.scale * y[k]);
  }
}

void Interpreter::SoftmaxInPlace(std::vector<double>& values) {
  const double largest = *std::max_element(values.begin(), values.end());
  double sum = 0;
  for (double& value : values) {
    value = std::exp(value - largest);
    sum += value;
  }
  for (double& value : values) value /= sum;
}

std::unique_ptr<Executor> MakeInterpreter(Program program) {
  RequireF32States(program.layout, "The interpreter");
  return std::make_unique<Interpreter>(std::move(program));
}

}  // namespace adder
