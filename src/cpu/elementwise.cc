#include "cpu/elementwise.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/elementwise.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which compiles this file once per target.
#include "hwy/highway.h"

#include "cpu/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace adder {
namespace HWY_NAMESPACE {

void RmsNormRowImpl(const float* x, const float* weight, int64_t size, int64_t groups, float eps,
                    float* out) {
  const DF df;
  const int64_t part = size / groups;
  for (int64_t begin = 0; begin < size; begin += part) {
    const float* from = x + begin;
    const float* w = weight != nullptr ? weight + begin : nullptr;
    float* to = out + begin;
    VF squares = hn::Zero(df);
    for (int64_t i = 0; i < part; i += kStep) {
      const VF v = LoadChannels(from + i, part - i);
      squares = hn::MulAdd(v, v, squares);
    }
    const float mean = SumLanes(squares) / static_cast<float>(part);
    const VF factor = hn::Set(df, 1.0f / std::sqrt(mean + eps));
    for (int64_t i = 0; i < part; i += kStep) {
      VF y = hn::Mul(LoadChannels(from + i, part - i), factor);
      if (w != nullptr) y = hn::Mul(y, LoadChannels(w + i, part - i));
      StoreChannels(y, to + i, part - i);
    }
  }
}

void SiluMulRowImpl(const float* gate, const float* up, int64_t size, float* out) {
  const DF df;
  int64_t i = 0;
  for (; i + kStep <= size; i += kStep) {
    hn::StoreU(hn::Mul(Silu(hn::LoadU(df, gate + i)), hn::LoadU(df, up + i)), df, out + i);
  }
  if (i < size) {
    const auto rest = static_cast<size_t>(size - i);
    StoreFirst(hn::Mul(Silu(LoadFirst(gate + i, rest)), LoadFirst(up + i, rest)), out + i, rest);
  }
}

void AddScaledRowImpl(const float* x, float factor, int64_t size, float* out) {
  const DF df;
  const VF scale = hn::Set(df, factor);
  int64_t i = 0;
  for (; i + kStep <= size; i += kStep) {
    hn::StoreU(hn::MulAdd(scale, hn::LoadU(df, x + i), hn::LoadU(df, out + i)), df, out + i);
  }
  if (i < size) {
    const auto rest = static_cast<size_t>(size - i);
    StoreFirst(hn::MulAdd(scale, LoadFirst(x + i, rest), LoadFirst(out + i, rest)), out + i, rest);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace adder
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace adder {

HWY_EXPORT(RmsNormRowImpl);
HWY_EXPORT(SiluMulRowImpl);
HWY_EXPORT(AddScaledRowImpl);

void RmsNormRow(const float* x, const float* weight, int64_t size, int64_t groups, float eps,
                float* out) {
  HWY_DYNAMIC_DISPATCH(RmsNormRowImpl)(x, weight, size, groups, eps, out);
}

void SiluMulRow(const float* gate, const float* up, int64_t size, float* out) {
  HWY_DYNAMIC_DISPATCH(SiluMulRowImpl)(gate, up, size, out);
}

void AddScaledRow(const float* x, float factor, int64_t size, float* out) {
  HWY_DYNAMIC_DISPATCH(AddScaledRowImpl)(x, factor, size, out);
}

}  // namespace adder
#endif  // HWY_ONCE
