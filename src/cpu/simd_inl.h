// Helpers of all kernels, compiled once per SIMD target (included inside the per-target pass).
#include "core/dtype.h"
#include "cpu/matmul.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

#if defined(ADDER_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ADDER_CPU_SIMD_INL_H_
#undef ADDER_CPU_SIMD_INL_H_
#else
#define ADDER_CPU_SIMD_INL_H_
#endif

#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace adder {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Vectors of at most 16 floats: the rows of one packed block.
using DF = hn::CappedTag<float, 16>;
using DI = hn::RebindToSigned<DF>;
using DU = hn::RebindToUnsigned<DF>;
using D8 = hn::Repartition<uint8_t, DF>;
using D16 = hn::Repartition<uint16_t, DF>;
using VF = hn::Vec<DF>;
using VI = hn::Vec<DI>;
using V8 = hn::Vec<D8>;

inline constexpr size_t kLanes = HWY_MIN(hn::MaxLanes(DF()), 16);
// Vectors that make up 16 rows.
inline constexpr size_t kParts = 16 / kLanes;
// Tokens whose sums one matmul tile keeps in registers. AVX-512 has 32 registers: 12 integer and 12
// float sums, a weight and a few temporaries. The others have 16 (and two vectors per weight pass).
inline constexpr int64_t kTileTokens = kLanes == 16 ? 12 : 4;

// The first `count` < kLanes floats, the other lanes zero; touches nothing behind them.
HWY_INLINE VF LoadFirst(const float* from, size_t count) {
  HWY_ALIGN float lanes[kLanes] = {};
  std::memcpy(lanes, from, count * sizeof(float));
  return hn::Load(DF(), lanes);
}
HWY_INLINE void StoreFirst(VF value, float* to, size_t count) {
  HWY_ALIGN float lanes[kLanes];
  hn::Store(value, DF(), lanes);
  std::memcpy(to, lanes, count * sizeof(float));
}

inline constexpr auto kStep = static_cast<int64_t>(kLanes);

// kLanes channels, or the first `count` when the row ends.
HWY_INLINE VF LoadChannels(const float* from, int64_t count) {
  return count >= kStep ? hn::LoadU(DF(), from) : LoadFirst(from, static_cast<size_t>(count));
}
HWY_INLINE void StoreChannels(VF value, float* to, int64_t count) {
  if (count >= kStep) {
    hn::StoreU(value, DF(), to);
  } else {
    StoreFirst(value, to, static_cast<size_t>(count));
  }
}

HWY_INLINE float SumLanes(VF value) { return hn::GetLane(hn::SumOfLanes(DF(), value)); }
HWY_INLINE float MaxLane(VF value) { return hn::GetLane(hn::MaxOfLanes(DF(), value)); }

// kLanes consecutive floats of `dtype` (f32, f16 or bf16) at any address.
HWY_INLINE VF LoadFloats(const std::byte* from, DType dtype) {
  const DF df;
  if (dtype == DType::kBF16) {
    const hn::Rebind<uint16_t, DF> d16;
    uint16_t raw[kLanes];
    std::memcpy(raw, from, sizeof(raw));
    return hn::BitCast(df, hn::ShiftLeft<16>(hn::PromoteTo(DU(), hn::LoadU(d16, raw))));
  }
  if (dtype == DType::kF16) {
    const hn::Rebind<hwy::float16_t, DF> d16;
    hwy::float16_t raw[kLanes];
    std::memcpy(static_cast<void*>(raw), from, sizeof(raw));
    return hn::PromoteTo(df, hn::LoadU(d16, raw));
  }
  float raw[kLanes];
  std::memcpy(raw, from, sizeof(raw));
  return hn::LoadU(df, raw);
}

// x * sigmoid(x). Below -88 the true value is under 1e-36 and the clamp keeps exp finite.
HWY_INLINE VF Silu(VF x) {
  const DF df;
  const VF e = hn::Exp(df, hn::Min(hn::Neg(x), hn::Set(df, 88.0f)));
  return hn::Div(x, hn::Add(hn::Set(df, 1.0f), e));
}

// 1 / (1 + e^-x), with the clamp of Silu.
HWY_INLINE VF Sigmoid(VF x) {
  const DF df;
  const VF e = hn::Exp(df, hn::Min(hn::Neg(x), hn::Set(df, 88.0f)));
  return hn::Div(hn::Set(df, 1.0f), hn::Add(hn::Set(df, 1.0f), e));
}

