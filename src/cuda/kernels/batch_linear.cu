// The matrix kernel for many tokens: bf16 activations and packed weights through shared memory,
// weights dequantised to bf16 in registers.
//
// Phases: (1) the first stages' weights are copied to shared memory, those of later stages brought
// to the L2, and the block rounds its part of the norm's weight; (2) PdlWait; (3) a ring of stages
// is kept full by asynchronous copies: a stage is `column_warps` chunks of all the block's tokens
// and rows. Per stage a warp turns the weights of its chunk into bf16 (scale, bias and the norm's
// weight are applied to them, once for all tokens) and multiplies; (4) the warps' sums meet in
// shared memory, across the blocks of a cluster if it shares the columns, and each finished piece
// of 16 rows x 8 tokens gets the norm's factor, which needs the whole row, the bias and the
// epilogue.
//
// Ownership: a block owns kRowTiles * row_warps tiles of rows, kTokenTiles * 8 tokens and its
// rank's part of the columns; a warp all of those tokens, kRowTiles tiles and every column_warps-th
// chunk. Barriers: one of the block per stage (a stage is refilled only after all have read it);
// before the sums' exchange, which reuses the ring; after it; and, in a cluster, before leaving,
// because others read this block's sums.
#include <algorithm>

#include "cuda/kernels/batch_linear.h"
#include "cuda/kernels/cluster.cuh"
#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/linear_fragments.cuh"

namespace adder::cuda {
namespace {

struct BatchParams {
  LinearParams linear;
  int column_bits;  // log2 of column_warps
  int split;
  float inverse_cols;
  float scale;  // of the epilogue
};

__device__ __forceinline__ void CopyAsync(unsigned shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}
// The first `bytes` of 16; zeros after them.
__device__ __forceinline__ void CopyAsync(unsigned shared, const void* global, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void WaitCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
__device__ __forceinline__ unsigned SharedAddress(const void* shared) {
  return static_cast<unsigned>(__cvta_generic_to_shared(shared));
}

// Where the cluster's block `rank` has what this one has at `shared`.
template <class T>
__device__ __forceinline__ const T* AtRank(const T* shared, int rank) {
#if __CUDA_ARCH__ >= 900
  asm("mapa.u64 %0, %1, %2;" : "=l"(shared) : "l"(shared), "r"(rank));
#endif
  return shared;
}
// The last barrier of a cluster: others are done reading, nothing is handed over.
__device__ __forceinline__ void LeaveCluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "barrier.cluster.arrive.relaxed.aligned;\n"
      "barrier.cluster.wait.aligned;" ::
          : "memory");
#endif
}

// As Mma, but free to be scheduled.
__device__ __forceinline__ void FreeMma(float (&c)[4], const unsigned (&a)[4], unsigned b0,
                                        unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ __nv_bfloat162 AsPair(unsigned word) {
  return *reinterpret_cast<const __nv_bfloat162*>(&word);
}
__device__ __forceinline__ unsigned AsWord(__nv_bfloat162 pair) {
  return *reinterpret_cast<const unsigned*>(&pair);
}

// Scales and biases of rows g and g + 8 of a tile and chunk in both halves of a word: [h][r].
template <bool kWide>
struct Bf16Scales {
  __nv_bfloat162 scale[kWide ? 2 : 1][2];
  __nv_bfloat162 bias[kWide ? 2 : 1][2];

  // `from`: the chunk's scales as packed_matrix.h has them, in shared memory.
  __device__ __forceinline__ void Load(const char* from, int g, ScaleFormat format) {
#pragma unroll
    for (int h = 0; h < (kWide ? 2 : 1); ++h) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = h * kTileRows + g + 8 * r;
        float2 pair;
        if constexpr (kWide) {
          pair = reinterpret_cast<const float2*>(from)[row];
        } else {
          const unsigned word = reinterpret_cast<const unsigned*>(from)[row];
          pair = make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
          if (format == ScaleFormat::kCompactF16) {
            pair = __half22float2(*reinterpret_cast<const __half2*>(&word));
          }
        }
        scale[h][r] = __float2bfloat162_rn(pair.x);
        bias[h][r] = __float2bfloat162_rn(pair.y);
      }
    }
  }
};

