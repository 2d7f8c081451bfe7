// Query heads, key and value of a row for the attention step: normed, rotated and rounded to bf16.
//
// A warp has one of them, and its lane l dimensions 4 l .. 4 l + 3 of each 128. All that does not
// depend on the row's numbers is done before they are there: norm and rotation become two factors
// of a dimension, one for itself and one for the dimension that it rotates with. What is left then
// is short, and it is the time until a row's first product.
#pragma once

#include <cuda_bf16.h>

#include "cuda/kernels/attention.h"
#include "cuda/kernels/attention_step_math.cuh"
#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/rotation.cuh"

namespace adder::cuda {

__device__ __forceinline__ float4 Times(float4 a, float4 b) {
  return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
}

// kWidth: what shared memory has room for of a head's dimensions, zeros behind the last one.
template <int kWidth>
class HeadOfWarp {
  static constexpr int kParts = (kWidth + 127) / 128;

 public:
  // `place`: of the block's `heads` query heads, its key and its value; what comes behind is
  // nothing. rotations: [rotary_dim / 2], in shared memory.
  __device__ __forceinline__ void Begin(const AttentionParams& p, int row, int place, int heads,
                                        int first_head, int kv_head, const float2* rotations) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    is_query_ = place < heads;
    const bool is_value = place == heads + 1;
    is_head_ = place <= heads + 1;
    const int number = is_query_ ? first_head + place : kv_head;  // among its kind
    const int index = is_query_ ? number : p.heads + number + (is_value ? p.kv_heads : 0);
    from_ = p.qkv + static_cast<long long>(row) * p.qkv_stride + index * p.head_dim + 4 * lane;
    factor_ = is_query_ ? p.scale * 1.44269504f : 1.0f;
    const HeadNorm& norm = is_query_ ? p.q_norm : p.k_norm;
    const float* weight = is_value ? nullptr : norm.weight;
    normed_ = weight != nullptr;
    eps_ = norm.eps;
    inverse_dim_ = 1.0f / static_cast<float>(p.head_dim);
    const int half = p.inverse_frequencies == nullptr || is_value ? 0 : p.rotary_dim / 2;
    const auto weights = [&](int d) {
      return weight == nullptr
                 ? make_float4(1, 1, 1, 1)
                 : *reinterpret_cast<const float4*>(weight + (number * p.head_dim + d) % norm.size);
    };
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      const int d = 4 * lane + 128 * i;
      valid_[i] = is_head_ && d < p.head_dim;
      to_other_[i] = 128 * i;
      own_factors_[i] = other_factors_[i] = make_float4(0, 0, 0, 0);
      if (!valid_[i]) continue;
      own_factors_[i] = weights(d);
      if (d >= 2 * half) continue;
      const bool upper = d >= half;
      const int pair = upper ? d - half : d;
      const int other = upper ? pair : d + half;
      to_other_[i] = other - 4 * lane;
      const float4 first = reinterpret_cast<const float4*>(rotations + pair)[0];
      const float4 second = reinterpret_cast<const float4*>(rotations + pair)[1];
      const float sign = upper ? 1.0f : -1.0f;
      const float4 of_other = p.norm_after_rotation ? own_factors_[i] : weights(other);
      other_factors_[i] = Times(
          of_other, make_float4(sign * first.x, sign * first.z, sign * second.x, sign * second.z));
      own_factors_[i] = Times(own_factors_[i], make_float4(first.y, first.w, second.y, second.w));
    }
    ReadyBeforeWait(from_);
    ReadyBeforeWait(factor_);
  }

  // Puts a query head into `query`: of every two dimensions the rounded numbers, then those of what
  // rounding left over. Key and value go to `rounded`, and to `page` unless it is null. Each points
  // to the head's first dimension.
  __device__ __forceinline__ void Prepare(float* query, __nv_bfloat16* rounded,
                                          __nv_bfloat16* page) const {
    if (!is_head_) return;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float4 own[kParts];
    float4 other[kParts];
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      own[i] = other[i] = make_float4(0, 0, 0, 0);
      if (!valid_[i]) continue;
      own[i] = *reinterpret_cast<const float4*>(from_ + 128 * i);
      other[i] = *reinterpret_cast<const float4*>(from_ + to_other_[i]);
    }
    float factor = factor_;
    if (normed_) {
      // A rotation changes no length: the factor of the norm is the same before it and behind it.
      float squares = 0;
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        const float4 x = own[i];
        squares += x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
      }
#pragma unroll
      for (int mask = 16; mask > 0; mask /= 2) squares += __shfl_xor_sync(~0u, squares, mask);
      factor *= rsqrtf(squares * inverse_dim_ + eps_);
    }
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      const float4 rotated = Times(other[i], other_factors_[i]);
      const float4 mine = own[i];
      const float4 factors = own_factors_[i];
      const float4 x = {
          (mine.x * factors.x + rotated.x) * factor, (mine.y * factors.y + rotated.y) * factor,
          (mine.z * factors.z + rotated.z) * factor, (mine.w * factors.w + rotated.w) * factor};
      const int d = 4 * lane + 128 * i;
      if (kWidth % 128 != 0 && d >= kWidth) continue;
      const uint2 upper = {Pack(x.x, x.y), Pack(x.z, x.w)};
      if (is_query_) {
        *reinterpret_cast<uint4*>(query + d) = {upper.x, PackRest(x.x, x.y, upper.x), upper.y,
                                                PackRest(x.z, x.w, upper.y)};
      } else {
        *reinterpret_cast<uint2*>(rounded + d) = upper;
        if (page != nullptr && valid_[i]) *reinterpret_cast<uint2*>(page + d) = upper;
      }
    }
  }

 private:
  bool is_head_;
  bool is_query_;
  const float* from_;
  float factor_;
  float eps_;
  float inverse_dim_;
  bool normed_;
  bool valid_[kParts];
  int to_other_[kParts];
  float4 own_factors_[kParts];
  float4 other_factors_[kParts];
};

}  // namespace adder::cuda
