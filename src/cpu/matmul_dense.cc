// Dense weights (f32, f16, bf16), read where they lie in the mapped file. Lanes run along the
// columns; each (row, token) has one vector of sums that is added up at the end.
#include "cpu/matmul.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/matmul_dense.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which compiles this file once per target.
#include "hwy/highway.h"

#include "cpu/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace adder {
namespace HWY_NAMESPACE {

// Rows x tokens sums in registers: 24 of 32, or 8 of 16.
inline constexpr int kDenseRows = 4;
inline constexpr int kDenseTokens = kLanes == 16 ? 6 : 2;

template <DType kType>
HWY_INLINE VF LoadFirstFloats(const std::byte* from, size_t count) {
  std::byte bytes[kLanes * sizeof(float)] = {};
  std::memcpy(bytes, from, count * (kType == DType::kF32 ? 4 : 2));
  return LoadFloats(bytes, kType);
}

template <DType kType, int kRows, int kTokens>
void MultiplyTile(const std::byte* w, int64_t row_bytes, const float* x, int64_t cols,
                  const MatmulOutput& output, int64_t row, int64_t token) {
  const DF df;
  constexpr int64_t kSize = kType == DType::kF32 ? 4 : 2;
  VF sums[kRows][kTokens];
  for (auto& line : sums) {
    for (VF& sum : line) sum = hn::Zero(df);
  }
  int64_t k = 0;
  for (; k + kStep <= cols; k += kStep) {
    VF weights[kRows];
    for (int r = 0; r < kRows; ++r) {
      weights[r] = LoadFloats(w + r * row_bytes + k * kSize, kType);
    }
    for (int t = 0; t < kTokens; ++t) {
      const VF values = hn::LoadU(df, x + t * cols + k);
      for (int r = 0; r < kRows; ++r) sums[r][t] = hn::MulAdd(weights[r], values, sums[r][t]);
    }
  }
  if (k < cols) {
    const auto count = static_cast<size_t>(cols - k);
    for (int t = 0; t < kTokens; ++t) {
      const VF values = LoadFirst(x + t * cols + k, count);
      for (int r = 0; r < kRows; ++r) {
        const VF weights = LoadFirstFloats<kType>(w + r * row_bytes + k * kSize, count);
        sums[r][t] = hn::MulAdd(weights, values, sums[r][t]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int t = 0; t < kTokens; ++t) {
      float y = SumLanes(sums[r][t]);
      y *= output.input_scale;
      if (output.bias != nullptr) y += output.bias[row + r];
      if (output.row_scales != nullptr) y *= output.row_scales[row + r];
      y *= output.scale;
      float& to = output.data[(token + t) * output.stride + row + r];
      to = output.add ? to + y : y;
    }
  }
}

template <DType kType, int kRows>
void MultiplyRows(const MatrixSegment& matrix, int64_t row, const float* x, int64_t tokens,
                  const MatmulOutput& output) {
  const int64_t row_bytes = matrix.row_bytes();
  const std::byte* w = matrix.data + row * row_bytes;
  int64_t token = 0;
  for (; token + kDenseTokens <= tokens; token += kDenseTokens) {
    MultiplyTile<kType, kRows, kDenseTokens>(w, row_bytes, x + token * matrix.cols, matrix.cols,
                                             output, row, token);
  }
  for (; token < tokens; ++token) {
    MultiplyTile<kType, kRows, 1>(w, row_bytes, x + token * matrix.cols, matrix.cols, output, row,
                                  token);
  }
}

template <DType kType>
void Multiply(const MatrixSegment& matrix, int64_t row_begin, int64_t row_end, const float* x,
              int64_t tokens, const MatmulOutput& output) {
  int64_t row = row_begin;
  for (; row + kDenseRows <= row_end; row += kDenseRows) {
    MultiplyRows<kType, kDenseRows>(matrix, row, x, tokens, output);
  }
  for (; row < row_end; ++row) MultiplyRows<kType, 1>(matrix, row, x, tokens, output);
}

void MatmulDenseImpl(const MatrixSegment& matrix, int64_t row_begin, int64_t row_end,
                     const float* x, int64_t tokens, const MatmulOutput& output) {
  switch (matrix.dtype) {
    case DType::kBF16:
      return Multiply<DType::kBF16>(matrix, row_begin, row_end, x, tokens, output);
    case DType::kF16:
      return Multiply<DType::kF16>(matrix, row_begin, row_end, x, tokens, output);
    default:
      return Multiply<DType::kF32>(matrix, row_begin, row_end, x, tokens, output);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace adder
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace adder {

HWY_EXPORT(MatmulDenseImpl);

void MatmulDense(const MatrixSegment& matrix, int64_t row_begin, int64_t row_end, const float* x,
                 int64_t tokens, const MatmulOutput& output) {
  HWY_DYNAMIC_DISPATCH(MatmulDenseImpl)(matrix, row_begin, row_end, x, tokens, output);
}

}  // namespace adder
#endif  // HWY_ONCE
