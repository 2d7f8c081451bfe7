// The parts of a matrix-vector product: activations made into tensor-core operands in shared
// memory, and a warp's share of the matrix copied to shared memory and multiplied by them.
//
// Quantised weights stay integers. The 64 activations of a chunk share a scale and become 16-bit
// integers q = 256 high + low, whose bytes are two columns of an integer mma; its eight columns
// are four pairs, and in the pair p only the p-th of four chunks (of four halves of two chunks,
// where scales are one per 32 columns) is not zero. So one accumulator keeps four groups of columns
// apart, lane t of a quad ends up with the p = t-th group's sums, and scales are applied once per
// group, not once per lane.
//
// Weights in floating point are multiplied by activations split into two bf16 numbers.
//
// Shared memory of activations:
//   integers  [chunk][high, low][t][16 bytes], the bytes in the order in which the weights' formats
//             have them, and a GroupUnit per group
//   bf16      [high, low][columns + kColumnPad]
// and of a span of weights: its chunks as in memory (see packed_matrix.h), then its scales.
#pragma once

#include <type_traits>

#include "cuda/kernels/linear_fragments.cuh"

namespace adder::cuda {

// Distance between columns of bf16 in shared memory, beyond the chunks: lanes of neighbouring
// columns then read different banks.
constexpr int kColumnPad = 32;
constexpr int kActivationBytesPerChunk = 2 * kChunkCols;
// The largest 16-bit integer whose high byte, rounded, fits in eight bits.
constexpr float kLargestQuantized = 32512.0f;

constexpr bool IsQuantized(WeightFormat format) {
  return format == WeightFormat::kQ4 || format == WeightFormat::kQ8;
}
// Chunks that a warp multiplies between two uses of scales.
template <WeightFormat F, bool kWide>
constexpr int kSpanChunks = !IsQuantized(F) ? 1
                            : kWide         ? 2
                                            : 4;
template <WeightFormat F, bool kWide>
constexpr int kSpanDataBytes = kSpanChunks<F, kWide>* LoadsOf(F) * 512;
template <WeightFormat F, bool kWide>
constexpr int kSpanBytes = kSpanDataBytes<F, kWide> +
                           (IsQuantized(F) ? kSpanChunks<F, kWide> * (kWide ? 256 : 64) : 0);

// Groups of columns that share a scale, of a chunk.
template <bool kWide>
constexpr int kChunkGroups = kWide ? 2 : 1;
// Of a group: the activations' last bit, over the factor that all products have, and their sum.
struct GroupUnit {
  float unit;
  float sum;
};
// That factor: the upper four bits of a byte are sixteen times their value.
constexpr int TimesOf(WeightFormat format) { return format == WeightFormat::kQ4 ? 16 : 1; }

// silu to within a few units of f32's last place.
__device__ __forceinline__ float FastSilu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

// Not a number if either is.
__device__ __forceinline__ float MaxOrNan(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

// The first two of the four columns that a lane of the 16 of a chunk prepares, and the distance of
// the other two: so that the four make one word of the weights' order.
template <WeightFormat F>
struct LaneColumns {
  static constexpr int kSecond = F == WeightFormat::kQ4 ? 4 : 2;
  __device__ static __forceinline__ int First(int lane) {
    const int part = lane % 16;
    return F == WeightFormat::kQ4 ? part / 2 * 8 + part % 2 * 2 : part * 4;
  }
};

// Those four activations of each of a warp's lanes, whose chunks are two, lanes 0..15 and 16..31.
// `to` and `groups` are the chunk's places, into which nothing is written unless `store`. If
// kSquares, `squares` likewise gets the chunk's sum of `square`.
template <WeightFormat F, bool kWide, bool kSquares>
__device__ __forceinline__ void QuantizeActivations(float2 x, float2 y, int lane, bool store,
                                                    unsigned char* to, GroupUnit* groups,
                                                    float square = 0, float* squares = nullptr) {
  // Both chunks have the same unit. Numbers that are not negative compare as their bits do, and
  // what is not a number is then largest.
  const float own = MaxOrNan(MaxOrNan(fabsf(x.x), fabsf(x.y)), MaxOrNan(fabsf(y.x), fabsf(y.y)));
  const float largest =
      MaxOrNan(__uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(own))), 1e-30f);
  const int part = lane % 16;
  const bool upper = part >= 8;
  float sum = (x.x + x.y) + (y.x + y.y);
  if constexpr (!kWide && kSquares) {
    // From here on the upper lanes add up squares.
    const float other = __shfl_xor_sync(0xffffffffu, upper ? sum : square, 8);
    sum = (upper ? square : sum) + other;
  } else if constexpr (!kWide) {
    sum += __shfl_xor_sync(0xffffffffu, sum, 8);
  } else if constexpr (kSquares) {
    square += __shfl_xor_sync(0xffffffffu, square, 8);
  }
#pragma unroll
  for (int offset = 4; offset > 0; offset /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (kWide && kSquares) square += __shfl_xor_sync(0xffffffffu, square, offset);
  }
  float multiplier;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(multiplier) : "f"(largest));
  multiplier *= kLargestQuantized;
  // 1.5 * 2^23 + 128 + q has q + 128 in its lower bits: byte 1 is the high byte, and byte 0 the low
  // one with its sign bit flipped.
  constexpr float kRound = 12582912.0f + 128.0f;
  const unsigned q0 = __float_as_uint(fmaf(x.x, multiplier, kRound));
  const unsigned q1 = __float_as_uint(fmaf(x.y, multiplier, kRound));
  const unsigned q2 = __float_as_uint(fmaf(y.x, multiplier, kRound));
  const unsigned q3 = __float_as_uint(fmaf(y.y, multiplier, kRound));
  // Columns 0, 4, 1, 5 of a run of eight are one word of 4-bit weights and 2, 6, 3, 7 another;
  // 8-bit ones are in order.
  constexpr bool kQ4 = F == WeightFormat::kQ4;
  const unsigned first = kQ4 ? __byte_perm(q0, q2, 0x5140u) : __byte_perm(q0, q1, 0x5140u);
  const unsigned second = kQ4 ? __byte_perm(q1, q3, 0x5140u) : __byte_perm(q2, q3, 0x5140u);
  if (!store) return;
  const int word = kQ4 ? part % 2 * 2 + part / 8 : part / 8 * 2 + part % 2;
  to += part % 8 / 2 * 16 + word * 4;
  *reinterpret_cast<unsigned*>(to) = __byte_perm(first, second, 0x7632u);
  *reinterpret_cast<unsigned*>(to + kChunkCols) = __byte_perm(first, second, 0x5410u) ^ 0x80808080u;
  constexpr float kUnit = 1.0f / (kLargestQuantized * static_cast<float>(TimesOf(F)));
  if constexpr (kWide) {
    if (part % 8 == 0) groups[part / 8] = {largest * kUnit, sum};
    if (kSquares && part == 0) *squares = square;
  } else {
    if (part == 0) *groups = {largest * kUnit, sum};
    if (kSquares && part == 8) *squares = sum;
  }
}

