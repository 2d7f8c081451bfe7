// The matrix kernel for many tokens: bf16 activations through shared memory, weights dequantised to
// bf16 in registers.
//
// Phases: (1) each warp loads the weights of its first chunks into registers, asks for the rest to
// be brought to the L2, and the block rounds its part of the norm's weight; (2) PdlWait; (3) a ring
// of stages, each column_warps chunks of all the block's tokens, is filled by asynchronous copies;
// per stage a warp turns the weights of its chunk into bf16 (scale, bias and the norm's weight are
// applied to them, once for all tokens) and multiplies; (4) the warps' sums meet in shared memory,
// across the blocks of a cluster if it shares the columns, and each finished piece of 16 rows x 8
// tokens gets the norm's factor, which needs the whole row, the bias and the epilogue.
//
// Ownership: a block owns kRowTiles * row_warps tiles of rows, kTokenTiles * 8 tokens and its rank's
// part of the columns; a warp all of those tokens, kRowTiles tiles and every column_warps-th chunk.
// Barriers: one of the block per stage (a stage is refilled only after all have read it); before the
// sums' exchange, which reuses the ring; after it; and, in a cluster, before leaving, because others
// read this block's sums.
#include <algorithm>

#include "cuda/kernels/batch_linear.h"
#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/linear_fragments.cuh"

namespace adder::cuda {
namespace {

struct BatchParams {
  LinearParams linear;
  int column_bits;  // log2 of column_warps
  int split;
};

__device__ __forceinline__ void CopyAsync(void* shared, const void* global, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(shared))),
               "l"(global), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void WaitCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// A barrier of the cluster's blocks, and reads of what others have in shared memory.
__device__ __forceinline__ void ClusterBarrier() {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
#endif
}
__device__ __forceinline__ unsigned AddressAt(const void* shared, int rank) {
  unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
#if __CUDA_ARCH__ >= 900
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(address), "r"(rank));
#endif
  return address;
}
__device__ __forceinline__ float4 ReadFour(unsigned address) {
  float4 v;
#if __CUDA_ARCH__ >= 900
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address)
               : "memory");
#else
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address)
               : "memory");
#endif
  return v;
}
__device__ __forceinline__ float2 ReadTwo(unsigned address) {
  float2 v;
#if __CUDA_ARCH__ >= 900
  asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];"
               : "=f"(v.x), "=f"(v.y)
               : "r"(address)
               : "memory");
#else
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
               : "=f"(v.x), "=f"(v.y)
               : "r"(address)
               : "memory");
#endif
  return v;
}

__device__ __forceinline__ __nv_bfloat162 AsPair(unsigned word) {
  return *reinterpret_cast<const __nv_bfloat162*>(&word);
}
__device__ __forceinline__ unsigned AsWord(__nv_bfloat162 pair) {
  return *reinterpret_cast<const unsigned*>(&pair);
}

// Weights of one tile and chunk as A operands in bf16, times the norm's weight: `norm` holds it for
// this lane's columns, [2 * h + pair / 2] as the components of uint4.
template <WeightFormat F, bool kWide>
__device__ __forceinline__ void WeightsAsBf16(const uint4 (&raw)[LoadsOf(F)],
                                              const ScalePairs<kWide>& pairs, ScaleFormat format,
                                              bool has_norm, const uint4 (&norm)[2],
                                              unsigned (&a)[4][4]) {
  Fragment<F>::template Expand<true>(raw, 0, a);
  if constexpr (Fragment<F>::kQuantized) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        __nv_bfloat162 scale;
        __nv_bfloat162 bias;
        if (!kWide && format == ScaleFormat::kCompactBf16) {
          scale = AsPair(__byte_perm(pairs.words[r], 0, 0x1010));
          bias = AsPair(__byte_perm(pairs.words[r], 0, 0x3232));
        } else {
          const float2 pair = pairs.Get(h, r, format);
          scale = __float2bfloat162_rn(pair.x);
          bias = __float2bfloat162_rn(pair.y);
        }
#pragma unroll
        for (int pair = 0; pair < 4; ++pair) {
          unsigned& w = a[2 * h + pair / 2][2 * (pair % 2) + r];
          w = AsWord(__hfma2(AsPair(w), scale, bias));
        }
      }
    }
  }
  if (has_norm) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        const __nv_bfloat162 factor = AsPair(Component(norm[h], pair));
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          unsigned& w = a[2 * h + pair / 2][2 * (pair % 2) + r];
          w = AsWord(__hmul2(AsPair(w), factor));
        }
      }
    }
  }
}

