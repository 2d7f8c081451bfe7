// Mamba-2 step and prefill.
//
// Ownership. A block owns a part of one head, as mamba2_step.cuh says.
//
// Step kernel. Phases: (1) load state, conv weights and windows, which earlier steps wrote, and
// repeat what they deferred (see mamba2_deferred.h); (2) PdlWait; (3) a warp convolves B and C of
// its own rows, a row per lane, and the part's x, a channel per lane (every warp does: cheaper than
// a barrier), and passes them on through its own shared memory; (4) state = decay * state + dt B x,
// and C . state summed up over the warp's rows by shuffles; (5) the state is written if it is the
// head's turn, and the token goes to the ring; barrier; the first warp adds up the warps' sums,
// applies D and the gate. B and C are convolved by every block of their group; the group's first
// block writes their window. Large batches have a kernel of their own, mamba2_batch.cu.
//
// Prefill is a convolution kernel, then a scan kernel with the same ownership that walks over the
// run with the state in registers, kScanTokens tokens between barriers. All kernels take the same
// sums in the same order.
// Preconditions: d_state <= kMaxStateSize, d_conv <= kMaxTaps.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "core/error.h"
#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/mamba2_batch.h"
#include "cuda/kernels/mamba2_deferred.cuh"
#include "cuda/kernels/mamba2_step.cuh"

namespace adder::cuda {
namespace {

constexpr int kScanTokens = 16;

// From so many bytes of state on, what the launch behind loads first is worth asking for before the
// wait, as measured (mamba2-1.3b 448 to 432 us a step; of granite-4.0-h-350m's smaller ones 283 to
// 295).
constexpr int64_t kLargeState = int64_t{1} << 20;

// kVector: head_dim is a multiple of four; only then writes are deferred. kGates: p.gates. kBeside:
// p.beside_previous.
template <class Stored, int kTaps, bool kVector, bool kGates = true, bool kBeside = false>
__global__ void __launch_bounds__(kMaxThreads, 2)
    Mamba2StepKernel(const __grid_constant__ Mamba2Params p, const bool triggers_early) {
  struct alignas(16) OfWarp {
    float b[kWarpRows];
    float c[kWarpRows];
    float x[kPart];
  };
  __shared__ OfWarp of_warps[kMaxWarps];
  __shared__ float partial[kMaxWarps * kPart];
  __shared__ DeferredB past_b[kVector ? kMaxWarps : 1];
  __shared__ DeferredX past_x[kVector ? kMaxWarps : 1];
  const Place place = FindPlace(p, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y));
  const SequenceRun run = p.runs[blockIdx.z];
  const int inner = p.inner();
  const int channels = p.conv_channels();
  // Known at compile time for the usual window: short code.
  const int d_conv = kTaps == kMaxTaps ? p.d_conv : kTaps;
  float* ring = run.recurrent + p.conv_offset;
  Stored* states = StateOf<Stored>(p, place, run.recurrent);
  float4 state[kRows];
  LoadState<kVector>(state, states, p, place);
  const int row = place.warp * kWarpRows + place.lane;  // whose B and C this lane convolves
  const bool has_row = row < p.d_state;
  const int b_channel = BChannel(p, place, row);
  const int c_channel = b_channel + p.groups * p.d_state;
  ConvStep<kTaps> conv_b;
  ConvStep<kTaps> conv_c;
  float b_bias = 0;
  float c_bias = 0;
  if (has_row) {
    conv_b.Load(p.conv_weight, ring, d_conv, channels, b_channel, run.position);
    conv_c.Load(p.conv_weight, ring, d_conv, channels, c_channel, run.position);
    if (p.conv_bias != nullptr) b_bias = p.conv_bias[b_channel], c_bias = p.conv_bias[c_channel];
  }
  HeadValues<kTaps> head;
  head.Load(p, ring, d_conv, channels, place, run.position);
  const float* projected = p.projected + static_cast<long long>(run.row) * p.projected_stride;
  float* output = p.output + static_cast<long long>(run.row) * p.output_stride;
  float* newest = ring + static_cast<long long>(run.position % d_conv) * channels;
  ReadyBeforeWait(projected);
  uint16_t* rounded =
      p.rounded_output == nullptr
          ? nullptr
          : p.rounded_output + static_cast<long long>(run.row) * p.rounded_output_stride;
  ReadyBeforeWait(output);
  ReadyBeforeWait(rounded);
  ReadyBeforeWait(newest);
  const int of_rows = place.lane / 8 * kRows;
  bool writes = true;
  if constexpr (kVector) {
    float b[kMostDeferred];
    DeferredX::Values x;
    DeferredB::Load(p, run, place, b);
    x.Load(p, run, place);
    past_b[place.warp].Store(place.lane, b);
    const int steps = StepsSinceTurn(run, place.head);
    past_x[place.warp].Store(place.lane, x, steps);
    __syncwarp();
    RepeatDeferred(state, past_b[place.warp], past_x[place.warp], DeferredCount(run, steps),
                   of_rows, place.lane);
    writes = IsTurn(steps);
  }

