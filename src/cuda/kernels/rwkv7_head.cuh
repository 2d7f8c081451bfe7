// A head of RWKV-7's generalised delta rule in a block of kRwkv7Threads threads, a token at a time.
//
// A thread owns two columns of the state (channels of the value) and every kGroups-th row, in
// registers; the groups of a column are lanes of one warp. The last warp owns the channels, kOfLane
// to a lane: it makes the vectors of a token (Rwkv7Channels::Publish), and when all have put down
// what the state answers (Rwkv7State::Update), finishes the output. A barrier lies between each two
// of Publish, Update and Finish. Sums are taken in an order that depends on sizes alone.
#pragma once

#include "cuda/kernels/activate.cuh"
#include "cuda/kernels/rwkv7.h"
#include "cuda/kernels/sums.cuh"

namespace adder::cuda {

constexpr int kRwkv7Threads = 256;
constexpr int kRwkv7Warps = kRwkv7Threads / 32;

// Of a token, in shared memory. kDim: at least head_dim; zeros behind it.
template <int kDim>
struct Rwkv7Vectors {
  float4 of_key[kDim];  // kappa, alpha * kappa, decay, key
  float answers[kDim];  // r
  float2 values[kDim / 2];
  float2 outputs[kDim / 2];
};

template <int kDim>
struct Rwkv7State {
  static constexpr int kColumnPairs = kDim / 2;
  static constexpr int kGroups = kRwkv7Threads / kColumnPairs;
  static constexpr int kRows = kDim / kGroups;
  static constexpr int kWarpPairs = 32 / kGroups;
  float2 rows[kRows];

  __device__ static __forceinline__ int Pair() {
    return static_cast<int>(threadIdx.x) / 32 * kWarpPairs +
           static_cast<int>(threadIdx.x) % kWarpPairs;
  }
  __device__ static __forceinline__ int Group() {
    return static_cast<int>(threadIdx.x) % 32 / kWarpPairs;
  }

  // `states` [dim, dim]. With dim = kDim on 8-byte boundaries.
  __device__ __forceinline__ void Load(const float* states, int dim) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = i * kGroups + Group();
      const float* from = states + row * dim + 2 * Pair();
      if (dim == kDim) {
        rows[i] = *reinterpret_cast<const float2*>(from);
      } else {
        rows[i].x = row < dim && 2 * Pair() < dim ? from[0] : 0.0f;
        rows[i].y = row < dim && 2 * Pair() + 1 < dim ? from[1] : 0.0f;
      }
    }
  }
  __device__ __forceinline__ void Store(float* states, int dim) const {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = i * kGroups + Group();
      float* to = states + row * dim + 2 * Pair();
      if (dim == kDim) {
        *reinterpret_cast<float2*>(to) = rows[i];
      } else {
        if (row < dim && 2 * Pair() < dim) to[0] = rows[i].x;
        if (row < dim && 2 * Pair() + 1 < dim) to[1] = rows[i].y;
      }
    }
  }

  __device__ static __forceinline__ void SumGroups(float2& x) {
#pragma unroll
    for (int offset = kWarpPairs; offset < 32; offset *= 2) {
      x.x += __shfl_xor_sync(0xffffffffu, x.x, offset);
      x.y += __shfl_xor_sync(0xffffffffu, x.y, offset);
    }
  }

  // Neighbouring groups have neighbouring rows, whose vectors lie in different banks.
  __device__ __forceinline__ void Update(Rwkv7Vectors<kDim>& vectors) {
    // Of wide heads they are read again rather than kept.
    constexpr int kKept = kRows <= 8 ? kRows : 1;
    float4 kept[kKept];
    float2 found = {0, 0};
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float4 of = vectors.of_key[i * kGroups + Group()];
      if (kKept == kRows) kept[i % kKept] = of;
      found.x = fmaf(of.x, rows[i].x, found.x);
      found.y = fmaf(of.x, rows[i].y, found.y);
    }
    SumGroups(found);
    const float2 value = vectors.values[Pair()];
    float2 y = {0, 0};
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = i * kGroups + Group();
      const float4 of = kKept == kRows ? kept[i % kKept] : vectors.of_key[row];
      const float answer = vectors.answers[row];
      rows[i].x = fmaf(of.z, rows[i].x, fmaf(of.w, value.x, -of.y * found.x));
      rows[i].y = fmaf(of.z, rows[i].y, fmaf(of.w, value.y, -of.y * found.y));
      y.x = fmaf(answer, rows[i].x, y.x);
      y.y = fmaf(answer, rows[i].y, y.y);
    }
    SumGroups(y);
    if (Group() == 0) vectors.outputs[Pair()] = y;
  }
};

