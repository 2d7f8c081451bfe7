// Several matrices in one launch, for steps of a few tokens.
//
// Phases: (1) each warp copies its spans of weights to shared memory; with a shift, the norm's
// weight and bias, the mix and the previous row are loaded, and when all of the block has them the
// block arrives; (2) PdlWait; (3) the row is loaded; with a shift its mean and the sum of squares
// around it, of each warp and then of all of them; barrier; the row is normed, mixed and made into
// operands in shared memory (matvec_phases.cuh); barrier; (4) warps multiply; partial sums to
// shared memory; barrier; a warp per tile adds them up, with bias and activation.
//
// Ownership: blockIdx.y is a token. Blocks of the matrices follow one another; one owns row_warps
// tiles of its matrix, and column warp w of column_warps the spans w, w + column_warps, ... A warp
// reads only weights that it copied itself. The normed row becomes the previous one of the next
// step: the block that arrived last writes it, when all blocks have read the old one. Precondition:
// what the step before wrote is seen before PdlWait (launch.cuh).
#include <algorithm>

#include "cuda/kernels/activate.cuh"
#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/matvec_phases.cuh"
#include "cuda/kernels/several_linear.h"
#include "cuda/kernels/small_quotient.h"
#include "cuda/kernels/sums.cuh"
#include "cuda/kernels/weight_format_dispatch.h"