  if (!kBeside && triggers_early) PdlTrigger();
  if constexpr (!kBeside) PdlWait();
  if (kBeside || !triggers_early) PdlTrigger();
  const float b_input = has_row ? projected[inner + b_channel] : 0.0f;
  const float c_input = has_row ? projected[inner + c_channel] : 0.0f;
  head.LoadInputs(projected, inner, channels, place);
  OfWarp& mine = of_warps[place.warp];
  mine.b[place.lane] = has_row ? MixerSilu(conv_b.Apply(b_bias, b_input, d_conv)) : 0.0f;
  mine.c[place.lane] = has_row ? MixerSilu(conv_c.Apply(c_bias, c_input, d_conv)) : 0.0f;
  if (d_conv > 1 && place.writes_group && has_row) {
    newest[b_channel] = b_input;
    newest[c_channel] = c_input;
  }
  const StepSize step = MakeStep(p, head.dt_bias, head.a, head.dt_input);
  const float x = place.has_x ? MixerSilu(head.conv.Apply(head.bias, head.input, d_conv)) : 0.0f;
  mine.x[place.lane] = x;
  __syncwarp();
  partial[place.warp * kPart + SumChannel(place.lane)] =
      StateStep(state, mine.b + of_rows, mine.c + of_rows, place.lane, step,
                reinterpret_cast<const float4*>(mine.x)[place.lane % 8]);
  if (writes) StoreState<kVector>(state, states, p, place);
  if constexpr (kVector) {
    if (place.writes_group) DeferB(p, run, place, mine.b[place.lane]);
    if (place.warp == 0) DeferX(p, run, place, step, x);
  }
  if (d_conv > 1 && place.warp == 0 && place.has_x) newest[place.x_channel] = head.input;
  __syncthreads();
  // Every kernel ends after the one before it.
  if constexpr (kBeside) PdlWait();
  if (place.warp != 0 || !place.has_x) return;
  const float y =
      fmaf(head.d, x, SumOfWarps(partial, static_cast<int>(blockDim.x) / 32, place.lane));
  const float gated = kGates ? y * MixerSilu(head.gate) : y;
  output[place.x_channel] = gated;
  if (rounded != nullptr) {
    rounded[place.x_channel] = __bfloat16_as_ushort(__float2bfloat16_rn(gated));
  }
}

// convolved[row][channel] for every token of every run.
__global__ void ConvPrefillKernel(const __grid_constant__ Mamba2Params p, float* convolved) {
  PdlWait();
  PdlTrigger();
  const SequenceRun run = p.runs[blockIdx.z];
  const int channels = p.conv_channels();
  const int channel = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (channel >= channels) return;
  const float* ring = run.recurrent + p.conv_offset;
  const float bias = p.conv_bias == nullptr ? 0.0f : p.conv_bias[channel];
  ConvStep<kMaxTaps> conv;
#pragma unroll
  for (int tap = 0; tap < kMaxTaps; ++tap) {
    if (tap >= p.d_conv) break;
    conv.weights[tap] = p.conv_weight[static_cast<long long>(tap) * channels + channel];
  }
  for (int i = static_cast<int>(blockIdx.y); i < run.tokens; i += static_cast<int>(gridDim.y)) {
    const float* input = p.projected + static_cast<long long>(run.row + i) * p.projected_stride +
                         p.inner() + channel;
#pragma unroll
    for (int tap = 0; tap < kMaxTaps; ++tap) {
      if (tap + 1 >= p.d_conv) break;
      const int back = p.d_conv - 1 - tap;
      if (i >= back) {
        conv.past[tap] = input[-static_cast<long long>(back) * p.projected_stride];
      } else {
        const int row = (run.position + i + 1 + tap) % p.d_conv;
        conv.past[tap] = ring[static_cast<long long>(row) * channels + channel];
      }
    }
    convolved[static_cast<long long>(run.row + i) * channels + channel] =
        MixerSilu(conv.Apply(bias, *input, p.d_conv));
  }
}

// The dynamic shared memory of the scan kernel, of kScanTokens tokens each.
struct ScanShared {
  float* bc;       // [2][rows of all warps], zero from d_state on
  float* x;        // [kPart]
  float* partial;  // [warps][kPart]
  StepSize* steps;
  static __host__ __device__ int FloatsPerToken(int warps) {
    return 2 * warps * kWarpRows + kPart + warps * kPart + 2;
  }
};

template <class Stored, bool kVector>
__global__ void __launch_bounds__(kMaxThreads)
    Mamba2ScanKernel(const __grid_constant__ Mamba2Params p, const float* convolved) {
  extern __shared__ float4 shared_memory[];
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int rows = warps * kWarpRows;
  ScanShared shared;
  shared.bc = reinterpret_cast<float*>(shared_memory);
  shared.x = shared.bc + kScanTokens * 2 * rows;
  shared.partial = shared.x + kScanTokens * kPart;
  shared.steps = reinterpret_cast<StepSize*>(shared.partial + kScanTokens * warps * kPart);
  const Place place = FindPlace(p, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y));
  const SequenceRun run = p.runs[blockIdx.z];
  const int channels = p.conv_channels();
  Stored* states = StateOf<Stored>(p, place, run.recurrent);
  float4 state[kRows];
  LoadState<kVector>(state, states, p, place);
  PdlWait();
  PdlTrigger();
  const float d = p.d[place.head];
  for (int begin = 0; begin < run.tokens; begin += kScanTokens) {
    const int count = min(kScanTokens, run.tokens - begin);
    for (int token = place.warp; token < count; token += warps) {
      const long long row = run.row + begin + token;
      const float* values = convolved + row * channels;
      float* b = shared.bc + token * 2 * rows;
      for (int n = place.lane; n < rows; n += 32) {
        const int channel = BChannel(p, place, n);
        b[n] = n < p.d_state ? values[channel] : 0.0f;
        b[rows + n] = n < p.d_state ? values[channel + p.groups * p.d_state] : 0.0f;
      }
      shared.x[token * kPart + place.lane] = place.has_x ? values[place.x_channel] : 0.0f;
      if (place.lane == 0) {
        const float* dt = p.dt != nullptr
                              ? p.dt + row * p.dt_stride
                              : p.projected + row * p.projected_stride + p.inner() + channels;
        shared.steps[token] = MakeStep(p, p.dt_bias[place.head], p.a[place.head], dt[place.head]);
      }
    }
    __syncthreads();
    for (int token = 0; token < count; ++token) {
      const float* b = shared.bc + token * 2 * rows + place.first_row;
      shared.partial[(token * warps + place.warp) * kPart + SumChannel(place.lane)] =
          StateStep(state, b, b + rows, place.lane, shared.steps[token],
                    reinterpret_cast<const float4*>(shared.x + token * kPart)[place.lane % 8]);
    }
    __syncthreads();
    for (int token = place.warp; token < count; token += warps) {
      if (!place.has_x) continue;
      const long long row = run.row + begin + token;
      const float y = fmaf(d, shared.x[token * kPart + place.lane],
                           SumOfWarps(shared.partial + token * warps * kPart, warps, place.lane));
      const float* gate = p.projected + row * p.projected_stride + place.x_channel;
      p.output[row * p.output_stride + place.x_channel] = p.gates ? y * MixerSilu(*gate) : y;
    }
    __syncthreads();
  }
  StoreState<kVector>(state, states, p, place);
  if (p.d_conv <= 1) return;
  // The last inputs go to the window.
  float* ring = run.recurrent + p.conv_offset;
  const int row = place.warp * kWarpRows + place.lane;
  const int b_channel = BChannel(p, place, row);
  const int c_channel = b_channel + p.groups * p.d_state;
  for (int i = max(0, run.tokens - p.d_conv); i < run.tokens; ++i) {
    const float* input =
        p.projected + static_cast<long long>(run.row + i) * p.projected_stride + p.inner();
    float* to = ring + static_cast<long long>((run.position + i) % p.d_conv) * channels;
    if (place.warp == 0 && place.has_x) to[place.x_channel] = input[place.x_channel];
    if (!place.writes_group || row >= p.d_state) continue;
    to[b_channel] = input[b_channel];
    to[c_channel] = input[c_channel];
  }
}

