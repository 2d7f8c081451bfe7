// Mamba-2 step of many sequences, where bytes count and not latency.
//
// Ownership. The heads of a sequence's group are shared out in pieces; a block owns a piece and
// goes over its heads, part by part (see mamba2_step.cuh), every thread with the same elements of
// each part. B and C are convolved once per block.
//
// Phases: (1) each thread loads what earlier steps wrote of windows, and starts copying its
// elements of the first kStages heads to a ring in shared memory, into which it alone looks (whole
// heads, which are contiguous: devices do not like to fetch half of each row; of 16-bit states a
// warp copies its rows as they lie, which are contiguous too); (2) PdlWait; (3)
// each warp convolves its own rows of B and C; then, in turns of as many parts as the block has
// warps: (4) a warp makes x and dt of one of them, a channel per lane; barrier; (5) part by part,
// all warps repeat what was deferred and update the state, write it back or defer that (see
// mamba2_deferred.h), and leave their sums of C . state; behind a head's
// last part they ask for the head kStages ahead; barrier; (6) a warp adds up the sums of its part,
// applies D and the gate. What (4) needs is loaded one turn ahead.
// Preconditions: as mamba2.cu, and head_dim is a multiple of four.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/mamba2_batch.h"
#include "cuda/kernels/mamba2_deferred.cuh"
#include "cuda/kernels/mamba2_step.cuh"
#include "cuda/kernels/tensor_core.cuh"

namespace adder::cuda {
namespace {

constexpr int kStages = 3;
// As measured on an H200; fewer leave room for the matrices of another half of a large batch.
constexpr int MostBlocksPerMultiprocessor(const Mamba2Params& p) {
  return p.run_count < 64 ? 4 : p.ssm_dtype == DType::kF32 ? 3 : 2;
}
// Of state, for a block, as measured: with less, the time before its first state counts; with more,
// blocks work far from one another, which memory does not like.
constexpr int BlockBytes(int runs) { return (runs < 64 ? 256 : 128) * 1024; }

// A warp's B and C of its own rows, and x, dt and decay of one part of each turn.
struct alignas(16) OfWarp {
  float b[kWarpRows];
  float c[kWarpRows];
  float x[kPart];
  StepSize step;
};

size_t SharedBytes(int warps, int ring_parts, DType dtype) {
  const auto count = static_cast<size_t>(warps);
  return static_cast<size_t>(ring_parts) * count * kWarpRows * kPart * DTypeSize(dtype) +
         count * sizeof(OfWarp) + count * count * kPart * sizeof(float) +
         count * (sizeof(DeferredB) + sizeof(DeferredX));
}

// The state of one part after the other, as this lane sees it.
template <class Stored>
struct StateCursor {
  Stored* at;
  int part;  // of its head

  __device__ __forceinline__ void Advance(int parts_of_head, long long beyond_head) {
    at += kPart;
    if (++part == parts_of_head) part = 0, at += beyond_head;
  }
};

// A warp's rows of 16-bit states on their way from memory to a ring in shared memory: a head after
// the other, each as it lies, in the room of whole parts.
template <class Stored>
struct RowCopies {
  static constexpr int kUnit = 16 / sizeof(Stored);  // elements of a copy
  static constexpr int kPartBytes = kWarpRows * kPart * sizeof(Stored);
  unsigned char* ring;  // the warp's place in the first slot
  const Stored* from;   // this lane's first unit of the next head
  int valid;            // elements from there to the end of the warp's rows, of those that exist
  int left;             // heads
  int stride;           // bytes from slot to slot

