// The matrix kernel for one token: decoding. Latency counts as much as bytes. Instructions are
// fetched once per launch and run once, so the code is kept short: what a launch does not need is
// not compiled into its kernel.
//
// Phases: (1) each warp loads its first spans of weights and what else does not depend on the
// kernel before; (2) PdlWait; (3) the block makes its token's row, times the norm's weight, into
// operands in shared memory (see matvec_phases.cuh), while a warp of its own adds up the squares;
// barrier; (4) warps multiply their spans.
// Then, in blocks: partial sums to shared memory, barrier, half a warp per tile adds them up and
// applies the norm's factor, bias and epilogue. In streams: each warp goes over whole tiles, a grid
// apart, and finishes them itself; no further barrier.
//
// Ownership: in blocks, blockIdx.x owns row_warps tiles and column warp w of column_warps the spans
// w, w + column_warps, ...; in streams, warp i of the grid owns tiles i, i + warps of the grid, ...
// With experts, blockIdx.y is a token (down) or a token and a choice (gate, up), and the weights
// are not known before PdlWait. A router's block, if it is the only one, also chooses the experts.
// Precondition: the input's rows, and those of each expert's input, begin on 16-byte boundaries.
#include <algorithm>

#include "core/error.h"
#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/matvec.h"
#include "cuda/kernels/matvec_phases.cuh"

namespace adder::cuda {
namespace {

constexpr int kMostWarps = 16;
constexpr int kStreamWarps = 8;
constexpr int kStreamBlocksPerMultiprocessor = 3;

// How a warp goes over its spans.
enum class Walk {
  kOnce,    // it holds all of them from the beginning
  kLoop,    // all of one tile
  kStream,  // all of many tiles
};

struct MatvecParams {
  LinearParams linear;
  const float* routing;
  int routing_stride;
  int top_k;
  int row_warps;
  int column_warps;
  // 65536 / n, rounded up, turns small quotients by n into a product.
  int column_warps_reciprocal;
  int spans;  // of one matrix
  int spans_reciprocal;
  int spans_of_block;  // of all its experts' matrices
  float inverse_cols;
};

__device__ __forceinline__ int Quotient(int value, int reciprocal) {
  return static_cast<int>(static_cast<unsigned>(value) * static_cast<unsigned>(reciprocal) >> 16);
}

template <WeightFormat F, bool kWide, int kDepth, Experts kExperts, LinearEpilogue kEpilogue,
          Walk kWalk>
__global__ void __launch_bounds__((kWalk == Walk::kStream ? kStreamWarps : kMostWarps) * 32 + 32,
                                  kWalk == Walk::kStream ? 3 : 1)
    MatvecKernel(const __grid_constant__ MatvecParams params) {
  constexpr int kChunks = kSpanChunks<F, kWide>;
  constexpr int kSpanCols = kChunks * kChunkCols;
  constexpr bool kStream = kWalk == Walk::kStream;
  const LinearParams& p = params.linear;
  const PackedMatrix& m = p.matrix;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int column_warps = kStream ? 1 : params.column_warps;
  const int warps = column_warps * params.row_warps;  // that multiply
  const int row_warp = kStream ? warp : Quotient(warp, params.column_warps_reciprocal);
  const int column_warp = kStream ? 0 : warp - row_warp * column_warps;
  const bool multiplies = warp < warps;
  const bool has_norm = p.norm_weight != nullptr;
  const int spans = kExperts == Experts::kDown ? params.spans_of_block : params.spans;

  const float* input = p.input;
  float* output = p.output;
  const float* routing = nullptr;
  if constexpr (kExperts == Experts::kGateUp) {
    const int token = static_cast<int>(blockIdx.y) / params.top_k;
    const int choice = static_cast<int>(blockIdx.y) - token * params.top_k;
    routing = params.routing + static_cast<long long>(token) * params.routing_stride +
              params.top_k + choice;
    input += static_cast<long long>(token) * p.input_stride;
    output += static_cast<long long>(token) * p.output_stride + choice * (m.rows / 2);
  } else if constexpr (kExperts == Experts::kDown) {
    routing = params.routing + static_cast<long long>(blockIdx.y) * params.routing_stride;
    input += static_cast<long long>(blockIdx.y) * p.input_stride;
    output += static_cast<long long>(blockIdx.y) * p.output_stride;
  }

  // Where the next span to load lies.
  const int first_tile = static_cast<int>(blockIdx.x) * params.row_warps + row_warp;
  const int tile_step = static_cast<int>(gridDim.x) * params.row_warps;
  int load_tile = first_tile;
  int load_span = column_warp;
  WeightSpan<F, kWide> weights[kDepth];
  const auto load_next = [&](WeightSpan<F, kWide>& to) {
    int matrix = 0;
    int span = load_span;
    if constexpr (kExperts == Experts::kGateUp) {
      matrix = static_cast<int>(*routing);
    } else if constexpr (kExperts == Experts::kDown) {
      const int choice = Quotient(span, params.spans_reciprocal);
      span -= choice * params.spans;
      matrix = static_cast<int>(routing[params.top_k + choice]);
    }
    to.Load(m, matrix, load_tile * m.chunks, span * kChunks, m.chunks - 1, lane);
    load_span += column_warps;
    if (kStream && load_span >= spans) {
      load_span = 0;
      load_tile += tile_step;
    }
  };
  const auto has_next = [&] { return load_tile < m.tiles && load_span < spans && multiplies; };
  const auto load_first = [&] {
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      if (has_next()) load_next(weights[d]);
    }
  };

