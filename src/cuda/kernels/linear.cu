// The matrix kernel: weights as tensor-core fragments, read once per block of tokens.
//
// Phases: (1) each warp loads the weights of its first chunks; (2) PdlWait; (3) per chunk: the
// activations of the block's tokens are read, multiplied by the norm's weight, rounded to bf16 (or
// split into several bf16) and multiplied; quantised weights enter as 128 + q and the sum of the
// activations (an mma with ones) takes the offset and the bias out again, so that scales are
// applied once per group in f32; (4) warps that share rows add up through shared memory; (5) the
// norm's factor, which needs the whole row, is applied to the finished sum, then bias and epilogue.
//
// Ownership: a block owns kRowTiles * row_warps tiles of rows and kTokenTiles * 8 columns of
// tokens x splits; within it, warps cut the columns of the matrix in `column_warps` interleaved
// parts. Preconditions: input rows readable up to `cols`; matrix packed as packed_matrix.h says.
#include <algorithm>

#include "cuda/kernels/batch_linear.h"
#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/linear.h"
#include "cuda/kernels/linear_fragments.cuh"
#include "cuda/kernels/matvec.h"

namespace adder::cuda {
namespace {

// Eight consecutive values of a row; zeros from `cols` on.
__device__ __forceinline__ void LoadEight(const float* row, int col, int cols, bool vectors,
                                          float (&out)[8]) {
  if (vectors && col + 8 <= cols) {
    const float4 a = *reinterpret_cast<const float4*>(row + col);
    const float4 b = *reinterpret_cast<const float4*>(row + col + 4);
    out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w;
    out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) out[i] = col + i < cols ? row[col + i] : 0.0f;
}

// kRowTiles: tiles of rows per warp; kTokenTiles: groups of eight columns of tokens x splits;
// kSplit: columns per token (1, 2 or 4, of which three are used); kDepth: chunks loaded ahead.
template <WeightFormat F, bool kWideScales, int kRowTiles, int kTokenTiles, int kSplit, int kDepth,
          Experts kExperts>
__global__ void __launch_bounds__(kTokenTiles >= 4 ? 256 : 512)
    LinearKernel(const __grid_constant__ KernelParams params) {
  using Weights = Fragment<F>;
  constexpr int kLoads = Weights::kLoads;
  constexpr bool kExact = kSplit == 4;
  constexpr int kTokensPerTile = 8 / kSplit;
  const LinearParams& p = params.linear;
  const PackedMatrix& m = p.matrix;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int warps = blockDim.x / 32;
  const int column_warps = params.column_warps;
  const int column_warp = warp % column_warps;
  const int row_warp = warp / column_warps;
  const int row_warps = warps / column_warps;
  const int g = lane / 4;
  const int t = lane % 4;
  const int first_tile = (blockIdx.x * row_warps + row_warp) * kRowTiles;
  int first_token = blockIdx.y * kTokenTiles * kTokensPerTile;

  // Experts: blockIdx.z is a token (down) or a token and a choice (gate, up).
  const float* input = p.input;
  float* output = p.output;
  int tokens = p.tokens;
  const float* routing = nullptr;
  int total_chunks = m.chunks;
  if constexpr (kExperts == Experts::kGateUp) {
    const int token = blockIdx.z / params.expert_top_k;
    const int choice = blockIdx.z % params.expert_top_k;
    routing = params.routing + static_cast<long long>(token) * params.routing_stride +
              params.expert_top_k + choice;
    input += static_cast<long long>(token) * p.input_stride;
    output += static_cast<long long>(token) * p.output_stride + choice * (m.rows / 2);
    first_token = 0;
    tokens = 1;
  } else if constexpr (kExperts == Experts::kDown) {
    const int token = blockIdx.z;
    routing = params.routing + static_cast<long long>(token) * params.routing_stride;
    input += static_cast<long long>(token) * p.input_stride;
    output += static_cast<long long>(token) * p.output_stride;
    first_token = 0;
    tokens = 1;
    total_chunks = params.expert_top_k * m.chunks;
  }

  uint4 raw[kDepth][kRowTiles][kLoads];
  ScalePairs<kWideScales> scale_pairs[kDepth][kRowTiles];

  const auto load = [&](int depth, int chunk) {
    const uint4* data = m.data;
    const unsigned char* scales = static_cast<const unsigned char*>(m.scales);
    if constexpr (kExperts != Experts::kNone) {
      int expert = 0;
      if constexpr (kExperts == Experts::kGateUp) {
        expert = static_cast<int>(*routing);
      } else {
        expert = static_cast<int>(routing[params.expert_top_k + chunk / m.chunks]);
        chunk %= m.chunks;
      }
      data += expert * m.data_stride;
      scales += expert * m.scales_stride;
    }
#pragma unroll
    for (int rt = 0; rt < kRowTiles; ++rt) {
      if (first_tile + rt >= m.tiles) continue;
      const long long place = static_cast<long long>(first_tile + rt) * m.chunks + chunk;
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        raw[depth][rt][i] = __ldg(data + (place * kLoads + i) * 32 + lane);
      }
      if constexpr (Weights::kQuantized) scale_pairs[depth][rt].Load(scales, place, g);
    }
  };

