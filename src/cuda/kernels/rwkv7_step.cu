// The RWKV-7 mixer in steps, with the second matrices of its low-rank maps in the same launch.
//
// A block owns a head of one run (rwkv7_head.cuh has who owns what of it). Phases: (1) copies of
// the head's rows of the matrices to shared memory, and of the state, which earlier steps wrote, to
// registers; (2) PdlWait; (3) the low-rank inputs are made into operands (matvec_phases.cuh), while
// the last warp loads the other inputs and finds the key's length; barrier; (4) a warp multiplies
// tiles of the matrices, which it copied itself; barrier; (5) the last warp makes the token's
// vectors; barrier; (6) the state's update and answers; barrier; (7) the last warp finishes.
#include <algorithm>

#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/matvec_phases.cuh"
#include "cuda/kernels/rwkv7_head.cuh"
#include "cuda/kernels/rwkv7_step.h"
#include "cuda/kernels/weight_format_dispatch.h"

namespace adder::cuda {
namespace {

constexpr int kThreads = kRwkv7Threads;
constexpr int kWarps = kRwkv7Warps;
enum { kDecay, kRate, kGate, kValueMix, kUps };

struct StepParams {
  Rwkv7Params mixer;
  Rwkv7Up ups[kUps];
  // Per tile, where spans of a matrix begin among those of all, and of operands where its chunks
  // do; the last: how many there are.
  int first_spans[kUps + 1];
  int first_chunks[kUps + 1];
  bool triggers_early;
};

// Of the largest span that a kernel for this format meets.
template <WeightFormat F, bool kWide>
constexpr int kPlaceBytes = std::max(kSpanBytes<F, kWide>, kSpanBytes<WeightFormat::kBf16, false>);
// A matrix's operands: integers, or bf16 in two parts.
__host__ __device__ constexpr int OperandsAt(int up, int chunks) {
  return 4 * (up * kColumnPad + chunks * kChunkCols);
}

// kDim: head_dim.
template <WeightFormat F, bool kWide, int kDim>
__global__ void __launch_bounds__(kThreads) StepKernel(const __grid_constant__ StepParams params) {
  using Span = WeightSpan<F, kWide>;
  using DenseSpan = WeightSpan<WeightFormat::kBf16, false>;
  // Some of a quantised model's matrices are too narrow to be quantised.
  constexpr bool kMixed = IsQuantized(F);
  constexpr int kTiles = kDim / kTileRows;
  const Rwkv7Params& p = params.mixer;
  const int head = static_cast<int>(blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const bool is_last = warp == kWarps - 1;
  const SequenceRun run = p.runs[blockIdx.y];
  __shared__ Rwkv7Vectors<kDim> vectors;
  __shared__ float products[kUps][kDim];
  // Weights [tiles][spans], operands, their units.
  extern __shared__ uint4 shared[];
  auto* bytes = reinterpret_cast<unsigned char*>(shared);
  const int all_spans = params.first_spans[kUps];
  const int all_chunks = params.first_chunks[kUps];
  unsigned char* operands = bytes + kTiles * all_spans * kPlaceBytes<F, kWide>;
  auto* units = reinterpret_cast<GroupUnit*>(operands + OperandsAt(kUps, all_chunks));
  const auto is_dense = [&](const PackedMatrix& m) {
    return kMixed && m.format == WeightFormat::kBf16;
  };
  const auto stride_of = [&](int up) {
    return (params.first_chunks[up + 1] - params.first_chunks[up]) * kChunkCols + kColumnPad;
  };
  // Calls with each of this warp's tiles of matrices, its number, and where its spans lie.
  const auto for_tiles = [&](auto call) {
#pragma unroll 1
    for (int i = warp; i < kUps * kTiles; i += kWarps) {
      const int up = i / kTiles;
      const int first = params.first_spans[up];
      call(up, i % kTiles, params.first_spans[up + 1] - first,
           bytes + (i % kTiles * all_spans + first) * kPlaceBytes<F, kWide>);
    }
  };

  for_tiles([&](int up, int tile, int spans, unsigned char* to) {
    const PackedMatrix& m = params.ups[up].matrix;
    const int place = (head * kTiles + tile) * m.chunks;
#pragma unroll 1
    for (int span = 0; span < spans; ++span, to += kPlaceBytes<F, kWide>) {
      if (is_dense(m)) {
        DenseSpan::Copy(m, 0, place, span, m.chunks - 1, lane, to);
      } else {
        Span::Copy(m, 0, place, span * Span::kChunks, m.chunks - 1, lane, to);
      }
    }
  });
  CommitCopies();
  float* states = run.recurrent + p.state_offset + static_cast<long long>(head) * kDim * kDim;
  Rwkv7State<kDim> state;
  state.Load(states, kDim);
  Rwkv7Channels<kDim> channels;
  constexpr int kOfLane = Rwkv7Channels<kDim>::kOfLane;
  float biases[kUps][kOfLane];
  if (is_last) {
    channels.LoadWeights(p, head, kDim);
#pragma unroll
    for (int i = 0; i < kOfLane * kUps; ++i) {
      const float* bias = params.ups[i % kUps].bias;
      biases[i % kUps][i / kUps] =
          bias != nullptr ? bias[head * kDim + channels.Channel(i / kUps)] : 0.0f;
    }
  }
  const bool mixes_values = params.ups[kValueMix].matrix.rows != 0;
  const long long row = run.row;

  // A few blocks leave room for the next kernels' to wait beside them.
  if (params.triggers_early) PdlTrigger();
  PdlWait();
  if (!params.triggers_early) PdlTrigger();
  const long long at = row * p.stride + head * kDim;
  if (is_last) {
    channels.Load(p, at, kDim, mixes_values, channels.now);
    channels.FindLength();
  } else {
    // Half a warp makes the operands of a chunk.
#pragma unroll 1
    for (int base = warp * 2; base < all_chunks; base += 2 * (kWarps - 1)) {
      const int place = base + lane / 16;
      int up = 0;
      while (up + 1 < kUps && place >= params.first_chunks[up + 1]) ++up;
      const Rwkv7Up& own = params.ups[up];
      const int chunk = place - params.first_chunks[up];
      const int col = chunk * kChunkCols + LaneColumns<F>::First(lane);
      constexpr int kSecond = LaneColumns<F>::kSecond;
      const bool exists = place < all_chunks;
      const auto load_pair = [&](int from) {
        return exists && from < own.matrix.cols
                   ? *reinterpret_cast<const float2*>(own.input + row * own.input_stride + from)
                   : make_float2(0, 0);
      };
      const float2 x = load_pair(col);
      const float2 y = load_pair(col + kSecond);
      unsigned char* to = operands + OperandsAt(up, params.first_chunks[up]);
      if constexpr (IsQuantized(F)) {
        QuantizeActivations<F, kWide, false>(x, y, lane, exists && !is_dense(own.matrix),
                                             to + chunk * kActivationBytesPerChunk,
                                             units + place * kChunkGroups<kWide>);
      }
      if (exists && (!IsQuantized(F) || is_dense(own.matrix))) {
        auto* split = reinterpret_cast<__nv_bfloat16*>(to) + col;
        SplitActivations(x, split, stride_of(up));
        SplitActivations(y, split + kSecond, stride_of(up));
      }
    }
  }
  // A warp's copies are seen by all its lanes after the barrier.
  WaitForCopies<0>();
  __syncthreads();

  for_tiles([&](int up, int tile, int spans, unsigned char* from) {
    const PackedMatrix& m = params.ups[up].matrix;
    const int first = params.first_chunks[up];
    const unsigned char* x = operands + OperandsAt(up, first);
    float sums[2] = {0, 0};
#pragma unroll 1
    for (int span = 0; span < spans; ++span, from += kPlaceBytes<F, kWide>) {
      if (is_dense(m)) {
        DenseSpan::MultiplyCopied(from, x, stride_of(up), units, span, lane, m.scale_format, sums);
      } else {
        Span::MultiplyCopied(from, x, stride_of(up), units + first * kChunkGroups<kWide>, span,
                             lane, m.scale_format, sums);
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], 1);
      sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], 2);
    }
    if (lane % 4 < 2) {
      products[up][tile * kTileRows + lane / 4 + lane % 4 * 8] = lane % 4 == 0 ? sums[0] : sums[1];
    }
  });
  __syncthreads();

