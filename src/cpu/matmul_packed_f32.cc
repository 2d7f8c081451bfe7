// Quantised weights times f32 activations: weights become exact f32 values, once per block.
#include <algorithm>

#include "cpu/matmul.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/matmul_packed_f32.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which compiles this file once per target.
#include "hwy/highway.h"

#include "cpu/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace adder {
namespace HWY_NAMESPACE {

// Four sums per token and row: 24 of 32 registers, or 8 of 16.
inline constexpr int64_t kF32TileTokens = kLanes == 16 ? 6 : 2;

// The weights of codes, one in each 32-bit lane, as DequantizeRow rounds them.
template <class Format>
HWY_INLINE VF Weights(VI codes, const GroupScales& scales) {
  const DF df;
  if constexpr (Format::kCodes == WeightCodes::kE4M3) {
    return hn::Mul(E4M3Numbers(codes), scales.scale);
  } else if constexpr (Format::kCodes == WeightCodes::kE2M1) {
    const VI number = hn::Sub(codes, hn::Set(DI(), kE2M1Offset));
    return hn::Mul(hn::ConvertTo(df, number), scales.scale);
  } else {
    // The product first.
    return hn::Add(hn::Mul(hn::ConvertTo(df, codes), scales.scale), scales.bias);
  }
}

// Writes the block as [kParts][cols][kLanes].
template <class Format>
void DequantizeBlock(const PackedMatrix& matrix, int64_t block, float* to) {
  const DF df;
  const DI di;
  constexpr int kGroupQuads = 8 / Format::kSpanGroups;
  const int64_t units = matrix.span() / kUnitColumns;
  const auto scale_bytes = static_cast<size_t>(matrix.span_scale_bytes());
  const VI low_byte = hn::Set(di, 0xff);
  const std::byte* span = matrix.data + block * matrix.block_bytes();
  for (int64_t s = 0; s < matrix.spans(); ++s, span += matrix.span_bytes()) {
    for (size_t p = 0; p < kParts; ++p) {
      GroupScales scales[Format::kSpanGroups];
      for (int g = 0; g < Format::kSpanGroups; ++g) {
        scales[g] = LoadScales<Format>(span, g, p, matrix.scale_dtype);
      }
      const uint8_t* unit = reinterpret_cast<const uint8_t*>(span + scale_bytes);
      float* out =
          to +
          (p * static_cast<size_t>(matrix.cols) + static_cast<size_t>(s * matrix.span())) * kLanes;
      for (int64_t u = 0; u < units; ++u, unit += 64 * Format::kBits) {
        V8 q[8];
        UnpackWhole<Format>(unit, p, q);
        for (int j = 0; j < 8; ++j, out += 4 * kLanes) {
          const VI four = hn::BitCast(di, q[j]);
          const VI columns[4] = {hn::And(four, low_byte),
                                 hn::And(hn::ShiftRight<8>(four), low_byte),
                                 hn::And(hn::ShiftRight<16>(four), low_byte),
                                 hn::And(hn::ShiftRight<24>(four), low_byte)};
          for (size_t c = 0; c < 4; ++c) {
            hn::Store(Weights<Format>(columns[c], scales[j / kGroupQuads]), df, out + c * kLanes);
          }
        }
      }
    }
  }
}

template <int kTokens>
void MultiplyTile(const float* w, int64_t cols, const float* x, VF* out) {
  const DF df;
  VF sums[4][kTokens];
  for (auto& row : sums) {
    for (VF& sum : row) sum = hn::Zero(df);
  }
  for (int64_t k = 0; k < cols; k += 4, w += 4 * kLanes) {
    for (size_t c = 0; c < 4; ++c) {
      const VF column = hn::Load(df, w + c * kLanes);
      for (int t = 0; t < kTokens; ++t) {
        const float value = x[t * cols + k + static_cast<int64_t>(c)];
        sums[c][t] = hn::MulAdd(column, hn::Set(df, value), sums[c][t]);
      }
    }
  }
  for (int t = 0; t < kTokens; ++t) {
    out[t] = hn::Add(hn::Add(sums[0][t], sums[1][t]), hn::Add(sums[2][t], sums[3][t]));
  }
}

template <int kTokens>
void MultiplyTiles(const float* weights, const PackedMatrix& matrix, int64_t block, const float* x,
                   int64_t token_begin, int64_t token_end, const MatmulOutput& output) {
  for (int64_t token = token_begin; token + kTokens <= token_end; token += kTokens) {
    for (size_t p = 0; p < kParts; ++p) {
      VF sums[kTokens];
      MultiplyTile<kTokens>(weights + p * static_cast<size_t>(matrix.cols) * kLanes, matrix.cols,
                            x + token * matrix.cols, sums);
      const int64_t row = block * kBlockRows + static_cast<int64_t>(p * kLanes);
      for (int t = 0; t < kTokens; ++t) StoreRows(sums[t], output, token + t, row, matrix.rows);
    }
  }
}

template <class Format>
void Multiply(const PackedMatrix& matrix, int64_t block_begin, int64_t block_end, const float* x,
              int64_t tokens, const MatmulOutput& output, MatmulScratch& scratch) {
  float* weights = scratch.floats.Get(static_cast<size_t>(matrix.cols) * 16);
  const int64_t whole = tokens / kF32TileTokens * kF32TileTokens;
  for (int64_t block = block_begin; block < block_end; ++block) {
    DequantizeBlock<Format>(matrix, block, weights);
    MultiplyTiles<kF32TileTokens>(weights, matrix, block, x, 0, whole, output);
    MultiplyTiles<1>(weights, matrix, block, x, whole, tokens, output);
  }
}

void MatmulPackedF32Impl(const PackedMatrix& matrix, int64_t block_begin, int64_t block_end,
                         const float* x, int64_t tokens, const MatmulOutput& output,
                         MatmulScratch& scratch) {
  WithPackedFormat<true>(matrix, [&]<class Format>() {
    Multiply<Format>(matrix, block_begin, block_end, x, tokens, output, scratch);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace adder
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace adder {

HWY_EXPORT(MatmulPackedF32Impl);

void MatmulPackedF32(const PackedMatrix& matrix, int64_t block_begin, int64_t block_end,
                     const float* x, int64_t tokens, const MatmulOutput& output,
                     MatmulScratch& scratch) {
  HWY_DYNAMIC_DISPATCH(MatmulPackedF32Impl)
  (matrix, block_begin, block_end, x, tokens, output, scratch);
}

}  // namespace adder
#endif  // HWY_ONCE