// Weights of one tile and chunk as A operands in bf16, times the norm's weight: `norm` holds it for
// this lane's columns, [h] component `pair`.
template <WeightFormat F, bool kWide>
__device__ __forceinline__ void WeightsAsBf16(const char* unit, ScaleFormat format, bool has_norm,
                                              const uint4 (&norm)[2], unsigned (&a)[4][4]) {
  constexpr int kLoads = LoadsOf(F);
  const int lane = threadIdx.x % 32;
  uint4 raw[kLoads];
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    raw[i] = reinterpret_cast<const uint4*>(unit)[i * 32 + lane];
  }
  if constexpr (F == WeightFormat::kQ4) {
    unsigned raised;
    asm("mov.b32 %0, 0x43004300;" : "=r"(raised));
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const unsigned word = Component(raw[0], 2 * h + r);
#pragma unroll
        for (int pair = 0; pair < 4; ++pair) {
          // 0x4300 | q is 128 + q in bf16. (x & y) | z as one instruction: a compiler that sees two
          // constants makes two.
          unsigned& w = a[2 * h + pair / 2][2 * (pair % 2) + r];
          asm("lop3.b32 %0, %1, 0x000f000f, %2, 0xea;"
              : "=r"(w)
              : "r"(word >> (4 * pair)), "r"(raised));
          w = AsWord(__hsub2(AsPair(w), AsPair(raised)));
        }
      }
    }
  } else {
    Fragment<F>::template Expand<true>(raw, 0, a);
  }
  if constexpr (Fragment<F>::kQuantized) {
    Bf16Scales<kWide> scales;
    scales.Load(unit + kLoads * 512, lane / 4, format);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int h = kWide ? j / 2 : 0;
        a[j][i] = AsWord(__hfma2(AsPair(a[j][i]), scales.scale[h][i % 2], scales.bias[h][i % 2]));
      }
    }
  }
  if (has_norm) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const unsigned factor = Component(norm[j / 2], j % 2 * 2 + i / 2);
        a[j][i] = AsWord(__hmul2(AsPair(a[j][i]), AsPair(factor)));
      }
    }
  }
}