// log(1 + e^x) without overflow.
HWY_INLINE VF Softplus(VF x) {
  const DF df;
  const VF e = hn::Exp(df, hn::Neg(hn::Abs(x)));
  return hn::Add(hn::Max(x, hn::Zero(df)), hn::Log1p(df, e));
}

// x86 without VNNI multiplies bytes in pairs that are summed in 16 bits.
#define ADDER_X86_PAIRS                                                                           \
  (HWY_ARCH_X86 && (HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE4 || \
                    HWY_TARGET == HWY_SSSE3))

// The four bytes at `quad` in every 32-bit lane.
HWY_INLINE VI BroadcastQuad(const int8_t* quad) {
  int32_t four;
  std::memcpy(&four, quad, sizeof(four));
  return hn::Set(DI(), four);
}

#if ADDER_X86_PAIRS
#if HWY_TARGET == HWY_AVX3
#define ADDER_X86(op) _mm512_##op
#elif HWY_TARGET == HWY_AVX2
#define ADDER_X86(op) _mm256_##op
#else
#define ADDER_X86(op) _mm_##op
#endif

using V16 = hn::Vec<hn::RebindToSigned<D16>>;

// w0 x0 + w1 x1 in each 16-bit lane. Exact while w has at most 6 bits: 2 * 63 * 127 = 16002.
HWY_INLINE V16 PairProducts(V8 w, const int8_t* quad) {
  return V16{ADDER_X86(maddubs_epi16)(w.raw, BroadcastQuad(quad).raw)};
}
HWY_INLINE VI AddPairs(VI acc, V16 pairs) {
  return VI{
      ADDER_X86(add_epi32)(acc.raw, ADDER_X86(madd_epi16)(pairs.raw, ADDER_X86(set1_epi16)(1)))};
}
#endif

// Adds the four products of each 32-bit lane: acc += w0 x0 + w1 x1 + w2 x2 + w3 x3, with w unsigned
// of at most kBits bits and the four bytes at `quad` as x, in [-127, 127]. Exact on every target.
template <int kBits>
HWY_INLINE VI DotQuads(VI acc, V8 w, const int8_t* quad) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_DL
  // As assembly, because Highway 1.0.3 does not enable the avx512vnni intrinsics for this target
  // (which every machine of the target has), and so that the broadcast is part of the instruction.
  using AliasedInt = int32_t __attribute__((may_alias));
  asm("vpdpbusd %2%{1to16%}, %1, %0"
      : "+v"(acc.raw)
      : "v"(w.raw), "m"(*reinterpret_cast<const AliasedInt*>(quad)));
  return acc;
#elif ADDER_X86_PAIRS
  if constexpr (kBits <= 6) {
    return AddPairs(acc, PairProducts(w, quad));
  } else {
    const D16 d16;
    const VI x = BroadcastQuad(quad);
    const auto w16 = hn::BitCast(d16, w);
    const auto w_even = hn::And(w16, hn::Set(d16, uint16_t{0xff}));
    const auto w_odd = hn::ShiftRight<8>(w16);
    const auto x_even = ADDER_X86(srai_epi16)(ADDER_X86(slli_epi16)(x.raw, 8), 8);
    const auto x_odd = ADDER_X86(srai_epi16)(x.raw, 8);
    const auto sum = ADDER_X86(add_epi32)(ADDER_X86(madd_epi16)(w_even.raw, x_even),
                                          ADDER_X86(madd_epi16)(w_odd.raw, x_odd));
    return VI{ADDER_X86(add_epi32)(acc.raw, sum)};
  }
#elif HWY_ARCH_ARM_A64
  // 255 * 127 fits in 16 bits, so a product of two bytes does.
  const VI x = BroadcastQuad(quad);
  const uint16x8_t w16 = vreinterpretq_u16_u8(w.raw);
  const int16x8_t x16 = vreinterpretq_s16_s32(x.raw);
  const int16x8_t w_even = vreinterpretq_s16_u16(vandq_u16(w16, vdupq_n_u16(0xff)));
  const int16x8_t w_odd = vreinterpretq_s16_u16(vshrq_n_u16(w16, 8));
  const int16x8_t x_even = vshrq_n_s16(vshlq_n_s16(x16, 8), 8);
  const int16x8_t x_odd = vshrq_n_s16(x16, 8);
  return VI{vpadalq_s16(vpadalq_s16(acc.raw, vmulq_s16(w_even, x_even)), vmulq_s16(w_odd, x_odd))};
