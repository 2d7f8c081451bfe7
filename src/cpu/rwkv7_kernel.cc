#include "cpu/rwkv7_kernel.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/rwkv7_kernel.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which compiles this file once per target.
#include "hwy/highway.h"

#include "cpu/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace adder {
namespace HWY_NAMESPACE {

void PrepareRwkv7Impl(const Rwkv7& m, const Rwkv7Vectors& vectors, const Rwkv7Token& token,
                      const Rwkv7Row& row) {
  const DF df;
  const VF one = hn::Set(df, 1.0f);
  for (int64_t begin = 0; begin < m.inner(); begin += m.head_dim) {
    const int64_t end = begin + m.head_dim;
    VF squares = hn::Zero(df);
    for (int64_t i = begin; i < end; i += kStep) {
      const VF k =
          hn::Mul(LoadChannels(token.k + i, end - i), LoadChannels(vectors.key_scale + i, end - i));
      squares = hn::MulAdd(k, k, squares);
    }
    const float length = std::max(std::sqrt(SumLanes(squares)), kRwkv7ShortestKey);
    const VF factor = hn::Set(df, 1.0f / length);
    for (int64_t i = begin; i < end; i += kStep) {
      const int64_t count = end - i;
      const VF k = LoadChannels(token.k + i, count);
      const VF rate = Sigmoid(LoadChannels(token.rate + i, count));
      const VF unit = hn::Mul(hn::Mul(k, LoadChannels(vectors.key_scale + i, count)), factor);
      const VF change = hn::Mul(hn::Sub(rate, one), LoadChannels(vectors.key_rate + i, count));
      const VF decay = hn::Exp(df, hn::Mul(hn::Set(df, -kRwkv7DecayScale),
                                           Sigmoid(LoadChannels(token.decay + i, count))));
      VF value = LoadChannels(token.v + i, count);
      if (token.value_mix != nullptr) {
        value = hn::MulAdd(hn::Sub(LoadChannels(token.first_value + i, count), value),
                           Sigmoid(LoadChannels(token.value_mix + i, count)), value);
      }
      StoreChannels(decay, row.decay + i, count);
      StoreChannels(hn::Neg(unit), row.read + i, count);
      StoreChannels(hn::MulAdd(k, change, k), row.write + i, count);
      StoreChannels(hn::Mul(unit, rate), row.answer + i, count);
      StoreChannels(value, row.value + i, count);
    }
  }
}

void FinishRwkv7Impl(const Rwkv7& m, const Rwkv7Vectors& vectors, const Rwkv7Token& token,
                     const Rwkv7Row& row, int64_t head, float* y) {
  const DF df;
  const int64_t begin = head * m.head_dim;
  const int64_t end = begin + m.head_dim;
  VF bonus = hn::Zero(df);
  for (int64_t i = begin; i < end; i += kStep) {
    const VF rk = hn::Mul(LoadChannels(token.r + i, end - i), LoadChannels(row.write + i, end - i));
    bonus = hn::MulAdd(rk, LoadChannels(vectors.bonus + i, end - i), bonus);
  }
  const VF own = hn::Set(df, SumLanes(bonus));
  for (int64_t i = begin; i < end; i += kStep) {
    const int64_t count = end - i;
    const VF out =
        hn::MulAdd(own, LoadChannels(row.value + i, count), LoadChannels(y + i - begin, count));
    StoreChannels(hn::Mul(out, LoadChannels(token.gate + i, count)), y + i - begin, count);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace adder
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "cpu/elementwise.h"

namespace adder {

HWY_EXPORT(PrepareRwkv7Impl);
HWY_EXPORT(FinishRwkv7Impl);

void PrepareRwkv7(const Rwkv7& mixer, const Rwkv7Vectors& vectors, const Rwkv7Token& token,
                  const Rwkv7Row& row) {
  HWY_DYNAMIC_DISPATCH(PrepareRwkv7Impl)(mixer, vectors, token, row);
}

void FinishRwkv7(const Rwkv7& mixer, const Rwkv7Vectors& vectors, const Rwkv7Token& token,
                 const Rwkv7Row& row, int64_t head, float* y) {
  const int64_t begin = head * mixer.head_dim;
  LayerNormRow(y, vectors.norm_weight + begin, vectors.norm_bias + begin, mixer.head_dim,
               mixer.norm.eps, y);
  HWY_DYNAMIC_DISPATCH(FinishRwkv7Impl)(mixer, vectors, token, row, head, y);
}

}  // namespace adder
#endif  // HWY_ONCE
