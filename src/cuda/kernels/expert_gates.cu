// Gates of one token's experts, which the launch may choose too: see expert_step.cuh.
//
// Phases: (1) copies of the router's tile, in the first blocks, and of the shared expert's tiles;
// (2) PdlWait; (3) the row, times the norm's weight, becomes operands, and its squares are added
// up; barrier; (4) the first blocks multiply the router's tiles and publish the scores; (5) every
// block waits for all scores, chooses, and copies its chosen experts' tiles; (6) products; barrier;
// (7) a warp per tile adds them up. Where the experts are chosen before, copies of their tiles come
// after (2), and (4) and (5) are left out.
//
// The launch behind may read the choice before PdlWait: it is written before PdlTrigger.
#include "cuda/kernels/expert_choice.cuh"
#include "cuda/kernels/expert_step.cuh"
#include "cuda/kernels/route.cuh"

namespace adder::cuda {
namespace {

struct GatesParams {
  StepCut cut;
  PackedMatrix matrix;
  PackedMatrix shared;
  PackedMatrix router;
  // Tiles of each block; the first routed_more have one more, and so have the last shared_more.
  int routed_tiles;
  int routed_more;
  int shared_tiles;
  int shared_more;
  int tiles_reciprocal;  // of an expert
  int top_k;
  const float* input;
  const float* norm_weight;
  float norm_eps;
  float inverse_cols;
  const float* routing;  // weights and numbers, where the router has no rows
  const float* router_bias;
  float* chosen;
  unsigned* exchange;
  unsigned* arrivals;
  float* output;
  float* shared_output;
  Activation activation;
  RouteParams route;  // `experts` 0: the common rule
};

// Of StepLayout::more: squares of each warp, then the choice.
constexpr int kSquaresBytes = kStepWarps * 4;
int MoreBytes(const GatesParams& p) {
  return kSquaresBytes + ChoiceByRuleBytes(p.router.rows, p.route.groups);
}

template <WeightFormat F, bool kWide>
__global__ void __launch_bounds__(kStepThreads, 1)
    ExpertGatesKernel(const __grid_constant__ GatesParams p) {
  extern __shared__ uint4 bytes[];
  const StepBlock<F, kWide> block(reinterpret_cast<unsigned char*>(bytes), p.cut,
                                  p.matrix.scale_format);
  const int lane = block.lane;
  const int warp = block.warp;
  const int spans = p.cut.spans;
  const int number = static_cast<int>(blockIdx.x);
  const int behind = number - (static_cast<int>(gridDim.x) - p.shared_more);
  const int shared_begin = number * p.shared_tiles + max(behind, 0);
  const int shared_tiles = p.shared_tiles + (behind >= 0);
  const int routed_begin = number * p.routed_tiles + min(number, p.routed_more);
  const int tiles = shared_tiles + p.routed_tiles + (number < p.routed_more);
  const bool routes = number < p.router.tiles;
  // This warp's tile, which several warps share.
  const bool is_shared = block.slot < shared_tiles;
  const bool multiplies = block.slot < tiles;
  const PackedMatrix& m = is_shared ? p.shared : p.matrix;
  const int routed = routed_begin + block.slot - shared_tiles;
  const int choice = is_shared ? 0 : Quotient(routed, p.tiles_reciprocal);
  const int tile = is_shared ? shared_begin + block.slot : routed - choice * p.matrix.tiles;
  const auto copy_tile = [&](int matrix) {
#pragma unroll 1
    for (int span = block.column; span < spans; span += p.cut.column_warps) {
      block.Copy(m, matrix, tile, span, block.slot, span);
    }
  };

  if (routes) {
    // Where the first chosen expert's tile will be.
#pragma unroll 1
    for (int span = warp; span < spans; span += kStepWarps) {
      block.Copy(p.router, 0, number, span, shared_tiles, span);
    }
  }
  if (is_shared) copy_tile(0);
  constexpr int kSecond = LaneColumns<F>::kSecond;
  const int cols = p.matrix.cols;
  const int columns = spans * kSpanChunks<F, kWide> * kChunkCols;
  // Of this round and of the next.
  float2 norm[2];
  float2 next_norm[2];
  const auto load_norm = [&](int col, float2(&to)[2]) {
    const bool has = p.norm_weight != nullptr;
    to[0] = has ? LoadPair(p.norm_weight, col, cols, 1) : make_float2(1, 1);
    to[1] = has ? LoadPair(p.norm_weight, col + kSecond, cols, 1) : make_float2(1, 1);
  };
  load_norm(block.first_col, norm);
  load_norm(block.first_col + kRoundCols, next_norm);
  float* scores = block.template More<float>(kSquaresBytes);
  const bool plain = p.route.experts == 0;
  const ExpertChoice chosen(plain ? scores : scores + p.router.rows, p.router.rows);

  PdlWait();
  const bool chooses = p.router.rows > 0;
  if (!chooses) {
    PdlTrigger();
    if (multiplies && !is_shared) {
      copy_tile(static_cast<int>(__ldcg(p.routing + p.top_k + choice)));
    }
  }
  float squares = 0;
  {
    float2 x = LoadPair(p.input, block.first_col, cols, 0);
    float2 y = LoadPair(p.input, block.first_col + kSecond, cols, 0);
#pragma unroll 1
    for (int col = block.first_col; block.HasColumns(col, columns);) {
      const int next = col + kRoundCols;
      const float2 next_x = LoadPair(p.input, next, cols, 0);
      const float2 next_y = LoadPair(p.input, next + kSecond, cols, 0);
      squares += x.x * x.x + x.y * x.y + (y.x * y.x + y.y * y.y);
      x.x *= norm[0].x, x.y *= norm[0].y, y.x *= norm[1].x, y.y *= norm[1].y;
      block.Prepare(col, x, y, columns);
      norm[0] = next_norm[0], norm[1] = next_norm[1];
      load_norm(next + kRoundCols, next_norm);
      x = next_x;
      y = next_y;
      col = next;
    }
  }
  squares = WarpSum(squares);
  if (lane == 0) block.template More<float>(0)[warp] = squares;
  __syncthreads();
  float factor = 1;
  if (p.norm_weight != nullptr) {
    const float of_warp = block.template More<float>(0)[lane % kStepWarps];
    // Every warp's counts twice.
    factor = rsqrtf(WarpSum(of_warp) * (0.5f * p.inverse_cols) + p.norm_eps);
  }

  if (chooses) {
    if (routes) {
      if (warp < spans) block.Multiply(shared_tiles, warp, kStepWarps, spans);
      __syncthreads();
      if (warp == 0) {
        const float y = block.AddUp(0, min(spans, kStepWarps)) * factor;
        const int expert = number * kTileRows + lane;
        if (lane < kTileRows && expert < p.router.rows) {
          Publish(p.exchange + expert, p.router_bias == nullptr ? y : y + p.router_bias[expert]);
        }
      }
    }
#pragma unroll 1
    for (int e = block.thread; e < p.router.rows; e += kStepThreads) {
      const float score = Await(p.exchange + e);
      if (plain) {
        chosen.SetScore(e, score);
      } else {
        scores[e] = score;
      }
    }
    __syncthreads();
    if (plain) {
      chosen.Rank(p.top_k);
    } else {
      RankByRule(p.route, scores);
    }
    if (multiplies && !is_shared) copy_tile(chosen.experts[choice]);
    if (warp == kStepWarps - 1) {
      if (number == 0) {
        if (plain) {
          chosen.Weigh(p.top_k, lane, 32, p.chosen);
        } else {
          WeighByRule(p.route, scores, lane, 32, p.chosen);
        }
        __threadfence();
        __syncwarp();
      }
      // The last block to have read the scores clears them.
      unsigned arrived = 0;
      if (lane == 0) arrived = atomicAdd(p.arrivals, 1u);
      if (__shfl_sync(0xffffffffu, arrived, 0) + 1 == gridDim.x) {
        for (int e = lane; e < p.router.rows; e += 32) Put(p.exchange + e, kNothing);
        if (lane == 0) *p.arrivals = 0;
      }
    }
    // The first thread of a block to trigger does so for all of it: in the block that writes the
    // choice, only the warp that has written it may.
    if (number != 0 || warp == kStepWarps - 1) PdlTrigger();
  }
  if (multiplies) block.Multiply(block.slot, block.column, p.cut.column_warps, spans);
  __syncthreads();

  // The tile that this warp finishes.
  if (warp >= tiles) return;
  float y = block.AddUp(warp * p.cut.column_warps, p.cut.column_warps) * factor;
  const bool of_shared = warp < shared_tiles;
  const int finished = routed_begin + warp - shared_tiles;
  const int of_choice = of_shared ? 0 : Quotient(finished, p.tiles_reciprocal);
  const int finished_tile = of_shared ? shared_begin + warp : finished - of_choice * p.matrix.tiles;
  const bool gated = p.matrix.interleaved;
  const int rows = of_shared ? p.shared.rows : p.matrix.rows;
  const int row = LogicalRow(gated, rows, finished_tile, lane % kTileRows);
  const float up = __shfl_xor_sync(0xffffffffu, y, 8);
  if (gated && p.activation == Activation::kSilu) {
    y = FastSilu(y) * up;
  } else {
    y = Activate(p.activation, y);
    if (gated) y *= up;
  }
  if (lane >= (gated ? 8 : kTileRows) || row >= rows) return;
  float* output = of_shared ? p.shared_output : p.output + of_choice * (gated ? rows / 2 : rows);
  output[row] = y;
}

// Whether they fit; then how they are cut, and into how many blocks.
template <WeightFormat F, bool kWide>
bool PlanGates(const ExpertParams& experts, int multiprocessors, GatesParams& p, int& blocks) {
  p = {};
  p.matrix = experts.linear.matrix;
  p.shared = experts.shared;
  p.router = experts.router;
  p.top_k = experts.top_k;
  const int routed = p.matrix.tiles * p.top_k;
  blocks = std::min(multiprocessors, routed);
  p.routed_tiles = routed / blocks;
  p.routed_more = routed % blocks;
  p.shared_tiles = p.shared.tiles / blocks;
  p.shared_more = p.shared.tiles % blocks;
  p.tiles_reciprocal = Reciprocal(p.matrix.tiles);
  p.cut.tiles = p.routed_tiles + p.shared_tiles + (p.routed_more > 0) + (p.shared_more > 0);
  // Unless some blocks would have one more of both.
  if (p.routed_more > 0 && p.shared_more > 0 && p.routed_more + p.shared_more <= blocks) {
    --p.cut.tiles;
  }
  p.cut.spans = SpansOf<F, kWide>(p.matrix);
  p.input = experts.linear.input;
  p.norm_weight = experts.linear.norm_weight;
  p.norm_eps = experts.linear.norm_eps;
  p.inverse_cols = 1.0f / static_cast<float>(p.matrix.cols);
  p.routing = experts.routing;
  p.router_bias = experts.router_bias;
  p.chosen = experts.chosen;
  p.exchange = experts.exchange;
  p.arrivals = experts.arrivals;
  p.output = experts.linear.output;
  p.shared_output = experts.shared_output;
  p.activation = experts.linear.rule.activation;
  p.route = experts.route;
  return p.router.tiles <= blocks && CutFits<F, kWide>(p.cut, MoreBytes(p));
}

}  // namespace

bool CanStepGates(const ExpertParams& params, const LinearShape& shape) {
  const PackedMatrix& m = params.linear.matrix;
  const PackedMatrix& router = params.router;
  const bool can_choose = router.format == m.format && router.scale_format == m.scale_format &&
                          router.cols == m.cols && !router.interleaved && params.route.idle == 0;
  if (!CanStep(params, shape) || (router.rows > 0 && !can_choose)) return false;
  return WithQuantizedFormat(m, [&]<WeightFormat F, bool kWide>() -> bool {
    GatesParams p;
    int blocks;
    return PlanGates<F, kWide>(params, shape.multiprocessors, p, blocks);
  });
}

bool LaunchExpertGatesStep(const ExpertParams& params, const LinearShape& shape,
                           cudaStream_t stream) {
  if (!CanStepGates(params, shape)) return false;
  return WithQuantizedFormat(params.linear.matrix, [&]<WeightFormat F, bool kWide>() -> bool {
    GatesParams p;
    int blocks;
    PlanGates<F, kWide>(params, shape.multiprocessors, p, blocks);
    StartStep(ExpertGatesKernel<F, kWide>, p, dim3(static_cast<unsigned>(blocks)),
              StepLayout<F, kWide>(p.cut, MoreBytes(p)).total, stream);
    return true;
  });
}

}  // namespace adder::cuda