#else
  const DI di;
  const VI x = BroadcastQuad(quad);
  const VI wi = hn::BitCast(di, w);
  const VI low = hn::Set(di, 0xff);
  acc = hn::Add(acc, hn::Mul(hn::And(wi, low), hn::ShiftRight<24>(hn::ShiftLeft<24>(x))));
  acc = hn::Add(
      acc, hn::Mul(hn::And(hn::ShiftRight<8>(wi), low), hn::ShiftRight<24>(hn::ShiftLeft<16>(x))));
  acc = hn::Add(
      acc, hn::Mul(hn::And(hn::ShiftRight<16>(wi), low), hn::ShiftRight<24>(hn::ShiftLeft<8>(x))));
  return hn::Add(acc, hn::Mul(hn::And(hn::ShiftRight<24>(wi), low), hn::ShiftRight<24>(x)));
#endif
}

// Adds the dot products of kQuads quads of weights (at most the 8 of a unit; at `w`, kLanes * 4
// bytes each) with kTokens tokens, whose quads lie side by side at `x`: [kQuads][kTokens][4].
template <int kBits, int kTokens, int kQuads>
HWY_INLINE void DotUnit(const uint8_t* w, const int8_t* x, VI (&dots)[kTokens]) {
  const D8 d8;
#if ADDER_X86_PAIRS
  if constexpr (kBits <= 4) {
    // Eight pair sums of 4-bit weights stay below 8 * 2 * 15 * 127 = 30480: one widening per unit.
    V16 pairs[kTokens];
    for (V16& pair : pairs) pair = hn::Zero(hn::RebindToSigned<D16>());
    // Unrolled, the compiler would gather all products before it adds them, and run out of
    // registers.
    int quads = kQuads;
    asm("" : "+r"(quads));
    for (int j = 0; j < quads; ++j, w += kLanes * 4, x += 4 * kTokens) {
      const V8 q = hn::Load(d8, w);
      for (int t = 0; t < kTokens; ++t) pairs[t] = hn::Add(pairs[t], PairProducts(q, x + 4 * t));
    }
    for (int t = 0; t < kTokens; ++t) dots[t] = AddPairs(dots[t], pairs[t]);
    return;
  }
#endif
  for (int j = 0; j < kQuads; ++j, w += kLanes * 4, x += 4 * kTokens) {
    const V8 q = hn::Load(d8, w);
    for (int t = 0; t < kTokens; ++t) dots[t] = DotQuads<kBits>(dots[t], q, x + 4 * t);
  }
}
#undef ADDER_X86