  constexpr bool kPrefetch = kExperts == Experts::kNone;
  if constexpr (!kPrefetch) {
    PdlWait();
    PdlTrigger();
  }
#pragma unroll
  for (int d = 0; d < kDepth; ++d) {
    const int chunk = column_warp + d * column_warps;
    if (chunk < total_chunks) load(d, chunk);
  }
  if constexpr (kPrefetch) {
    PdlWait();
    PdlTrigger();
  }

  // This lane's column of each token tile: a token's row and one of its splits.
  const float* rows[kTokenTiles];
#pragma unroll
  for (int nt = 0; nt < kTokenTiles; ++nt) {
    const int token = first_token + nt * kTokensPerTile + g / kSplit;
    const bool used = token < tokens && !(kSplit == 4 && g % 4 == 3);
    const int row = used && p.input_rows != nullptr ? p.input_rows[token] : token;
    rows[nt] = used ? input + static_cast<long long>(row) * p.input_stride : nullptr;
  }
  const bool vectors = (reinterpret_cast<uintptr_t>(input) % 16 == 0) && p.input_stride % 4 == 0 &&
                       (kExperts != Experts::kDown || m.cols % 4 == 0);
  const bool has_norm = p.norm_weight != nullptr;

  float acc[kRowTiles][kTokenTiles][4] = {};
  float squares[kTokenTiles] = {};

