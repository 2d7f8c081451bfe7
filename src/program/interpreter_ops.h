// The interpreter as its own files see it: interpreter.cc runs batches and the maps from rows to
// rows, interpreter_attention.cc, interpreter_recurrences.cc and interpreter_experts.cc have the
// ops that they are named for.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "program/host_executor.h"

namespace adder {

class Interpreter : public HostExecutor {
 public:
  explicit Interpreter(Program program)
      : HostExecutor(std::move(program)), buffers_(program_.buffers.size()) {}

  std::string Description() const override { return "reference"; }
  int64_t WeightBytes() const override;
  void Forward(const Batch& batch) override;
  std::vector<float> ForwardUntil(const Batch& batch, int last_op) override;
  int64_t LogitsCount() const override { return static_cast<int64_t>(logits_rows_.size()); }
  std::span<const float> Logits(int64_t row) const override;

 private:
  // One token of the batch.
  struct Row {
    SequenceId sequence;
    int64_t position;
    int32_t token;
  };

  // Checks the whole batch, then makes room for it; nothing changes when the check fails.
  void Prepare(const Batch& batch);
  void RunOps(int last_op);

  std::vector<float>& Values(BufferId id) { return buffers_[static_cast<size_t>(id)]; }
  int64_t Width(BufferId id) const { return program_.buffers[static_cast<size_t>(id)].width; }
  float* RowOf(BufferId id, size_t row) {
    return Values(id).data() + row * static_cast<size_t>(Width(id));
  }
  const WeightMatrix& Matrix(MatrixId id) const {
    return program_.weights->matrices[static_cast<size_t>(id)];
  }
  const float* Vector(VectorId id) const {
    return program_.weights->vectors[static_cast<size_t>(id)].data();
  }
  size_t VectorSize(VectorId id) const {
    return program_.weights->vectors[static_cast<size_t>(id)].size();
  }

  // What several ops are made of.
  // Row `row` of a buffer, after the norm if there is one. Not rounded to f32 in between.
  std::vector<double> NormalizedRow(BufferId id, size_t row, const std::optional<RmsNorm>& norm) {
    return Normalized(RowOf(id, row), Width(id), norm);
  }
  std::vector<double> Normalized(const float* x, int64_t width,
                                 const std::optional<RmsNorm>& norm) const;
  // W x for each of `inputs`: out[i] has one value per row of W.
  std::vector<std::vector<double>> Multiply(MatrixId id,
                                            const std::vector<std::vector<double>>& inputs) const;
  std::vector<std::vector<double>> Apply(const Linear& linear,
                                         const std::vector<std::vector<double>>& inputs) const;
  static void SoftmaxInPlace(std::vector<double>& values);

  // Maps from rows to rows.
  void Run(const EmbedOp& op);
  void Run(const LinearOp& op);
  void Run(const UpdateOp& op);
  void Run(const JoinOp& op);
  void Run(const NormAddOp& op);

  // Attention.
  void Run(const HeadMixOp& op);
  void Run(const AttentionOp& op);
  void Run(const HeadsLinearOp& op);
  void Run(const LatentAttentionOp& op);
  // The norm and the rotation of q or k, in place.
  void PlaceHeads(const Attention& a, const std::optional<RmsNorm>& norm, int64_t position,
                  int64_t heads, float* x) const;
  void NormHeads(const RmsNorm& norm, int64_t heads, int64_t head_dim, float* x) const;
  // The angle is rounded to f32 before its sine and cosine, as in the references.
  static void Rotate(const Rope& rope, int64_t position, float* head);
  // softmax(scale * q . k) v over the positions up to row.position, in the window if there is one.
  void AttendHead(const AttentionOp& op, const Row& row, int64_t head, const float* q, float* out);

  // Recurrences.
  void Run(const Mamba2Op& op);
  void Run(const Mamba2SelectedOp& op);
  void Run(const CausalConvOp& op);
  void Run(const Mamba1ScanOp& op);
  void Run(const TokenShiftOp& op);
  void Run(const RgLruOp& op);
  void Run(const Rwkv7Op& op);
  void Run(const GatedDeltaOp& op);
  void Run(const LightningOp& op);
  // The causal convolution of one token and its SiLU; rolls the window [d_conv - 1, channels].
  std::vector<double> Convolve(const Mamba2& m, const float* input, float* window) const;
  // One step of the recurrence; state is [heads, d_state, head_dim].
  void StateStep(const Mamba2& m, const std::vector<double>& convolved,
                 const std::vector<double>& dt_input, const float* gate, float* state,
                 float* out) const;

  // Experts.
  void Run(const RouterOp& op);
  void Run(const ExpertGateUpOp& op);
  void Run(const ExpertDownOp& op);
  // What the choice of experts goes by.
  std::vector<double> ChoiceScores(const Routing& routing, std::vector<double> scores) const;
  // Indices of the `count` largest, largest first; of equals the lower index first.
  static std::vector<size_t> Largest(const std::vector<double>& values, int64_t count);
  size_t ChosenExpert(BufferId routing, size_t row, int64_t top_k, int64_t j) {
    return static_cast<size_t>(RowOf(routing, row)[top_k + j]);
  }

  std::vector<std::vector<float>> buffers_;  // one per program buffer: [rows, width]
  std::vector<Row> rows_;
  std::vector<size_t> logits_rows_;  // the rows whose logits were asked for
};

}  // namespace adder