namespace adder::cuda {
namespace {

constexpr int kMostWarps = 16;
constexpr int kWarpCols = 2 * kChunkCols;  // whose operands a warp makes at a time
static_assert(kMostShiftedCols == 2 * kMostWarps * kWarpCols);

struct SeveralKernelParams {
  SeveralLinearParams several;
  int first_blocks[kMostSeveral];
  int row_warps;
  int column_warps;
  int column_warps_reciprocal;
  int held_spans;  // of each warp
  int preparing_warps;
  int spans;  // of the widest matrix
  float inverse_cols;
  bool triggers_early;
};

// Of a warp's columns, those of a row.
struct WarpMoments {
  float sum;
  float mean;
  float squares;  // around the mean
  float count;
};

// kRounds: how often a warp loads columns with a shift; 0: there is no shift.
template <WeightFormat F, bool kWide, int kRounds>
__global__ void __launch_bounds__(kMostWarps * 32, kRounds > 1 || F == WeightFormat::kF32 ? 1 : 2)
    SeveralKernel(const __grid_constant__ SeveralKernelParams params) {
  using Span = WeightSpan<F, kWide>;
  constexpr bool kShifts = kRounds > 0;
  constexpr int kSpanCols = Span::kChunks * kChunkCols;
  constexpr int kSecond = LaneColumns<F>::kSecond;
  const SeveralLinearParams& p = params.several;
  int block = static_cast<int>(blockIdx.x);
  int which = 0;
#pragma unroll 1
  while (which + 1 < p.count && block >= params.first_blocks[which + 1]) ++which;
  block -= params.first_blocks[which];
  const OneOfSeveral& own = p.matrices[which];
  const PackedMatrix& m = own.matrix;
  const auto token = static_cast<long long>(blockIdx.y);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  // The same in all lanes, which the compiler cannot know of a quotient.
  const int warp = __shfl_sync(0xffffffffu, thread / 32, 0);
  const int row_warp = Quotient(warp, params.column_warps_reciprocal);
  const int column_warp = warp - row_warp * params.column_warps;
  const int tile = block * params.row_warps + row_warp;
  const bool multiplies = row_warp < params.row_warps && tile < m.tiles;
  const bool prepares = warp < params.preparing_warps;
  const int spans = (m.chunks + Span::kChunks - 1) / Span::kChunks;
  const int columns = spans * kSpanCols;
  const int stride = columns + kColumnPad;

  // Shared memory: weights [warps][held_spans], activations, their units, partial sums
  // [warps][16], moments [preparing warps].
  extern __shared__ uint4 shared[];
  const int multiplying = params.row_warps * params.column_warps;
  unsigned char* bytes = reinterpret_cast<unsigned char*>(shared);
  unsigned char* weights = bytes + warp * params.held_spans * kSpanBytes<F, kWide>;
  unsigned char* activations = bytes + multiplying * params.held_spans * kSpanBytes<F, kWide>;
  auto* units = reinterpret_cast<GroupUnit*>(
      activations + (IsQuantized(F) ? params.spans * Span::kChunks * kActivationBytesPerChunk
                                    : 4 * (params.spans * kSpanCols + kColumnPad)));
  float* partial = reinterpret_cast<float*>(
      units + (IsQuantized(F) ? params.spans * Span::kChunks * kChunkGroups<kWide> : 0));
  auto* moments = reinterpret_cast<WarpMoments*>(partial + multiplying * kTileRows);
  __shared__ bool is_last;

  if (multiplies) {
    unsigned char* to = weights;
#pragma unroll 1
    for (int span = column_warp; span < spans; span += params.column_warps) {
      Span::Copy(m, 0, tile * m.chunks, span * Span::kChunks, m.chunks - 1, lane, to);
      to += kSpanBytes<F, kWide>;
    }
  }
  CommitCopies();
  // The row that this thread finishes, if it does.
  const int row = (block * params.row_warps + warp) * kTileRows + lane % kTileRows;
  const bool finishes = warp < params.row_warps && lane < kTileRows && row < m.rows;
  const float bias = finishes && own.bias != nullptr ? own.bias[row] : 0.0f;
  float* output = own.output + token * own.output_stride + row;

  // This lane's columns: two here and two kSecond beyond; the same a step on.
  const int first_col = thread / 16 * kChunkCols + LaneColumns<F>::First(lane);
  const int step = params.preparing_warps * kWarpCols;
  const auto load_pair = [&](const float* from, int col) {
    return col < m.cols ? *reinterpret_cast<const float2*>(from + col) : make_float2(0, 0);
  };
  const auto prepare = [&](int col, float2 x, float2 y) {
    if constexpr (IsQuantized(F)) {
      const int chunk = col / kChunkCols;
      QuantizeActivations<F, kWide, false>(x, y, lane, col < columns,
                                           activations + chunk * kActivationBytesPerChunk,
                                           units + chunk * kChunkGroups<kWide>);
    } else if (col < columns) {
      __nv_bfloat16* to = reinterpret_cast<__nv_bfloat16*>(activations) + col;
      SplitActivations(x, to, stride);
      SplitActivations(y, to + kSecond, stride);
    }
  };

  if constexpr (kShifts) {
    constexpr int kPairs = 2 * kRounds;
    const auto col_of = [&](int pair) { return first_col + pair / 2 * step + pair % 2 * kSecond; };
    float* state = p.shift.runs[p.shift.row_runs[token]].recurrent + p.shift.state_offset;
    float2 weight[kPairs];
    float2 offset[kPairs];
    float2 mix[kPairs];
    float2 previous[kPairs] = {};
    if (prepares) {
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const int col = col_of(i);
        weight[i] = load_pair(p.norm.weight, col);
        offset[i] = load_pair(p.norm.bias, col);
        mix[i] = load_pair(own.mix, col);
        // On any boundary.
        previous[i] = col < m.cols ? make_float2(state[col], state[col + 1]) : make_float2(0, 0);
      }
    }
    // The vote makes the barrier wait for the loads themselves.
    float read = 0;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) read += previous[i].x + previous[i].y;
    __syncthreads_or(read != 0);
    if (thread == 0) {
      __threadfence();
      is_last = atomicAdd(p.arrivals + token, 1u) == gridDim.x - 1;
      if (is_last) p.arrivals[token] = 0;
      __threadfence();
    }
    const float* input = p.shift.input + token * p.shift.input_stride;