void CheckSizes(const Mamba2Params& p) {
  if (p.d_state > kMaxStateSize) {
    Fail("The CUDA backend's Mamba-2 kernels hold a d_state of at most ", kMaxStateSize,
         ", and this model's is ", p.d_state, "; use --device cpu.");
  }
  if (p.d_conv > kMaxTaps) {
    Fail("The CUDA backend's Mamba-2 kernels hold a d_conv of at most ", kMaxTaps,
         ", and this model's is ", p.d_conv, "; use --device cpu.");
  }
}

// A block per part of a head of a run.
dim3 GridOf(const Mamba2Params& p) {
  return {static_cast<unsigned>(p.heads), static_cast<unsigned>((p.head_dim + kPart - 1) / kPart),
          static_cast<unsigned>(p.run_count)};
}
int WarpsOf(const Mamba2Params& p) { return (p.d_state + kWarpRows - 1) / kWarpRows; }

// Whether there are so many blocks of a part that latency counts less than bytes.
bool IsBatch(const Mamba2Params& p) {
  constexpr int kThreads = 768;  // of a multiprocessor, as measured
  const dim3 grid = GridOf(p);
  return grid.x * grid.y * grid.z * static_cast<unsigned>(WarpsOf(p)) * 32 >=
         static_cast<unsigned>(kThreads * p.multiprocessors);
}

}  // namespace

