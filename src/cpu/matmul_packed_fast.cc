// Quantised weights times quantised activations, in integers within a group.
#include <algorithm>

#include "cpu/matmul.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/matmul_packed_fast.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which compiles this file once per target.
#include "hwy/highway.h"

#include "cpu/simd_inl.h"
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace adder {
namespace HWY_NAMESPACE {

// How far ahead of their use weights are asked for: the hardware's own prefetching stops at every
// 4 KB page.
inline constexpr int kPrefetchBytes = 4096;

int64_t TokenTileImpl() { return kTileTokens; }

// One group of one token: scale and bias of kLanes rows meet the integer sums. Both products below
// use it, so they round alike.
HWY_INLINE VF AddGroup(VF sum, VI dots, VF scale, VF bias, float x_scale, float x_sum) {
  const DF df;
  sum = hn::MulAdd(hn::ConvertTo(df, dots), hn::Mul(scale, hn::Set(df, x_scale)), sum);
  return hn::MulAdd(bias, hn::Set(df, x_sum), sum);
}

// One token: weights go from memory to registers once and are used at once.
template <class Format, DType kScaleType>
void MultiplyOne(const PackedMatrix& matrix, int64_t block_begin, int64_t block_end,
                 const QuantizedInput& input, const MatmulOutput& output) {
  const DF df;
  const DI di;
  constexpr int kBits = Format::kBits;
  constexpr int kSpanGroups = Format::kSpanGroups;
  constexpr int kGroupQuads = 8 / kSpanGroups;
  constexpr size_t kScaleBytes = 16 * (kScaleType == DType::kF32 ? 4 : 2);
  const int64_t spans = matrix.spans();
  const int64_t units = matrix.span() / kUnitColumns;
  const std::byte* from = matrix.data + block_begin * matrix.block_bytes();
  for (int64_t block = block_begin; block < block_end; ++block) {
    const int8_t* x = input.values;
    VF sums[kParts];
    for (size_t p = 0; p < kParts; ++p) sums[p] = hn::Zero(df);
    for (int64_t s = 0; s < spans; ++s) {
      const std::byte* scales = from;
      from += Format::kSpanScales * kScaleBytes;
      VI even[kSpanGroups][kParts];
      VI odd[kSpanGroups][kParts];
      for (int g = 0; g < kSpanGroups; ++g) {
        for (size_t p = 0; p < kParts; ++p) even[g][p] = odd[g][p] = hn::Zero(di);
      }
      for (int64_t u = 0; u < units; ++u, from += 64 * kBits, x += kUnitColumns) {
        const auto* unit = reinterpret_cast<const uint8_t*>(from);
        for (int line = 0; line < kBits; ++line) {
          hwy::Prefetch(unit + kPrefetchBytes + 64 * line);
        }
        for (size_t p = 0; p < kParts; ++p) {
          V8 q[8];
          UnpackWhole<Format>(unit, p, q);
          for (int j = 0; j < 8; j += 2) {
            const int g = j / kGroupQuads;
            even[g][p] = DotQuads<Format::kDotBits>(even[g][p], q[j], x + 4 * j);
            odd[g][p] = DotQuads<Format::kDotBits>(odd[g][p], q[j + 1], x + 4 * j + 4);
          }
        }
      }
      for (int g = 0; g < kSpanGroups; ++g) {
        const int64_t group = s * kSpanGroups + g;
        for (size_t p = 0; p < kParts; ++p) {
          const GroupScales of = LoadScales<Format>(scales, g, p, kScaleType);
          sums[p] = AddGroup(sums[p], hn::Add(even[g][p], odd[g][p]), of.scale, of.bias,
                             input.scales[group], input.sums[group]);
        }
      }
    }
    for (size_t p = 0; p < kParts; ++p) {
      StoreRows(sums[p], output, 0, block * kBlockRows + static_cast<int64_t>(p * kLanes),
                matrix.rows);
    }
  }
}

// A block spread out for reuse by many tokens.
struct UnpackedBlock {
  uint8_t* bytes;  // [kParts][cols / 4][kLanes * 4]
  float* scales;   // [groups][16]
  float* biases;   // [groups][16]
};

template <class Format>
void UnpackBlock(const PackedMatrix& matrix, int64_t block, const UnpackedBlock& to) {
  const DF df;
  const D8 d8;
  const int64_t units = matrix.span() / kUnitColumns;
  const auto scale_bytes = static_cast<size_t>(matrix.span_scale_bytes());
  const std::byte* span = matrix.data + block * matrix.block_bytes();
  uint8_t* bytes[kParts];
  for (size_t p = 0; p < kParts; ++p) {
    bytes[p] = to.bytes + p * static_cast<size_t>(matrix.cols) * kLanes;
  }
  for (int64_t s = 0; s < matrix.spans(); ++s, span += matrix.span_bytes()) {
    const uint8_t* unit = reinterpret_cast<const uint8_t*>(span + scale_bytes);
    for (int64_t u = 0; u < units; ++u, unit += 64 * Format::kBits) {
      for (size_t p = 0; p < kParts; ++p) {
        V8 q[8];
        UnpackWhole<Format>(unit, p, q);
        for (int j = 0; j < 8; ++j, bytes[p] += kLanes * 4) hn::StoreU(q[j], d8, bytes[p]);
      }
    }
    for (int g = 0; g < Format::kSpanGroups; ++g) {
      for (size_t p = 0; p < kParts; ++p) {
        const size_t at = static_cast<size_t>(s * Format::kSpanGroups + g) * 16 + p * kLanes;
        const GroupScales of = LoadScales<Format>(span, g, p, matrix.scale_dtype);
        hn::Store(of.scale, df, to.scales + at);
        hn::Store(of.bias, df, to.biases + at);
      }
    }
  }
}

// kTokens tokens of one tile times kLanes rows of an unpacked block. kQuads quads at a time, which
// divide a group.
template <int kBits, int kQuads, int kTokens>
void MultiplyTile(const UnpackedBlock& block, size_t part, int64_t cols, int group_size,
                  const int8_t* x, const float* x_scales, const float* x_sums, VF* out) {
  const DF df;
  const DI di;
  const int64_t groups = cols / group_size;
  const int64_t units = group_size / (4 * kQuads);
  const uint8_t* w = block.bytes + part * static_cast<size_t>(cols) * kLanes;
  const float* scales = block.scales + part * kLanes;
  const float* biases = block.biases + part * kLanes;
  VF sums[kTokens];
  for (int t = 0; t < kTokens; ++t) sums[t] = hn::Zero(df);
  for (int64_t g = 0; g < groups; ++g) {
    VI dots[kTokens];
    for (int t = 0; t < kTokens; ++t) dots[t] = hn::Zero(di);
    for (int64_t u = 0; u < units; ++u, w += kQuads * kLanes * 4, x += 4 * kQuads * kTokens) {
      DotUnit<kBits, kTokens, kQuads>(w, x, dots);
    }
    const VF scale = hn::Load(df, scales + g * 16);
    const VF bias = hn::Load(df, biases + g * 16);
    for (int t = 0; t < kTokens; ++t) {
      sums[t] = AddGroup(sums[t], dots[t], scale, bias, x_scales[t], x_sums[t]);
    }
    x_scales += kTokens;
    x_sums += kTokens;
  }
  for (int t = 0; t < kTokens; ++t) out[t] = sums[t];
}

template <int kBits, int kQuads, int kTokens>
void MultiplyTiles(const UnpackedBlock& unpacked, const PackedMatrix& matrix, int64_t block,
                   const QuantizedInput& input, int64_t token_begin, int64_t token_end,
                   const MatmulOutput& output) {
  for (int64_t token = token_begin; token < token_end; token += kTokens) {
    const int64_t scale_at = token * matrix.groups();
    for (size_t p = 0; p < kParts; ++p) {
      VF sums[kTokens];
      MultiplyTile<kBits, kQuads, kTokens>(unpacked, p, matrix.cols, matrix.group_size,
                                           input.values + token * matrix.cols,
                                           input.scales + scale_at, input.sums + scale_at, sums);
      const int64_t row = block * kBlockRows + static_cast<int64_t>(p * kLanes);
      for (int t = 0; t < kTokens; ++t) StoreRows(sums[t], output, token + t, row, matrix.rows);
    }
  }
}

// The smaller last tile; recursion finds the instance for its size.
template <int kBits, int kQuads, int kTokens>
void MultiplyLastTile(const UnpackedBlock& unpacked, const PackedMatrix& matrix, int64_t block,
                      const QuantizedInput& input, int64_t token_begin, int64_t token_end,
                      const MatmulOutput& output) {
  if constexpr (kTokens > 0) {
    if (token_end - token_begin == kTokens) {
      MultiplyTiles<kBits, kQuads, kTokens>(unpacked, matrix, block, input, token_begin, token_end,
                                            output);
    } else {
      MultiplyLastTile<kBits, kQuads, kTokens - 1>(unpacked, matrix, block, input, token_begin,
                                                   token_end, output);
    }
  }
}

// How the dot products of a tile treat weights of this many bits (DotUnit).
constexpr int DotBits(int bits) { return bits == 8 ? 8 : bits <= 4 ? 4 : 6; }

template <class Format>
void MultiplyMany(const PackedMatrix& matrix, int64_t block_begin, int64_t block_end,
                  const QuantizedInput& input, int64_t tokens, const MatmulOutput& output,
                  MatmulScratch& scratch) {
  const auto cols = static_cast<size_t>(matrix.cols);
  const auto groups = static_cast<size_t>(matrix.groups());
  UnpackedBlock unpacked;
  unpacked.bytes = scratch.weights.Get(cols * 16);
  unpacked.scales = scratch.floats.Get(groups * 32);
  unpacked.biases = unpacked.scales + groups * 16;
  const int64_t whole = tokens / kTileTokens * kTileTokens;
  constexpr int kBits = DotBits(Format::kDotBits);
  constexpr int kQuads = 8 / Format::kSpanGroups;
  for (int64_t block = block_begin; block < block_end; ++block) {
    UnpackBlock<Format>(matrix, block, unpacked);
    MultiplyTiles<kBits, kQuads, kTileTokens>(unpacked, matrix, block, input, 0, whole, output);
    MultiplyLastTile<kBits, kQuads, kTileTokens - 1>(unpacked, matrix, block, input, whole, tokens,
                                                     output);
  }
}

template <class Format>
void Multiply(const PackedMatrix& matrix, int64_t block_begin, int64_t block_end,
              const QuantizedInput& input, int64_t tokens, const MatmulOutput& output,
              MatmulScratch& scratch) {
  if (tokens > 1) {
    MultiplyMany<Format>(matrix, block_begin, block_end, input, tokens, output, scratch);
  } else if (matrix.scale_dtype == DType::kBF16) {
    MultiplyOne<Format, DType::kBF16>(matrix, block_begin, block_end, input, output);
  } else if (matrix.scale_dtype == DType::kF16) {
    MultiplyOne<Format, DType::kF16>(matrix, block_begin, block_end, input, output);
  } else {
    MultiplyOne<Format, DType::kF32>(matrix, block_begin, block_end, input, output);
  }
}

void MatmulPackedFastImpl(const PackedMatrix& matrix, int64_t block_begin, int64_t block_end,
                          const QuantizedInput& input, int64_t tokens, const MatmulOutput& output,
                          MatmulScratch& scratch) {
  WithPackedFormat<false>(matrix, [&]<class Format>() {
    Multiply<Format>(matrix, block_begin, block_end, input, tokens, output, scratch);
  });
}

// One group of one token into its place among the quads of its tile.
HWY_INLINE void QuantizeGroup(const float* x, int group_size, int64_t tile_tokens, int8_t* values,
                              float* scale, float* sum) {
  const DF df;
  const DI di;
  const hn::Rebind<int8_t, DF> d8;
  VF largest = hn::Zero(df);
  for (int k = 0; k < group_size; k += static_cast<int>(kLanes)) {
    largest = hn::Max(largest, hn::Abs(hn::LoadU(df, x + k)));
  }
  const float absmax = MaxLane(largest);
  const VF inverse = hn::Set(df, absmax > 0 ? 127.0f / absmax : 0.0f);
  VI total = hn::Zero(di);
  for (int k = 0; k < group_size; k += static_cast<int>(kLanes)) {
    const VI q = hn::NearestInt(hn::Mul(hn::LoadU(df, x + k), inverse));
    total = hn::Add(total, q);
    int8_t bytes[kLanes];
    hn::StoreU(hn::DemoteTo(d8, q), d8, bytes);
    for (int c = 0; c < static_cast<int>(kLanes); c += 4) {
      std::memcpy(values + (k + c) * tile_tokens, bytes + c, 4);
    }
  }
  *scale = absmax / 127.0f;
  *sum = *scale * static_cast<float>(hn::GetLane(hn::SumOfLanes(di, total)));
}

void QuantizeRowsImpl(const float* x, int64_t tokens, int64_t cols, int group_size,
                      int64_t token_begin, int64_t token_end, int8_t* values, float* scales,
                      float* sums) {
  const int64_t groups = cols / group_size;
  for (int64_t first = token_begin; first < token_end; first += kTileTokens) {
    const int64_t tile_tokens = HWY_MIN(kTileTokens, tokens - first);
    for (int64_t t = 0; t < tile_tokens; ++t) {
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t at = first * groups + g * tile_tokens + t;
        QuantizeGroup(x + (first + t) * cols + g * group_size, group_size, tile_tokens,
                      values + first * cols + g * group_size * tile_tokens + t * 4, scales + at,
                      sums + at);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace adder
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace adder {

HWY_EXPORT(TokenTileImpl);
HWY_EXPORT(QuantizeRowsImpl);
HWY_EXPORT(MatmulPackedFastImpl);

int64_t TokenTile() { return HWY_DYNAMIC_DISPATCH(TokenTileImpl)(); }

void QuantizeRows(const float* x, int64_t tokens, int64_t cols, int group_size, int64_t token_begin,
                  int64_t token_end, int8_t* values, float* scales, float* sums) {
  HWY_DYNAMIC_DISPATCH(QuantizeRowsImpl)
  (x, tokens, cols, group_size, token_begin, token_end, values, scales, sums);
}

void MatmulPackedFast(const PackedMatrix& matrix, int64_t block_begin, int64_t block_end,
                      const QuantizedInput& input, int64_t tokens, const MatmulOutput& output,
                      MatmulScratch& scratch) {
  HWY_DYNAMIC_DISPATCH(MatmulPackedFastImpl)
  (matrix, block_begin, block_end, input, tokens, output, scratch);
}

}  // namespace adder
#endif  // HWY_ONCE