// sums += the squares of 64 columns of eight tokens, a lane holding eight of a token twice as b
// operands; in the layout of products, all rows alike. Squares are rounded to bf16: over a row that
// averages out.
__device__ __forceinline__ void AddSquares(const uint4 (&x)[2], float (&sums)[4]) {
  __nv_bfloat162 squares[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const __nv_bfloat162 first = AsPair(Component(x[0], i));
    squares[i] = __hmul2(first, first);
#pragma unroll
    for (int rest = 1; rest < 4; ++rest) {
      const __nv_bfloat162 next = AsPair(Component(x[rest / 2], rest % 2 * 2 + i));
      squares[i] = __hfma2(next, next, squares[i]);
    }
  }
  constexpr unsigned kOnes[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
  FreeMma(sums, kOnes, AsWord(squares[0]), AsWord(squares[1]));
}

// What a block's threads do with finished sums: four consecutive outputs of one token at a time.
struct Outputs {
  float* values;
  int stride;
  int rows;
  bool vectors;  // fours lie on 16-byte boundaries and do not straddle the end

  __device__ __forceinline__ explicit Outputs(const LinearParams& p) {
    const bool router = p.epilogue == LinearEpilogue::kRouter;
    values = router ? p.scores : p.output;
    stride = router ? p.matrix.rows : p.output_stride;
    rows = p.matrix.interleaved ? p.matrix.rows / 2 : p.matrix.rows;
    vectors = (rows | stride | p.rounded_output_stride) % 4 == 0;
  }
  __device__ __forceinline__ float4 Load(int token, int row) const {
    const float* from = values + static_cast<long long>(token) * stride + row;
    if (vectors) return *reinterpret_cast<const float4*>(from);
    return make_float4(from[0], row + 1 < rows ? from[1] : 0.0f, row + 2 < rows ? from[2] : 0.0f,
                       row + 3 < rows ? from[3] : 0.0f);
  }
  __device__ __forceinline__ void Store(const LinearParams& p, int token, int row, float4 y) const {
    float* to = values + static_cast<long long>(token) * stride + row;
    uint16_t* rounded =
        p.rounded_output == nullptr
            ? nullptr
            : p.rounded_output + static_cast<long long>(token) * p.rounded_output_stride + row;
    const uint2 both = make_uint2(PackBf16(y.x, y.y), PackBf16(y.z, y.w));
    if (vectors) {
      *reinterpret_cast<float4*>(to) = y;
      if (rounded != nullptr) *reinterpret_cast<uint2*>(rounded) = both;
      return;
    }
#pragma unroll 1
    for (int i = 0; i < 4 && row + i < rows; ++i) {
      to[i] = i == 0 ? y.x : i == 1 ? y.y : i == 2 ? y.z : y.w;
      if (rounded != nullptr) {
        rounded[i] = static_cast<uint16_t>((i < 2 ? both.x : both.y) >> (16 * (i % 2)));
      }
    }
  }
};

__device__ __forceinline__ float4 AddBias(const float* bias, int row, int rows, float4 y) {
  y.x += bias[row];
  if (row + 1 < rows) y.y += bias[row + 1];
  if (row + 2 < rows) y.z += bias[row + 2];
  if (row + 3 < rows) y.w += bias[row + 3];
  return y;
}

__device__ __forceinline__ float4 MultiplyRows(const float* factors, int row, int rows, float4 y) {
  y.x *= factors[row];
  if (row + 1 < rows) y.y *= factors[row + 1];
  if (row + 2 < rows) y.z *= factors[row + 2];
  if (row + 3 < rows) y.w *= factors[row + 3];
  return y;
}

template <WeightFormat F, bool kWide, int kRowTiles, int kTokenTiles>
__global__ void __launch_bounds__(256, kTokenTiles <= 4 ? 2 : 1)
    BatchLinearKernel(const __grid_constant__ BatchParams params) {
  constexpr int kLoads = LoadsOf(F);
  constexpr int kScaleBytes = !Fragment<F>::kQuantized ? 0 : kWide ? 256 : 64;
  constexpr int kUnit = kLoads * 512 + kScaleBytes;
  constexpr int kTokens = kTokenTiles * 8;
  constexpr int kRing = RingOf(kTokenTiles);
  // Token tiles multiplied together, so that products do not wait for each other.
  constexpr int kGroup = kTokenTiles < 4 / kRowTiles ? kTokenTiles : 4 / kRowTiles;
  const LinearParams& p = params.linear;
  const PackedMatrix& m = p.matrix;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int warps = blockDim.x / 32;
  const int column_bits = params.column_bits;
  const int column_warps = 1 << column_bits;
  const int column_warp = warp & (column_warps - 1);
  const int row_warp = warp >> column_bits;
  const int row_warps = warps >> column_bits;
  const int split = params.split;
  const int rank = blockIdx.x % split;
  const int block_tile = blockIdx.x / split * row_warps * kRowTiles;
  const int first_tile = block_tile + row_warp * kRowTiles;
  const int first_token = blockIdx.y * kTokens;
  const int first_chunk = m.chunks * rank / split;
  const int end_chunk = m.chunks * (rank + 1) / split;
  const bool has_norm = p.norm_weight != nullptr;
  const BatchLayout layout(m.chunks, kUnit, has_norm,
                           {kRowTiles, kTokenTiles, column_warps, row_warps, split});
  extern __shared__ float4 shared[];
  char* bytes = reinterpret_cast<char*>(shared);
  float* shared_squares = reinterpret_cast<float*>(bytes + layout.squares);
  uint16_t* shared_norm = reinterpret_cast<uint16_t*>(bytes + layout.norm);

  // This warp's weights; a tile beyond the matrix repeats the last one, and its sums are not
  // stored.
  const int my_chunks = (end_chunk - first_chunk - column_warp + column_warps - 1) >> column_bits;
  const char* data[kRowTiles];
  const char* scales[kRowTiles];
#pragma unroll
  for (int rt = 0; rt < kRowTiles; ++rt) {
    const long long place = static_cast<long long>(min(first_tile + rt, m.tiles - 1)) * m.chunks +
                            first_chunk + column_warp;
    data[rt] = reinterpret_cast<const char*>(m.data) + place * (kLoads * 512) + lane * 16;
    scales[rt] = static_cast<const char*>(m.scales) + place * kScaleBytes + lane * 16;
  }
  const int unit_offset =
      layout.weights + ((row_warp * kRowTiles << column_bits) + column_warp) * kUnit;
  // Copies the next stage's weights to the stage at `stage`.
  const auto fill_weights = [&](unsigned stage) {
#pragma unroll
    for (int rt = 0; rt < kRowTiles; ++rt) {
      const unsigned unit = stage + unit_offset + (rt << column_bits) * kUnit + lane * 16;
#pragma unroll
      for (int i = 0; i < kLoads; ++i) CopyAsync(unit + i * 512, data[rt] + i * 512);
      if (lane < kScaleBytes / 16) CopyAsync(unit + kLoads * 512, scales[rt]);
      data[rt] += kLoads * 512 << column_bits;
      scales[rt] += kScaleBytes << column_bits;
    }
  };
  // Weights fill all of the ring, the first stage's as a group of copies of their own.
  const unsigned ring = SharedAddress(bytes);
#pragma unroll 1
  for (int s = 0; s < min(kRing, my_chunks); ++s) {
    fill_weights(ring + s * layout.stage);
    if (s == 0) CommitCopies();
  }
  CommitCopies();
  if (blockIdx.y == 0 && lane < kLoads * 4) {
#pragma unroll 1
    for (int s = 0; s < my_chunks - kRing; ++s) {
#pragma unroll
      for (int rt = 0; rt < kRowTiles; ++rt) {
        asm volatile("prefetch.global.L2 [%0];" ::"l"(data[rt] + lane * 112 +
                                                      (s * kLoads * 512 << column_bits)));
      }
    }
  }
  if (has_norm) {
    const int col = first_chunk * kChunkCols;
#pragma unroll 1
    for (int i = threadIdx.x; i < (end_chunk - first_chunk) * kChunkCols; i += blockDim.x) {
      const float weight = col + i < m.cols ? p.norm_weight[col + i] : 0.0f;
      shared_norm[i] = __bfloat16_as_ushort(__float2bfloat16_rn(weight));
    }
  }

  // Copies the tokens' part of a stage: a thread has eight columns of every (4 * row_warps)-th
  // token; zeros beyond the matrix. Tokens beyond the batch are whatever the buffer has there.
  const int pitch = PitchOf(column_warps);
  const int thread_token = threadIdx.x >> (column_bits + 3);
  const int part = threadIdx.x & ((8 << column_bits) - 1);
  const unsigned thread_offset = thread_token * pitch + part * 16;
  const auto fill_tokens = [&](int s, unsigned stage) {
    const int col = (first_chunk + (s << column_bits)) * kChunkCols + 8 * part;
    const int of_row = min(max(m.cols - col, 0), 8) * 2;
    const uint16_t* from =
        p.rounded_input + (of_row == 0 ? 0 : col) +
        static_cast<long long>(first_token + thread_token) * p.rounded_input_stride;
    unsigned to = stage + thread_offset;
#pragma unroll 1
    for (int i = thread_token; i < kTokens; i += 4 * row_warps) {
      CopyAsync(to, from, of_row);
      from += static_cast<long long>(4 * row_warps) * p.rounded_input_stride;
      to += 4 * row_warps * pitch;
    }
  };

  // One loop, so that no code is there twice: what follows the wait for the kernel before runs at
  // the speed at which instructions arrive. Round -kRing turns the first weights into bf16 and
  // waits; rounds up to -1 only ask for tokens; round s multiplies stage s and turns the weights of
  // the next, whose place in the ring it then fills with those of kRing stages later.
  float acc[kRowTiles][kTokenTiles][4] = {};
  float squares[kTokenTiles][4] = {};  // of token tiles row_warp + i * row_warps
  unsigned a[kRowTiles][4][4] = {};
  int slot = 0;  // of stage s, from round 0 on
#pragma unroll 1
  for (int s = -kRing; s < layout.stages; ++s) {
    const char* stage = bytes + slot * layout.stage;
    if (s == -kRing) {
      WaitCopies<1>();
      __syncthreads();
    } else {
      if (s >= 0) {
        WaitCopies<kRing - 2>();
        __syncthreads();
        if (s + kRing < my_chunks) fill_weights(ring + slot * layout.stage);
      }
      const int ahead = s + kRing - 1;
      if (ahead < layout.stages) {
        const int of_ahead = s < 0 ? ahead : slot == 0 ? kRing - 1 : slot - 1;
        fill_tokens(ahead, ring + of_ahead * layout.stage);
      }
      CommitCopies();
      if (s < 0) continue;
      slot = slot == kRing - 1 ? 0 : slot + 1;

      const char* tokens = stage + column_warp * kChunkCols * 2 + g * pitch + t * 16;
      if (s < my_chunks && has_norm) {
#pragma unroll
        for (int i = 0; i < kTokenTiles; ++i) {
          const int nt = row_warp + i * row_warps;
          if (nt >= kTokenTiles) break;
          const uint4* x = reinterpret_cast<const uint4*>(tokens + nt * 8 * pitch);
          AddSquares({x[0], x[4]}, squares[i]);
        }
      }
      if (s < my_chunks) {
#pragma unroll
        for (int first = 0; first < kTokenTiles; first += kGroup) {
          uint4 x[kGroup][2];
#pragma unroll
          for (int n = 0; n < kGroup; ++n) {
            const uint4* from = reinterpret_cast<const uint4*>(tokens + (first + n) * 8 * pitch);
            x[n][0] = from[0];
            x[n][1] = from[4];
          }
#pragma unroll
          for (int j = 0; j < 4; ++j) {
#pragma unroll
            for (int n = 0; n < kGroup; ++n) {
#pragma unroll
              for (int rt = 0; rt < kRowTiles; ++rt) {
                FreeMma(acc[rt][first + n], a[rt][j], Component(x[n][j / 2], j % 2 * 2),
                        Component(x[n][j / 2], j % 2 * 2 + 1));
              }
            }
          }
        }
      }
    }

    const int next = max(s, -1) + 1;
    if (next < my_chunks) {
      uint4 norm[2] = {};
      if (has_norm) {
        const uint4* from = reinterpret_cast<const uint4*>(
            shared_norm + ((next << column_bits) + column_warp) * kChunkCols + 8 * t);
        norm[0] = from[0];
        norm[1] = from[4];
      }
#pragma unroll
      for (int rt = 0; rt < kRowTiles; ++rt) {
        WeightsAsBf16<F, kWide>(
            bytes + slot * layout.stage + unit_offset + (rt << column_bits) * kUnit, m.scale_format,
            has_norm, norm, a[rt]);
      }
    }
    if (s == -kRing) {
      // The first use of a parameter is slow: better now.
      asm volatile("" ::"l"(p.rounded_input), "l"(p.output), "l"(p.rounded_output), "l"(p.bias),
                   "r"(p.tokens), "r"(p.output_stride), "r"(p.rounded_input_stride),
                   "r"(p.rounded_output_stride), "f"(p.norm_eps), "f"(params.inverse_cols),
                   "f"(params.scale));
      PdlWait();
      PdlTrigger();
    }
  }

  // Every row of the squares' products is the same; the first writes.
  if (has_norm && g == 0) {
#pragma unroll
    for (int i = 0; i < kTokenTiles; ++i) {
      const int nt = row_warp + i * row_warps;
      if (nt >= kTokenTiles) break;
      reinterpret_cast<float2*>(shared_squares)[(column_warp * kTokens + nt * 8) / 2 + t] =
          make_float2(squares[i][0], squares[i][1]);
    }
  }
  __syncthreads();
  const int block_rows = row_warps * kRowTiles * kTileRows;
  const int sums_pitch = block_rows + 4;
  float* sums = reinterpret_cast<float*>(shared);
  float* my_sums =
      sums + (column_warp * kTokens + 2 * t) * sums_pitch + row_warp * kRowTiles * kTileRows + g;
#pragma unroll
  for (int nt = 0; nt < kTokenTiles; ++nt) {
#pragma unroll
    for (int rt = 0; rt < kRowTiles; ++rt) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        my_sums[(nt * 8 + i % 2) * sums_pitch + rt * kTileRows + i / 2 * 8] = acc[rt][nt][i];
      }
    }
  }

  // An item is four outputs of a token: of gated projections there are half as many as rows.
  const bool gated = p.matrix.interleaved;
  const bool ruled = p.epilogue == LinearEpilogue::kRule;
  const Outputs outputs(p);
  const int quads = block_rows / (gated ? 8 : 4);
  const int items = quads * kTokens;
  const int first_row = block_tile * (gated ? 8 : 16);
  if (split > 1) {
    ClusterArrive();
    ClusterWait();
  } else {
    __syncthreads();
  }
