// Several matrices in one launch, for steps of a few tokens: those that read mixtures of a normed
// row and the previous one (a token shift), or each a row of its own.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/kernels/linear.h"
#include "cuda/kernels/row_update.h"
#include "cuda/kernels/rwkv7.h"

namespace adder::cuda {

inline constexpr int kMostSeveral = 8;
// Most tokens for which it is the fastest: every token's blocks read the matrices for themselves.
inline constexpr int kMostSeveralTokens = 8;
// Most columns with a shift.
inline constexpr int kMostShiftedCols = 4096;

// output = activation(W x + bias).
struct OneOfSeveral {
  PackedMatrix matrix;
  const float* input = nullptr;  // without a shift: [tokens, input_stride]
  int input_stride = 0;
  const float* mix = nullptr;   // with a shift: [cols]
  const float* bias = nullptr;  // [rows]; null: none
  bool activates = false;       // otherwise there is no activation
  Activation activation = Activation::kSilu;
  float* output = nullptr;  // [tokens, output_stride]
  int output_stride = 0;
};

// Of the shift: its rows' runs have one token each, and its mix, parts and outputs are not used.
// The norm is a layer norm with weight and bias.
struct SeveralLinearParams {
  OneOfSeveral matrices[kMostSeveral];
  int count = 0;
  int tokens = 0;
  bool shifts = false;
  TokenShiftParams shift;
  RowNorm norm;
  // [tokens], with a shift: zero before and after. No launch that may overlap with this one may
  // have the same.
  unsigned* arrivals = nullptr;
};

// Whether a launch takes these matrices: of one format, with rows that begin on 16-byte boundaries;
// with a shift all of the same width. `first` may be `other`.
bool CanLaunchTogether(const PackedMatrix& first, const PackedMatrix& other, bool shifts,
                       const LinearShape& shape);

void LaunchSeveralLinear(const SeveralLinearParams& params, const LinearShape& shape,
                         cudaStream_t stream);

}  // namespace adder::cuda