  __device__ __forceinline__ RowCopies(const Mamba2Params& p, const Place& first, float* recurrent,
                                       void* shared, int warps, int parts_of_head, int parts)
      : ring(static_cast<unsigned char*>(shared) + first.warp * parts_of_head * kPartBytes),
        left(parts / parts_of_head),
        stride(warps * kPartBytes) {
    const int row = first.warp * kWarpRows;
    from = reinterpret_cast<const Stored*>(recurrent + p.ssm_offset) +
           (static_cast<long long>(first.head) * p.d_state + row) * p.head_dim + first.lane * kUnit;
    valid = min(kWarpRows, p.d_state - row) * p.head_dim - first.lane * kUnit;
  }
  // The next head to slots from `slot` on. Rows that do not exist become zeros.
  __device__ __forceinline__ void Start(const Mamba2Params& p, int lane, int slot) {
    if (left > 0) {
      const auto to = SharedAddress(ring + slot * stride + lane * 16);
      const int count = kWarpRows * p.head_dim - lane * kUnit;
#pragma unroll 4
      for (int i = 0; i < count; i += 32 * kUnit) {
        CopyAsync(to + static_cast<unsigned>(i) * sizeof(Stored), from + i, i < valid);
      }
      from += static_cast<long long>(p.d_state) * p.head_dim;
      --left;
    }
    CopyCommit();
  }
};

template <class Stored, int kTaps>
__global__ void __launch_bounds__(kMaxThreads, 2)
    Mamba2BatchStepKernel(const __grid_constant__ Mamba2Params p, const int pieces,
                          const int ring_parts) {
  constexpr bool kRowCopies = !std::is_same_v<Stored, float>;
  extern __shared__ float4 shared_memory[];
  const int threads = static_cast<int>(blockDim.x);
  const int warps = threads / 32;
  const int parts_of_head = (p.head_dim + kPart - 1) / kPart;
  OfWarp* of_warps = reinterpret_cast<OfWarp*>(
      reinterpret_cast<FourStored<Stored>*>(shared_memory) + ring_parts * kRows * threads);
  DeferredB* past_b = reinterpret_cast<DeferredB*>(of_warps + warps);
  DeferredX* past_x = reinterpret_cast<DeferredX*>(past_b + warps);
  // [part of the turn][warp][channel]
  float* partial = reinterpret_cast<float*>(past_x + warps);
  const int heads_of_group = p.heads / p.groups;
  const int piece = static_cast<int>(blockIdx.x);
  // Parts, counted within the group.
  const int begin = piece * heads_of_group / pieces * parts_of_head;
  const int end = (piece + 1) * heads_of_group / pieces * parts_of_head;
  const auto place_of = [&](int part) {
    const int head = part / parts_of_head;
    return FindPlace(p, static_cast<int>(blockIdx.y) * heads_of_group + head,
                     part - head * parts_of_head);
  };
  const SequenceRun run = p.runs[blockIdx.z];
  const int inner = p.inner();
  const int channels = p.conv_channels();
  const int d_conv = kTaps == kMaxTaps ? p.d_conv : kTaps;
  float* ring = run.recurrent + p.conv_offset;

  const Place first = place_of(begin);
  // Before the states, behind which they would have to wait.
  GroupValues<kTaps> group;
  group.Load(p, ring, d_conv, channels, first, run.position);
  HeadValues<kTaps> next_head;
  Place next = place_of(min(begin + first.warp, end - 1));
  next_head.Load(p, ring, d_conv, channels, next, run.position);
  float loaded_b[kMostDeferred];
  DeferredX::Values next_past;
  DeferredB::Load(p, run, first, loaded_b);
  next_past.Load(p, run, next);

  float4* const own_state = shared_memory + threadIdx.x;  // [part of the ring][row][thread]
  const long long beyond_head =
      static_cast<long long>(p.d_state) * p.head_dim - parts_of_head * kPart;
  const int rows = min(kRows, p.d_state - first.first_row);
  const int lane_channel = first.lane % 8 * 4;
  StateCursor<Stored> store = {StateOf<Stored>(p, first, run.recurrent), 0};
  StateCursor<Stored> copy = store;
  int to_copy = end - begin;
  RowCopies<Stored> row_copies(p, first, run.recurrent, shared_memory, warps, parts_of_head,
                               end - begin);
  // A head's parts to the ring, from `slot` on. Rows that do not exist become zeros.
  const auto copy_head = [&](int slot) {
    if constexpr (kRowCopies) {
      row_copies.Start(p, first.lane, slot);
    } else {
#pragma unroll 1
      for (int i = 0; i < parts_of_head && to_copy > 0; ++i, --to_copy) {
        const float* from = copy.at;
        const bool has_channels = copy.part * kPart + lane_channel < p.head_dim;
        auto to = static_cast<unsigned>(
            __cvta_generic_to_shared(own_state + (slot + i) * kRows * threads));
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          CopyAsync(to, from, has_channels && r < rows);
          from += p.head_dim;
          to += static_cast<unsigned>(threads) * sizeof(float4);
        }
        copy.Advance(parts_of_head, beyond_head);
      }
      CopyCommit();
    }
  };
#pragma unroll 1
  for (int i = 0; i < kStages; ++i) copy_head(i * parts_of_head);