#pragma unroll 1
  for (int item = rank * blockDim.x + threadIdx.x; item < items; item += blockDim.x * split) {
    const int quad = item % quads;
    const int of_block = item / quads;
    const int token = first_token + of_block;
    const int row = first_row + quad * 4;
    if (token >= p.tokens || row >= outputs.rows) continue;
    float4 old = make_float4(0, 0, 0, 0);
    if (p.epilogue == LinearEpilogue::kAdd || (ruled && p.rule.adds))
      old = outputs.Load(token, row);
    // Gate rows of a tile come before its up rows.
    const int at = of_block * sums_pitch + (gated ? quad / 2 * 16 + quad % 2 * 4 : quad * 4);
    float4 y = make_float4(0, 0, 0, 0);
    float4 up = make_float4(0, 0, 0, 0);
    float squared = 0;
#pragma unroll 1
    for (int r = 0; r < split; ++r) {
      const float* of_rank = split > 1 ? AtRank(sums, r) : sums;
      const float* squares_of_rank = split > 1 ? AtRank(shared_squares, r) : shared_squares;
#pragma unroll 1
      for (int w = 0; w < column_warps; ++w) {
        const float* from = of_rank + w * kTokens * sums_pitch + at;
        const float4 v = *reinterpret_cast<const float4*>(from);
        y.x += v.x, y.y += v.y, y.z += v.z, y.w += v.w;
        if (gated) {
          const float4 u = *reinterpret_cast<const float4*>(from + 8);
          up.x += u.x, up.y += u.y, up.z += u.z, up.w += u.w;
        }
        if (has_norm) squared += squares_of_rank[w * kTokens + of_block];
      }
    }
    if (has_norm) {
      const float factor = rsqrtf(fmaf(squared, params.inverse_cols, p.norm_eps));
      y.x *= factor, y.y *= factor, y.z *= factor, y.w *= factor;
      up.x *= factor, up.y *= factor, up.z *= factor, up.w *= factor;
    }
    if (ruled && p.rule.factors != nullptr) {
      y = MultiplyRows(p.rule.factors, row, outputs.rows, y);
      if (gated) up = MultiplyRows(p.rule.factors + outputs.rows, row, outputs.rows, up);
    }
    if (p.bias != nullptr) {
      y = AddBias(p.bias, row, outputs.rows, y);
      if (gated) up = AddBias(p.bias + outputs.rows, row, outputs.rows, up);
    }
    if (ruled && (gated || p.rule.activates)) {
      const Activation activation = p.rule.activation;
      y = make_float4(Activate(activation, y.x), Activate(activation, y.y),
                      Activate(activation, y.z), Activate(activation, y.w));
    }
    if (gated && ruled) {
      y = make_float4(y.x * up.x, y.y * up.y, y.z * up.z, y.w * up.w);
    } else if (gated) {
      y = make_float4(Silu(y.x) * up.x, Silu(y.y) * up.y, Silu(y.z) * up.z, Silu(y.w) * up.w);
    } else {
      const float scale = params.scale;
      y.x = fmaf(scale, y.x, old.x), y.y = fmaf(scale, y.y, old.y);
      y.z = fmaf(scale, y.z, old.z), y.w = fmaf(scale, y.w, old.w);
    }
    outputs.Store(p, token, row, y);
  }
  if (split > 1) LeaveCluster();
  if (p.epilogue == LinearEpilogue::kRouter) {
    RouteWhenLast(p, p.output, first_token, min(first_token + kTokens, p.tokens),
                  p.arrivals + blockIdx.y);
  }
}

