// The matrix kernel for decoding: few tokens, so that latency counts as much as bytes. Instructions
// are fetched once per launch and run once, so the code is kept short: what a launch does not need
// is not compiled into its kernel.
//
// Phases: (1) each warp loads the weights of its first chunks; (2) PdlWait; (3) the block turns its
// tokens' rows into a bf16 number and the bf16 of the rest in shared memory, with the norm's
// weight, summing squares on the way; barrier; (4) warps multiply their chunks of the block's tiles
// and load the next ones; partial sums to shared memory, barrier; (5) one warp per tile adds them
// up, applies the norm's factor, bias and epilogue. With kLoop, (4) and (5) repeat over groups of
// tiles a grid apart, with alternating buffers, so that one barrier does.
//
// Ownership: a block owns kRowTiles * row_warps tiles at a time; column warp w of column_warps owns
// chunks w, w + column_warps, ... With experts, blockIdx.y is a token (down) or a token and a
// choice (gate, up), and the weights are not known before PdlWait. Precondition: the input's rows,
// and those of each expert's input, begin on 16-byte boundaries.
#include <algorithm>

#include "core/error.h"
#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/linear_fragments.cuh"
#include "cuda/kernels/matvec.h"

namespace adder::cuda {
namespace {

constexpr int kMostWarps = 16;
// Of kernels that loop: fewer threads with more registers each, which hold more loads in flight.
constexpr int kMostLoopWarps = 12;
constexpr int kLoopDepth = 3;
// bf16 numbers per activation: columns 2 n and 2 n + 1 of an mma belong to token n.
constexpr int kSplit = 2;
// Distance between columns in shared memory, beyond the chunks: lanes of neighbouring columns then
// read different banks.
constexpr int kColumnPad = 32;

template <WeightFormat F, bool kWide, int kRowTiles, int kDepth, Experts kExperts,
          LinearEpilogue kEpilogue, bool kLoop>
__global__ void __launch_bounds__((kLoop ? kMostLoopWarps : kMostWarps) * 32,
                                  LoadsOf(F) * kRowTiles * kDepth <= (kLoop ? 6 : 3) ? 2 : 1)
    MatvecKernel(const __grid_constant__ KernelParams params) {
  using Weights = Fragment<F>;
  constexpr int kLoads = Weights::kLoads;
  const LinearParams& p = params.linear;
  const PackedMatrix& m = p.matrix;
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int warps = threads / 32;
  const int column_warps = params.column_warps;
  const int row_warp = warp / column_warps;
  const int column_warp = warp - row_warp * column_warps;
  const int tiles_per_group = params.row_warps * kRowTiles;
  const int g = lane / 4;
  const int t = lane % 4;

  const float* input = p.input;
  float* output = p.output;
  const int tokens = kExperts == Experts::kNone ? p.tokens : 1;
  const float* routing = nullptr;
  const int total_chunks = kExperts == Experts::kDown ? params.expert_top_k * m.chunks : m.chunks;
  if constexpr (kExperts == Experts::kGateUp) {
    const int token = static_cast<int>(blockIdx.y) / params.expert_top_k;
    const int choice = static_cast<int>(blockIdx.y) - token * params.expert_top_k;
    routing = params.routing + static_cast<long long>(token) * params.routing_stride +
              params.expert_top_k + choice;
    input += static_cast<long long>(token) * p.input_stride;
    output += static_cast<long long>(token) * p.output_stride + choice * (m.rows / 2);
  } else if constexpr (kExperts == Experts::kDown) {
    routing = params.routing + static_cast<long long>(blockIdx.y) * params.routing_stride;
    input += static_cast<long long>(blockIdx.y) * p.input_stride;
    output += static_cast<long long>(blockIdx.y) * p.output_stride;
  }

  uint4 raw[kDepth][kRowTiles][kLoads];
  ScalePairs<kWide> scale_pairs[kDepth][kRowTiles];
  const auto load = [&](int depth, int group, int chunk) {
    const uint4* data = m.data;
    const unsigned char* scales = static_cast<const unsigned char*>(m.scales);
    if constexpr (kExperts != Experts::kNone) {
      int expert = 0;
      if constexpr (kExperts == Experts::kGateUp) {
        expert = static_cast<int>(*routing);
      } else {
        const int choice = chunk / m.chunks;
        expert = static_cast<int>(routing[params.expert_top_k + choice]);
        chunk -= choice * m.chunks;
      }
      data += expert * m.data_stride;
      scales += expert * m.scales_stride;
    }
#pragma unroll
    for (int rt = 0; rt < kRowTiles; ++rt) {
      const int tile = group * tiles_per_group + row_warp * kRowTiles + rt;
      if (tile >= m.tiles) continue;
      const long long place = static_cast<long long>(tile) * m.chunks + chunk;
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        raw[depth][rt][i] = __ldcs(data + (place * kLoads + i) * 32 + lane);
      }
      if constexpr (Weights::kQuantized) scale_pairs[depth][rt].Load(scales, place, g);
    }
  };
  const auto load_group = [&](int group) {
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      const int chunk = column_warp + d * column_warps;
      if (chunk < total_chunks) load(d, group, chunk);
    }
  };