  const float* projected = p.projected + static_cast<long long>(run.row) * p.projected_stride;
  float* output = p.output + static_cast<long long>(run.row) * p.output_stride;
  float* newest = ring + static_cast<long long>(run.position % d_conv) * channels;
  uint16_t* rounded =
      p.rounded_output == nullptr
          ? nullptr
          : p.rounded_output + static_cast<long long>(run.row) * p.rounded_output_stride;

  PdlWait();
  PdlTrigger();
  group.LoadInputs(projected + inner);
  next_head.LoadInputs(projected, inner, channels, next);
  OfWarp& mine = of_warps[first.warp];
  group.Apply(d_conv, mine.b + first.lane, mine.c + first.lane);
  if (d_conv > 1 && piece == 0) group.StoreInputs(newest);
  past_b[first.warp].Store(first.lane, loaded_b);
  if (piece == 0) DeferB(p, run, first, mine.b[first.lane]);
  const int of_rows = first.lane / 8 * kRows;
  int slot = 0;
#pragma unroll 1
  for (int turn = begin; turn < end; turn += warps) {
    const int count = min(warps, end - turn);
    const bool has_own = first.warp < count && next.has_x;
    const int x_channel = next.x_channel;
    const float x =
        has_own ? MixerSilu(next_head.conv.Apply(next_head.bias, next_head.input, d_conv)) : 0.0f;
    const float d = next_head.d;
    const float gate = next_head.gate;
    mine.x[first.lane] = x;
    const StepSize step = MakeStep(p, next_head.dt_bias, next_head.a, next_head.dt_input);
    if (first.lane == 0) mine.step = step;
    past_x[first.warp].Store(first.lane, next_past, StepsSinceTurn(run, next.head));
    if (first.warp < count) DeferX(p, run, next, step, x);
    if (d_conv > 1 && has_own) newest[x_channel] = next_head.input;
    __syncthreads();
    next = place_of(min(turn + warps + first.warp, end - 1));
    next_head.Load(p, ring, d_conv, channels, next, run.position);
    next_head.LoadInputs(projected, inner, channels, next);
    next_past.Load(p, run, next);
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      if (store.part == 0) {
        CopyWait<kStages - 1>();
        if constexpr (kRowCopies) __syncwarp();  // other lanes' copies
      }
      const bool has_channels = store.part * kPart + lane_channel < p.head_dim;
      float4 state[kRows];
      if constexpr (kRowCopies) {
        const unsigned char* head = row_copies.ring + (slot - store.part) * row_copies.stride;
        const auto* own = reinterpret_cast<const Stored*>(head) +
                          first.lane / 8 * kRows * p.head_dim + store.part * kPart + lane_channel;
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          state[r] = make_float4(0, 0, 0, 0);
          if (has_channels) {
            state[r] = WidenFour<Stored>(*reinterpret_cast<const FourStored<Stored>*>(own));
          }
          own += p.head_dim;
        }
      } else {
#pragma unroll
        for (int r = 0; r < kRows; ++r) state[r] = own_state[(slot * kRows + r) * threads];
      }
      const int steps = past_x[i].steps;
      RepeatDeferred(state, past_b[first.warp], past_x[i], DeferredCount(run, steps), of_rows,
                     first.lane);
      partial[(i * warps + first.warp) * kPart + SumChannel(first.lane)] =
          StateStep(state, mine.b + of_rows, mine.c + of_rows, first.lane, of_warps[i].step,
                    reinterpret_cast<const float4*>(of_warps[i].x)[first.lane % 8]);
      ++slot;
      if (store.part + 1 == parts_of_head) {
        if constexpr (kRowCopies) __syncwarp();  // all lanes have read their part
        copy_head(slot - parts_of_head);
        if (slot == ring_parts) slot = 0;
      }
      if (has_channels && IsTurn(steps)) {
        Stored* to = store.at;
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          if (r < rows) *reinterpret_cast<FourStored<Stored>*>(to) = RoundFour<Stored>(state[r]);
          to += p.head_dim;
        }
      }
      store.Advance(parts_of_head, beyond_head);
    }
    __syncthreads();
    if (has_own) {
      const float y =
          fmaf(d, x, SumOfWarps(partial + first.warp * warps * kPart, warps, first.lane));
      const float gated = y * MixerSilu(gate);
      output[x_channel] = gated;
      if (rounded != nullptr) {
        rounded[x_channel] = __bfloat16_as_ushort(__float2bfloat16_rn(gated));
      }
    }
  }
}