template <WeightFormat F, bool kWide, int kRowTiles, int kTokenTiles>
void LaunchKernel(const LinearParams& p, const BatchGeometry& geometry, cudaStream_t stream) {
  const auto kernel = BatchLinearKernel<F, kWide, kRowTiles, kTokenTiles>;
  BatchParams params = {p, 0, geometry.split, 1.0f / static_cast<float>(p.matrix.cols),
                        p.epilogue == LinearEpilogue::kRouter ? 1.0f : p.scale};
  while (1 << params.column_bits < geometry.column_warps) ++params.column_bits;
  const int unit = LoadsOf(F) * 512 + ScaleBytesPerChunk(p.matrix.scale_format);
  const BatchLayout layout(p.matrix.chunks, unit, p.norm_weight != nullptr, geometry);
  if (layout.total > 48 * 1024) {
    // Always the same number, so that launches in a graph keep what they need.
    Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               DeviceSharedBytes()),
          "cudaFuncSetAttribute");
  }
  const int warps = geometry.column_warps * geometry.row_warps;
  const int tiles = geometry.row_warps * kRowTiles;
  constexpr int kTokens = kTokenTiles * 8;
  const int row_blocks = (p.matrix.tiles + tiles - 1) / tiles;
  LaunchClusters("the matrix kernel of batches", kernel,
                 dim3(static_cast<unsigned>(row_blocks * geometry.split),
                      static_cast<unsigned>((p.tokens + kTokens - 1) / kTokens)),
                 dim3(static_cast<unsigned>(warps * 32)),
                 dim3(static_cast<unsigned>(geometry.split)), static_cast<size_t>(layout.total),
                 stream, params);
}