  const int first_group = static_cast<int>(blockIdx.x);
  if constexpr (kExperts == Experts::kNone) load_group(first_group);
  PdlWait();
  PdlTrigger();
  if constexpr (kExperts != Experts::kNone) load_group(first_group);

  // When a group is finished, this warp has one of its tiles and this lane token t.
  const bool finishes = warp < tiles_per_group;
  float2 old = make_float2(0, 0);
  const auto load_old = [&](int tile) {
    if constexpr (kEpilogue == LinearEpilogue::kAdd) {
      if (finishes && t < tokens && tile < m.tiles) {
        const float* out = output + static_cast<long long>(t) * p.output_stride;
        const int row = tile * kTileRows + g;
        if (row < m.rows) old.x = out[row];
        if (row + 8 < m.rows) old.y = out[row + 8];
      }
    }
  };
  load_old(first_group * tiles_per_group + warp);

  // Shared memory: activations [2 * tokens][stride] bf16, partial sums
  // [buffers][warps][kRowTiles][8] [tokens], sums of squares [tokens][kMostWarps].
  extern __shared__ uint4 shared[];
  const int stride = total_chunks * kChunkCols + kColumnPad;
  __nv_bfloat16* activations = reinterpret_cast<__nv_bfloat16*>(shared);
  float2* partial = reinterpret_cast<float2*>(activations + tokens * kSplit * stride);
  const int partial_size = warps * kRowTiles * 8 * tokens;
  float* squares = reinterpret_cast<float*>(partial + (kLoop ? 2 : 1) * partial_size);
  const bool has_norm = p.norm_weight != nullptr;
#pragma unroll 1
  for (int token = 0; token < tokens; ++token) {
    const int row = p.input_rows != nullptr ? p.input_rows[token] : token;
    const float* x = input + static_cast<long long>(row) * p.input_stride;
    __nv_bfloat16* high = activations + token * kSplit * stride;
    float sum = 0;
#pragma unroll 1
    for (int col = 4 * thread; col < total_chunks * kChunkCols; col += 4 * threads) {
      int from = col;
      float weight = 1;
      bool inside = col < m.cols;
      if constexpr (kExperts == Experts::kDown) {
        const int choice = col / (m.chunks * kChunkCols);
        from -= choice * m.chunks * kChunkCols;
        inside = from < m.cols;
        from += choice * m.cols;
        weight = routing[choice];
      }
      float4 value = make_float4(0, 0, 0, 0);
      if (inside) value = *reinterpret_cast<const float4*>(x + from);
      if (has_norm && inside) {
        const float4 norm = __ldg(reinterpret_cast<const float4*>(p.norm_weight + col));
        sum += value.x * value.x + value.y * value.y + value.z * value.z + value.w * value.w;
        value.x *= norm.x, value.y *= norm.y, value.z *= norm.z, value.w *= norm.w;
      }
      if constexpr (kExperts == Experts::kDown) {
        value.x *= weight, value.y *= weight, value.z *= weight, value.w *= weight;
      }
      const uint2 rounded = make_uint2(PackBf16(value.x, value.y), PackBf16(value.z, value.w));
      value.x -= __uint_as_float(rounded.x << 16);
      value.y -= __uint_as_float(rounded.x & 0xffff0000u);
      value.z -= __uint_as_float(rounded.y << 16);
      value.w -= __uint_as_float(rounded.y & 0xffff0000u);
      *reinterpret_cast<uint2*>(high + col) = rounded;
      *reinterpret_cast<uint2*>(high + stride + col) =
          make_uint2(PackBf16(value.x, value.y), PackBf16(value.z, value.w));
    }
    if (has_norm) {
#pragma unroll
      for (int offset = 16; offset > 0; offset /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, offset);
      }
      if (lane == 0) squares[token * kMostWarps + warp] = sum;
    }
  }
  __syncthreads();

  int buffer = 0;
  for (int group = first_group;;) {
    float acc[kRowTiles][4] = {};
#pragma unroll 1
    for (int base = column_warp; base < total_chunks; base += kDepth * column_warps) {
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
        const int chunk = base + d * column_warps;
        if (chunk >= total_chunks) break;
        unsigned b[4][2] = {};
        if (g < kSplit * tokens) {
          const uint4* from =
              reinterpret_cast<const uint4*>(activations + g * stride + chunk * kChunkCols + 8 * t);
          const uint4 first = from[0];
          const uint4 second = from[4];
          b[0][0] = first.x, b[0][1] = first.y, b[1][0] = first.z, b[1][1] = first.w;
          b[2][0] = second.x, b[2][1] = second.y, b[3][0] = second.z, b[3][1] = second.w;
        }
        float sums[2][4] = {};
        SumColumns<F, kWide>(b, sums);
#pragma unroll
        for (int rt = 0; rt < kRowTiles; ++rt) {
#pragma unroll
          for (int part = 0; part < Weights::kParts; ++part) {
            unsigned a[4][4];
            Weights::template Expand<false>(raw[d][rt], part, a);
            MultiplyTile<F, kWide, false>(a, b, sums, scale_pairs[d][rt], m.scale_format, acc[rt]);
          }
        }
        const int next = chunk + kDepth * column_warps;
        if (next < total_chunks) {
          load(d, group, next);
        } else if constexpr (kLoop) {
          const int next_group = group + static_cast<int>(gridDim.x);
          if (next_group < params.groups) load(d, next_group, column_warp + d * column_warps);
        }
      }
    }
    float2* sums_of_warps = partial + buffer * partial_size;
    if (t < tokens) {
#pragma unroll
      for (int rt = 0; rt < kRowTiles; ++rt) {
        sums_of_warps[((warp * kRowTiles + rt) * 8 + g) * tokens + t] =
            make_float2(acc[rt][0] + acc[rt][1], acc[rt][2] + acc[rt][3]);
      }
    }
    __syncthreads();
    const int tile = group * tiles_per_group + warp;
    if (finishes && tile < m.tiles) {
      // Lane t takes every fourth warp's sums; then lane t keeps token t's.
      float2 mine = make_float2(0, 0);
      float my_factor = 1;
      const int first_warp = warp / kRowTiles * column_warps;
#pragma unroll 1
      for (int token = 0; token < tokens; ++token) {
        float2 y = make_float2(0, 0);
#pragma unroll 1
        for (int w = first_warp + t; w < first_warp + column_warps; w += 4) {
          const float2 part =
              sums_of_warps[((w * kRowTiles + warp % kRowTiles) * 8 + g) * tokens + token];
          y.x += part.x;
          y.y += part.y;
        }
        float squared = has_norm && lane < warps ? squares[token * kMostWarps + lane] : 0.0f;
#pragma unroll
        for (int offset = 1; offset < 16; offset *= 2) {
          if (offset < 4) {
            y.x += __shfl_xor_sync(0xffffffffu, y.x, offset);
            y.y += __shfl_xor_sync(0xffffffffu, y.y, offset);
          }
          squared += __shfl_xor_sync(0xffffffffu, squared, offset);
        }
        squared = __shfl_sync(0xffffffffu, squared, 0);
        if (t == token) {
          mine = y;
          if (has_norm) my_factor = rsqrtf(squared * params.inverse_cols + p.norm_eps);
        }
      }
      if (t < tokens) {
        if (kLoop && group != first_group) load_old(tile);
        StoreRows<kEpilogue>(p, output, tile, g, t, mine.x * my_factor, mine.y * my_factor, old);
      }
    }
    if constexpr (!kLoop) break;
    group += static_cast<int>(gridDim.x);
    if (group >= params.groups) break;
    buffer ^= 1;
  }
  if constexpr (kEpilogue == LinearEpilogue::kRouter) {
    RouteWhenLast(p, output, 0, tokens, p.arrivals);
  }
}