  if constexpr (kExperts == Experts::kNone) load_first();
  const auto load_norm = [&](int col) {
    return has_norm && col < m.cols ? __ldg(reinterpret_cast<const float4*>(p.norm_weight + col))
                                    : make_float4(1, 1, 1, 1);
  };
  float4 norm = load_norm(4 * thread);
  PdlWait();
  PdlTrigger();
  if constexpr (kExperts != Experts::kNone) load_first();

  // In blocks: this thread's row of a finished tile, if it has one.
  const int finish_tile = static_cast<int>(blockIdx.x) * params.row_warps + thread / kTileRows;
  const int in_tile = thread % kTileRows;
  const int row = LogicalRow(kEpilogue == LinearEpilogue::kSiluMul, m.rows, finish_tile, in_tile);
  const bool finishes = thread / kTileRows < params.row_warps && row < m.rows;
  float old = 0;
  if constexpr (!kStream && kEpilogue == LinearEpilogue::kAdd) {
    if (finishes) old = output[row];
  }

  // Shared memory: activations and their scales, partial sums [warps][16], the norm's factor.
  extern __shared__ uint4 shared[];
  unsigned char* activations = reinterpret_cast<unsigned char*>(shared);
  const int columns = spans * kSpanCols;
  const int stride = columns + kColumnPad;
  float* scales = reinterpret_cast<float*>(
      activations + (IsQuantized(F) ? spans * kChunks * kActivationBytesPerChunk : 4 * stride));
  float* partial = scales + (IsQuantized(F) ? spans * kChunks : 0);
  float* factor = partial + (kStream ? 0 : warps * kTileRows);
  if (p.input_rows != nullptr) input += static_cast<long long>(*p.input_rows) * p.input_stride;
  float squares = 0;
  if (multiplies) {
    const auto load_input = [&](int col) {
      float4 x = make_float4(0, 0, 0, 0);
      if constexpr (kExperts == Experts::kDown) {
        const int choice = Quotient(col / kSpanCols, params.spans_reciprocal);
        const int from = col - choice * params.spans * kSpanCols;
        if (choice >= params.top_k || from >= m.cols) return x;
        x = *reinterpret_cast<const float4*>(input + choice * m.cols + from);
        const float weight = routing[choice];
        x.x *= weight, x.y *= weight, x.z *= weight, x.w *= weight;
      } else if (col < m.cols) {
        x = *reinterpret_cast<const float4*>(input + col);
      }
      return x;
    };
    const int step = warps * 128;
    float4 x = load_input(4 * thread);
    for (int col = 4 * thread;;) {
      const int next = col + step;
      const float4 next_x = load_input(next);
      if constexpr (kExperts != Experts::kDown) {
        x.x *= norm.x, x.y *= norm.y, x.z *= norm.z, x.w *= norm.w;
      }
      if constexpr (IsQuantized(F)) {
        QuantizeActivations<F>(x, col / kChunkCols, col < columns, lane, activations, scales);
      } else if (col < columns) {
        SplitActivations(x, reinterpret_cast<__nv_bfloat16*>(activations) + col, stride);
      }
      // The same for all of a warp, whose lanes work together.
      if (next - 4 * lane >= columns) break;
      col = next;
      x = next_x;
      norm = load_norm(next);
    }
  } else if (has_norm) {
#pragma unroll 4
    for (int col = 4 * lane; col < m.cols; col += 128) {
      const float4 x = *reinterpret_cast<const float4*>(input + col);
      squares += x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
    }
  }
  const auto find_factor = [&] {
    if (multiplies || !has_norm) return;
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      squares += __shfl_xor_sync(0xffffffffu, squares, offset);
    }
    if (lane == 0) *factor = rsqrtf(squares * params.inverse_cols + p.norm_eps);
  };
  if constexpr (kStream) find_factor();
  __syncthreads();

