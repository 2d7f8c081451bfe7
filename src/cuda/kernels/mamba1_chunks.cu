// Mamba-1's selective scan over segments of kMamba1SegmentTokens tokens (Gu and Dao, "Mamba", 2023,
// section 3.3, which scans in parallel by the same identity). Per channel and state element, with
// the decay rate a < 0 of both and s_i the sum of dt_1 .. dt_i since the segment began:
//   g_i = exp(dt_i a) g_(i-1) + dt_i B_i x_i                                (g_0 = 0)
//   h_i = g_i + exp(s_i a) h_0,   y_i = C_i . h_i + D x_i
// Decays differ between channels and state elements, so no product of matrices expresses this.
//
// (1) g of every segment's end, and its s: a thread owns one channel of a segment with all of its
//     state in registers.
// (2) States from segment to segment: a thread owns one element of a run's state. Leaves the state
//     before each segment where what it adds stood, and the final state.
// (3) Outputs: as (1), but from the state before. Decays are computed again, which is cheaper than
//     keeping them.
// B and C of a segment go to shared memory, where a warp norms one token's at a time.
#include "cuda/kernels/activate.cuh"
#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/mamba1_chunks.h"
#include "cuda/kernels/sums.cuh"
#include "cuda/kernels/tensor_core.cuh"

namespace adder::cuda {
namespace {

constexpr int kThreads = 64;
constexpr int kTokens = kMamba1SegmentTokens;
constexpr int kAhead = 8;
constexpr int kPassThreads = 256;
constexpr int kPassAhead = 16;
constexpr float kLog2E = 1.44269504f;

// Inputs of a few tokens, on their way while those before are used.
template <bool kOutputs>
struct Inputs {
  float dt[kAhead];
  __nv_bfloat16 x[kAhead];
  float z[kOutputs ? kAhead : 1];

  __device__ __forceinline__ void Load(const Mamba1ChunkParams& c, long long row, int count,
                                       int channel) {
    const Mamba1Params& p = c.mixer;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (i >= count) break;
      dt[i] = p.dt[(row + i) * p.dt_stride + channel];
      x[i] = c.x[(row + i) * c.x_stride + channel];
      if constexpr (kOutputs) z[i] = p.z[(row + i) * p.z_stride + channel];
    }
  }
};

// To [count][kStates] = d_state columns of rows; what is behind d_state becomes zero.
template <int kStates>
__device__ __forceinline__ void CopyColumns(const float* from, int stride, int count, int d_state,
                                            float* to) {
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < count * kStates; i += kThreads) {
    const int n = i % kStates;
    to[i] = n < d_state ? from[static_cast<long long>(i / kStates) * stride + n] : 0.0f;
  }
}

// In place, a token per warp.
template <int kStates>
__device__ __forceinline__ void NormColumns(const SmallNorm& norm, int count, int d_state,
                                            float* rows) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int token = static_cast<int>(threadIdx.x) / 32; token < count; token += kThreads / 32) {
    float* row = rows + token * kStates;
    float squares = 0;
    for (int n = lane; n < kStates; n += 32) squares = fmaf(row[n], row[n], squares);
    const float factor = rsqrtf(WarpSum(squares) / static_cast<float>(d_state) + norm.eps);
    for (int n = lane; n < d_state; n += 32) {
      row[n] *= factor * (norm.weight == nullptr ? 1.0f : norm.weight[n]);
    }
  }
}