  const auto multiply = [&](int depth, int chunk) {
    float expert_weight = 1;
    int input_offset = 0;
    int col_chunk = chunk;
    if constexpr (kExperts == Experts::kDown) {
      expert_weight = routing[chunk / m.chunks];
      input_offset = chunk / m.chunks * m.cols;
      col_chunk = chunk % m.chunks;
    }
    const int col = col_chunk * kChunkCols + 8 * t;
    float norm[2][8];
    if (has_norm) {
      LoadEight(p.norm_weight, col, m.cols, true, norm[0]);
      LoadEight(p.norm_weight, col + 32, m.cols, true, norm[1]);
    }
#pragma unroll
    for (int part = 0; part < Weights::kParts; ++part) {
      unsigned a[kRowTiles][4][4];
#pragma unroll
      for (int rt = 0; rt < kRowTiles; ++rt)
        Weights::template Expand<kExact>(raw[depth][rt], part, a[rt]);
#pragma unroll
      for (int nt = 0; nt < kTokenTiles; ++nt) {
        unsigned b[4][2] = {};
        if (rows[nt] != nullptr) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            float x[8];
            LoadEight(rows[nt] + input_offset, col + 32 * h, m.cols, vectors, x);
            if (has_norm) {
#pragma unroll
              for (int i = 0; i < 8; ++i) {
                if (part == 0) squares[nt] += x[i] * x[i];
                x[i] *= norm[h][i];
              }
            }
            if constexpr (kExperts == Experts::kDown) {
#pragma unroll
              for (int i = 0; i < 8; ++i) x[i] *= expert_weight;
            }
            if constexpr (kSplit > 1) {
              const int split = g % kSplit;
#pragma unroll
              for (int i = 0; i < 8; ++i) {
                const float rest = x[i] - RoundBf16(x[i]);
                if (split == 1) x[i] = rest;
                if (kSplit == 4 && split == 2) x[i] = rest - RoundBf16(rest);
              }
            }
#pragma unroll
            for (int pair = 0; pair < 4; ++pair) {
              b[2 * h + pair / 2][pair % 2] = PackBf16(x[2 * pair], x[2 * pair + 1]);
            }
          }
        }
        float sums[2][4] = {};
        SumColumns<F, kWideScales>(b, sums);
#pragma unroll
        for (int rt = 0; rt < kRowTiles; ++rt) {
          MultiplyTile<F, kWideScales, kExact>(a[rt], b, sums, scale_pairs[depth][rt],
                                               m.scale_format, acc[rt][nt]);
        }
      }
    }
  };

  for (int base = column_warp; base < total_chunks; base += kDepth * column_warps) {
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      const int chunk = base + d * column_warps;
      if (chunk >= total_chunks) break;
      multiply(d, chunk);
      const int next = chunk + kDepth * column_warps;
      if (next < total_chunks) load(d, next);
    }
  }

  // Shared memory: sums of squares [warps][token tiles][8], then, when warps share rows, their
  // accumulators [warps][row tiles][token tiles][32].
  extern __shared__ float4 shared[];
  float* shared_squares = reinterpret_cast<float*>(shared);
  float4* shared_acc = shared + warps * kTokenTiles * 2;
  if (has_norm) {
#pragma unroll
    for (int nt = 0; nt < kTokenTiles; ++nt) {
      float sum = squares[nt];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      if (t == 0) shared_squares[(warp * kTokenTiles + nt) * 8 + g] = sum;
    }
  }
  if (column_warps > 1) {
#pragma unroll
    for (int rt = 0; rt < kRowTiles; ++rt) {
#pragma unroll
      for (int nt = 0; nt < kTokenTiles; ++nt) {
        shared_acc[((warp * kRowTiles + rt) * kTokenTiles + nt) * 32 + lane] =
            make_float4(acc[rt][nt][0], acc[rt][nt][1], acc[rt][nt][2], acc[rt][nt][3]);
      }
    }
  }
  __syncthreads();

  // The finished sums of one lane of one tile: rows g and g + 8, columns 2 t and 2 t + 1.
  const auto finish = [&](int of_row_warp, int rt, int nt, float4 y) {
    const int tile = (blockIdx.x * row_warps + of_row_warp) * kRowTiles + rt;
    float2 factor = make_float2(1, 1);
    if (has_norm) {
      float2 sum = make_float2(0, 0);
      // Every split of a token has seen the same activations; the first is always there.
      const int column = 2 * t / kSplit * kSplit;
      const int second = kSplit == 1 ? column + 1 : column;
      for (int w = 0; w < column_warps; ++w) {
        const float* of_warp =
            shared_squares + ((of_row_warp * column_warps + w) * kTokenTiles + nt) * 8;
        sum.x += of_warp[column];
        sum.y += of_warp[second];
      }
      const float count = static_cast<float>(m.cols);
      factor.x = rsqrtf(sum.x / count + p.norm_eps);
      factor.y = rsqrtf(sum.y / count + p.norm_eps);
    }
    if constexpr (kSplit >= 2) {
      y.x += y.y;
      y.z += y.w;
    }
    if constexpr (kSplit == 4) {
      y.x += __shfl_xor_sync(0xffffffffu, y.x, 1);
      y.z += __shfl_xor_sync(0xffffffffu, y.z, 1);
    }
#pragma unroll
    for (int c = 0; c < (kSplit == 1 ? 2 : 1); ++c) {
      const int token = first_token + nt * kTokensPerTile + (2 * t + c) / kSplit;
      if (token >= tokens || tile >= m.tiles || (kSplit == 4 && t % 2 == 1)) continue;
      const float scaled = c == 0 ? factor.x : factor.y;
      const float low = (c == 0 ? y.x : y.y) * scaled;
      const float high = (c == 0 ? y.z : y.w) * scaled;
      const float2 old = LoadOld(p, output, tile, g, token);
      switch (p.epilogue) {
        case LinearEpilogue::kStore:
        case LinearEpilogue::kAdd:
          StoreRows<LinearEpilogue::kAdd>(p, output, tile, g, token, low, high, old);
          break;
        case LinearEpilogue::kSiluMul:
          StoreRows<LinearEpilogue::kSiluMul>(p, output, tile, g, token, low, high, old);
          break;
        case LinearEpilogue::kRouter:
          StoreRows<LinearEpilogue::kRouter>(p, output, tile, g, token, low, high, old);
          break;
      }
    }
  };

  if (column_warps == 1) {
#pragma unroll
    for (int rt = 0; rt < kRowTiles; ++rt) {
#pragma unroll
      for (int nt = 0; nt < kTokenTiles; ++nt) {
        finish(row_warp, rt, nt,
               make_float4(acc[rt][nt][0], acc[rt][nt][1], acc[rt][nt][2], acc[rt][nt][3]));
      }
    }
  } else {
    // Whole warps take an item each: finish exchanges values between lanes.
    const int items = row_warps * kRowTiles * kTokenTiles;
    for (int item = warp; item < items; item += warps) {
      const int of_row_warp = item / (kRowTiles * kTokenTiles);
      const int rest = item % (kRowTiles * kTokenTiles);
      float4 y = make_float4(0, 0, 0, 0);
      for (int w = 0; w < column_warps; ++w) {
        const float4 part =
            shared_acc[((of_row_warp * column_warps + w) * kRowTiles * kTokenTiles + rest) * 32 +
                       lane];
        y.x += part.x, y.y += part.y, y.z += part.z, y.w += part.w;
      }
      finish(of_row_warp, rest / kTokenTiles, rest % kTokenTiles, y);
    }
  }

  if constexpr (kExperts == Experts::kNone) {
    if (p.epilogue != LinearEpilogue::kRouter) return;
    RouteWhenLast(p, output, first_token, min(first_token + kTokenTiles * kTokensPerTile, tokens),
                  p.arrivals + blockIdx.y);
  }
}