  if (is_last) {
    const auto product = [&](int up) {
      return [&, up](int i) { return products[up][channels.Channel(i)] + biases[up][i]; };
    };
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) channels.now.gate[i] = product(kGate)(i);
    channels.Publish(product(kDecay), product(kRate), product(kValueMix), mixes_values, vectors);
  }
  __syncthreads();
  state.Update(vectors);
  state.Store(states, kDim);
  __syncthreads();
  if (!is_last) return;
  channels.Finish(vectors, kDim, p.norm_eps,
                  [&](int channel, float out) { p.output[at + channel] = out; });
}

int RoundedUp(int value, int by) { return (value + by - 1) / by; }

// How the matrices' spans and operands lie.
template <WeightFormat F, bool kWide>
StepParams Place(const Rwkv7StepParams& step) {
  StepParams params = {step.mixer,
                       {step.decay, step.rate, step.gate, step.value_mix},
                       {},
                       {},
                       step.mixer.run_count == 1};
  for (int up = 0; up < kUps; ++up) {
    const PackedMatrix& m = params.ups[up].matrix;
    const int chunks = IsQuantized(m.format) ? kSpanChunks<F, kWide> : 1;
    const int spans = m.rows == 0 ? 0 : RoundedUp(m.chunks, chunks);
    params.first_spans[up + 1] = params.first_spans[up] + spans;
    params.first_chunks[up + 1] = params.first_chunks[up] + spans * chunks;
  }
  return params;
}

