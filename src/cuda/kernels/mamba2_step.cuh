// What the kernels of one Mamba-2 step load for the conv step of their channels and for dt.
#pragma once

#include <cuda_runtime.h>

#include "cuda/kernels/conv_step.cuh"
#include "cuda/kernels/mamba2.h"
#include "cuda/kernels/mamba2_state.cuh"

namespace adder::cuda {

constexpr int kMaxTaps = 8;

// What a lane needs for B and C of its row: first what earlier steps wrote, then the inputs.
template <int kTaps>
struct GroupValues {
  ConvStep<kTaps> conv_b;
  ConvStep<kTaps> conv_c;
  float b_bias = 0;
  float c_bias = 0;
  float b_input = 0;
  float c_input = 0;
  int b_channel;
  int c_channel;
  bool has_row;

  __device__ __forceinline__ void Load(const Mamba2Params& p, const float* ring, int d_conv,
                                       int channels, const Place& place, int position) {
    const int row = place.warp * kWarpRows + place.lane;
    has_row = row < p.d_state;
    b_channel = BChannel(p, place, row);
    c_channel = b_channel + p.groups * p.d_state;
    if (!has_row) return;
    conv_b.Load(p.conv_weight, ring, d_conv, channels, b_channel, position);
    conv_c.Load(p.conv_weight, ring, d_conv, channels, c_channel, position);
    if (p.conv_bias != nullptr) b_bias = p.conv_bias[b_channel], c_bias = p.conv_bias[c_channel];
  }
  // inputs: the token's x.
  __device__ __forceinline__ void LoadInputs(const float* inputs) {
    if (has_row) b_input = inputs[b_channel], c_input = inputs[c_channel];
  }
  __device__ __forceinline__ void Apply(int d_conv, float* b, float* c) const {
    *b = has_row ? MixerSilu(conv_b.Apply(b_bias, b_input, d_conv)) : 0.0f;
    *c = has_row ? MixerSilu(conv_c.Apply(c_bias, c_input, d_conv)) : 0.0f;
  }
  // newest: the window's row of the token.
  __device__ __forceinline__ void StoreInputs(float* newest) const {
    if (has_row) newest[b_channel] = b_input, newest[c_channel] = c_input;
  }
};

// What a lane needs for x and dt of a head: first what earlier steps wrote, then the inputs.
template <int kTaps>
struct HeadValues {
  ConvStep<kTaps> conv;
  float bias = 0;
  float dt_bias;
  float a;
  float d;
  float input = 0;
  float gate = 0;
  float dt_input;

  __device__ __forceinline__ void Load(const Mamba2Params& p, const float* ring, int d_conv,
                                       int channels, const Place& place, int position) {
    if (place.has_x) {
      conv.Load(p.conv_weight, ring, d_conv, channels, place.x_channel, position);
      if (p.conv_bias != nullptr) bias = p.conv_bias[place.x_channel];
    }
    dt_bias = p.dt_bias[place.head];
    a = p.a[place.head];
    d = p.d[place.head];
  }
  // projected: the token's z; x follows after `inner`.
  __device__ __forceinline__ void LoadInputs(const float* projected, int inner, int channels,
                                             const Place& place) {
    if (place.has_x) {
      input = projected[inner + place.x_channel];
      gate = projected[place.x_channel];
    }
    dt_input = projected[inner + channels + place.head];
  }
};

}  // namespace adder::cuda