struct Geometry {
  int row_tiles;
  int token_tiles;
  int column_warps;
  int row_warps;
};

// f32 mode sums columns in this many parts, always.
constexpr int kInvariantColumnWarps = 8;

Geometry ChooseGeometry(const LinearParams& p, const LinearShape& shape, int total_chunks,
                        bool experts) {
  const WeightFormat format = p.matrix.format;
  const bool wide = p.matrix.scale_format == ScaleFormat::kWide;
  const bool heavy = experts || format == WeightFormat::kF16 || format == WeightFormat::kF32;
  const bool simple = wide || shape.split == ActivationSplit::kThree;
  const int per_tile = 8 / static_cast<int>(shape.split);
  const int tiles_of_tokens = (p.tokens + per_tile - 1) / per_tile;
  Geometry geometry = {1, 1, 1, 1};
  if (heavy || shape.split == ActivationSplit::kTwo) {
    geometry.token_tiles = 1;
  } else if (simple) {
    geometry.token_tiles = tiles_of_tokens > 1 ? 4 : 1;
  } else {
    while (geometry.token_tiles < 8 && geometry.token_tiles < tiles_of_tokens) {
      geometry.token_tiles *= 2;
    }
  }
  const int token_blocks = (tiles_of_tokens + geometry.token_tiles - 1) / geometry.token_tiles;
  if (!heavy && !simple && p.matrix.tiles >= shape.multiprocessors * 3 / 2) geometry.row_tiles = 2;
  const int row_groups = (p.matrix.tiles + geometry.row_tiles - 1) / geometry.row_tiles;
  if (shape.batch_invariant) {
    geometry.column_warps = kInvariantColumnWarps;
    return geometry;
  }
  // Columns are shared out until every multiprocessor has about sixteen warps.
  const int64_t groups = static_cast<int64_t>(row_groups) * token_blocks;
  const int most_warps = geometry.token_tiles >= 4 ? 8 : 16;
  while (geometry.column_warps < most_warps && geometry.column_warps * 2 <= total_chunks &&
         groups * geometry.column_warps < int64_t{16} * shape.multiprocessors) {
    geometry.column_warps *= 2;
  }
  while (geometry.column_warps * geometry.row_warps < 4 &&
         groups > int64_t{2} * shape.multiprocessors * geometry.row_warps) {
    geometry.row_warps *= 2;
  }
  return geometry;
}

