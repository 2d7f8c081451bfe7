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

void LayerNormRowImpl(const float* x, const float* weight, const float* bias, int64_t size,
                      float eps, float* out) {
  const DF df;
  VF sums = hn::Zero(df);
  for (int64_t i = 0; i < size; i += kStep) {
    sums = hn::Add(sums, LoadChannels(x + i, size - i));
  }
  const float mean = SumLanes(sums) / static_cast<float>(size);
  // Lanes behind the end are 0, not 0 - mean.
  VF squares = hn::Zero(df);
  for (int64_t i = 0; i < size; i += kStep) {
    HWY_ALIGN float lanes[kLanes] = {};
    StoreChannels(hn::Sub(LoadChannels(x + i, size - i), hn::Set(df, mean)), lanes, size - i);
    const VF v = hn::Load(df, lanes);
    squares = hn::MulAdd(v, v, squares);
  }
  const VF factor =
      hn::Set(df, 1.0f / std::sqrt(SumLanes(squares) / static_cast<float>(size) + eps));
  for (int64_t i = 0; i < size; i += kStep) {
    const int64_t count = size - i;
    const VF v = hn::Mul(hn::Sub(LoadChannels(x + i, count), hn::Set(df, mean)), factor);
    StoreChannels(hn::MulAdd(v, LoadChannels(weight + i, count), LoadChannels(bias + i, count)),
                  out + i, count);
  }
}

void TokenShiftRowImpl(const float* y, const float* previous, const float* mix, int64_t parts,
                       int64_t size, float* out) {
  for (int64_t part = 0; part < parts; ++part) {
    for (int64_t i = 0; i < size; i += kStep) {
      const int64_t count = size - i;
      const VF now = LoadChannels(y + i, count);
      const VF change = hn::Sub(LoadChannels(previous + i, count), now);
      StoreChannels(hn::MulAdd(LoadChannels(mix + part * size + i, count), change, now),
                    out + part * size + i, count);
    }
  }
}

// x Phi(x) by formula 7.1.26 of Abramowitz and Stegun: erf to 1.5e-7, so that the error is below
// 1e-7 |x|.
HWY_INLINE VF Gelu(VF x) {
  const DF df;
  const VF z = hn::Mul(hn::Abs(x), hn::Set(df, 0.70710678f));
  const VF t =
      hn::Div(hn::Set(df, 1.0f), hn::MulAdd(hn::Set(df, 0.3275911f), z, hn::Set(df, 1.0f)));
  VF sum = hn::Set(df, 1.061405429f);
  for (const float term : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f}) {
    sum = hn::MulAdd(sum, t, hn::Set(df, term));
  }
  // erfc(|z|) / 2: the part of Phi beyond |x|.
  const VF tail = hn::Mul(hn::Mul(hn::Set(df, 0.5f), hn::Mul(sum, t)),
                          hn::Exp(df, hn::Max(hn::Neg(hn::Mul(z, z)), hn::Set(df, -88.0f))));
  const VF phi = hn::IfThenElse(hn::Lt(x, hn::Zero(df)), tail, hn::Sub(hn::Set(df, 1.0f), tail));
  return hn::Mul(x, phi);
}

// x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)); exp is kept finite as in Silu.
HWY_INLINE VF GeluTanh(VF x) {
  const DF df;
  const VF cubic = hn::MulAdd(hn::Mul(hn::Set(df, 0.044715f), hn::Mul(x, x)), x, x);
  const VF e =
      hn::Exp(df, hn::Min(hn::Mul(hn::Set(df, -1.5957691216f), cubic), hn::Set(df, 88.0f)));
  return hn::Div(x, hn::Add(hn::Set(df, 1.0f), e));
}

template <Activation kActivation>
HWY_INLINE VF Activate(VF x) {
  if constexpr (kActivation == Activation::kSigmoid) return Sigmoid(x);
  if constexpr (kActivation == Activation::kGelu) return Gelu(x);
  if constexpr (kActivation == Activation::kGeluTanh) return GeluTanh(x);
  if constexpr (kActivation == Activation::kSigmoid) return Sigmoid(x);
  if constexpr (kActivation == Activation::kTanh) return hn::Tanh(DF(), x);
  if constexpr (kActivation == Activation::kRelu2) {
    const VF positive = hn::Max(x, hn::Zero(DF()));
    return hn::Mul(positive, positive);
  }
  return Silu(x);
}