  float sums[2] = {0, 0};
  const auto multiply = [&](const WeightSpan<F, kWide>& by, int span) {
    by.Multiply(activations, scales, stride, span, lane, m.scale_format, sums);
  };
  const auto add_quad = [&] {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sums[r] += __shfl_xor_sync(0xffffffffu, sums[r], 1);
      sums[r] += __shfl_xor_sync(0xffffffffu, sums[r], 2);
    }
  };
  if constexpr (kStream) {
    const float scale = has_norm ? *factor : 1.0f;
    int tile = multiplies ? first_tile : m.tiles;
    int span = 0;
    while (tile < m.tiles) {
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
        if (tile >= m.tiles) break;
        multiply(weights[d], span);
        if (has_next()) load_next(weights[d]);
        if (++span < spans) continue;
        add_quad();
        if (lane % 4 == 0) {
          StoreRows<kEpilogue>(p, output, tile, lane / 4, 0, sums[0] * scale, sums[1] * scale,
                               LoadOld(p, output, tile, lane / 4, 0));
        }
        sums[0] = sums[1] = 0;
        span = 0;
        tile += tile_step;
      }
    }
    return;
  }

  find_factor();
  if (multiplies) {
    if constexpr (kWalk == Walk::kOnce) {
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
        const int span = column_warp + d * column_warps;
        if (d == 0 || span < spans) multiply(weights[d], span);
      }
    } else {
      for (int span = column_warp; span < spans; span += kDepth * column_warps) {
#pragma unroll
        for (int d = 0; d < kDepth; ++d) {
          const int mine = span + d * column_warps;
          if (mine >= spans) break;
          multiply(weights[d], mine);
          if (has_next()) load_next(weights[d]);
        }
      }
    }
    add_quad();
    if (lane % 4 < 2) {
      partial[warp * kTileRows + lane / 4 + lane % 4 * 8] = lane % 4 == 0 ? sums[0] : sums[1];
    }
  }
  __syncthreads();
  if (finishes) {
    float y = 0;
    const float* from = partial + thread / kTileRows * column_warps * kTileRows + in_tile;
#pragma unroll 4
    for (int w = 0; w < column_warps; ++w) y += from[w * kTileRows];
    if (has_norm) y *= *factor;
    if (p.bias != nullptr) y += p.bias[row];
    if constexpr (kEpilogue == LinearEpilogue::kSiluMul) {
      // A row of the gate and its partner are both of the matrix, or neither.
      const float up = __shfl_xor_sync(__activemask(), y, 8);
      if (in_tile < 8) output[row] = FastSilu(y) * up;
    } else if constexpr (kEpilogue == LinearEpilogue::kRouter) {
      __stcg(p.scores + row, y);
    } else {
      output[row] = fmaf(p.scale, y, old);
    }
  }
  if constexpr (kEpilogue == LinearEpilogue::kRouter) {
    RouteWhenLast(p, output, 0, 1, p.arrivals);
  }
}

int Reciprocal(int n) { return (65536 + n - 1) / n; }

struct Launcher {
  MatvecParams params;
  unsigned grid_y;
  int multiprocessors;
  cudaStream_t stream;