int WarpsOf(const Mamba2Params& p) { return (p.d_state + kWarpRows - 1) / kWarpRows; }
int PartsOfHead(const Mamba2Params& p) { return (p.head_dim + kPart - 1) / kPart; }

// Blocks per sequence and group.
int PiecesOf(const Mamba2Params& p) {
  const int heads = p.heads / p.groups;
  const int groups = p.run_count * p.groups;
  const auto blocks_at_once = [&](int ring_heads) {
    const size_t shared = SharedBytes(WarpsOf(p), ring_heads * PartsOfHead(p), p.ssm_dtype);
    return p.multiprocessors * std::clamp(DeviceSharedBytes() / static_cast<int>(shared), 1,
                                          MostBlocksPerMultiprocessor(p));
  };
  if (heads * groups <= blocks_at_once(1)) return heads;
  // Whole turns of the device, so that all multiprocessors end together.
  const int of_turn = std::max(1, blocks_at_once(kStages) / groups);
  const int of_block = BlockBytes(p.run_count);
  const int bytes =
      heads / of_turn * p.d_state * p.head_dim * static_cast<int>(DTypeSize(p.ssm_dtype));
  return std::min(heads, of_turn * std::max(1, (bytes + of_block / 2) / of_block));
}

}  // namespace

bool CanStepAsBatch(const Mamba2Params& params) {
  // Copies have 16 bytes.
  const bool aligned = params.ssm_dtype == DType::kF32 || params.d_state * params.head_dim % 8 == 0;
  return params.head_dim % 4 == 0 && aligned &&
         SharedBytes(WarpsOf(params), kStages * PartsOfHead(params), params.ssm_dtype) <=
             static_cast<size_t>(DeviceSharedBytes());
}

void LaunchMamba2BatchStep(const Mamba2Params& params, cudaStream_t stream) {
  const auto kernel = WithStored(params.ssm_dtype, [&]<class Stored>() {
    return params.d_conv != 4 ? Mamba2BatchStepKernel<Stored, kMaxTaps>
                              : Mamba2BatchStepKernel<Stored, 4>;
  });
  const int warps = WarpsOf(params);
  const int parts = PartsOfHead(params);
  const int heads = params.heads / params.groups;
  const int pieces = params.pieces != 0 ? params.pieces : PiecesOf(params);
  // Blocks of few heads leave room for others.
  const int ring_parts = std::min(kStages, (heads + pieces - 1) / pieces) * parts;
  AllowSharedMemory(kernel, SharedBytes(warps, kStages * parts, params.ssm_dtype));
  Launch("the Mamba-2 batch step kernel", kernel,
         dim3(static_cast<unsigned>(pieces), static_cast<unsigned>(params.groups),
              static_cast<unsigned>(params.run_count)),
         dim3(static_cast<unsigned>(warps) * 32), SharedBytes(warps, ring_parts, params.ssm_dtype),
         stream, params, pieces, ring_parts);
}

}  // namespace adder::cuda