template <WeightFormat F, bool kWideScales, int kRowTiles, int kTokenTiles, int kSplit,
          Experts kExperts>
void LaunchKernel(const KernelParams& params, const Geometry& geometry, unsigned grid_z,
                  cudaStream_t stream) {
  constexpr int kDepth = LoadsOf(F) * kRowTiles <= 2 ? 4 : LoadsOf(F) * kRowTiles <= 4 ? 2 : 1;
  const LinearParams& p = params.linear;
  const auto kernel =
      LinearKernel<F, kWideScales, kRowTiles, kTokenTiles, kSplit, kDepth, kExperts>;
  const int warps = geometry.column_warps * geometry.row_warps;
  size_t shared = static_cast<size_t>(warps) * kTokenTiles * 32;
  if (geometry.column_warps > 1) {
    shared += static_cast<size_t>(warps) * kRowTiles * kTokenTiles * 32 * 16;
  }
  if (shared > 48 * 1024) {
    Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared)),
          "cudaFuncSetAttribute");
  }
  const int per_block = kRowTiles * geometry.row_warps;
  const int tokens_per_block = kTokenTiles * 8 / kSplit;
  const unsigned grid_y =
      kExperts == Experts::kNone
          ? static_cast<unsigned>((p.tokens + tokens_per_block - 1) / tokens_per_block)
          : 1u;
  Launch("the matrix kernel", kernel,
         dim3(static_cast<unsigned>((p.matrix.tiles + per_block - 1) / per_block), grid_y, grid_z),
         dim3(static_cast<unsigned>(warps * 32)), shared, stream, params);
}

// Only the combinations that ChooseGeometry asks for are compiled.
template <WeightFormat F, bool kWideScales, int kSplit, Experts kExperts>
void ChooseTiles(const KernelParams& params, const Geometry& geometry, unsigned grid_z,
                 cudaStream_t stream) {
  const auto launch = [&]<int kRowTiles, int kTokenTiles>() {
    LaunchKernel<F, kWideScales, kRowTiles, kTokenTiles, kSplit, kExperts>(params, geometry, grid_z,
                                                                           stream);
  };
  if constexpr (kExperts != Experts::kNone || Fragment<F>::kParts > 1) {
    return launch.template operator()<1, 1>();
  } else if constexpr (kWideScales || kSplit == 4) {
    return geometry.token_tiles == 1 ? launch.template operator()<1, 1>()
                                     : launch.template operator()<1, 4>();
  } else if constexpr (kSplit == 2) {
    return geometry.row_tiles == 1 ? launch.template operator()<1, 1>()
                                   : launch.template operator()<2, 1>();
  } else {
    const bool one = geometry.row_tiles == 1;
    switch (geometry.token_tiles) {
      case 1:
        return one ? launch.template operator()<1, 1>() : launch.template operator()<2, 1>();
      case 2:
        return one ? launch.template operator()<1, 2>() : launch.template operator()<2, 2>();
      case 4:
        return one ? launch.template operator()<1, 4>() : launch.template operator()<2, 4>();
      default:
        return one ? launch.template operator()<1, 8>() : launch.template operator()<2, 8>();
    }
  }
}

