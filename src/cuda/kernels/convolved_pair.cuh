// The gated convolution of a step as the first part of the projection that reads it.
#pragma once

#include "cuda/kernels/causal_conv.h"
#include "cuda/kernels/conv_step.cuh"

namespace adder::cuda {

// Its taps.
constexpr int kConvolvedTaps = 3;

// Two neighbouring channels of a convolution with gates. Load is for what earlier steps wrote.
struct ConvolvedPair {
  ConvStep<kConvolvedTaps> first;
  ConvStep<kConvolvedTaps> second;
  float2 bias;

  __device__ __forceinline__ void Load(const CausalConvParams& p, const SequenceRun& run,
                                       int channel) {
    bias = make_float2(0, 0);
    if (channel >= p.channels) return;
    const float* ring = run.recurrent + p.conv_offset;
    first.Load(p.weight, ring, kConvolvedTaps, p.channels, channel, run.position);
    second.Load(p.weight, ring, kConvolvedTaps, p.channels, channel + 1, run.position);
    if (p.bias != nullptr) bias = *reinterpret_cast<const float2*>(p.bias + channel);
  }
  // Their results; `writes`: puts the newest inputs into the window.
  __device__ __forceinline__ float2 Apply(const CausalConvParams& p, const SequenceRun& run,
                                          int channel, bool writes) const {
    if (channel >= p.channels) return make_float2(0, 0);
    const float* row = p.input + static_cast<long long>(run.row) * p.input_stride + channel;
    const float2 x = *reinterpret_cast<const float2*>(row + p.x);
    const float2 before = *reinterpret_cast<const float2*>(row + p.gate_before);
    const float2 after = *reinterpret_cast<const float2*>(row + p.gate_after);
    const float2 newest = make_float2(x.x * before.x, x.y * before.y);
    if (writes) {
      float* ring = run.recurrent + p.conv_offset;
      *reinterpret_cast<float2*>(ring + run.position % kConvolvedTaps * p.channels + channel) =
          newest;
    }
    return make_float2(after.x * first.Apply(bias.x, newest.x, kConvolvedTaps),
                       after.y * second.Apply(bias.y, newest.y, kConvolvedTaps));
  }
};

}  // namespace adder::cuda