// One lane's part of the sum of a row's squares.
__device__ inline float SquaresOfRow(const float* row, int lane, int cols) {
  float squares = 0;
  // Of long rows, eight loads at a time are on their way.
#pragma unroll 1
  for (int first = 4 * lane; first < cols; first += 8 * 128) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (first + i * 128 >= cols) continue;
      const float4 x = *reinterpret_cast<const float4*>(row + first + i * 128);
      squares += x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
    }
  }
  return squares;
}

// What the chunks' activations stand for gets the norm's factor of their group, from the chunks'
// squares; all threads of a block.
template <bool kWide>
__device__ __forceinline__ void ApplyGroupFactors(GroupUnit* units, const float* chunk_squares,
                                                  int chunks, int group_chunks, float norm_eps) {
  const float inverse_size = 1.0f / static_cast<float>(group_chunks * kChunkCols);
  for (int chunk = static_cast<int>(threadIdx.x); chunk < chunks;
       chunk += static_cast<int>(blockDim.x)) {
    const float* of_group = chunk_squares + chunk / group_chunks * group_chunks;
    float sum = 0;
#pragma unroll 8
    for (int i = 0; i < group_chunks; ++i) sum += of_group[i];
    const float factor = rsqrtf(fmaf(sum, inverse_size, norm_eps));
#pragma unroll
    for (int i = 0; i < kChunkGroups<kWide>; ++i) {
      GroupUnit& group = units[chunk * kChunkGroups<kWide> + i];
      group = {group.unit * factor, group.sum * factor};
    }
  }
}