__device__ __forceinline__ float SquaresOf(const uint4& x, float sum) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const unsigned word = Component(x, i);
    const float low = __uint_as_float(word << 16);
    const float high = __uint_as_float(word & 0xffff0000u);
    sum = fmaf(low, low, sum);
    sum = fmaf(high, high, sum);
  }
  return sum;
}

__device__ __forceinline__ void StoreOne(const LinearParams& p, int token, int row, float value) {
  p.output[static_cast<long long>(token) * p.output_stride + row] = value;
  if (p.rounded_output != nullptr) {
    p.rounded_output[static_cast<long long>(token) * p.rounded_output_stride + row] =
        __bfloat16_as_ushort(__float2bfloat16_rn(value));
  }
}

// One lane's part of a finished piece: rows g and g + 8 of a tile for one token.
__device__ __forceinline__ void StorePiece(const LinearParams& p, int tile, int g, int token,
                                           float low, float high, float2 old) {
  const PackedMatrix& m = p.matrix;
  const int low_row = LogicalRow(m.interleaved, m.rows, tile, g);
  const int high_row = LogicalRow(m.interleaved, m.rows, tile, g + 8);
  if (p.bias != nullptr) {
    if (low_row < m.rows) low += p.bias[low_row];
    if (high_row < m.rows) high += p.bias[high_row];
  }
  if (p.epilogue == LinearEpilogue::kRouter) {
    float* scores = p.scores + static_cast<long long>(token) * m.rows;
    if (low_row < m.rows) __stcg(scores + low_row, low);
    if (high_row < m.rows) __stcg(scores + high_row, high);
  } else if (p.epilogue == LinearEpilogue::kSiluMul) {
    if (low_row < m.rows) StoreOne(p, token, low_row, Silu(low) * high);
  } else {
    if (low_row < m.rows) StoreOne(p, token, low_row, fmaf(p.scale, low, old.x));
    if (high_row < m.rows) StoreOne(p, token, high_row, fmaf(p.scale, high, old.y));
  }
}

constexpr int RingOf(int token_tiles) { return token_tiles == 8 ? 3 : 4; }

// Bytes of one token's row in a stage: 64 more than a multiple of 128, so that the eight lanes of
// two tokens that read together hit different banks.
__host__ __device__ constexpr int PitchOf(int column_warps) {
  return column_warps * kChunkCols * 2 + 64;
}

