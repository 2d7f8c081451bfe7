// The exact matrix kernel: every product and sum has f32's precision, and a token's result is
// bitwise the same in every batch. Dispatch of all matrix work is here too.
//
// Phases: (1) each warp loads the weights of its first chunks; (2) PdlWait; (3) per chunk: the
// activations of the block's tokens are read, multiplied by the norm's weight, split into three
// bf16 that hold all bits of an f32, and multiplied; a quantised weight's scale and bias are
// applied once per group, in f32, the bias to the sum of the activations (an mma with ones); (4)
// warps add up through shared memory; (5) the norm's factor, which needs the whole row, is applied
// to the finished sum, then bias and epilogue.
//
// Ownership: a block owns one tile of rows and kTokenTiles * 2 tokens, of which each takes four
// columns of an operand, one unused; within it, warps cut the columns of the matrix in kColumnWarps
// interleaved parts, whatever the batch. With kHeads, blockIdx.z is the matrix. Preconditions:
// input rows readable up to `cols`; matrix packed as packed_matrix.h says.
#include "cuda/kernels/batch_linear.h"
#include "cuda/kernels/expert_step.h"
#include "cuda/kernels/few_linear.h"
#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/linear.h"
#include "cuda/kernels/linear_fragments.cuh"
#include "cuda/kernels/matvec.h"
#include "cuda/kernels/resident_linear.h"
#include "cuda/kernels/unpacked_linear.h"
#include "cuda/kernels/wgmma_linear.h"

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

// Columns of an operand that a token takes: three parts and one unused.
constexpr int kSplit = 4;
constexpr int kTokensPerTile = 8 / kSplit;
// Warps of a block; they share the columns, in the same way whatever the batch.
constexpr int kWarps = 8;

// kTokenTiles: groups of eight columns of operands; kDepth: chunks loaded ahead.
template <WeightFormat F, bool kWideScales, int kTokenTiles, int kDepth, Experts kExperts>
__global__ void __launch_bounds__(kWarps * 32)
    LinearKernel(const __grid_constant__ KernelParams params) {
  using Weights = Fragment<F>;
  constexpr int kLoads = Weights::kLoads;
  const LinearParams& p = params.linear;
  const PackedMatrix& m = p.matrix;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int tile = blockIdx.x;
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
    const int results = m.interleaved ? m.rows / 2 : m.rows;
    output += static_cast<long long>(token) * p.output_stride + choice * results;
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
  } else if constexpr (kExperts == Experts::kHeads) {
    input += blockIdx.z * params.head_step;
    output += blockIdx.z * m.rows;
  }

  uint4 raw[kDepth][kLoads];
  ScalePairs<kWideScales> scale_pairs[kDepth];

  const auto load = [&](int depth, int chunk) {
    const uint4* data = m.data;
    const unsigned char* scales = static_cast<const unsigned char*>(m.scales);
    if constexpr (kExperts != Experts::kNone) {
      int expert = 0;
      if constexpr (kExperts == Experts::kHeads) {
        expert = blockIdx.z;
      } else if constexpr (kExperts == Experts::kGateUp) {
        expert = static_cast<int>(*routing);
      } else {
        expert = static_cast<int>(routing[params.expert_top_k + chunk / m.chunks]);
        chunk %= m.chunks;
      }
      data += expert * m.data_stride;
      scales += expert * m.scales_stride;
    }
    const long long place = static_cast<long long>(tile) * m.chunks + chunk;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      raw[depth][i] = __ldg(data + (place * kLoads + i) * 32 + lane);
    }
    if constexpr (Weights::kQuantized) scale_pairs[depth].Load(scales, place, g);
  };

  constexpr bool kPrefetch = kExperts == Experts::kNone || kExperts == Experts::kHeads;
  if constexpr (!kPrefetch) {
    PdlWait();
    PdlTrigger();
  }
#pragma unroll
  for (int d = 0; d < kDepth; ++d) {
    const int chunk = warp + d * kWarps;
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
    const bool used = token < tokens && g % kSplit < 3;
    const int row = used && p.input_rows != nullptr ? p.input_rows[token] : token;
    rows[nt] = used ? input + static_cast<long long>(row) * p.input_stride : nullptr;
  }
  const bool vectors = (reinterpret_cast<uintptr_t>(input) % 16 == 0) && p.input_stride % 4 == 0 &&
                       (kExperts != Experts::kDown || m.cols % 4 == 0);
  const bool has_norm = p.norm_weight != nullptr;

  float acc[kTokenTiles][4] = {};
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
      unsigned a[4][4];
      Weights::template Expand<true>(raw[depth], part, a);
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
            const int split = g % kSplit;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
              const float rest = x[i] - RoundBf16(x[i]);
              if (split == 1) x[i] = rest;
              if (split == 2) x[i] = rest - RoundBf16(rest);
            }