void LaunchMamba2Step(const Mamba2Params& params, cudaStream_t stream) {
  CheckSizes(params);
  if (DefersWrites(params.head_dim) != (params.deferred_offset >= 0)) {
    Fail("The Mamba-2 step kernel got ", params.deferred_offset < 0 ? "no" : "an unexpected",
         " ring of deferred tokens for heads of ", params.head_dim, " channels.");
  }
  if (params.gates && (params.pieces != 0 || IsBatch(params)) && CanStepAsBatch(params)) {
    return LaunchMamba2BatchStep(params, stream);
  }
  const bool vectors = params.head_dim % 4 == 0;
  const auto kernel = WithStored(params.ssm_dtype, [&]<class Stored>() {
    return !params.gates            ? vectors ? Mamba2StepKernel<Stored, kMaxTaps, true, false>
                                              : Mamba2StepKernel<Stored, kMaxTaps, false, false>
                      : !vectors ? Mamba2StepKernel<Stored, kMaxTaps, false>
           : params.d_conv != 4     ? Mamba2StepKernel<Stored, kMaxTaps, true>
           : params.beside_previous ? Mamba2StepKernel<Stored, 4, true, true, true>
                                    : Mamba2StepKernel<Stored, 4, true>;
  });
  const int64_t state_bytes =
      int64_t{params.inner()} * params.d_state * static_cast<int64_t>(DTypeSize(params.ssm_dtype));
  Launch("the Mamba-2 step kernel", kernel, GridOf(params),
         dim3(static_cast<unsigned>(WarpsOf(params)) * 32), 0, stream, params,
         params.run_count == 1 && state_bytes > kLargeState);
}

void LaunchCausalConv(const Mamba2Params& params, int most_tokens, float* convolved,
                      cudaStream_t stream) {
  CheckSizes(params);
  constexpr int kConvThreads = 128;
  Launch("the causal convolution kernel", ConvPrefillKernel,
         dim3(static_cast<unsigned>((params.conv_channels() + kConvThreads - 1) / kConvThreads),
              static_cast<unsigned>(std::min(most_tokens, 256)),
              static_cast<unsigned>(params.run_count)),
         dim3(kConvThreads), 0, stream, params, convolved);
}

void LaunchMamba2Prefill(const Mamba2Params& params, int most_tokens, float* convolved,
                         cudaStream_t stream) {
  LaunchCausalConv(params, most_tokens, convolved, stream);
  LaunchMamba2Scan(params, convolved, stream);
}

void LaunchMamba2Scan(const Mamba2Params& params, const float* convolved, cudaStream_t stream) {
  CheckSizes(params);
  const int warps = WarpsOf(params);
  const size_t shared =
      sizeof(float) * kScanTokens * static_cast<size_t>(ScanShared::FloatsPerToken(warps));
  const auto kernel = WithStored(params.ssm_dtype, [&]<class Stored>() {
    return params.head_dim % 4 != 0 ? Mamba2ScanKernel<Stored, false>
                                    : Mamba2ScanKernel<Stored, true>;
  });
  if (shared > 48 * 1024) {
    Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared)),
          "cudaFuncSetAttribute");
  }
  Launch("the Mamba-2 scan kernel", kernel, GridOf(params), dim3(static_cast<unsigned>(warps) * 32),
         shared, stream, params, convolved);
}

}  // namespace adder::cuda
