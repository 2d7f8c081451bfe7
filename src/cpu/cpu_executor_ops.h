// The CPU executor as its own files see it: cpu_executor.cc runs batches and the maps from rows to
// rows with attention and experts, cpu_executor_recurrences.cc the ops that read what tokens before
// left behind.
#pragma once

#include <algorithm>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/thread_pool.h"
#include "cpu/attention_runner.h"
#include "cpu/cpu_executor.h"
#include "cpu/delta_rule.h"
#include "cpu/elementwise.h"
#include "cpu/linear.h"
#include "cpu/loaded_weights.h"
#include "cpu/mamba2_kernel.h"
#include "cpu/moe.h"
#include "cpu/span.h"
#include "program/host_executor.h"

namespace adder {

// Channels of the convolution that one task takes in a slice.
inline constexpr int64_t kChannelBlock = 128;

class CpuExecutor : public HostExecutor {
 public:
  CpuExecutor(Program program, const CpuOptions& options);

  std::string Description() const override;
  int64_t WeightBytes() const override;
  void Forward(const Batch& batch) override;
  std::vector<float> ForwardUntil(const Batch& batch, int last_op) override;
  int64_t LogitsCount() const override;
  std::span<const float> Logits(int64_t row) const override;

 private:
  // Runs ops 0 .. last_op over the batch, slice by slice; collects the last op's output when asked.
  void Run(const Batch& batch, int last_op, std::vector<float>* values);
  void RunSlice(int last_op);
  void Collect(const Op& op, std::vector<float>& values);

  int64_t rows() const { return static_cast<int64_t>(tokens_.size()); }
  float* Values(BufferId id) { return buffers_[static_cast<size_t>(id)].data(); }
  int64_t Width(BufferId id) const { return program_.buffers[static_cast<size_t>(id)].width; }
  const float* Vector(VectorId id) const {
    return id == kNoId ? nullptr : program_.weights->vectors[static_cast<size_t>(id)].data();
  }
  InputNorm Norm(const std::optional<RmsNorm>& norm) const {
    if (!norm) return {};
    return {Vector(norm->weight), norm->groups, norm->eps, norm->centered, Vector(norm->bias)};
  }

  // One factor per row, as the kernels read them.
  void ExpandRowScales(const Linear& linear);
  void SetBiasAndScales(const Linear& linear, MatmulOutput& output) const;

  // Maps from rows to rows.
  void Run(const EmbedOp& op);
  void Run(const LinearOp& op);
  void Run(const UpdateOp& op);
  void Run(const JoinOp& op);
  void Run(const NormAddOp& op);
  // A norm whose weight may be that of one group for all.
  void NormGroups(const RmsNorm& norm, const float* x, int64_t width, float* out) const;
  // The rows of x whose logits were asked for, one after the other.
  const float* GatherRows(const float* x, int64_t width);

  // Attention and experts.
  void Run(const HeadMixOp& op);
  void Run(const AttentionOp& op);
  void Run(const LatentAttentionOp& op);
  void Run(const HeadsLinearOp& op);
  void Run(const RouterOp& op);
  void Run(const ExpertGateUpOp& op);
  void Run(const ExpertDownOp& op);

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
  // The recurrence of mamba2_runs_.
  void ScanHeads(const Mamba2Weights& weights);
  void NormThenGate(const Mamba2Op& op);
  Mamba2Weights WeightsOf(const Mamba2& m) const;
  // A part of a row, through its norm if it has one.
  void NormPart(const std::optional<RmsNorm>& norm, const float* from, int64_t size,
                float* to) const;
  // The states of the slice's sequences, of an op with one matrix per head.
  void SetDeltaSpans(int state);
  // The time steps of all rows, before softplus, from low-rank ones `stride` apart. Always with f32
  // activations: it is a small matrix, and what comes of it goes through two exponentials into
  // everything the state remembers.
  float* ProjectSteps(const Linear& linear, const float* low_rank, int64_t stride);

  // Runs work(span, begin, end, thread) for blocks of channels of every span of the slice, on
  // several threads or one.
  template <class Work>
  void ForChannelBlocks(int64_t channels, bool spread, const Work& work) {
    const int64_t blocks = (channels + kChannelBlock - 1) / kChannelBlock;
    const int64_t tasks = static_cast<int64_t>(spans_.size()) * blocks;
    pool_.ParallelFor(tasks, spread ? 1 : tasks, [&](int64_t begin, int64_t end, int thread) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t first = i % blocks * kChannelBlock;
        work(spans_[static_cast<size_t>(i / blocks)], first,
             std::min(first + kChannelBlock, channels), thread);
      }
    });
  }

  const bool quantize_;
  ThreadPool pool_;
  const LoadedWeights weights_;
  std::unordered_map<const Linear*, std::vector<float>> row_scales_;  // keys lie in program_

  // The slice being run.
  std::vector<Span> spans_;
  std::vector<int32_t> tokens_;
  std::vector<int64_t> logits_rows_;     // rows of the slice whose logits were asked for
  std::vector<Scratch<float>> buffers_;  // [rows, width]; the logits are kept apart

  Scratch<float> logits_;  // [rows asked for by the batch, vocab]
  int64_t logits_count_ = 0;

  PreparedInput input_;
  std::vector<MatmulScratch> matmul_scratch_;  // per thread
  AttentionRunner attention_;
  std::vector<Scratch<float>> head_mix_scratch_;  // per thread
  std::deque<PreparedInput> head_inputs_;         // one per head
  Scratch<float> gathered_;
  Scratch<float> gate_up_;
  Scratch<float> convolved_;
  Scratch<float> steps_;
  std::vector<Mamba2Run> mamba2_runs_;
  Scratch<float> low_rank_;
  Scratch<float> dt_;
  Scratch<float> normed_;
  Scratch<float> selected_;
  Scratch<float> router_scores_;
  MoeRunner moe_;
  std::vector<DeltaSpan> delta_spans_;
  DeltaRuleRunner delta_rule_;
  std::vector<Scratch<float>> lru_scratch_;  // per thread
};

}  // namespace adder
