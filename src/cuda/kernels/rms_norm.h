// RMSNorm as a kernel of its own: for norms in groups, and for those behind a mixer. Others are
// part of the matrix kernel.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace adder::cuda {

// What becomes of a normalised element y.
enum class NormEpilogue {
  kStore,  // output = y
  kAdd,    // output += scale * y
  kGate,   // output = y * silu(gate); the output may be the input
};

struct RmsNormParams {
  const float* input = nullptr;  // [*, stride]
  int stride = 0;
  int rows = 0;
  const int* input_rows = nullptr;  // row i reads input row input_rows[i]; null: row i
  int width = 0;
  int groups = 1;  // the mean is taken over each of so many equal parts of a row
  const float* weight = nullptr;
  float eps = 0;
  float* output = nullptr;             // [rows, stride]
  uint16_t* rounded_output = nullptr;  // [rows, rounded_stride], in bf16; null: none
  int rounded_stride = 0;
  NormEpilogue epilogue = NormEpilogue::kStore;
  float scale = 1;
  const float* gate = nullptr;  // [*, gate_stride], row as the input's
  int gate_stride = 0;
};

void LaunchRmsNorm(const RmsNormParams& params, cudaStream_t stream);

}  // namespace adder::cuda