template <Activation kActivation>
HWY_INLINE void ActivateValues(const float* gate, const float* up, int64_t size, float* out) {
  const DF df;
  int64_t i = 0;
  for (; i + kStep <= size; i += kStep) {
    VF y = Activate<kActivation>(hn::LoadU(df, gate + i));
    if (up != nullptr) y = hn::Mul(y, hn::LoadU(df, up + i));
    hn::StoreU(y, df, out + i);
  }
  if (i < size) {
    const auto rest = static_cast<size_t>(size - i);
    VF y = Activate<kActivation>(LoadFirst(gate + i, rest));
    if (up != nullptr) y = hn::Mul(y, LoadFirst(up + i, rest));
    StoreFirst(y, out + i, rest);
  }
}

void ActivateRowImpl(Activation activation, const float* gate, const float* up, int64_t size,
                     float* out) {
  switch (activation) {
    case Activation::kSilu:
      return ActivateValues<Activation::kSilu>(gate, up, size, out);
    case Activation::kGelu:
      return ActivateValues<Activation::kGelu>(gate, up, size, out);
    case Activation::kGeluTanh:
      return ActivateValues<Activation::kGeluTanh>(gate, up, size, out);
    case Activation::kRelu2:
      return ActivateValues<Activation::kRelu2>(gate, up, size, out);
    case Activation::kSigmoid:
      return ActivateValues<Activation::kSigmoid>(gate, up, size, out);
    case Activation::kTanh:
      return ActivateValues<Activation::kTanh>(gate, up, size, out);
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

void UpdateRowImpl(const UpdateRow& update, const float* x, int64_t size, float* out) {
  const DF df;
  for (int64_t i = 0; i < size; i += kStep) {
    const int64_t count = size - i;
    const auto load = [&](const float* from) { return LoadChannels(from + i, count); };
    VF sum = load(x);
    if (update.add_bias != nullptr) sum = hn::Add(sum, load(update.add_bias));
    if (update.add_scale != nullptr) sum = hn::Mul(sum, load(update.add_scale));
    sum = hn::Mul(sum, hn::Set(df, update.scale));
    if (update.keep != 0) {
      VF kept = load(out);
      if (update.keep_bias != nullptr) kept = hn::Add(kept, load(update.keep_bias));
      if (update.keep_scale != nullptr) kept = hn::Mul(kept, load(update.keep_scale));
      sum = hn::MulAdd(hn::Set(df, update.keep), kept, sum);
    }
    sum = hn::Mul(sum, hn::Set(df, update.total));
    StoreChannels(sum, out + i, count);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace adder
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace adder {

HWY_EXPORT(RmsNormRowImpl);
HWY_EXPORT(LayerNormRowImpl);
HWY_EXPORT(TokenShiftRowImpl);
HWY_EXPORT(ActivateRowImpl);
HWY_EXPORT(AddScaledRowImpl);
HWY_EXPORT(UpdateRowImpl);

void RmsNormRow(const float* x, const float* weight, int64_t size, int64_t groups, float eps,
                float* out) {
  HWY_DYNAMIC_DISPATCH(RmsNormRowImpl)(x, weight, size, groups, eps, out);
}

void LayerNormRow(const float* x, const float* weight, const float* bias, int64_t size, float eps,
                  float* out) {
  HWY_DYNAMIC_DISPATCH(LayerNormRowImpl)(x, weight, bias, size, eps, out);
}

void TokenShiftRow(const float* y, const float* previous, const float* mix, int64_t parts,
                   int64_t size, float* out) {
  HWY_DYNAMIC_DISPATCH(TokenShiftRowImpl)(y, previous, mix, parts, size, out);
}

void ActivateRow(Activation activation, const float* gate, const float* up, int64_t size,
                 float* out) {
  HWY_DYNAMIC_DISPATCH(ActivateRowImpl)(activation, gate, up, size, out);
}

void UpdateRow::Apply(const float* x, int64_t size, float* out) const {
  HWY_DYNAMIC_DISPATCH(UpdateRowImpl)(*this, x, size, out);
}

void AddScaledRow(const float* x, float factor, int64_t size, float* out) {
  HWY_DYNAMIC_DISPATCH(AddScaledRowImpl)(x, factor, size, out);
}

}  // namespace adder
#endif  // HWY_ONCE
