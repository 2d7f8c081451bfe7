// Matrix products over a batch: prepares the input once, then spreads row blocks over the threads.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "core/thread_pool.h"
#include "cpu/aligned_memory.h"
#include "cpu/loaded_weights.h"
#include "cpu/matmul.h"

namespace adder {

// The norm (RmsNorm of plan.h) of an input as it is read.
struct InputNorm {
  const float* weight = nullptr;  // none: no norm
  int64_t groups = 1;
  float eps = 0;
  bool centered = false;
  const float* bias = nullptr;  // with `centered`
};

// Applies it to one row of `size`; x and out may be the same.
void NormRow(const InputNorm& norm, const float* x, int64_t size, float* out);

// The activations of one product: f32 rows and, for each group size asked for, their quantised
// form. Reused from op to op; its memory grows to the largest use.
class PreparedInput {
 public:
  // Reads x [tokens, cols] (rows `stride` apart). With `quantize`, activations are quantised for
  // the group sizes of `matrix` and segments with them are multiplied in integers; otherwise in
  // f32.
  void Prepare(const float* x, int64_t stride, int64_t tokens, const InputNorm& norm,
               const LoadedMatrix& matrix, bool quantize, ThreadPool& pool);

  int64_t tokens() const { return tokens_; }
  const float* rows() const { return rows_; }  // [tokens, cols]
  // The quantised form for a group size, or none.
  const QuantizedInput* quantized(int group_size) const;

 private:
  struct Form {
    QuantizedInput input;
    Scratch<int8_t> values;
    Scratch<float> scales;
    Scratch<float> sums;
  };

  int64_t tokens_ = 0;
  const float* rows_ = nullptr;
  Scratch<float> normalized_;
  std::deque<Form> forms_;
  size_t forms_used_ = 0;
};

struct MatmulJob {
  const LoadedMatrix* matrix = nullptr;
  const PreparedInput* input = nullptr;
  MatmulOutput output;
};

// Runs all jobs as one parallel loop over their row blocks. `scratch` has one entry per thread.
void RunMatmuls(std::span<const MatmulJob> jobs, ThreadPool& pool,
                std::vector<MatmulScratch>& scratch);

}  // namespace adder
