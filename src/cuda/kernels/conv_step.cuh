// The depthwise causal convolution of one channel at one position, as multiply-adds over the rolled
// window. Every family's decode step and prefill use this: decoding never calls a convolution
// library.
#pragma once

namespace adder::cuda {

// What most mixers put behind the convolution. One function for the kernels that are a convolution
// and those that have one in them: their results are bitwise the same.
__device__ __forceinline__ float ConvSilu(float x) { return x / (1.0f + expf(-x)); }

// weight [taps, channels], time-major: the last tap belongs to `newest`. ring [taps][channels]
// holds the inputs at position p in row p % taps; rows of positions before the sequence are zero.
template <int kMaxTaps>
struct ConvStep {
  float weights[kMaxTaps];
  float past[kMaxTaps];

  // Loads what does not depend on the newest input. `channel` is this thread's.
  __device__ __forceinline__ void Load(const float* weight, const float* ring, int taps,
                                       int channels, int channel, int position) {
#pragma unroll
    for (int tap = 0; tap < kMaxTaps; ++tap) {
      if (tap >= taps) break;
      weights[tap] = weight[static_cast<long long>(tap) * channels + channel];
      if (tap + 1 < taps) {
        const int row = (position + 1 + tap) % taps;
        past[tap] = ring[static_cast<long long>(row) * channels + channel];
      }
    }
  }

  __device__ __forceinline__ float Apply(float bias, float newest, int taps) const {
    float sum = bias;
#pragma unroll
    for (int tap = 0; tap < kMaxTaps; ++tap) {
      if (tap >= taps) break;
      sum = fmaf(weights[tap], tap + 1 < taps ? past[tap] : newest, sum);
    }
    return sum;
  }
};

// The next token of four channels each: `newest` enters the window, whose last place is free.
template <int kTaps>
__device__ __forceinline__ float4 ConvolveNext(const float4& bias, const float4 (&weights)[kTaps],
                                               float4 (&window)[kTaps], const float4& newest) {
  window[kTaps - 1] = newest;
  float4 sum = bias;
#pragma unroll
  for (int tap = 0; tap < kTaps; ++tap) {
    sum.x = fmaf(weights[tap].x, window[tap].x, sum.x);
    sum.y = fmaf(weights[tap].y, window[tap].y, sum.y);
    sum.z = fmaf(weights[tap].z, window[tap].z, sum.z);
    sum.w = fmaf(weights[tap].w, window[tap].w, sum.w);
    if (tap + 1 < kTaps) window[tap] = window[tap + 1];
  }
  return sum;
}

}  // namespace adder::cuda
