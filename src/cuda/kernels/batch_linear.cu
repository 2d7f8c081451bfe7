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
#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/linear_fragments.cuh"

namespace adder::cuda {
namespace {

struct BatchParams {
  LinearParams linear;
  int column_bits;  // log2 of column_warps
  int split;
  float inverse_cols;
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

// A barrier of the cluster's blocks; and where block `rank` has what this one has at `shared`.
__device__ __forceinline__ void ClusterBarrier() {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
#endif
}
template <class T>
__device__ __forceinline__ const T* AtRank(const T* shared, int rank) {
#if __CUDA_ARCH__ >= 900
  asm("mapa.u64 %0, %1, %2;" : "=l"(shared) : "l"(shared), "r"(rank));
#endif
  return shared;
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

// How a block's shared memory is cut: the ring, later [column_warps][pieces][32] sums; sums of
// squares [column_warps * row_warps][tokens]; the norm's weight in bf16. A stage is the tokens'
// rows, then the weights [tile][column warp].
struct SharedLayout {
  int stages;   // of the rank with the most columns: all blocks cut alike
  int weights;  // offset in a stage
  int stage;    // bytes
  int squares;  // offset
  int norm;     // offset
  int total;

  __host__ __device__ SharedLayout(int chunks, int split, int column_warps, int row_warps,
                                   int row_tiles, int token_tiles, int unit, bool has_norm) {
    const int most_chunks = (chunks + split - 1) / split;
    stages = (most_chunks + column_warps - 1) / column_warps;
    const int tiles = row_warps * row_tiles;
    weights = token_tiles * 8 * PitchOf(column_warps);
    stage = weights + tiles * column_warps * unit;
    const int ring = RingOf(token_tiles) < stages ? RingOf(token_tiles) : stages;
    const int sums = column_warps * tiles * token_tiles * 32 * 16;
    squares = ring * stage > sums ? ring * stage : sums;
    norm = squares + (has_norm ? column_warps * row_warps * token_tiles * 8 * 4 : 0);
    total = norm + (has_norm ? most_chunks * kChunkCols * 2 : 0);
  }
};

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
  const SharedLayout layout(m.chunks, split, column_warps, row_warps, kRowTiles, kTokenTiles, kUnit,
                            has_norm);
  extern __shared__ float4 shared[];
  char* bytes = reinterpret_cast<char*>(shared);
  float* shared_squares = reinterpret_cast<float*>(bytes + layout.squares);
  uint16_t* shared_norm = reinterpret_cast<uint16_t*>(bytes + layout.norm);

  // This warp's weights of stage s; a tile beyond the matrix repeats the last one, and its sums are
  // not stored.
  const int unit_offset =
      layout.weights + (row_warp * kRowTiles << column_bits) * kUnit + column_warp * kUnit;
  const auto place_of = [&](int rt, int s) {
    const int chunk = first_chunk + (s << column_bits) + column_warp;
    return chunk < end_chunk
               ? static_cast<long long>(min(first_tile + rt, m.tiles - 1)) * m.chunks + chunk
               : -1ll;
  };
  const auto fill_weights = [&](int s, unsigned stage) {
#pragma unroll
    for (int rt = 0; rt < kRowTiles; ++rt) {
      const long long place = place_of(rt, s);
      if (place < 0) continue;
      const unsigned unit = stage + unit_offset + (rt << column_bits) * kUnit;
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        CopyAsync(unit + i * 512 + lane * 16, m.data + (place * kLoads + i) * 32 + lane);
      }
      if (lane < kScaleBytes / 16) {
        CopyAsync(unit + kLoads * 512 + lane * 16,
                  static_cast<const char*>(m.scales) + place * kScaleBytes + lane * 16);
      }
    }
  };
  const unsigned ring = SharedAddress(bytes);
#pragma unroll 1
  for (int s = 0; s < min(kRing - 1, layout.stages); ++s) {
    fill_weights(s, ring + s * layout.stage);
  }
  if (blockIdx.y == 0) {
#pragma unroll 1
    for (int s = kRing - 1; s < layout.stages; ++s) {
#pragma unroll
      for (int rt = 0; rt < kRowTiles; ++rt) {
        const long long place = place_of(rt, s);
        if (place < 0 || lane >= kLoads * 4) continue;
        asm volatile("prefetch.global.L2 [%0];" ::"l"(m.data + place * kLoads * 32 + lane * 8));
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
  PdlWait();
  PdlTrigger();

  // Copies the tokens' part of a stage: a thread has eight columns of every (4 * row_warps)-th
  // token; zeros beyond the matrix. Tokens beyond the batch repeat the last one.
  const int part = threadIdx.x & ((8 << column_bits) - 1);
  const int thread_token = threadIdx.x >> (column_bits + 3);
  const int pitch = PitchOf(column_warps);
  const auto fill_tokens = [&](int s, unsigned stage) {
    const int col = (first_chunk + (s << column_bits)) * kChunkCols + 8 * part;
    const int of_row = min(max(m.cols - col, 0), 8) * 2;
    const uint16_t* from = p.rounded_input + (of_row == 0 ? 0 : col);
    unsigned to = stage + thread_token * pitch + part * 16;
#pragma unroll 1
    for (int i = thread_token; i < kTokens; i += 4 * row_warps) {
      const int token = min(first_token + i, p.tokens - 1);
      const int row = p.input_rows == nullptr ? token : p.input_rows[token];
      CopyAsync(to, from + static_cast<long long>(row) * p.rounded_input_stride, of_row);
      to += 4 * row_warps * pitch;
    }
  };
#pragma unroll 1
  for (int s = 0; s < kRing - 1; ++s) {
    if (s < layout.stages) fill_tokens(s, ring + s * layout.stage);
    CommitCopies();
  }

  float acc[kRowTiles][kTokenTiles][4] = {};
  // The diagonal of x x^T has the squares: a product more per operand, shared out over the row's
  // warps.
  float squares[kTokenTiles][4] = {};
  int slot = 0;
#pragma unroll 1
  for (int s = 0; s < layout.stages; ++s) {
    WaitCopies<kRing - 2>();
    __syncthreads();
    const int ahead = s + kRing - 1;
    if (ahead < layout.stages) {
      const unsigned stage = ring + (slot == 0 ? kRing - 1 : slot - 1) * layout.stage;
      fill_weights(ahead, stage);
      fill_tokens(ahead, stage);
    }
    CommitCopies();
    const char* stage = bytes + slot * layout.stage;
    slot = slot == kRing - 1 ? 0 : slot + 1;
    const int chunk = (s << column_bits) + column_warp;
    if (first_chunk + chunk >= end_chunk) continue;

    uint4 norm[2] = {};
    if (has_norm) {
      const uint4* from = reinterpret_cast<const uint4*>(shared_norm + chunk * kChunkCols + 8 * t);
      norm[0] = from[0];
      norm[1] = from[4];
    }
    unsigned a[kRowTiles][4][4];
#pragma unroll
    for (int rt = 0; rt < kRowTiles; ++rt) {
      const char* unit = stage + unit_offset + (rt << column_bits) * kUnit;
      uint4 raw[kLoads];
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        raw[i] = *reinterpret_cast<const uint4*>(unit + i * 512 + lane * 16);
      }
      ScalePairs<kWide> pairs;
      if constexpr (Fragment<F>::kQuantized) {
        pairs.LoadShared(unit + kLoads * 512, g);
      }
      WeightsAsBf16<F, kWide>(raw, pairs, m.scale_format, has_norm, norm, a[rt]);
    }
    const char* tokens = stage + column_warp * kChunkCols * 2 + g * pitch + t * 16;
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
        const bool squared = has_norm && (j & (row_warps - 1)) == row_warp;
#pragma unroll
        for (int n = 0; n < kGroup; ++n) {
          const unsigned b0 = Component(x[n][j / 2], j % 2 * 2);
          const unsigned b1 = Component(x[n][j / 2], j % 2 * 2 + 1);
#pragma unroll
          for (int rt = 0; rt < kRowTiles; ++rt) FreeMma(acc[rt][first + n], a[rt][j], b0, b1);
          if (squared) {
            const unsigned rows[4] = {b0, 0, b1, 0};
            FreeMma(squares[first + n], rows, b0, b1);
          }
        }
      }
    }
  }

