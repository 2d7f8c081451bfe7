// The attention ops of a slice: norms and rotation of heads, appending to the KV state, and the
// attention kernel over all sequences, spread over the threads.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "core/thread_pool.h"
#include "cpu/aligned_memory.h"
#include "cpu/attention_kernel.h"
#include "cpu/span.h"
#include "program/host_state.h"
#include "program/program.h"

namespace adder {

class AttentionRunner {
 public:
  // All outlive the runner.
  AttentionRunner(const Program& program, HostState& state, ThreadPool& pool);

  // Every slice begins with this; spans have `rows` rows in all.
  void Begin(std::span<const Span> spans, int64_t rows);

  // Buffers hold one row per token, as wide as program.h says.
  void Run(const AttentionOp& op, const float* qkv, float* output);
  void Run(const LatentAttentionOp& op, const float* query, const float* absorbed, const float* kv,
           float* output);

 private:
  // A rotary table, filled once per slice.
  struct RopeCache {
    Rope rope;
    bool filled = false;
    Scratch<float> values;
  };
  struct Pages {
    std::vector<float*> keys;
    std::vector<float*> values;
  };

  const float* Vector(VectorId id) const {
    return program_.weights->vectors[static_cast<size_t>(id)].data();
  }
  RopeCache& FindRope(const Rope& rope);
  RopeTable FilledRope(const Rope& rope);
  const float* NormedHeads(const Attention& m, const RopeTable& rope, const float* qkv);
  void NormHeads(const RmsNorm& norm, int64_t heads, int64_t head_dim, float* x) const;
  void Append(const Attention& m, const RopeTable& rope, const float* qkv, const float* qk,
              int64_t qk_stride);
  // The pages of layout().kv[kv] that hold the positions up to the span's last.
  Pages PagesOf(const Span& span, int kv);
  // Attends all tokens of `runs`, which have `kv_heads` KV heads each.
  void AttendAll(const std::vector<AttentionRun>& runs, int64_t kv_heads);

  const Program& program_;
  HostState& state_;
  ThreadPool& pool_;
  std::span<const Span> spans_;
  int64_t rows_ = 0;
  std::deque<RopeCache> ropes_;  // one per distinct rope
  std::vector<Pages> pages_;     // per span
  Scratch<float> normed_heads_;
  Scratch<float> queries_;
  std::vector<Scratch<float>> scratch_;  // per thread
};

}  // namespace adder