#pragma unroll
            for (int pair = 0; pair < 4; ++pair) {
              b[2 * h + pair / 2][pair % 2] = PackBf16(x[2 * pair], x[2 * pair + 1]);
            }
          }
        }
        float sums[2][4] = {};
        SumColumns<F, kWideScales>(b, sums);
        MultiplyTile<F, kWideScales, true>(a, b, sums, scale_pairs[depth], m.scale_format, acc[nt]);
      }
    }
  };

  for (int base = warp; base < total_chunks; base += kDepth * kWarps) {
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      const int chunk = base + d * kWarps;
      if (chunk >= total_chunks) break;
      multiply(d, chunk);
      const int next = chunk + kDepth * kWarps;
      if (next < total_chunks) load(d, next);
    }
  }

  __shared__ float shared_squares[kWarps][kTokenTiles * 8];
  __shared__ float4 shared_acc[kWarps][kTokenTiles][32];
  if (has_norm) {
#pragma unroll
    for (int nt = 0; nt < kTokenTiles; ++nt) {
      float sum = squares[nt];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      if (t == 0) shared_squares[warp][nt * 8 + g] = sum;
    }
  }
#pragma unroll
  for (int nt = 0; nt < kTokenTiles; ++nt) {
    shared_acc[warp][nt][lane] = make_float4(acc[nt][0], acc[nt][1], acc[nt][2], acc[nt][3]);
  }
  __syncthreads();

  // A warp finishes a group of tokens: lanes hold rows g and g + 8, and columns 2 t and 2 t + 1 of
  // the operands, the first two parts of a token or its last.
  for (int nt = warp; nt < kTokenTiles; nt += kWarps) {
    float4 y = make_float4(0, 0, 0, 0);
    float squared = 0;
    for (int w = 0; w < kWarps; ++w) {
      const float4 add = shared_acc[w][nt][lane];
      y.x += add.x, y.y += add.y, y.z += add.z, y.w += add.w;
      // Every part of a token has seen the same activations; the first is always there.
      if (has_norm) squared += shared_squares[w][nt * 8 + 2 * t / kSplit * kSplit];
    }
    const float factor =
        has_norm ? rsqrtf(squared / static_cast<float>(m.cols) + p.norm_eps) : 1.0f;
    y.x += y.y;
    y.z += y.w;
    y.x += __shfl_xor_sync(0xffffffffu, y.x, 1);
    y.z += __shfl_xor_sync(0xffffffffu, y.z, 1);
    const int token = first_token + nt * kTokensPerTile + 2 * t / kSplit;
    if (token >= tokens || t % 2 == 1) continue;
    const float low = y.x * factor;
    const float high = y.z * factor;
    const auto store = [&]<LinearEpilogue kEpilogue>() {
      StoreRows<kEpilogue>(p, output, tile, g, token, low, high,
                           LoadOld<kEpilogue>(p, output, tile, g, token));
    };
    switch (p.epilogue) {
      case LinearEpilogue::kStore:
        store.template operator()<LinearEpilogue::kStore>();
        break;
      case LinearEpilogue::kAdd:
        store.template operator()<LinearEpilogue::kAdd>();
        break;
      case LinearEpilogue::kSiluMul:
        store.template operator()<LinearEpilogue::kSiluMul>();
        break;
      case LinearEpilogue::kRouter:
        store.template operator()<LinearEpilogue::kRouter>();
        break;
      case LinearEpilogue::kRule:
        store.template operator()<LinearEpilogue::kRule>();
        break;
      case LinearEpilogue::kRouteByRule:
        break;
    }
  }

  if constexpr (kExperts == Experts::kNone) {
    if (p.epilogue != LinearEpilogue::kRouter) return;
    RouteWhenLast(p, output, first_token, min(first_token + kTokenTiles * kTokensPerTile, tokens),
                  p.arrivals + blockIdx.y);
  }
}

template <WeightFormat F, bool kWideScales, int kTokenTiles, Experts kExperts>
void LaunchKernel(const KernelParams& params, unsigned grid_z, cudaStream_t stream) {
  constexpr int kDepth = LoadsOf(F) <= 2 ? 4 : LoadsOf(F) <= 4 ? 2 : 1;
  constexpr int kTokens = kTokenTiles * kTokensPerTile;
  const LinearParams& p = params.linear;
  constexpr bool kAllTokens = kExperts == Experts::kNone || kExperts == Experts::kHeads;
  const unsigned grid_y =
      kAllTokens ? static_cast<unsigned>((p.tokens + kTokens - 1) / kTokens) : 1u;
  Launch("the matrix kernel", LinearKernel<F, kWideScales, kTokenTiles, kDepth, kExperts>,
         dim3(static_cast<unsigned>(p.matrix.tiles), grid_y, grid_z), dim3(kWarps * 32), 0, stream,
         params);
}