template <WeightFormat F, bool kWide, int kRowTiles, int kTokenTiles>
__global__ void __launch_bounds__(256, kRowTiles* kTokenTiles <= 8 ? 2 : 1)
    BatchLinearKernel(const __grid_constant__ BatchParams params) {
  constexpr int kLoads = LoadsOf(F);
  constexpr int kTokens = kTokenTiles * 8;
  constexpr int kRing = RingOf(kTokenTiles);
  constexpr int kDepth = kLoads * kRowTiles <= 2 ? 2 : 1;
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
  // The longest rank's: the same in all blocks, so that shared memory is cut alike.
  const int stages = ((m.chunks + split - 1) / split + column_warps - 1) >> column_bits;
  const bool has_norm = p.norm_weight != nullptr;

  // Shared memory: the ring, later [column_warps][pieces][32] sums; sums of squares [column_warps]
  // [kTokens]; the norm's weight in bf16 [columns of this block].
  extern __shared__ float4 shared[];
  const int pitch = PitchOf(column_warps);
  const int stage_bytes = pitch * kTokens;
  const int pieces = row_warps * kRowTiles * kTokenTiles;
  char* ring = reinterpret_cast<char*>(shared);
  const int ring_bytes =
      max(min(kRing, stages) * stage_bytes, column_warps * pieces * 32 * 16);
  float* shared_squares = reinterpret_cast<float*>(ring + ring_bytes);
  uint16_t* shared_norm = reinterpret_cast<uint16_t*>(shared_squares + column_warps * kTokens);

  uint4 raw[kDepth][kRowTiles][kLoads];
  ScalePairs<kWide> scale_pairs[kDepth][kRowTiles];
  const auto load = [&](int depth, int chunk) {
    if (chunk >= end_chunk) return;
#pragma unroll
    for (int rt = 0; rt < kRowTiles; ++rt) {
      // A tile beyond the matrix repeats the last one; its sums are not stored.
      const int tile = min(first_tile + rt, m.tiles - 1);
      const long long place = static_cast<long long>(tile) * m.chunks + chunk;
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        raw[depth][rt][i] = __ldg(m.data + (place * kLoads + i) * 32 + lane);
      }
      if constexpr (Fragment<F>::kQuantized) scale_pairs[depth][rt].Load(m.scales, place, g);
    }
  };
#pragma unroll
  for (int d = 0; d < kDepth; ++d) load(d, first_chunk + d * column_warps + column_warp);
  if (has_norm) {
    const int col = first_chunk * kChunkCols;
    for (int i = threadIdx.x; i < (end_chunk - first_chunk) * kChunkCols; i += blockDim.x) {
      const float weight = col + i < m.cols ? p.norm_weight[col + i] : 0.0f;
      shared_norm[i] = __bfloat16_as_ushort(__float2bfloat16_rn(weight));
    }
  }
  PdlWait();
  PdlTrigger();

  // Copies stage s: of each token `column_warps` chunks, in pieces of eight columns; zeros beyond
  // the matrix. Tokens beyond the batch repeat the last one.
  const auto fill = [&](int s) {
    if (s < stages) {
      char* to = ring + s % kRing * stage_bytes;
      const int first_col = (first_chunk + (s << column_bits)) * kChunkCols;
      for (int i = threadIdx.x; i < kTokens << (column_bits + 3); i += blockDim.x) {
        const int of_block = i >> (column_bits + 3);
        const int part = i & ((8 << column_bits) - 1);
        const int token = min(first_token + of_block, p.tokens - 1);
        const int row = p.input_rows == nullptr ? token : p.input_rows[token];
        const int col = first_col + 8 * part;
        const int bytes = min(max(m.cols - col, 0), 8) * 2;
        const uint16_t* from = p.rounded_input +
                               static_cast<long long>(row) * p.rounded_input_stride +
                               (bytes == 0 ? 0 : col);
        CopyAsync(to + of_block * pitch + part * 16, from, bytes);
      }
    }
    CommitCopies();
  };