    if (params.triggers_early) PdlTrigger();
    PdlWait();
    if (!params.triggers_early) PdlTrigger();
    float2 x[kPairs];
    if (prepares) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        x[i] = load_pair(input, col_of(i));
        sum += x[i].x + x[i].y;
      }
      sum = WarpSum(sum);
      int count = 0;
#pragma unroll
      for (int i = 0; i < kRounds; ++i) {
        count += min(max(m.cols - warp * kWarpCols - i * step, 0), kWarpCols);
      }
      const float mean = sum / static_cast<float>(max(count, 1));
      float squares = 0;
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        if (col_of(i) >= m.cols) continue;
        squares = fmaf(x[i].x - mean, x[i].x - mean, squares);
        squares = fmaf(x[i].y - mean, x[i].y - mean, squares);
      }
      squares = WarpSum(squares);
      if (lane == 0) moments[warp] = {sum, mean, squares, static_cast<float>(count)};
    }
    __syncthreads();
    if (prepares) {
      float mean = 0;
#pragma unroll 4
      for (int w = 0; w < params.preparing_warps; ++w) mean += moments[w].sum;
      mean *= params.inverse_cols;
      float squares = 0;
#pragma unroll 4
      for (int w = 0; w < params.preparing_warps; ++w) {
        const WarpMoments of_warp = moments[w];
        const float off = of_warp.mean - mean;
        squares += fmaf(of_warp.count * off, off, of_warp.squares);
      }
      const float factor = rsqrtf(fmaf(squares, params.inverse_cols, p.norm.eps));
      const auto normed = [&](float value, float times, float plus) {
        return fmaf((value - mean) * factor, times, plus);
      };
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        x[i].x = normed(x[i].x, weight[i].x, offset[i].x);
        x[i].y = normed(x[i].y, weight[i].y, offset[i].y);
        const int col = col_of(i);
        if (is_last && col < m.cols) {
          state[col] = x[i].x;
          state[col + 1] = x[i].y;
        }
        // Zero beyond the last column, as all that it is made of.
        x[i].x = fmaf(mix[i].x, previous[i].x - x[i].x, x[i].x);
        x[i].y = fmaf(mix[i].y, previous[i].y - x[i].y, x[i].y);
      }
#pragma unroll
      for (int i = 0; i < kPairs; i += 2) prepare(first_col + i / 2 * step, x[i], x[i + 1]);
    }
  } else {
    if (params.triggers_early) PdlTrigger();
    PdlWait();
    if (!params.triggers_early) PdlTrigger();
    const float* input = own.input + token * own.input_stride;
#pragma unroll 1
    for (int base = warp * kWarpCols; prepares && base < columns; base += step) {
      const int col = first_col + base - warp * kWarpCols;
      prepare(col, load_pair(input, col), load_pair(input, col + kSecond));
    }
  }
  // A warp's copies are seen by all its lanes after the barrier.
  WaitForCopies<0>();
  __syncthreads();

  if (multiplies) {
    float sums[2] = {0, 0};
#pragma unroll 1
    for (int span = column_warp; span < spans; span += params.column_warps) {
      Span::MultiplyCopied(weights, activations, stride, units, span, lane, m.scale_format, sums);
      weights += kSpanBytes<F, kWide>;
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sums[r] += __shfl_xor_sync(0xffffffffu, sums[r], 1);
      sums[r] += __shfl_xor_sync(0xffffffffu, sums[r], 2);
    }
    if (lane % 4 < 2) {
      partial[warp * kTileRows + lane / 4 + lane % 4 * 8] = lane % 4 == 0 ? sums[0] : sums[1];
    }
  }
  __syncthreads();
  if (warp >= params.row_warps) return;
  // Half a warp adds up every other column warp's sums.
  float y = 0;
  const float* from = partial + warp * params.column_warps * kTileRows + lane % kTileRows;
#pragma unroll
  for (int i = 0; i < kMostWarps / 2; ++i) {
    const int w = 2 * i + lane / kTileRows;
    y += w < params.column_warps ? from[w * kTileRows] : 0.0f;
  }
  y += __shfl_xor_sync(0xffffffffu, y, 16) + bias;
  if (own.activates) y = Activate(own.activation, y);
  if (finishes) *output = y;
}

int RoundedUp(int value, int by) { return (value + by - 1) / by; }

template <WeightFormat F, bool kWide>
int SpansOf(const PackedMatrix& m) {
  return RoundedUp(m.chunks, kSpanChunks<F, kWide>);
}

template <WeightFormat F, bool kWide>
size_t SharedBytes(const SeveralKernelParams& p) {
  const int warps = p.row_warps * p.column_warps;
  const int chunks = p.spans * kSpanChunks<F, kWide>;
  const int activations =
      IsQuantized(F)
          ? chunks * (kActivationBytesPerChunk + kChunkGroups<kWide> * int{sizeof(GroupUnit)})
          : 4 * (chunks * kChunkCols + kColumnPad);
  return static_cast<size_t>(warps * p.held_spans * kSpanBytes<F, kWide> + activations +
                             warps * kTileRows * 4) +
         kMostWarps * sizeof(WarpMoments);
}