template <WeightFormat F, bool kWide>
void ChooseTiles(const LinearParams& p, const BatchGeometry& geometry, cudaStream_t stream) {
  const auto choose = [&]<int kTokenTiles>() {
    if constexpr (CanTakeTwoTiles(F, kWide ? ScaleFormat::kWide : ScaleFormat::kNone)) {
      if (geometry.row_tiles == 2)
        return LaunchKernel<F, kWide, 2, kTokenTiles>(p, geometry, stream);
    }
    LaunchKernel<F, kWide, 1, kTokenTiles>(p, geometry, stream);
  };
  switch (geometry.token_tiles) {
    case 1:
      return choose.template operator()<1>();
    case 2:
      return choose.template operator()<2>();
    case 4:
      return choose.template operator()<4>();
    default:
      return choose.template operator()<8>();
  }
}

}  // namespace

void LaunchBatchLinear(const LinearParams& params, const BatchGeometry& geometry,
                       cudaStream_t stream) {
  if (params.matrix.tiles == 0 || params.tokens == 0) return;
  const bool wide = params.matrix.scale_format == ScaleFormat::kWide;
  switch (params.matrix.format) {
    case WeightFormat::kQ4:
      return wide ? ChooseTiles<WeightFormat::kQ4, true>(params, geometry, stream)
                  : ChooseTiles<WeightFormat::kQ4, false>(params, geometry, stream);
    case WeightFormat::kQ8:
      return wide ? ChooseTiles<WeightFormat::kQ8, true>(params, geometry, stream)
                  : ChooseTiles<WeightFormat::kQ8, false>(params, geometry, stream);
    case WeightFormat::kBf16:
      return ChooseTiles<WeightFormat::kBf16, false>(params, geometry, stream);
    case WeightFormat::kF16:
      return ChooseTiles<WeightFormat::kF16, false>(params, geometry, stream);
    case WeightFormat::kF32:
      return ChooseTiles<WeightFormat::kF32, false>(params, geometry, stream);
  }
}

}  // namespace adder::cuda