// The kLanes rows of `part` of a unit (packed_matrix.h): q[j] holds the bytes of quad j.
template <int kBits>
HWY_INLINE void UnpackUnit(const uint8_t* unit, size_t part, V8 (&q)[8]) {
  const D8 d8;
  const D16 d16;
  const uint8_t* from = unit + part * kLanes * 4;
  if constexpr (kBits == 8) {
    for (int j = 0; j < 8; ++j) q[j] = hn::LoadU(d8, from + 64 * j);
    return;
  }
  // Shifts work on 16-bit lanes; the masks drop what came over from the neighbouring byte.
  constexpr bool kFour = kBits >= 4;
  if constexpr (kFour) {
    const V8 mask = hn::Set(d8, uint8_t{0x0f});
    for (int l = 0; l < 4; ++l) {
      const V8 line = hn::LoadU(d8, from + 64 * l);
      q[2 * l] = hn::And(line, mask);
      q[2 * l + 1] = hn::And(hn::BitCast(d8, hn::ShiftRight<4>(hn::BitCast(d16, line))), mask);
    }
    from += 4 * 64;
  }
  if constexpr (kBits == 2 || kBits == 3 || kBits == 6) {
    constexpr uint8_t kMask = kFour ? 0x30 : 0x03;
    const V8 mask = hn::Set(d8, kMask);
    for (int l = 0; l < 2; ++l) {
      const auto line = hn::BitCast(d16, hn::LoadU(d8, from + 64 * l));
      V8 v[4];
      if constexpr (kFour) {
        v[0] = hn::BitCast(d8, hn::ShiftLeft<4>(line));
        v[1] = hn::BitCast(d8, hn::ShiftLeft<2>(line));
        v[2] = hn::BitCast(d8, line);
        v[3] = hn::BitCast(d8, hn::ShiftRight<2>(line));
      } else {
        v[0] = hn::BitCast(d8, line);
        v[1] = hn::BitCast(d8, hn::ShiftRight<2>(line));
        v[2] = hn::BitCast(d8, hn::ShiftRight<4>(line));
        v[3] = hn::BitCast(d8, hn::ShiftRight<6>(line));
      }
      for (int j = 0; j < 4; ++j) {
        const V8 bits = hn::And(v[j], mask);
        q[4 * l + j] = kFour ? hn::Or(q[4 * l + j], bits) : bits;
      }
    }
    from += 2 * 64;
  }
  if constexpr (kBits == 3 || kBits == 5) {
    constexpr int kShift = kBits - 1;
    const V8 mask = hn::Set(d8, static_cast<uint8_t>(1u << kShift));
    const auto line = hn::BitCast(d16, hn::LoadU(d8, from));
    V8 v[8];
    if constexpr (kShift == 2) {
      v[0] = hn::BitCast(d8, hn::ShiftLeft<2>(line));
      v[1] = hn::BitCast(d8, hn::ShiftLeft<1>(line));
      v[2] = hn::BitCast(d8, line);
      v[3] = hn::BitCast(d8, hn::ShiftRight<1>(line));
      v[4] = hn::BitCast(d8, hn::ShiftRight<2>(line));
      v[5] = hn::BitCast(d8, hn::ShiftRight<3>(line));
      v[6] = hn::BitCast(d8, hn::ShiftRight<4>(line));
      v[7] = hn::BitCast(d8, hn::ShiftRight<5>(line));
    } else {
      v[0] = hn::BitCast(d8, hn::ShiftLeft<4>(line));
      v[1] = hn::BitCast(d8, hn::ShiftLeft<3>(line));
      v[2] = hn::BitCast(d8, hn::ShiftLeft<2>(line));
      v[3] = hn::BitCast(d8, hn::ShiftLeft<1>(line));
      v[4] = hn::BitCast(d8, line);
      v[5] = hn::BitCast(d8, hn::ShiftRight<1>(line));
      v[6] = hn::BitCast(d8, hn::ShiftRight<2>(line));
      v[7] = hn::BitCast(d8, hn::ShiftRight<3>(line));
    }
    for (int j = 0; j < 8; ++j) q[j] = hn::Or(q[j], hn::And(v[j], mask));
  }
}

// How a packed matrix is stored, for kernels that are compiled for each way.
template <int kBitsOf, WeightCodes kCodesOf = WeightCodes::kAffine, int kSpanGroupsOf = 1>
struct PackedFormat {
  static constexpr int kBits = kBitsOf;
  static constexpr WeightCodes kCodes = kCodesOf;
  // Groups of one span.
  static constexpr int kSpanGroups = kSpanGroupsOf;
  static constexpr int kSpanScales = kCodes == WeightCodes::kAffine ? 2 : kSpanGroups;
  // Of the whole numbers that integer kernels multiply.
  static constexpr int kDotBits = kCodes == WeightCodes::kE2M1 ? 5 : kBits;
};

// Calls fn.template operator()<Format>() with the PackedFormat of the matrix. E4M3 only when
// `kFloats`.
template <bool kFloats, class Fn>
HWY_INLINE void WithPackedFormat(const PackedMatrix& matrix, const Fn& fn) {
  if (matrix.codes == WeightCodes::kE2M1) {
    if (matrix.group_size < kUnitColumns) {
      return fn.template operator()<PackedFormat<4, WeightCodes::kE2M1, 2>>();
    }
    return fn.template operator()<PackedFormat<4, WeightCodes::kE2M1>>();
  }
  if constexpr (kFloats) {
    if (matrix.codes == WeightCodes::kE4M3) {
      return fn.template operator()<PackedFormat<8, WeightCodes::kE4M3>>();
    }
  }
  switch (matrix.bits) {
    case 2:
      return fn.template operator()<PackedFormat<2>>();
    case 3:
      return fn.template operator()<PackedFormat<3>>();
    case 4:
      return fn.template operator()<PackedFormat<4>>();
    case 5:
      return fn.template operator()<PackedFormat<5>>();
    case 6:
      return fn.template operator()<PackedFormat<6>>();
    default:
      return fn.template operator()<PackedFormat<8>>();
  }
}