template <Experts kExperts, int kSplit>
void ChooseFormat(const KernelParams& params, const Geometry& geometry, unsigned grid_z,
                  cudaStream_t stream) {
  const PackedMatrix& m = params.linear.matrix;
  const bool wide = m.scale_format == ScaleFormat::kWide;
  const auto choose = [&]<WeightFormat kFormat, bool kWide>() {
    ChooseTiles<kFormat, kWide, kSplit, kExperts>(params, geometry, grid_z, stream);
  };
  switch (m.format) {
    case WeightFormat::kQ4:
      return wide ? choose.template operator()<WeightFormat::kQ4, true>()
                  : choose.template operator()<WeightFormat::kQ4, false>();
    case WeightFormat::kQ8:
      return wide ? choose.template operator()<WeightFormat::kQ8, true>()
                  : choose.template operator()<WeightFormat::kQ8, false>();
    case WeightFormat::kBf16:
      return choose.template operator()<WeightFormat::kBf16, false>();
    case WeightFormat::kF16:
      return choose.template operator()<WeightFormat::kF16, false>();
    case WeightFormat::kF32:
      return choose.template operator()<WeightFormat::kF32, false>();
  }
}

template <Experts kExperts>
void Dispatch(const LinearParams& linear, const ExpertParams* experts, const LinearShape& shape,
              unsigned grid_z, int total_chunks, cudaStream_t stream) {
  if (linear.matrix.tiles == 0 || linear.tokens == 0) return;
  const bool few = kExperts != Experts::kNone || linear.tokens <= kMostMatvecTokens;
  if (!shape.batch_invariant && few && linear.matrix.cols % 4 == 0) {
    return LaunchMatvec(linear, experts, kExperts, shape, stream);
  }
  const Geometry geometry = ChooseGeometry(linear, shape, total_chunks, kExperts != Experts::kNone);
  KernelParams params = {linear, nullptr, 0, 1, geometry.column_warps, 1, 1, 1};
  if (experts != nullptr) {
    params.routing = experts->routing;
    params.routing_stride = experts->routing_stride;
    params.expert_top_k = experts->top_k;
  }
  switch (shape.split) {
    case ActivationSplit::kOne:
      // A block of experts has one token: a second split costs nothing.
      if constexpr (kExperts == Experts::kNone) {
        return ChooseFormat<kExperts, 1>(params, geometry, grid_z, stream);
      }
      [[fallthrough]];
    case ActivationSplit::kTwo:
      return ChooseFormat<kExperts, 2>(params, geometry, grid_z, stream);
    case ActivationSplit::kThree:
      return ChooseFormat<kExperts, 4>(params, geometry, grid_z, stream);
  }
}

}  // namespace

bool ReadsRounded(const LinearShape& shape, int tokens) {
  return !shape.batch_invariant && tokens > kMostMatvecTokens;
}

void LaunchLinear(const LinearParams& params, const LinearShape& shape, cudaStream_t stream) {
  if (ReadsRounded(shape, params.tokens)) {
    const BatchDevice device = {shape.multiprocessors, DeviceHasClusters(), DeviceSharedBytes()};
    return LaunchBatchLinear(params, ChooseBatchGeometry(params, device), stream);
  }
  Dispatch<Experts::kNone>(params, nullptr, shape, 1, params.matrix.chunks, stream);
}

void LaunchExpertGateUp(const ExpertParams& params, const LinearShape& shape, cudaStream_t stream) {
  Dispatch<Experts::kGateUp>(params.linear, &params, shape,
                             static_cast<unsigned>(params.linear.tokens * params.top_k),
                             params.linear.matrix.chunks, stream);
}

void LaunchExpertDown(const ExpertParams& params, const LinearShape& shape, cudaStream_t stream) {
  Dispatch<Experts::kDown>(params.linear, &params, shape,
                           static_cast<unsigned>(params.linear.tokens),
                           params.linear.matrix.chunks * params.top_k, stream);
}

}  // namespace adder::cuda