// Two activations as bf16 numbers and what is left of them, at `to` and `stride` beyond.
__device__ __forceinline__ void SplitActivations(float2 x, __nv_bfloat16* to, int stride) {
  const unsigned high = PackBf16(x.x, x.y);
  *reinterpret_cast<unsigned*>(to) = high;
  *reinterpret_cast<unsigned*>(to + stride) =
      PackBf16(x.x - __uint_as_float(high << 16), x.y - __uint_as_float(high & 0xffff0000u));
}

__device__ __forceinline__ void MmaInteger(int (&c)[4], unsigned a0, unsigned a1, unsigned a2,
                                           unsigned a3, unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Copies of 16 bytes from global to shared memory that a thread does not wait for.
__device__ __forceinline__ void CopyAsync(void* to, const void* from) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
}
// Of `bytes`, and zeros up to sixteen.
__device__ __forceinline__ void CopyAsync(unsigned to, const void* from, unsigned bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Returns when all but the latest kLeft groups of this thread have arrived.
template <int kLeft>
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

// Of shared memory; a lane may leave it alone.
__device__ __forceinline__ void ReadShared(unsigned (&to)[4], unsigned address, bool reads = true) {
  asm volatile(
      "{\n\t"
      ".reg .pred reads;\n\t"
      "setp.ne.s32 reads, %5, 0;\n\t"
      "@reads ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n\t"
      "}"
      : "+r"(to[0]), "+r"(to[1]), "+r"(to[2]), "+r"(to[3])
      : "r"(address), "r"(static_cast<int>(reads))
      : "memory");
}

// Words of what no kernel writes. Volatile: such loads stay before what they are before.
__device__ __forceinline__ void LoadWords(uint4& to, const uint4* from) {
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(to.x), "=r"(to.y), "=r"(to.z), "=r"(to.w)
               : "l"(from));
}
__device__ __forceinline__ void LoadWords(uint2& to, const uint2* from) {
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
               : "=r"(to.x), "=r"(to.y)
               : "l"(from));
}
__device__ __forceinline__ void LoadWords(unsigned& to, const unsigned* from) {
  asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(to) : "l"(from));
}

// A span: chunks first, first + 1, ... of a tile, of which there are no more than last + 1; those
// beyond repeat the last, and their activations are zeros.
template <WeightFormat F, bool kWide>
struct WeightSpan {
  static constexpr int kChunks = kSpanChunks<F, kWide>;
  static constexpr int kLoads = LoadsOf(F);
  using Pair = std::conditional_t<kWide, uint2, unsigned>;  // a scale and a bias

  // What a lane multiplies of a span.
  struct Lane {
    uint4 data[kChunks][kLoads];
    Pair pairs[IsQuantized(F) ? 2 : 1];  // of rows g and g + 8, and group t of the span's four

    // `place` is tile * chunks of matrix number `matrix`.
    __device__ __forceinline__ void Load(const PackedMatrix& m, int matrix, int place, int first,
                                         int last, int lane) {
      const uint4* words = m.data + matrix * m.data_stride + lane;
#pragma unroll
      for (int j = 0; j < kChunks; ++j) {
        const uint4* from =
            words + static_cast<long long>(place + min(first + j, last)) * (kLoads * 32);
#pragma unroll
        for (int i = 0; i < kLoads; ++i) LoadWords(data[j][i], from + i * 32);
      }
      if constexpr (IsQuantized(F)) {
        constexpr int kGroups = kChunkGroups<kWide>;
        const int t = lane % 4;
        const long long chunk = place + min(first + t / kGroups, last);
        const Pair* from = reinterpret_cast<const Pair*>(static_cast<const char*>(m.scales) +
                                                         matrix * m.scales_stride) +
                           (chunk * kGroups + t % kGroups) * kTileRows + lane / 4;
        LoadWords(pairs[0], from);
        LoadWords(pairs[1], from + 8);
      }
    }

