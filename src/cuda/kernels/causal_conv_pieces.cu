// The causal convolution over many tokens, to bf16.
//
// A thread owns four channels of kSegment tokens of a piece; the window slides through its
// registers, and inputs are loaded kAhead tokens at a time. The first tokens of a run read the
// window that steps before left, which a kernel behind this one overwrites.
#include <cuda_bf16.h>

#include "cuda/kernels/causal_conv.h"
#include "cuda/kernels/conv_step.cuh"
#include "cuda/kernels/launch.cuh"

namespace adder::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kSegment = 16;
constexpr int kSegments = kPieceTokens / kSegment;
constexpr int kAhead = 8;

__device__ __forceinline__ float4 Four(const float* from) {
  return *reinterpret_cast<const float4*>(from);
}
__device__ __forceinline__ float4 Product(float4 a, float4 b) {
  return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
}
__device__ __forceinline__ uint2 Packed(float4 x) {
  const __nv_bfloat162 low = __floats2bfloat162_rn(x.x, x.y);
  const __nv_bfloat162 high = __floats2bfloat162_rn(x.z, x.w);
  return make_uint2(*reinterpret_cast<const unsigned*>(&low),
                    *reinterpret_cast<const unsigned*>(&high));
}

// kTaps: taps held; those before the convolution's are zero.
template <int kTaps>
__global__ void __launch_bounds__(kThreads)
    ConvPieceKernel(const __grid_constant__ CausalConvParams p, const Piece* pieces) {
  PdlWait();
  PdlTrigger();
  const Piece piece = pieces[blockIdx.y / kSegments];
  const int first = static_cast<int>(blockIdx.y) % kSegments * kSegment;
  const int channel = 4 * static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (channel >= p.channels || first >= piece.tokens) return;
  const SequenceRun run = p.runs[piece.run];
  const float* ring = run.recurrent + p.conv_offset + channel;
  const float* rows =
      p.input + static_cast<long long>(piece.row + first) * p.input_stride + channel;
  const auto input = [&](int token) {
    const float* row = rows + static_cast<long long>(token) * p.input_stride;
    const float4 x = Four(row + p.x);
    return p.gate_before < 0 ? x : Product(x, Four(row + p.gate_before));
  };
  const float4 zero = make_float4(0, 0, 0, 0);
  const float4 bias = p.bias == nullptr ? zero : Four(p.bias + channel);
  const int in_run = piece.row + first - run.row;
  float4 weights[kTaps];
  float4 window[kTaps];
#pragma unroll
  for (int tap = 0; tap < kTaps; ++tap) {
    const int back = kTaps - 1 - tap;
    weights[tap] = zero;
    window[tap] = zero;
    if (back >= p.d_conv) continue;
    weights[tap] =
        Four(p.weight + static_cast<long long>(p.d_conv - 1 - back) * p.channels + channel);
    if (back == 0) continue;
    if (in_run >= back) {
      window[tap] = input(-back);
    } else {
      const int row = (run.position + in_run - back + p.d_conv) % p.d_conv;
      window[tap] = Four(ring + static_cast<long long>(row) * p.channels);
    }
  }
  const int count = min(kSegment, piece.tokens - first);
  uint16_t* out = p.rounded_output +
                  static_cast<long long>(piece.row + first) * p.rounded_output_stride + channel;
#pragma unroll 1
  for (int base = 0; base < count; base += kAhead) {
    float4 newest[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) newest[i] = base + i < count ? input(base + i) : zero;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      float4 sum = ConvolveNext(bias, weights, window, newest[i]);
      if (base + i >= count) break;
      if (p.silu)
        sum = make_float4(ConvSilu(sum.x), ConvSilu(sum.y), ConvSilu(sum.z), ConvSilu(sum.w));
      if (p.gate_after >= 0) {
        const float* row = rows + static_cast<long long>(base + i) * p.input_stride;
        sum = Product(sum, Four(row + p.gate_after));
      }
      *reinterpret_cast<uint2*>(out + static_cast<long long>(base + i) * p.rounded_output_stride) =
          Packed(sum);
    }
  }
}

}  // namespace

bool ConvPiecesSupport(const CausalConvParams& p) {
  return p.d_conv <= kMostConvTaps && p.channels % 4 == 0 && p.x % 4 == 0 &&
         (p.gate_before < 0 || p.gate_before % 4 == 0) &&
         (p.gate_after < 0 || p.gate_after % 4 == 0);
}

void LaunchCausalConvPieces(const CausalConvParams& params, const Piece* pieces, int piece_count,
                            cudaStream_t stream) {
  const int threads = params.channels / 4;
  Launch("the convolution kernel of pieces",
         params.d_conv <= 4 ? ConvPieceKernel<4> : ConvPieceKernel<kMostConvTaps>,
         dim3(static_cast<unsigned>((threads + kThreads - 1) / kThreads),
              static_cast<unsigned>(piece_count * kSegments)),
         dim3(kThreads), 0, stream, params, pieces);
  LaunchConvWindow(params, stream);
}

}  // namespace adder::cuda
