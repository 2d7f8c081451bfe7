// `down` of one token's experts: see expert_step.cuh.
//
// Ownership: the columns of all chosen experts, and then of the shared one, are cut into parts; a
// block has some tiles' blockIdx.y-th part.
//
// Phases: (1) copies: what was routed is known; (2) PdlWait; (3) the part's columns, times the
// experts' weights, become operands; barrier; (4) products; barrier; (5) a warp per tile adds them
// up; the last part's waits for what the others publish, in a place per part and row.
#include "cuda/kernels/expert_step.cuh"

namespace adder::cuda {
namespace {

struct DownParams {
  StepCut cut;
  PackedMatrix matrix;
  PackedMatrix shared;
  int expert_spans;
  int expert_spans_reciprocal;
  int all_spans;
  int top_k;
  const float* routing;
  const float* input;
  const float* shared_input;
  const float* shared_gate;
  unsigned* exchange;
  float* output;
  float scale;
};

template <WeightFormat F, bool kWide>
__global__ void __launch_bounds__(kStepThreads, 1)
    ExpertDownKernel(const __grid_constant__ DownParams p) {
  extern __shared__ uint4 bytes[];
  constexpr int kSpanCols = kSpanChunks<F, kWide> * kChunkCols;
  const PackedMatrix& m = p.matrix;
  const StepBlock<F, kWide> block(reinterpret_cast<unsigned char*>(bytes), p.cut, m.scale_format);
  const int lane = block.lane;
  const int warp = block.warp;
  const int part = static_cast<int>(blockIdx.y);
  const int span_begin = part * p.cut.spans;
  const int spans = min(p.cut.spans, p.all_spans - span_begin);
  const int routed_spans = p.top_k * p.expert_spans;
  const int first_tile = static_cast<int>(blockIdx.x) * p.cut.tiles;
  const int tile = first_tile + block.slot;
  const bool multiplies = block.slot < p.cut.tiles && tile < m.tiles;
  const auto choice_of = [&](int span) { return Quotient(span, p.expert_spans_reciprocal); };
  {
    // A choice per lane.
    const int number = lane < p.top_k ? static_cast<int>(__ldcg(p.routing + p.top_k + lane)) : 0;
#pragma unroll 1
    for (int i = block.column; i < spans && multiplies; i += p.cut.column_warps) {
      const int span = span_begin + i;
      if (span < routed_spans) {
        const int choice = choice_of(span);
        block.Copy(m, __shfl_sync(0xffffffffu, number, choice), tile,
                   span - choice * p.expert_spans, block.slot, i);
      } else {
        block.Copy(p.shared, 0, tile, span - routed_spans, block.slot, i);
      }
    }
  }
  PdlWait();
  PdlTrigger();
  // The row that this lane finishes.
  const int row = (first_tile + warp) * kTileRows + lane % kTileRows;
  const bool is_last = part + 1 == static_cast<int>(gridDim.y);
  const bool finishes = warp < p.cut.tiles && row < m.rows && lane < kTileRows;
  float old = 0;
  if (finishes && is_last) old = p.output[row];
  float shared_weight = 1;
  if (p.shared_gate != nullptr) {
    shared_weight = __fdividef(1.0f, 1.0f + __expf(-*p.shared_gate));
  }
  constexpr int kSecond = LaneColumns<F>::kSecond;
  const int columns = spans * kSpanCols;
  const auto load = [&](int col, float2& x, float2& y) {
    const int span = span_begin + col / kSpanCols;
    const bool of_shared = span >= routed_spans;
    const int choice = of_shared ? 0 : choice_of(span);
    const int from =
        col % kSpanCols + (span - (of_shared ? routed_spans : choice * p.expert_spans)) * kSpanCols;
    const float* activated = of_shared ? p.shared_input : p.input + choice * m.cols;
    const int width = col >= columns ? 0 : of_shared ? p.shared.cols : m.cols;
    const float weight = of_shared ? shared_weight : p.routing[choice];
    x = LoadPair(activated, from, width, 0);
    y = LoadPair(activated, from + kSecond, width, 0);
    x.x *= weight, x.y *= weight, y.x *= weight, y.y *= weight;
  };
  {
    float2 x;
    float2 y;
    load(block.first_col, x, y);
#pragma unroll 1
    for (int col = block.first_col; block.HasColumns(col, columns);) {
      float2 next_x;
      float2 next_y;
      load(col + kRoundCols, next_x, next_y);
      block.Prepare(col, x, y, columns);
      x = next_x;
      y = next_y;
      col += kRoundCols;
    }
  }
  __syncthreads();
  if (multiplies) block.Multiply(block.slot, block.column, p.cut.column_warps, spans);
  __syncthreads();
  if (warp >= p.cut.tiles) return;
  float y = block.AddUp(warp * p.cut.column_warps, p.cut.column_warps);
  if (!finishes) return;
  const int rows = m.tiles * kTileRows;
  if (!is_last) return Publish(p.exchange + part * rows + row, y);
  float others[kMostExpertParts - 1];
#pragma unroll
  for (int i = 0; i < kMostExpertParts - 1; ++i) {
    if (i < part) others[i] = Await(p.exchange + i * rows + row);
  }
#pragma unroll
  for (int i = 0; i < kMostExpertParts - 1; ++i) {
    if (i >= part) continue;
    y += others[i];
    Put(p.exchange + i * rows + row, kNothing);
  }
  p.output[row] = fmaf(p.scale, y, old);
}

template <WeightFormat F, bool kWide>
bool Start(const ExpertParams& experts, int multiprocessors, cudaStream_t stream) {
  DownParams p = {};
  p.matrix = experts.linear.matrix;
  p.shared = experts.shared;
  p.top_k = experts.top_k;
  p.expert_spans = SpansOf<F, kWide>(p.matrix);
  p.expert_spans_reciprocal = Reciprocal(p.expert_spans);
  p.all_spans = p.expert_spans * p.top_k + SpansOf<F, kWide>(p.shared);
  p.routing = experts.routing;
  p.input = experts.linear.input;
  p.shared_input = experts.shared_input;
  p.shared_gate = experts.shared_gate;
  p.exchange = experts.exchange;
  p.output = experts.linear.output;
  p.scale = experts.linear.scale;
  // The fewest spans per block.
  StepCut best = {};
  for (int parts = 1; parts <= kMostExpertParts; ++parts) {
    StepCut cut = {};
    cut.spans = StepRounded(p.all_spans, parts);
    const int rows_of_blocks = multiprocessors / StepRounded(p.all_spans, cut.spans);
    cut.tiles = StepRounded(p.matrix.tiles, std::max(1, rows_of_blocks));
    if (!CutFits<F, kWide>(cut, 0)) continue;
    if (best.tiles == 0 || cut.tiles * cut.spans < best.tiles * best.spans) best = cut;
  }
  // Where no columns are shared, the kernel of matvec.cu is faster.
  if (best.tiles == 0 || best.spans == p.all_spans) return false;
  p.cut = best;
  const dim3 blocks(static_cast<unsigned>(StepRounded(p.matrix.tiles, best.tiles)),
                    static_cast<unsigned>(StepRounded(p.all_spans, best.spans)));
  StartStep(ExpertDownKernel<F, kWide>, p, blocks, StepLayout<F, kWide>(best, 0).total, stream);
  return true;
}

}  // namespace

int64_t ExpertExchangeWords(const PackedMatrix& down) {
  return int64_t{down.tiles} * kTileRows * (kMostExpertParts - 1);
}

bool LaunchExpertDownStep(const ExpertParams& params, const LinearShape& shape,
                          cudaStream_t stream) {
  if (!CanStep(params, shape)) return false;
  return WithQuantizedFormat(params.linear.matrix, [&]<WeightFormat F, bool kWide>() -> bool {
    return Start<F, kWide>(params, shape.multiprocessors, stream);
  });
}

}  // namespace adder::cuda