struct Geometry {
  int column_warps;
  int row_warps;
  int row_tiles;
  int groups;
  unsigned grid;
};

// `tiles_in_all` counts the tiles of all choices of experts.
Geometry ChooseGeometry(const PackedMatrix& m, int tiles_in_all, int total_chunks,
                        const LinearShape& shape, bool one_tile, bool loops) {
  Geometry geometry;
  const int most_warps = loops ? kMostLoopWarps : kMostWarps;
  // Every warp has the same number of chunks, or one fewer.
  const int least = loops ? kLoopDepth : 1;
  const int per_warp = std::max(least, (total_chunks + most_warps - 1) / most_warps);
  geometry.column_warps = (total_chunks + per_warp - 1) / per_warp;
  // A block finishes as many tiles at a time as it has warps, at most.
  const bool two = !one_tile && geometry.column_warps >= 2 && tiles_in_all > shape.multiprocessors;
  geometry.row_tiles = two ? 2 : 1;
  const int row_groups = (m.tiles + geometry.row_tiles - 1) / geometry.row_tiles;
  geometry.row_warps = 1;
  while (geometry.column_warps * (geometry.row_warps + 1) <= kMostLoopWarps &&
         row_groups > shape.multiprocessors * geometry.row_warps) {
    ++geometry.row_warps;
  }
  geometry.groups = (row_groups + geometry.row_warps - 1) / geometry.row_warps;
  // Two blocks fit on a multiprocessor; each gets the same number of groups, or one fewer.
  const int most = 2 * shape.multiprocessors;
  const int rounds = loops ? (geometry.groups + most - 1) / most : 1;
  geometry.grid = static_cast<unsigned>((geometry.groups + rounds - 1) / rounds);
  return geometry;
}