  if (has_norm && g / 2 == t) {
#pragma unroll
    for (int nt = 0; nt < kTokenTiles; ++nt) {
      shared_squares[warp * kTokens + nt * 8 + g] = g % 2 == 0 ? squares[nt][0] : squares[nt][1];
    }
  }
  __syncthreads();
  const int pieces = row_warps * kRowTiles * kTokenTiles;
#pragma unroll
  for (int rt = 0; rt < kRowTiles; ++rt) {
#pragma unroll
    for (int nt = 0; nt < kTokenTiles; ++nt) {
      shared[(column_warp * pieces + (row_warp * kRowTiles + rt) * kTokenTiles + nt) * 32 + lane] =
          make_float4(acc[rt][nt][0], acc[rt][nt][1], acc[rt][nt][2], acc[rt][nt][3]);
    }
  }
  const auto old_of = [&](int piece, float2(&old)[2]) {
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
#pragma unroll 1
  for (; piece < pieces; piece += warps * split) {
    const int tile = block_tile + piece / kTokenTiles;
    const int nt = piece % kTokenTiles;
    float4 y = make_float4(0, 0, 0, 0);
    float2 sum = make_float2(0, 0);
#pragma unroll 1
    for (int r = 0; r < split; ++r) {
      const float4* sums = shared + piece * 32 + lane;
      const float2* squared = reinterpret_cast<const float2*>(shared_squares + nt * 8 + 2 * t);
      if (split > 1) sums = AtRank(sums, r), squared = AtRank(squared, r);
#pragma unroll 2
      for (int w = 0; w < column_warps; ++w) {
        const float4 add = sums[w * pieces * 32];
        y.x += add.x, y.y += add.y, y.z += add.z, y.w += add.w;
      }
      if (!has_norm) continue;
#pragma unroll 2
      for (int w = 0; w < warps; ++w) {
        const float2 add = squared[w * kTokens / 2];
        sum.x += add.x, sum.y += add.y;
      }
    }
    if (has_norm) {
      const float first_factor = rsqrtf(fmaf(sum.x, params.inverse_cols, p.norm_eps));
      const float second_factor = rsqrtf(fmaf(sum.y, params.inverse_cols, p.norm_eps));
      y.x *= first_factor, y.z *= first_factor;
      y.y *= second_factor, y.w *= second_factor;
    }
    const float2 now[2] = {old[0], old[1]};
    old_of(piece + warps * split, old);
    if (tile >= m.tiles) continue;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int token = first_token + nt * 8 + 2 * t + c;
      if (token >= p.tokens) continue;
      StorePiece(p, tile, g, token, c == 0 ? y.x : y.y, c == 0 ? y.z : y.w, now[c]);
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
  BatchParams params = {p, 0, geometry.split, 1.0f / static_cast<float>(p.matrix.cols)};
  while (1 << params.column_bits < geometry.column_warps) ++params.column_bits;
  const int unit = LoadsOf(F) * 512 + ScaleBytesPerChunk(p.matrix.scale_format);
  const SharedLayout layout(p.matrix.chunks, geometry.split, geometry.column_warps,
                            geometry.row_warps, kRowTiles, kTokenTiles, unit,
                            p.norm_weight != nullptr);
  if (layout.total > 48 * 1024) {
    Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, layout.total),
          "cudaFuncSetAttribute");
  }
  const int warps = geometry.column_warps * geometry.row_warps;
  const int tiles = geometry.row_warps * kRowTiles;
  constexpr int kTokens = kTokenTiles * 8;
  const int row_blocks = (p.matrix.tiles + tiles - 1) / tiles;
  LaunchClustered("the matrix kernel of batches", kernel,
                  dim3(static_cast<unsigned>(row_blocks * geometry.split),
                       static_cast<unsigned>((p.tokens + kTokens - 1) / kTokens)),
                  dim3(static_cast<unsigned>(warps * 32)), static_cast<unsigned>(geometry.split),
                  static_cast<size_t>(layout.total), stream, params);
}

template <WeightFormat F, bool kWide>
void ChooseTiles(const LinearParams& p, const BatchGeometry& geometry, cudaStream_t stream) {
  const auto choose = [&]<int kTokenTiles>() {
    // Wider formats fill the registers with one tile.
    if constexpr (LoadsOf(F) <= 2 && !kWide) {
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

void LaunchRound(const float* input, int input_stride, int rows, int width, uint16_t* output,
                 int output_stride, cudaStream_t stream) {
  constexpr int kThreads = 256;
  Launch(
      "the rounding kernel", RoundKernel,
      dim3(static_cast<unsigned>((width + kThreads - 1) / kThreads), static_cast<unsigned>(rows)),
      dim3(kThreads), 0, stream, input, input_stride, width, output, output_stride);
}

}  // namespace adder::cuda