  template <WeightFormat F, bool kWide, Experts kExperts, LinearEpilogue kEpilogue>
  void Run() {
    constexpr int kChunks = kSpanChunks<F, kWide>;
    // Spans that a warp may hold in registers.
    constexpr int kMostDepth = kChunks * LoadsOf(F) <= 4 ? 2 : 1;
    const PackedMatrix& m = params.linear.matrix;
    params.spans = (m.chunks + kChunks - 1) / kChunks;
    params.spans_reciprocal = Reciprocal(params.spans);
    const int spans = params.spans * (kExperts == Experts::kDown ? params.top_k : 1);
    params.spans_of_block = spans;
    // As few spans per warp as leaves all blocks on the device at once.
    const int tiles_per_multiprocessor =
        (m.tiles * static_cast<int>(grid_y) + multiprocessors - 1) / multiprocessors;
    const bool deep =
        kMostDepth > 1 && (spans > kMostWarps || spans * tiles_per_multiprocessor > kMostWarps);
    const int depth = deep ? kMostDepth : 1;
    params.column_warps = std::min((spans + depth - 1) / depth, kMostWarps);
    params.column_warps_reciprocal = Reciprocal(params.column_warps);
    params.row_warps =
        std::max(1, std::min(kMostWarps / params.column_warps, tiles_per_multiprocessor));
    const int blocks = (m.tiles + params.row_warps - 1) / params.row_warps;
    // What large models have more tiles of than fit on the device at once.
    if constexpr (kExperts == Experts::kNone && kEpilogue != LinearEpilogue::kRouter) {
      if (blocks > 2 * multiprocessors) {
        params.column_warps = 1;
        params.row_warps = kStreamWarps;
        // Every warp has the same number of tiles, or one fewer.
        const int most = multiprocessors * kStreamBlocksPerMultiprocessor * kStreamWarps;
        const int rounds = (m.tiles + most - 1) / most;
        const int warps = (m.tiles + rounds - 1) / rounds;
        return Start<F, kWide, kMostDepth, kExperts, kEpilogue, Walk::kStream>(
            (warps + kStreamWarps - 1) / kStreamWarps);
      }
    }
    if (spans > params.column_warps * depth) {
      return Start<F, kWide, kMostDepth, kExperts, kEpilogue, Walk::kLoop>(blocks);
    }
    if constexpr (kMostDepth > 1) {
      if (deep) return Start<F, kWide, kMostDepth, kExperts, kEpilogue, Walk::kOnce>(blocks);
    }
    Start<F, kWide, 1, kExperts, kEpilogue, Walk::kOnce>(blocks);
  }

  template <WeightFormat F, bool kWide, int kDepth, Experts kExperts, LinearEpilogue kEpilogue,
            Walk kWalk>
  void Start(int blocks) {
    const auto kernel = MatvecKernel<F, kWide, kDepth, kExperts, kEpilogue, kWalk>;
    const int warps = params.column_warps * params.row_warps;
    const int chunks = params.spans_of_block * kSpanChunks<F, kWide>;
    const int activation_bytes = IsQuantized(F) ? chunks * (kActivationBytesPerChunk + 4)
                                                : 4 * (chunks * kChunkCols + kColumnPad);
    const int partial_bytes = kWalk == Walk::kStream ? 0 : warps * kTileRows * 4;
    const auto shared = static_cast<size_t>(activation_bytes + partial_bytes + 4);
    if (shared > 48 * 1024) {
      Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(shared)),
            "setting the matrix-vector kernel's shared memory");
    }
    const int helper = params.linear.norm_weight != nullptr ? 1 : 0;
    Launch("the matrix-vector kernel", kernel, dim3(static_cast<unsigned>(blocks), grid_y),
           dim3(static_cast<unsigned>((warps + helper) * 32)), shared, stream, params);
  }
};

template <Experts kExperts, LinearEpilogue kEpilogue>
void Dispatch(const LinearParams& linear, const ExpertParams* experts, const LinearShape& shape,
              cudaStream_t stream) {
  const PackedMatrix& m = linear.matrix;
  Launcher launcher = {};
  launcher.params.linear = linear;
  launcher.params.inverse_cols = 1.0f / static_cast<float>(m.cols);
  launcher.grid_y = 1;
  launcher.multiprocessors = shape.multiprocessors;
  launcher.stream = stream;
  if (experts != nullptr) {
    launcher.params.routing = experts->routing;
    launcher.params.routing_stride = experts->routing_stride;
    launcher.params.top_k = experts->top_k;
    launcher.grid_y = static_cast<unsigned>(linear.tokens);
    if (kExperts == Experts::kGateUp) launcher.grid_y *= static_cast<unsigned>(experts->top_k);
  }
  const bool wide = m.scale_format == ScaleFormat::kWide;
  switch (m.format) {
    case WeightFormat::kQ4:
      return wide ? launcher.Run<WeightFormat::kQ4, true, kExperts, kEpilogue>()
                  : launcher.Run<WeightFormat::kQ4, false, kExperts, kEpilogue>();
    case WeightFormat::kQ8:
      return wide ? launcher.Run<WeightFormat::kQ8, true, kExperts, kEpilogue>()
                  : launcher.Run<WeightFormat::kQ8, false, kExperts, kEpilogue>();
    case WeightFormat::kBf16:
      return launcher.Run<WeightFormat::kBf16, false, kExperts, kEpilogue>();
    case WeightFormat::kF16:
      return launcher.Run<WeightFormat::kF16, false, kExperts, kEpilogue>();
    case WeightFormat::kF32:
      return launcher.Run<WeightFormat::kF32, false, kExperts, kEpilogue>();
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