// kStates: d_state rounded up to a number that is compiled. Phase (3) if kOutputs, else (1).
template <int kStates, bool kOutputs>
__global__ void __launch_bounds__(kThreads)
    SegmentKernel(const __grid_constant__ Mamba1ChunkParams params) {
  __shared__ __align__(16) float b[kTokens * kStates];
  __shared__ __align__(16) float c[kOutputs ? kTokens * kStates : 4];
  const Mamba1Params& p = params.mixer;
  const int channel = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  const bool inside = channel < p.inner;
  float rates[kStates];
#pragma unroll
  for (int n = 0; n < kStates; ++n) {
    rates[n] = inside && n < p.d_state ? kLog2E * p.a[static_cast<long long>(n) * p.inner + channel]
                                       : 0.0f;
  }
  const float d = inside && kOutputs ? p.d[channel] : 0.0f;
  const float dt_bias = inside && params.dt_bias != nullptr ? params.dt_bias[channel] : 0.0f;
  PdlWait();
  PdlTrigger();
  const int segment = static_cast<int>(blockIdx.y);
  const Piece piece = params.pieces[segment / kMamba1Segments];
  const int first = segment % kMamba1Segments * kTokens;
  const int count = min(kTokens, piece.tokens - first);
  if (count <= 0) return;
  const long long row = piece.row + first;
  Inputs<kOutputs> next;
  if (inside) next.Load(params, row, count, channel);
  const float* b_c = p.b_c + row * p.b_c_stride;
  CopyColumns<kStates>(b_c, p.b_c_stride, count, p.d_state, b);
  if (kOutputs) CopyColumns<kStates>(b_c + p.d_state, p.b_c_stride, count, p.d_state, c);
  float* const states =
      params.states + static_cast<long long>(segment) * p.d_state * p.inner + channel;
  float state[kStates];
#pragma unroll
  for (int n = 0; n < kStates; ++n) {
    const bool loads = kOutputs && inside && n < p.d_state;
    state[n] = loads ? states[static_cast<long long>(n) * p.inner] : 0.0f;
  }
  __syncthreads();
  if (p.b_norm.used) NormColumns<kStates>(p.b_norm, count, p.d_state, b);
  if (kOutputs && p.c_norm.used) NormColumns<kStates>(p.c_norm, count, p.d_state, c);
  if (p.b_norm.used || p.c_norm.used) __syncthreads();
  if (!inside) {
    // What lies between the width and the stride is zero.
    for (int i = 0; kOutputs && channel < params.output_stride && i < count; ++i) {
      params.output[(row + i) * params.output_stride + channel] = __float2bfloat16_rn(0);
    }
    return;
  }
  float sum = 0;
#pragma unroll 1
  for (int begin = 0; begin < count; begin += kAhead) {
    const Inputs<kOutputs> now = next;
    if (begin + kAhead < count) {
      next.Load(params, row + begin + kAhead, count - begin - kAhead, channel);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (begin + i >= count) break;
      const float step = Softplus(now.dt[i] + dt_bias);
      const float x = __bfloat162float(now.x[i]);
      const float added = step * x;
      sum += step;
      const auto* b_fours = reinterpret_cast<const float4*>(b + (begin + i) * kStates);
      const auto* c_fours =
          reinterpret_cast<const float4*>(c + (kOutputs ? (begin + i) * kStates : 0));
      // Four sums, so that additions do not wait for each other.
      float y[4] = {};
#pragma unroll
      for (int four = 0; four < kStates / 4; ++four) {
        const float4 of_b = b_fours[four];
        float* of = state + 4 * four;
        const float* rate = rates + 4 * four;
        of[0] = fmaf(Exp2(step * rate[0]), of[0], of_b.x * added);
        of[1] = fmaf(Exp2(step * rate[1]), of[1], of_b.y * added);
        of[2] = fmaf(Exp2(step * rate[2]), of[2], of_b.z * added);
        of[3] = fmaf(Exp2(step * rate[3]), of[3], of_b.w * added);
        if constexpr (kOutputs) {
          const float4 of_c = c_fours[four];
          y[0] = fmaf(of_c.x, of[0], y[0]);
          y[1] = fmaf(of_c.y, of[1], y[1]);
          y[2] = fmaf(of_c.z, of[2], y[2]);
          y[3] = fmaf(of_c.w, of[3], y[3]);
        }
      }
      if constexpr (kOutputs) {
        const float z = now.z[i];
        const float result = fmaf(d, x, y[0] + y[1] + (y[2] + y[3]));
        params.output[(row + begin + i) * params.output_stride + channel] =
            __float2bfloat16_rn(result * __fdividef(z, 1.0f + __expf(-z)));
      }
    }
  }
  if constexpr (!kOutputs) {
    params.sums[static_cast<long long>(segment) * p.inner + channel] = sum;
#pragma unroll
    for (int n = 0; n < kStates; ++n) {
      if (n < p.d_state) states[static_cast<long long>(n) * p.inner] = state[n];
    }
  }
}

__global__ void __launch_bounds__(kPassThreads)
    PassMamba1StatesKernel(const __grid_constant__ Mamba1ChunkParams params) {
  const Mamba1Params& p = params.mixer;
  const int element = static_cast<int>(blockIdx.x) * kPassThreads + static_cast<int>(threadIdx.x);
  const int elements = p.d_state * p.inner;
  const float rate = element < elements ? kLog2E * p.a[element] : 0.0f;
  PdlWait();
  PdlTrigger();
  if (element >= elements) return;
  const SequenceRun run = p.runs[blockIdx.y];
  float* const slot = run.recurrent + p.ssm_offset + element;
  float state = *slot;
  const long long first = static_cast<long long>(params.first_pieces[blockIdx.y]) * kMamba1Segments;
  const int count = (run.tokens + kTokens - 1) / kTokens;
  float* const states = params.states + first * elements + element;
  const float* const sums = params.sums + first * p.inner + element % p.inner;
#pragma unroll 1
  for (int begin = 0; begin < count; begin += kPassAhead) {
    float added[kPassAhead];
    float sum[kPassAhead];
#pragma unroll
    for (int i = 0; i < kPassAhead; ++i) {
      if (begin + i >= count) break;
      added[i] = states[static_cast<long long>(begin + i) * elements];
      sum[i] = sums[static_cast<long long>(begin + i) * p.inner];
    }
#pragma unroll
    for (int i = 0; i < kPassAhead; ++i) {
      if (begin + i >= count) break;
      states[static_cast<long long>(begin + i) * elements] = state;
      state = fmaf(Exp2(rate * sum[i]), state, added[i]);
    }
  }
  *slot = state;
}

template <int kStates>
void LaunchStates(const Mamba1ChunkParams& params, cudaStream_t stream) {
  const Mamba1Params& p = params.mixer;
  const auto blocks = [](int items, int threads) {
    return static_cast<unsigned>((items + threads - 1) / threads);
  };
  const auto segments = static_cast<unsigned>(params.piece_count * kMamba1Segments);
  Launch("the kernel of segment states", SegmentKernel<kStates, false>,
         dim3(blocks(p.inner, kThreads), segments), dim3(kThreads), 0, stream, params);
  Launch("the kernel that passes Mamba-1 states on", PassMamba1StatesKernel,
         dim3(blocks(p.d_state * p.inner, kPassThreads), static_cast<unsigned>(p.run_count)),
         dim3(kPassThreads), 0, stream, params);
  Launch("the kernel of segment outputs", SegmentKernel<kStates, true>,
         dim3(blocks(params.output_stride, kThreads), segments), dim3(kThreads), 0, stream, params);
}

}  // namespace

void LaunchMamba1Chunks(const Mamba1ChunkParams& params, cudaStream_t stream) {
  if (params.mixer.d_state <= 16) return LaunchStates<16>(params, stream);
  if (params.mixer.d_state <= 32) return LaunchStates<32>(params, stream);
  LaunchStates<kMostMamba1State>(params, stream);
}

}  // namespace adder::cuda
