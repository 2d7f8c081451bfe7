// Delta-rule ops over a slice: rows of all sequences are prepared side by side, then every head of
// every sequence goes through its tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/thread_pool.h"
#include "cpu/delta_rule_kernel.h"
#include "cpu/linear.h"
#include "cpu/rwkv7_kernel.h"

namespace adder {

// The tokens of one sequence in a slice: rows [row, row + tokens).
struct DeltaSpan {
  int64_t row = 0;
  int64_t tokens = 0;
  float* state = nullptr;
};

// What follows the recurrence of GatedDelta.
struct GatedDeltaOutput {
  const float* norm = nullptr;  // [value_dim]
  const float* gate = nullptr;  // rows of values(), gate_stride apart
  int64_t gate_stride = 0;
  float* values = nullptr;  // [rows, values()]
};

// What Rwkv7 reads: arrays of rows of inner() each.
struct Rwkv7Inputs {
  const Rwkv7* mixer = nullptr;
  Rwkv7Vectors vectors;
  Rwkv7Token rows;

  // Row t of all of them.
  Rwkv7Token Row(int64_t t) const;
};

class DeltaRuleRunner {
 public:
  // `rows` rows in all; the spans cover them.
  void Run(ThreadPool& pool, const GatedDeltaInputs& inputs, int64_t rows,
           std::span<const DeltaSpan> spans, const GatedDeltaOutput& output);
  // output [rows, inner()].
  void Run(ThreadPool& pool, const Rwkv7Inputs& inputs, int64_t rows,
           std::span<const DeltaSpan> spans, float* output);

 private:
  // Calls work(span, head, strip) for each head of each span.
  template <class Work>
  void ForHeads(ThreadPool& pool, std::span<const DeltaSpan> spans, int64_t heads,
                int64_t state_rows, const Work& work);

  Scratch<float> prepared_;
  Scratch<float> rates_;
  std::vector<Scratch<float>> strips_;  // per thread
};

}  // namespace adder