#pragma unroll
  for (int s = 0; s < kRing - 1; ++s) fill(s);

  float acc[kRowTiles][kTokenTiles][4] = {};
  float squares[kTokenTiles] = {};
  const auto multiply = [&](int depth, int s) {
    const int chunk = first_chunk + (s << column_bits) + column_warp;
    if (chunk >= end_chunk) return;
    uint4 norm[2] = {};
    if (has_norm) {
      const uint4* from = reinterpret_cast<const uint4*>(
          shared_norm + (chunk - first_chunk) * kChunkCols + 8 * t);
      norm[0] = from[0];
      norm[1] = from[4];
    }
    unsigned a[kRowTiles][4][4];
#pragma unroll
    for (int rt = 0; rt < kRowTiles; ++rt) {
      WeightsAsBf16<F, kWide>(raw[depth][rt], scale_pairs[depth][rt], m.scale_format, has_norm,
                              norm, a[rt]);
    }
    load(depth, chunk + kDepth * column_warps);
    const char* tokens = ring + s % kRing * stage_bytes + column_warp * kChunkCols * 2 +
                         g * pitch + t * 16;
#pragma unroll
    for (int nt = 0; nt < kTokenTiles; ++nt) {
      const uint4* from = reinterpret_cast<const uint4*>(tokens + nt * 8 * pitch);
      const uint4 x[2] = {from[0], from[4]};
      // The row's warps share the tokens whose squares they sum.
      if (has_norm && (nt & (row_warps - 1)) == row_warp) {
        squares[nt] = SquaresOf(x[1], SquaresOf(x[0], squares[nt]));
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const unsigned b[2] = {Component(x[j / 2], j % 2 * 2), Component(x[j / 2], j % 2 * 2 + 1)};
#pragma unroll
        for (int rt = 0; rt < kRowTiles; ++rt) Mma(acc[rt][nt], a[rt][j], b);
      }
    }
  };
  for (int base = 0; base < stages; base += kDepth) {
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      const int s = base + d;
      if (s >= stages) break;
      WaitCopies<kRing - 2>();
      __syncthreads();
      fill(s + kRing - 1);
      multiply(d, s);
    }
  }

  if (has_norm) {
#pragma unroll
    for (int nt = 0; nt < kTokenTiles; ++nt) {
      if ((nt & (row_warps - 1)) != row_warp) continue;
      float sum = squares[nt];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      if (t == 0) shared_squares[column_warp * kTokens + nt * 8 + g] = sum;
    }
  }
  __syncthreads();
#pragma unroll
  for (int rt = 0; rt < kRowTiles; ++rt) {
#pragma unroll
    for (int nt = 0; nt < kTokenTiles; ++nt) {
      shared[(column_warp * pieces + (row_warp * kRowTiles + rt) * kTokenTiles + nt) * 32 + lane] =
          make_float4(acc[rt][nt][0], acc[rt][nt][1], acc[rt][nt][2], acc[rt][nt][3]);
    }
  }
  const auto old_of = [&](int piece, float2 (&old)[2]) {
    const int token = first_token + piece % kTokenTiles * 8 + 2 * t;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      if (piece >= pieces || token + c >= p.tokens) continue;
      old[c] = LoadOld(p, p.output, block_tile + piece / kTokenTiles, g, token + c);
    }
  };
  int piece = rank * warps + warp;
  float2 old[2] = {};
  old_of(piece, old);
  if (split > 1) {
    ClusterBarrier();
  } else {
    __syncthreads();
  }
  for (; piece < pieces; piece += warps * split) {
    const int tile = block_tile + piece / kTokenTiles;
    const int nt = piece % kTokenTiles;
    float4 y = make_float4(0, 0, 0, 0);
    float2 sum = make_float2(0, 0);
    for (int r = 0; r < split; ++r) {
      const unsigned sums = AddressAt(shared + piece * 32 + lane, r);
      const unsigned of_squares = AddressAt(shared_squares + nt * 8 + 2 * t, r);
      for (int w = 0; w < column_warps; ++w) {
        const float4 part = ReadFour(sums + w * pieces * 32 * 16);
        y.x += part.x, y.y += part.y, y.z += part.z, y.w += part.w;
        if (!has_norm) continue;
        const float2 of_warp = ReadTwo(of_squares + w * kTokens * 4);
        sum.x += of_warp.x, sum.y += of_warp.y;
      }
    }
    float2 factor = make_float2(1, 1);
    if (has_norm) {
      const float count = static_cast<float>(m.cols);
      factor.x = rsqrtf(sum.x / count + p.norm_eps);
      factor.y = rsqrtf(sum.y / count + p.norm_eps);
    }
    const float2 now[2] = {old[0], old[1]};
    old_of(piece + warps * split, old);
    const int token = first_token + nt * 8 + 2 * t;
    if (tile < m.tiles && token < p.tokens) {
      StorePiece(p, tile, g, token, y.x * factor.x, y.z * factor.x, now[0]);
      if (token + 1 < p.tokens) {
        StorePiece(p, tile, g, token + 1, y.y * factor.y, y.w * factor.y, now[1]);
      }
    }
  }
  if (split > 1) ClusterBarrier();
  if (p.epilogue == LinearEpilogue::kRouter) {
    RouteWhenLast(p, p.output, first_token, min(first_token + kTokens, p.tokens),
                  p.arrivals + blockIdx.y);
  }
}