// Few spans per warp, as long as all blocks are on the device at once and a block's spans fit.
template <WeightFormat F, bool kWide>
void Cut(int tiles, int multiprocessors, SeveralKernelParams& p) {
  const int most = RoundedUp(tiles, multiprocessors);
  p.held_spans =
      std::max(RoundedUp(p.spans, kMostWarps), std::min(2, RoundedUp(p.spans * most, kMostWarps)));
  p.column_warps = RoundedUp(p.spans, p.held_spans);
  p.row_warps = std::max(1, std::min(kMostWarps / p.column_warps, most));
  while (p.row_warps > 1 && SharedBytes<F, kWide>(p) > static_cast<size_t>(DeviceSharedBytes())) {
    --p.row_warps;
  }
}

template <WeightFormat F, bool kWide, int kRounds>
void Start(const SeveralKernelParams& params, int blocks, cudaStream_t stream) {
  const auto kernel = SeveralKernel<F, kWide, kRounds>;
  const size_t shared = SharedBytes<F, kWide>(params);
  if (shared > 48 * 1024) {
    Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               DeviceSharedBytes()),
          "setting the shared memory of the kernel of several matrices");
  }
  const int warps = std::max(params.preparing_warps, params.row_warps * params.column_warps);
  Launch("the kernel of several matrices", kernel,
         dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(params.several.tokens)),
         dim3(static_cast<unsigned>(warps * 32)), shared, stream, params);
}

}  // namespace

bool CanLaunchTogether(const PackedMatrix& first, const PackedMatrix& other, bool shifts,
                       const LinearShape& shape) {
  if (shape.batch_invariant || other.format != first.format ||
      other.scale_format != first.scale_format || other.interleaved || other.cols % 4 != 0 ||
      (shifts && (other.cols != first.cols || other.cols > kMostShiftedCols))) {
    return false;
  }
  bool fits = false;
  WithWeightFormat(other, [&]<WeightFormat F, bool kWide>() {
    SeveralKernelParams params = {};
    params.spans = SpansOf<F, kWide>(other);
    Cut<F, kWide>(1, 1, params);
    fits = SharedBytes<F, kWide>(params) <= static_cast<size_t>(DeviceSharedBytes());
  });
  return fits;
}

void LaunchSeveralLinear(const SeveralLinearParams& several, const LinearShape& shape,
                         cudaStream_t stream) {
  if (several.count == 0 || several.tokens == 0) return;
  // What the next kernel loads first would compete with the weights of large matrices.
  constexpr int64_t kSmallQuantized = 4 << 20;
  constexpr int64_t kSmallDense = 8 << 20;
  const PackedMatrix& first = several.matrices[0].matrix;
  WithWeightFormat(first, [&]<WeightFormat F, bool kWide>() {
    SeveralKernelParams params = {};
    params.several = several;
    int tiles = 0;
    int64_t bytes = 0;
    int chunks = 0;
    for (int i = 0; i < several.count; ++i) {
      const PackedMatrix& m = several.matrices[i].matrix;
      tiles += m.tiles;
      bytes += m.data_stride * int64_t{sizeof(uint4)};
      chunks = std::max(chunks, m.chunks);
      params.spans = std::max(params.spans, SpansOf<F, kWide>(m));
    }
    Cut<F, kWide>(tiles * several.tokens, shape.multiprocessors, params);
    params.column_warps_reciprocal = Reciprocal(params.column_warps);
    params.inverse_cols = 1.0f / static_cast<float>(first.cols);
    params.triggers_early = bytes < (IsQuantized(F) ? kSmallQuantized : kSmallDense);
    int blocks = 0;
    for (int i = 0; i < several.count; ++i) {
      params.first_blocks[i] = blocks;
      blocks += RoundedUp(several.matrices[i].matrix.tiles, params.row_warps);
    }
    // Those of padding too: whole spans' operands are made.
    const int pieces = RoundedUp(params.spans * kSpanChunks<F, kWide>, 2);
    params.preparing_warps = std::min(kMostWarps, pieces);
    if (!several.shifts) return Start<F, kWide, 0>(params, blocks, stream);
    if (pieces <= kMostWarps) return Start<F, kWide, 1>(params, blocks, stream);
    Start<F, kWide, 2>(params, blocks, stream);
  });
}

}  // namespace adder::cuda
