// For tests of recurrent kernels: sequences of different lengths at different positions, run in
// pieces of any number of tokens.
#pragma once

#include <algorithm>
#include <vector>

#include "cuda/kernels/kernel_test_support.h"
#include "cuda/kernels/sequence_table.h"

namespace adder::cuda::test {

// Slots lie in another order than sequences, one of which begins.
inline constexpr int kRaggedSlots[] = {2, 0, 3};
inline constexpr int kRaggedPositions[] = {0, 5, 1003};
inline constexpr int kRaggedTokens[] = {11, 4, 19};
inline constexpr int kRaggedSequences = 3;
inline constexpr int kRaggedRows = 11 + 4 + 19;

// The row of a sequence's token in the whole arrays.
inline int RaggedRow(int sequence, int token) {
  int row = token;
  for (int i = 0; i < sequence; ++i) row += kRaggedTokens[i];
  return row;
}

// A batch as kernels get it.
struct RaggedBatch {
  const SequenceRun* runs = nullptr;
  const int* row_runs = nullptr;
  int run_count = 0;
  int rows = 0;
  int most_tokens = 0;
};

struct RaggedResult {
  std::vector<float> output;  // [kRaggedRows, output_stride]
  std::vector<float> slots;
};

// Runs at most `at_a_time` tokens of every sequence until all are done. `inputs` are whole arrays
// [kRaggedRows, stride]; launch(batch, inputs, output, stream) gets the batch's rows of them.
template <class Launch>
RaggedResult RunRagged(const std::vector<std::vector<float>>& inputs, int output_stride,
                       const std::vector<float>& slots, int at_a_time, Launch launch) {
  const DeviceArray<float> device_slots(slots);
  const int slot_floats = static_cast<int>(slots.size()) / 4;
  RaggedResult result;
  result.output.resize(static_cast<size_t>(kRaggedRows * output_stride));
  const Stream stream;
  for (int begin = 0; begin < *std::max_element(kRaggedTokens, kRaggedTokens + 3);
       begin += at_a_time) {
    std::vector<SequenceRun> runs;
    std::vector<int> row_runs;
    std::vector<int> whole_rows;
    RaggedBatch batch;
    for (int i = 0; i < kRaggedSequences; ++i) {
      const int tokens = std::min(at_a_time, kRaggedTokens[i] - begin);
      if (tokens <= 0) continue;
      runs.push_back({device_slots.data() + kRaggedSlots[i] * slot_floats, nullptr,
                      kRaggedPositions[i] + begin, static_cast<int>(row_runs.size()), tokens, 0});
      for (int t = 0; t < tokens; ++t) {
        row_runs.push_back(static_cast<int>(runs.size()) - 1);
        whole_rows.push_back(RaggedRow(i, begin + t));
      }
      batch.most_tokens = std::max(batch.most_tokens, tokens);
    }
    std::vector<DeviceArray<float>> arrays;
    std::vector<const float*> pointers;
    for (const std::vector<float>& whole : inputs) {
      const size_t stride = whole.size() / kRaggedRows;
      std::vector<float> part;
      for (int row : whole_rows) {
        const float* from = whole.data() + static_cast<size_t>(row) * stride;
        part.insert(part.end(), from, from + stride);
      }
      arrays.emplace_back(part);
      pointers.push_back(arrays.back().data());
    }
    const DeviceArray<SequenceRun> device_runs(runs);
    const DeviceArray<int> device_row_runs(row_runs);
    const DeviceArray<float> output(row_runs.size() * static_cast<size_t>(output_stride));
    batch.runs = device_runs.data();
    batch.row_runs = device_row_runs.data();
    batch.run_count = static_cast<int>(runs.size());
    batch.rows = static_cast<int>(row_runs.size());
    launch(batch, pointers, output.data(), stream.get());
    stream.Synchronize();
    const std::vector<float> found = output.Download();
    for (size_t i = 0; i < whole_rows.size(); ++i) {
      std::copy_n(found.data() + i * static_cast<size_t>(output_stride), output_stride,
                  result.output.data() + whole_rows[i] * output_stride);
    }
  }
  result.slots = device_slots.Download();
  return result;
}

// Bitwise the same in steps and in longer runs: run(at_a_time) is a RaggedResult.
template <class Run>
void ExpectRunsAreSteps(Run run) {
  const RaggedResult steps = run(1);
  for (const int tokens : {2, 7, 19}) {
    const RaggedResult found = run(tokens);
    EXPECT_EQ(found.output, steps.output) << tokens << " tokens at a time";
    EXPECT_EQ(found.slots, steps.slots) << tokens << " tokens at a time";
  }
}

}  // namespace adder::cuda::test