// The last warp's channels: lane, lane + 32, ...
template <int kDim>
struct Rwkv7Channels {
  static constexpr int kOfLane = kDim / 32;
  float key_scale[kOfLane];
  float key_rate[kOfLane];
  float bonus[kOfLane];
  float norm_weight[kOfLane];
  float norm_bias[kOfLane];
  struct Token {
    float r[kOfLane];
    float k[kOfLane];
    float v[kOfLane];        // after Publish, with what is mixed in
    float first_v[kOfLane];  // where values are mixed
    float gate[kOfLane];
  };
  Token now;
  float length;  // of the scaled key
  float own;     // this lane's share of r . key * bonus

  __device__ static __forceinline__ int Channel(int i) {
    return static_cast<int>(threadIdx.x) % 32 + 32 * i;
  }

  // Of channels beyond `dim` everything is zero.
  __device__ __forceinline__ void LoadWeights(const Rwkv7Params& p, int head, int dim) {
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const bool inside = Channel(i) < dim;
      const int at = head * dim + Channel(i);
      key_scale[i] = inside ? p.key_scale[at] : 0.0f;
      key_rate[i] = inside ? p.key_rate[at] : 0.0f;
      bonus[i] = inside ? p.bonus[at] : 0.0f;
      norm_weight[i] = inside && p.norm_weight != nullptr ? p.norm_weight[at] : 1.0f;
      norm_bias[i] = inside && p.norm_bias != nullptr ? p.norm_bias[at] : 0.0f;
    }
  }

  // All but the gate. `at`: of the head's first channel in the token's rows.
  __device__ static __forceinline__ void Load(const Rwkv7Params& p, long long at, int dim,
                                              bool mixes_values, Token& token) {
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const bool inside = Channel(i) < dim;
      token.r[i] = inside ? p.r[at + Channel(i)] : 0.0f;
      token.k[i] = inside ? p.k[at + Channel(i)] : 0.0f;
      token.v[i] = inside ? p.v[at + Channel(i)] : 0.0f;
      token.first_v[i] = inside && mixes_values ? p.first_value[at + Channel(i)] : 0.0f;
    }
  }

  __device__ __forceinline__ void FindLength() {
    length = 0;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const float kappa = now.k[i] * key_scale[i];
      length = fmaf(kappa, kappa, length);
    }
    length = sqrtf(WarpSum(length));
  }

  // decay(i), rate(i) and value_mix(i) are those of channel i of this lane, before their functions.
  template <class Decay, class Rate, class ValueMix>
  __device__ __forceinline__ void Publish(Decay decay, Rate rate, ValueMix value_mix,
                                          bool mixes_values, Rwkv7Vectors<kDim>& vectors) {
    const float scale = 1.0f / fmaxf(length, kRwkv7ShortestKey);
    own = 0;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const float kappa = now.k[i] * key_scale[i] * scale;
      const float alpha = Sigmoid(rate(i));
      const float key = now.k[i] * fmaf(alpha - 1.0f, key_rate[i], 1.0f);
      if (mixes_values) now.v[i] = fmaf(Sigmoid(value_mix(i)), now.first_v[i] - now.v[i], now.v[i]);
      vectors.of_key[Channel(i)] =
          make_float4(kappa, alpha * kappa, expf(-kRwkv7DecayScale * Sigmoid(decay(i))), key);
      vectors.answers[Channel(i)] = now.r[i];
      reinterpret_cast<float*>(vectors.values)[Channel(i)] = now.v[i];
      own = fmaf(now.r[i] * key, bonus[i], own);
    }
  }

  // Calls with the output of each channel: the layer norm of what the state answers, the bonus and
  // the gate.
  template <class Put>
  __device__ __forceinline__ void Finish(const Rwkv7Vectors<kDim>& vectors, int dim, float eps,
                                         Put put) {
    const float bonus_of_values = WarpSum(own);
    const float size = 1.0f / static_cast<float>(dim);
    float y[kOfLane];
    float mean = 0;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      // Zero beyond `dim`, as r is.
      y[i] = reinterpret_cast<const float*>(vectors.outputs)[Channel(i)];
      mean += y[i];
    }
    mean = WarpSum(mean) * size;
    float squares = 0;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      y[i] = Channel(i) < dim ? y[i] - mean : 0.0f;
      squares = fmaf(y[i], y[i], squares);
    }
    const float factor = rsqrtf(fmaf(WarpSum(squares), size, eps));
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      if (Channel(i) >= dim) continue;
      put(Channel(i),
          (fmaf(y[i] * factor, norm_weight[i], norm_bias[i]) + bonus_of_values * now.v[i]) *
              now.gate[i]);
    }
  }
};

}  // namespace adder::cuda
