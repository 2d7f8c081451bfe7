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

// Writes the block as [kParts][cols][kLanes].
template <int kBits>
void DequantizeBlock(const PackedMatrix& matrix, int64_t block, float* to) {
  const DF df;
  const DI di;
  const int64_t groups = matrix.groups();
  const int64_t units = matrix.group_size / kUnitColumns;
  const auto scale_bytes = static_cast<size_t>(matrix.scale_bytes());
  const size_t part_scale_bytes = scale_bytes / kParts;
  const VI low_byte = hn::Set(di, 0xff);
  const std::byte* group = matrix.data + block * matrix.block_bytes();
  for (int64_t g = 0; g < groups; ++g, group += matrix.group_bytes()) {
    for (size_t p = 0; p < kParts; ++p) {
      const VF scale = LoadFloats(group + p * part_scale_bytes, matrix.scale_dtype);
      const VF bias = LoadFloats(group + scale_bytes + p * part_scale_bytes, matrix.scale_dtype);
      const uint8_t* unit = reinterpret_cast<const uint8_t*>(group + 2 * scale_bytes);
      float* out =
          to + (p * static_cast<size_t>(matrix.cols) + static_cast<size_t>(g * matrix.group_size)) *
                   kLanes;
      for (int64_t u = 0; u < units; ++u, unit += 64 * kBits) {
        V8 q[8];
        UnpackUnit<kBits>(unit, p, q);
        for (int j = 0; j < 8; ++j, out += 4 * kLanes) {
          const VI four = hn::BitCast(di, q[j]);
          const VI columns[4] = {hn::And(four, low_byte),
                                 hn::And(hn::ShiftRight<8>(four), low_byte),
                                 hn::And(hn::ShiftRight<16>(four), low_byte),
                                 hn::And(hn::ShiftRight<24>(four), low_byte)};
          for (size_t c = 0; c < 4; ++c) {
            // Rounded like DequantizeRow: the product first.
            const VF w = hn::Add(hn::Mul(hn::ConvertTo(df, columns[c]), scale), bias);
            hn::Store(w, df, out + c * kLanes);
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

template <int kBits>
void Multiply(const PackedMatrix& matrix, int64_t block_begin, int64_t block_end, const float* x,
              int64_t tokens, const MatmulOutput& output, MatmulScratch& scratch) {
  float* weights = scratch.floats.Get(static_cast<size_t>(matrix.cols) * 16);
  const int64_t whole = tokens / kF32TileTokens * kF32TileTokens;
  for (int64_t block = block_begin; block < block_end; ++block) {
    DequantizeBlock<kBits>(matrix, block, weights);
    MultiplyTiles<kF32TileTokens>(weights, matrix, block, x, 0, whole, output);
    MultiplyTiles<1>(weights, matrix, block, x, whole, tokens, output);
  }
}

void MatmulPackedF32Impl(const PackedMatrix& matrix, int64_t block_begin, int64_t block_end,
                         const float* x, int64_t tokens, const MatmulOutput& output,
                         MatmulScratch& scratch) {
  switch (matrix.bits) {
    case 2:
      return Multiply<2>(matrix, block_begin, block_end, x, tokens, output, scratch);
    case 3:
      return Multiply<3>(matrix, block_begin, block_end, x, tokens, output, scratch);
    case 4:
      return Multiply<4>(matrix, block_begin, block_end, x, tokens, output, scratch);
    case 5:
      return Multiply<5>(matrix, block_begin, block_end, x, tokens, output, scratch);
    case 6:
      return Multiply<6>(matrix, block_begin, block_end, x, tokens, output, scratch);
    default:
      return Multiply<8>(matrix, block_begin, block_end, x, tokens, output, scratch);
  }
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