    // From where Copy puts the span.
    __device__ __forceinline__ void Read(const unsigned char* weights, int lane) {
      const uint4* words = reinterpret_cast<const uint4*>(weights) + lane;
#pragma unroll
      for (int j = 0; j < kChunks; ++j) {
#pragma unroll
        for (int i = 0; i < kLoads; ++i) data[j][i] = words[(j * kLoads + i) * 32];
      }
      if constexpr (IsQuantized(F)) {
        const Pair* from = reinterpret_cast<const Pair*>(weights + kSpanDataBytes<F, kWide>) +
                           lane % 4 * kTileRows + lane / 4;
        pairs[0] = from[0];
        pairs[1] = from[8];
      }
    }
  };

  // What a lane multiplies it by, the column g of operands: of integers part g % 2 of the group
  // g / 2 and zeros elsewhere; of bf16 part g.
  struct Operands {
    static constexpr int kCount = IsQuantized(F) ? kChunks : 2;
    unsigned words[kCount][4];

    // Bytes from a span's activations to the next one's, and where the first one's are for this
    // lane. `stride`: between parts of bf16.
    static constexpr int kSpanBytes =
        kChunks * (IsQuantized(F) ? kActivationBytesPerChunk : 2 * kChunkCols);
    __device__ static __forceinline__ unsigned Place(const unsigned char* activations, int stride,
                                                     int lane) {
      const int g = lane / 4;
      const int t = lane % 4;
      const int offset =
          IsQuantized(F) ? OwnChunk(lane) * kActivationBytesPerChunk + g % 2 * kChunkCols + 16 * t
                         : (g % 2 * stride + 8 * t) * 2;
      return static_cast<unsigned>(__cvta_generic_to_shared(activations + offset));
    }