struct Launcher {
  KernelParams params;
  Geometry geometry;
  unsigned grid_y;
  int total_chunks;
  bool loops;
  cudaStream_t stream;

  template <WeightFormat F, bool kWide, int kRowTiles, Experts kExperts, LinearEpilogue kEpilogue>
  void Run() const {
    constexpr int kLoads = LoadsOf(F) * kRowTiles;
    if constexpr (CanLoop(kExperts, kEpilogue)) {
      if (loops) {
        return RunWithDepth < F, kWide, kRowTiles, kLoads <= 4 ? kLoopDepth : 1, kExperts,
               kEpilogue, true > ();
      }
    }
    if constexpr (kLoads <= 2) {
      // Long sums want more loads in flight, short ones fewer registers and less code.
      const int per_warp = (total_chunks + geometry.column_warps - 1) / geometry.column_warps;
      if (per_warp > 2 / kLoads) {
        RunWithDepth<F, kWide, kRowTiles, 4 / kLoads, kExperts, kEpilogue, false>();
      } else {
        RunWithDepth<F, kWide, kRowTiles, 2 / kLoads, kExperts, kEpilogue, false>();
      }
    } else {
      RunWithDepth<F, kWide, kRowTiles, 1, kExperts, kEpilogue, false>();
    }
  }

  template <WeightFormat F, bool kWide, int kRowTiles, int kDepth, Experts kExperts,
            LinearEpilogue kEpilogue, bool kLoop>
  void RunWithDepth() const {
    const auto kernel = MatvecKernel<F, kWide, kRowTiles, kDepth, kExperts, kEpilogue, kLoop>;
    const int tokens = kExperts == Experts::kNone ? params.linear.tokens : 1;
    const int warps = geometry.column_warps * geometry.row_warps;
    const size_t shared =
        static_cast<size_t>(tokens * kSplit) *
            static_cast<size_t>(total_chunks * kChunkCols + kColumnPad) * 2 +
        static_cast<size_t>((kLoop ? 2 : 1) * warps * kRowTiles * 8 * tokens) * sizeof(float2) +
        static_cast<size_t>(tokens * kMostWarps) * sizeof(float);
    if (shared > 48 * 1024) {
      Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(shared)),
            "setting the matrix-vector kernel's shared memory");
    }
    Launch("the matrix-vector kernel", kernel, dim3(geometry.grid, grid_y),
           dim3(static_cast<unsigned>(warps * 32)), shared, stream, params);
  }

  // Projections of which large models have more groups than blocks.
  static constexpr bool CanLoop(Experts experts, LinearEpilogue epilogue) {
    return experts == Experts::kNone &&
           (epilogue == LinearEpilogue::kStore || epilogue == LinearEpilogue::kSiluMul);
  }
};