template <WeightFormat F, bool kWide>
size_t SharedBytes(const StepParams& params) {
  const int tiles = params.mixer.head_dim / kTileRows;
  const int chunks = params.first_chunks[kUps];
  return static_cast<size_t>(tiles * params.first_spans[kUps] * kPlaceBytes<F, kWide> +
                             OperandsAt(kUps, chunks) +
                             chunks * kChunkGroups<kWide> * int{sizeof(GroupUnit)});
}

// Of blocks that leave their multiprocessors room for the next kernel's, beside what is static.
size_t MostSharedBytes() {
  return static_cast<size_t>(std::min(160 * 1024, DeviceSharedBytes() - 4096));
}

}  // namespace

bool CanStepRwkv7(const Rwkv7StepParams& params, const LinearShape& shape) {
  const int dim = params.mixer.head_dim;
  const PackedMatrix& like = params.decay.matrix;
  if (shape.batch_invariant || (dim != 32 && dim != 64) || params.mixer.state_offset % 2 != 0) {
    return false;
  }
  for (const Rwkv7Up* up : {&params.decay, &params.rate, &params.gate, &params.value_mix}) {
    const PackedMatrix& m = up->matrix;
    if (m.rows == 0 && up == &params.value_mix) continue;
    const bool dense = IsQuantized(like.format) && m.format == WeightFormat::kBf16;
    const bool same = m.format == like.format && m.scale_format == like.scale_format;
    if (m.rows != params.mixer.heads * dim || m.interleaved || m.cols % 4 != 0 ||
        !(dense || same)) {
      return false;
    }
  }
  size_t bytes = 0;
  WithWeightFormat(like, [&]<WeightFormat F, bool kWide>() {
    bytes = SharedBytes<F, kWide>(Place<F, kWide>(params));
  });
  return bytes <= MostSharedBytes();
}

void LaunchRwkv7Step(const Rwkv7StepParams& step, cudaStream_t stream) {
  WithWeightFormat(step.decay.matrix, [&]<WeightFormat F, bool kWide>() {
    const StepParams params = Place<F, kWide>(step);
    const auto kernel =
        params.mixer.head_dim == 32 ? StepKernel<F, kWide, 32> : StepKernel<F, kWide, 64>;
    const size_t shared = SharedBytes<F, kWide>(params);
    if (shared > 40 * 1024) {
      Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(MostSharedBytes())),
            "setting the shared memory of the kernel of RWKV-7's steps");
    }
    Launch("the kernel of RWKV-7's steps", kernel,
           dim3(static_cast<unsigned>(params.mixer.heads),
                static_cast<unsigned>(params.mixer.run_count)),
           dim3(kThreads), shared, stream, params);
  });
}

}  // namespace adder::cuda