template <WeightFormat F, bool kWide, int kRowTiles, int kTokenTiles>
void LaunchKernel(const LinearParams& p, const BatchGeometry& geometry, cudaStream_t stream) {
  const auto kernel = BatchLinearKernel<F, kWide, kRowTiles, kTokenTiles>;
  BatchParams params = {p, 0, geometry.split};
  while (1 << params.column_bits < geometry.column_warps) ++params.column_bits;
  const int warps = geometry.column_warps * geometry.row_warps;
  const int tiles = geometry.row_warps * kRowTiles;
  constexpr int kTokens = kTokenTiles * 8;
  const int chunks = (p.matrix.chunks + geometry.split - 1) / geometry.split;
  const int stages = (chunks + geometry.column_warps - 1) / geometry.column_warps;
  const int ring = std::max(
      std::min(RingOf(kTokenTiles), stages) * PitchOf(geometry.column_warps) * kTokens,
      geometry.column_warps * tiles * kTokenTiles * 32 * 16);
  const int shared = ring + geometry.column_warps * kTokens * 4 +
                     (p.norm_weight == nullptr ? 0 : chunks * kChunkCols * 2);
  if (shared > 48 * 1024) {
    Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared),
          "cudaFuncSetAttribute");
  }
  const int row_blocks = (p.matrix.tiles + tiles - 1) / tiles;
  LaunchClustered("the matrix kernel of batches", kernel,
                  dim3(static_cast<unsigned>(row_blocks * geometry.split),
                       static_cast<unsigned>((p.tokens + kTokens - 1) / kTokens)),
                  dim3(static_cast<unsigned>(warps * 32)), static_cast<unsigned>(geometry.split),
                  static_cast<size_t>(shared), stream, params);
}

template <WeightFormat F, bool kWide>
void ChooseTiles(const LinearParams& p, const BatchGeometry& geometry, cudaStream_t stream) {
  const auto choose = [&]<int kTokenTiles>() {
    // Wider formats fill the registers with one tile.
    if constexpr (LoadsOf(F) <= 2 && !kWide) {
      if (geometry.row_tiles == 2) return LaunchKernel<F, kWide, 2, kTokenTiles>(p, geometry, stream);
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

__global__ void RoundKernel(const float* input, int input_stride, int width, uint16_t* output,
                            int output_stride) {
  PdlWait();
  PdlTrigger();
  const float* from = input + static_cast<long long>(blockIdx.y) * input_stride;
  uint16_t* to = output + static_cast<long long>(blockIdx.y) * output_stride;
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < width) to[i] = __bfloat16_as_ushort(__float2bfloat16_rn(from[i]));
}

}  // namespace

void LaunchBatchLinear(const LinearParams& params, const BatchGeometry& geometry,
                       cudaStream_t stream) {
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

void LaunchRound(const float* input, int input_stride, int rows, int width, uint16_t* output,
                 int output_stride, cudaStream_t stream) {
  constexpr int kThreads = 256;
  Launch("the rounding kernel", RoundKernel,
         dim3(static_cast<unsigned>((width + kThreads - 1) / kThreads), static_cast<unsigned>(rows)),
         dim3(kThreads), 0, stream, input, input_stride, width, output, output_stride);
}

}  // namespace adder::cuda