template <Experts kExperts, LinearEpilogue kEpilogue>
void Dispatch(const LinearParams& linear, const ExpertParams* experts, const LinearShape& shape,
              cudaStream_t stream) {
  const PackedMatrix& m = linear.matrix;
  Launcher launcher = {{linear, nullptr, 0, 1, 1, 1, 1, 1.0f / static_cast<float>(m.cols)},
                       {},
                       1,
                       m.chunks,
                       false,
                       stream};
  KernelParams& params = launcher.params;
  if (experts != nullptr) {
    params.routing = experts->routing;
    params.routing_stride = experts->routing_stride;
    params.expert_top_k = experts->top_k;
    launcher.grid_y = static_cast<unsigned>(linear.tokens);
    if (kExperts == Experts::kGateUp) launcher.grid_y *= static_cast<unsigned>(experts->top_k);
    if (kExperts == Experts::kDown) launcher.total_chunks *= experts->top_k;
  }
  const bool one_tile = m.format == WeightFormat::kF16 || m.format == WeightFormat::kF32 ||
                        m.scale_format == ScaleFormat::kWide ||
                        kEpilogue == LinearEpilogue::kRouter;
  const int tiles_in_all = m.tiles * static_cast<int>(launcher.grid_y);
  launcher.geometry =
      ChooseGeometry(m, tiles_in_all, launcher.total_chunks, shape, one_tile, false);
  if (Launcher::CanLoop(kExperts, kEpilogue) && launcher.geometry.groups > shape.multiprocessors) {
    launcher.loops = true;
    launcher.geometry =
        ChooseGeometry(m, tiles_in_all, launcher.total_chunks, shape, one_tile, true);
  }
  params.column_warps = launcher.geometry.column_warps;
  params.row_warps = launcher.geometry.row_warps;
  params.groups = launcher.geometry.groups;
  const auto with_rows = [&]<WeightFormat kFormat>() {
    if constexpr (kEpilogue != LinearEpilogue::kRouter) {
      if (launcher.geometry.row_tiles == 2) {
        return launcher.Run<kFormat, false, 2, kExperts, kEpilogue>();
      }
    }
    launcher.Run<kFormat, false, 1, kExperts, kEpilogue>();
  };
  const bool wide = m.scale_format == ScaleFormat::kWide;
  switch (m.format) {
    case WeightFormat::kQ4:
      return wide ? launcher.Run<WeightFormat::kQ4, true, 1, kExperts, kEpilogue>()
                  : with_rows.template operator()<WeightFormat::kQ4>();
    case WeightFormat::kQ8:
      return wide ? launcher.Run<WeightFormat::kQ8, true, 1, kExperts, kEpilogue>()
                  : with_rows.template operator()<WeightFormat::kQ8>();
    case WeightFormat::kBf16:
      return with_rows.template operator()<WeightFormat::kBf16>();
    case WeightFormat::kF16:
      return launcher.Run<WeightFormat::kF16, false, 1, kExperts, kEpilogue>();
    case WeightFormat::kF32:
      return launcher.Run<WeightFormat::kF32, false, 1, kExperts, kEpilogue>();
  }
}

}  // namespace

void LaunchMatvec(const LinearParams& linear, const ExpertParams* experts, Experts kind,
                  const LinearShape& shape, cudaStream_t stream) {
  switch (kind) {
    case Experts::kGateUp:
      return Dispatch<Experts::kGateUp, LinearEpilogue::kSiluMul>(linear, experts, shape, stream);
    case Experts::kDown:
      return Dispatch<Experts::kDown, LinearEpilogue::kAdd>(linear, experts, shape, stream);
    case Experts::kNone:
      break;
  }
  switch (linear.epilogue) {
    case LinearEpilogue::kStore:
      return Dispatch<Experts::kNone, LinearEpilogue::kStore>(linear, experts, shape, stream);
    case LinearEpilogue::kAdd:
      return Dispatch<Experts::kNone, LinearEpilogue::kAdd>(linear, experts, shape, stream);
    case LinearEpilogue::kSiluMul:
      return Dispatch<Experts::kNone, LinearEpilogue::kSiluMul>(linear, experts, shape, stream);
    case LinearEpilogue::kRouter:
      return Dispatch<Experts::kNone, LinearEpilogue::kRouter>(linear, experts, shape, stream);
  }
}

}  // namespace adder::cuda