// As UnpackUnit, with E2M1 codes as kE2M1Offset + 2 * number.
template <class Format>
HWY_INLINE void UnpackWhole(const uint8_t* unit, size_t part, V8 (&q)[8]) {
  UnpackUnit<Format::kBits>(unit, part, q);
  if constexpr (Format::kCodes == WeightCodes::kE2M1) {
    HWY_ALIGN static constexpr uint8_t kLookup[16] = {
        kE2M1Lookup[0],  kE2M1Lookup[1],  kE2M1Lookup[2],  kE2M1Lookup[3],
        kE2M1Lookup[4],  kE2M1Lookup[5],  kE2M1Lookup[6],  kE2M1Lookup[7],
        kE2M1Lookup[8],  kE2M1Lookup[9],  kE2M1Lookup[10], kE2M1Lookup[11],
        kE2M1Lookup[12], kE2M1Lookup[13], kE2M1Lookup[14], kE2M1Lookup[15]};
    const V8 lookup = hn::LoadDup128(D8(), kLookup);
    for (V8& quad : q) quad = hn::TableLookupBytes(lookup, quad);
  }
}

// Scale and bias of kLanes rows for group `group` of a span whose scales lie at `scales`.
struct GroupScales {
  VF scale;
  VF bias;
};
template <class Format>
HWY_INLINE GroupScales LoadScales(const std::byte* scales, int group, size_t part, DType dtype) {
  const size_t scale_bytes = 16 * (dtype == DType::kF32 ? 4 : 2);
  const std::byte* from = scales + part * (scale_bytes / kParts);
  if constexpr (Format::kCodes == WeightCodes::kAffine) {
    return {LoadFloats(from, dtype), LoadFloats(from + scale_bytes, dtype)};
  } else {
    const VF scale = LoadFloats(from + static_cast<size_t>(group) * scale_bytes, dtype);
    return {scale, hn::Mul(scale, hn::Set(DF(), static_cast<float>(-kE2M1Offset)))};
  }
}

// E4M3 numbers of codes, one in each 32-bit lane.
HWY_INLINE VF E4M3Numbers(VI codes) {
  const DF df;
  const DI di;
  const VI magnitude = hn::And(codes, hn::Set(di, 0x7f));
  // Exponents move from a bias of 7 to one of 127. Those of zero stand for multiples of 2^-9.
  const VF normal = hn::BitCast(df, hn::Add(hn::ShiftLeft<20>(magnitude), hn::Set(di, 120 << 23)));
  const VF tiny = hn::Mul(hn::ConvertTo(df, magnitude), hn::Set(df, 0x1p-9f));
  const auto is_tiny = hn::RebindMask(df, hn::Lt(magnitude, hn::Set(di, 8)));
  const VI sign = hn::ShiftLeft<24>(hn::And(codes, hn::Set(di, 0x80)));
  return hn::Or(hn::IfThenElse(is_tiny, tiny, normal), hn::BitCast(df, sign));
}

// Writes the sums of rows [row, row + kLanes) of one token through the epilogue.
HWY_INLINE void StoreRows(VF sums, const MatmulOutput& output, int64_t token, int64_t row,
                          int64_t rows) {
  const DF df;
  if (row >= rows) return;
  float* to = output.data + token * output.stride + row;
  const auto count = static_cast<size_t>(rows - row);
  const bool whole = count >= kLanes;
  sums = hn::Mul(sums, hn::Set(df, output.input_scale));
  if (output.bias != nullptr) {
    const float* bias = output.bias + row;
    sums = hn::Add(sums, whole ? hn::LoadU(df, bias) : LoadFirst(bias, count));
  }
  if (output.row_scales != nullptr) {
    const float* scales = output.row_scales + row;
    sums = hn::Mul(sums, whole ? hn::LoadU(df, scales) : LoadFirst(scales, count));
  }
  sums = hn::Mul(sums, hn::Set(df, output.scale));
  if (output.add) sums = hn::Add(whole ? hn::LoadU(df, to) : LoadFirst(to, count), sums);
  if (whole) {
    hn::StoreU(sums, df, to);
  } else {
    StoreFirst(sums, to, count);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace adder
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