    // `place`: the span's.
    __device__ __forceinline__ void Read(unsigned place, int lane) {
      if constexpr (!IsQuantized(F)) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          Clear(words[h]);
          ReadShared(words[h], place + h * 64, lane < 8);
        }
      } else if constexpr (!kWide) {
#pragma unroll
        for (int j = 0; j < kChunks; ++j) {
          Clear(words[j]);
          ReadShared(words[j], place, OwnChunk(lane) == j);
        }
      } else {
        // Only half a chunk: see packed_matrix.h for which words are which half's.
        unsigned mine[4];
        Clear(mine);
        ReadShared(mine, place);
        const bool upper = lane / 8 % 2 != 0;
#pragma unroll
        for (int j = 0; j < kChunks; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const bool of_upper = F == WeightFormat::kQ4 ? i % 2 != 0 : i / 2 != 0;
            words[j][i] = OwnChunk(lane) == j && upper == of_upper ? mine[i] : 0;
          }
        }
      }
    }

   private:
    __device__ static __forceinline__ int OwnChunk(int lane) { return lane / (kWide ? 16 : 8); }
    __device__ static __forceinline__ void Clear(unsigned (&of)[4]) {
      of[0] = of[1] = of[2] = of[3] = 0;
    }
  };

  // `place` is tile * chunks of matrix number `matrix`.
  __device__ static __forceinline__ void Copy(const PackedMatrix& m, int matrix, int place,
                                              int first, int last, int lane, unsigned char* to) {
    const uint4* data = m.data + matrix * m.data_stride + lane;
#pragma unroll
    for (int j = 0; j < kChunks; ++j) {
      const uint4* from =
          data + static_cast<long long>(place + min(first + j, last)) * (kLoads * 32);
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        CopyAsync(to + ((j * kLoads + i) * 32 + lane) * 16, from + i * 32);
      }
    }
    if constexpr (IsQuantized(F)) {
      // Lanes per chunk.
      constexpr int kLanes = kWide ? 16 : 4;
      const unsigned char* from =
          static_cast<const unsigned char*>(m.scales) + matrix * m.scales_stride;
      const int chunk = place + min(first + lane / kLanes, last);
      if (lane < kChunks * kLanes) {
        CopyAsync(to + kSpanDataBytes<F, kWide> + lane * 16,
                  from + (static_cast<long long>(chunk) * kLanes + lane % kLanes) * 16);
      }
    }
  }

  // sums[r] += this lane's share of row g + 8 r; the shares of the lanes of a quad add up to it.
  // `groups` are the span's.
  __device__ static __forceinline__ void Multiply(const Lane& weights, const Operands& operands,
                                                  const GroupUnit* groups, int lane,
                                                  ScaleFormat format, float (&sums)[2]) {
    if constexpr (!IsQuantized(F)) {
      float acc[4] = {};
#pragma unroll
      for (int part = 0; part < Fragment<F>::kParts; ++part) {
        unsigned a[4][4];
        Fragment<F>::template Expand<false>(weights.data[0], part, a);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const unsigned b[2] = {operands.words[i / 2][i % 2 * 2],
                                 operands.words[i / 2][i % 2 * 2 + 1]};
          Mma(acc, a[i], b);
        }
      }
      sums[0] += acc[0] + acc[1];
      sums[1] += acc[2] + acc[3];
    } else {
      int low[4] = {};
      int high[4] = {};
#pragma unroll
      for (int j = 0; j < kChunks; ++j) {
        const auto& b = operands.words[j];
        const uint4& w = weights.data[j][0];
        if constexpr (F == WeightFormat::kQ4) {
          constexpr unsigned kHigh = 0xf0f0f0f0u;
          const uint4 upper = make_uint4(w.x & kHigh, w.y & kHigh, w.z & kHigh, w.w & kHigh);
          // Subtraction has another unit than logic, which is busy.
          MmaInteger(low, w.x - upper.x, w.y - upper.y, w.z - upper.z, w.w - upper.w, b[0], b[1]);
          MmaInteger(high, upper.x, upper.y, upper.z, upper.w, b[2], b[3]);
        } else {
          const uint4& v = weights.data[j][1];
          MmaInteger(low, w.x, w.y, w.z, w.w, b[0], b[1]);
          MmaInteger(high, v.x, v.y, v.z, v.w, b[2], b[3]);
        }
      }
      constexpr int kTimes = TimesOf(F);
      const GroupUnit group = groups[lane % 4];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int whole = low[2 * r] * kTimes + high[2 * r];
        const int rest = low[2 * r + 1] * kTimes + high[2 * r + 1];
        const float product = static_cast<float>(whole * 256 + rest);
        const float2 pair = ScaleAndBias(weights.pairs[r], format);
        sums[r] = fmaf(group.unit * pair.x, product, fmaf(pair.y, group.sum, sums[r]));
      }
    }
  }

  __device__ static __forceinline__ float2 ScaleAndBias(Pair pair, ScaleFormat format) {
    if constexpr (kWide) {
      return make_float2(__uint_as_float(pair.x), __uint_as_float(pair.y));
    } else {
      if (format == ScaleFormat::kCompactBf16) {
        return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
      }
      return make_float2(__half2float(__ushort_as_half(static_cast<unsigned short>(pair))),
                         __half2float(__ushort_as_half(static_cast<unsigned short>(pair >> 16))));
    }
  }

  // Multiply for span number `span` of those whose activations and units are given, with its
  // weights where Copy put them.
  __device__ static __forceinline__ void MultiplyCopied(const unsigned char* weights,
                                                        const unsigned char* activations,
                                                        int stride, const GroupUnit* units,
                                                        int span, int lane, ScaleFormat format,
                                                        float (&sums)[2]) {
    Operands operands;
    operands.Read(Operands::Place(activations, stride, lane) + span * Operands::kSpanBytes, lane);
    Lane own;
    own.Read(weights, lane);
    Multiply(own, operands, units + span * kChunks * kChunkGroups<kWide>, lane, format, sums);
  }
};

}  // namespace adder::cuda