template <Experts kExperts>
void ChooseFormat(const KernelParams& params, unsigned grid_z, cudaStream_t stream) {
  const PackedMatrix& m = params.linear.matrix;
  const bool wide = m.scale_format == ScaleFormat::kWide;
  const auto choose = [&]<WeightFormat kFormat, bool kWide>() {
    // Experts have one token each, and formats of several parts fill the registers with it.
    if constexpr ((kExperts == Experts::kNone || kExperts == Experts::kHeads) &&
                  Fragment<kFormat>::kParts == 1) {
      if (params.linear.tokens > kTokensPerTile) {
        return LaunchKernel<kFormat, kWide, 4, kExperts>(params, grid_z, stream);
      }
    }
    LaunchKernel<kFormat, kWide, 1, kExperts>(params, grid_z, stream);
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
              unsigned grid_z, cudaStream_t stream) {
  if (linear.matrix.tiles == 0 || linear.tokens == 0) return;
  if (!shape.batch_invariant && linear.matrix.cols % 4 == 0) {
    if (kExperts != Experts::kNone || linear.tokens <= kMostMatvecTokens) {
      return LaunchMatvec(linear, experts, kExperts, shape, stream);
    }
    if (LaunchFewLinear(linear, shape, stream)) return;
  }
  KernelParams params = {linear, nullptr, 0, 1, kWarps, 1, 1, 1, 0};
  if (experts != nullptr) {
    params.routing = experts->routing;
    params.routing_stride = experts->routing_stride;
    params.expert_top_k = experts->top_k;
  }
  ChooseFormat<kExperts>(params, grid_z, stream);
}

}  // namespace

bool ReadsRounded(const LinearShape& shape, int tokens) {
  return !shape.batch_invariant && tokens > kMostFewTokens;
}

void LaunchLinear(const LinearParams& params, const LinearShape& shape, cudaStream_t stream) {
  if (ReadsRounded(shape, params.tokens)) {
    WgmmaGeometry geometry;
    const bool wgmma =
        params.tokens >= kLeastWgmmaTokens && DeviceHasWgmma() &&
        ChooseWgmmaGeometry(params, shape.multiprocessors, DeviceSharedBytes(), &geometry);
    const bool of_few_rows = params.matrix.rows * 6 <= kUnpackedRows * shape.multiprocessors;
    if (shape.unpacked != nullptr &&
        LaunchResidentLinear(params, shape.unpacked, shape.multiprocessors, stream)) {
      return;
    }
    UnpackedGeometry unpacked;
    if (shape.unpacked != nullptr && params.tokens >= kLeastUnpackedTokens &&
        !(wgmma && params.tokens <= (of_few_rows ? 64 : 32)) &&
        ChooseUnpackedGeometry(params, shape.multiprocessors, DeviceSharedBytes(), &unpacked)) {
      return LaunchUnpackedLinear(params, shape.unpacked, unpacked, stream);
    }
    if (wgmma) return LaunchWgmmaLinear(params, geometry, stream);
    const BatchDevice device = {shape.multiprocessors, DeviceHasClusters(), DeviceSharedBytes()};
    return LaunchBatchLinear(params, ChooseBatchGeometry(params, device), stream);
  }
  Dispatch<Experts::kNone>(params, nullptr, shape, 1, stream);
}

void LaunchHeadsLinear(const LinearParams& linear, int heads, int step, cudaStream_t stream) {
  if (linear.matrix.tiles == 0 || linear.tokens == 0 || heads == 0) return;
  KernelParams params = {linear, nullptr, 0, 1, kWarps, 1, 1, 1, step};
  ChooseFormat<Experts::kHeads>(params, static_cast<unsigned>(heads), stream);
}

void LaunchExpertGateUp(const ExpertParams& params, const LinearShape& shape, cudaStream_t stream) {
  if (LaunchExpertGatesStep(params, shape, stream)) return;
  Dispatch<Experts::kGateUp>(params.linear, &params, shape,
                             static_cast<unsigned>(params.linear.tokens * params.top_k), stream);
}

void LaunchExpertDown(const ExpertParams& params, const LinearShape& shape, cudaStream_t stream) {
  if (LaunchExpertDownStep(params, shape, stream)) return;
  Dispatch<Experts::kDown>(params.linear, &params, shape,
                           static_cast<unsigned>(params.linear.tokens), stream);
}

}  // namespace adder::cuda
