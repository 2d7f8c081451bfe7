// A strip of the state (all rows, one to four vectors of columns) goes through all tokens before
// the next one begins. It is copied out first: in place its rows lie `columns` floats apart, which
// for powers of two is the same few sets of the cache. Sums over rows are kept in two halves, even
// and odd rows, so that additions do not wait for each other.
#include "cpu/delta_rule_kernel.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/delta_rule_kernel.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which compiles this file once per target.
#include "hwy/highway.h"

#include "cpu/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace adder {
namespace HWY_NAMESPACE {

// Sums over rows in two halves.
template <int kVectors>
struct Sums {
  VF half[2][kVectors];
  HWY_INLINE Sums() {
    for (int v = 0; v < kVectors; ++v) half[0][v] = half[1][v] = hn::Zero(DF());
  }
  HWY_INLINE VF Total(int v) const { return hn::Add(half[0][v], half[1][v]); }
};

// What one token does to one strip; `n` counts the head's rows, of which even ones go to half 0.
template <int kVectors, bool kAnswers>
struct Token {
  const float* decay;
  const float* read;
  const float* write;
  const float* answer;
  const float* query;
  VF found[kVectors];    // p
  VF written[kVectors];  // what `write` multiplies

  template <int kHalf>
  HWY_INLINE void Read(const float* strip, int64_t n, Sums<kVectors>& sums) const {
    const VF weight = hn::Set(DF(), read[n]);
    for (int v = 0; v < kVectors; ++v) {
      const VF s = hn::LoadU(DF(), strip + (n * kVectors + v) * kStep);
      sums.half[kHalf][v] = hn::MulAdd(weight, s, sums.half[kHalf][v]);
    }
  }

  template <int kHalf>
  HWY_INLINE void Update(float* strip, int64_t n, Sums<kVectors>& sums) const {
    const DF df;
    for (int v = 0; v < kVectors; ++v) {
      float* at = strip + (n * kVectors + v) * kStep;
      VF s = hn::MulAdd(hn::Set(df, decay[n]), hn::LoadU(df, at),
                        hn::Mul(hn::Set(df, write[n]), written[v]));
      if (kAnswers) s = hn::MulAdd(hn::Set(df, answer[n]), found[v], s);
      hn::StoreU(s, df, at);
      sums.half[kHalf][v] = hn::MulAdd(hn::Set(df, query[n]), s, sums.half[kHalf][v]);
    }
  }
};

// One token of one strip. `at` is where the head's weights of the token begin; `count` columns are
// left in the head from the strip's first.
template <int kVectors, bool kAnswers>
HWY_INLINE void StepStrip(const DeltaRuleRun& run, int64_t at, float rate, const float* value,
                          int64_t count, float* strip, float* out) {
  Token<kVectors, kAnswers> token;
  token.decay = run.decay + at;
  token.read = run.read + at;
  token.write = run.write + at;
  token.answer = kAnswers ? run.answer + at : nullptr;
  token.query = run.query + at;
  const int64_t pairs = run.rows / 2 * 2;
  Sums<kVectors> found;
  for (int64_t n = 0; n < pairs; n += 2) {
    token.template Read<0>(strip, n, found);
    token.template Read<1>(strip, n + 1, found);
  }
  if (pairs < run.rows) token.template Read<0>(strip, pairs, found);
  for (int v = 0; v < kVectors; ++v) {
    token.found[v] = found.Total(v);
    token.written[v] = LoadChannels(value + v * kStep, count - v * kStep);
    if (!kAnswers) {
      token.written[v] = hn::Mul(hn::Set(DF(), rate), hn::Sub(token.written[v], token.found[v]));
    }
  }
  Sums<kVectors> y;
  for (int64_t n = 0; n < pairs; n += 2) {
    token.template Update<0>(strip, n, y);
    token.template Update<1>(strip, n + 1, y);
  }
  if (pairs < run.rows) token.template Update<0>(strip, pairs, y);
  for (int v = 0; v < kVectors; ++v) {
    StoreChannels(y.Total(v), out + v * kStep, count - v * kStep);
  }
}

// Columns [offset, offset + kVectors * kStep) of a head, or what is left of them.
template <int kVectors, bool kAnswers>
void ScanStrip(const DeltaRuleRun& run, int64_t head, int64_t offset, float* strip) {
  const DF df;
  const int64_t count = run.columns - offset;
  float* state = run.state + head * run.rows * run.columns + offset;
  for (int64_t n = 0; n < run.rows; ++n) {
    for (int v = 0; v < kVectors; ++v) {
      hn::StoreU(LoadChannels(state + n * run.columns + v * kStep, count - v * kStep), df,
                 strip + (n * kVectors + v) * kStep);
    }
  }
  const int64_t column = head * run.columns + offset;
  for (int64_t t = 0; t < run.tokens; ++t) {
    const int64_t at = (t * run.heads + head) * run.rows;
    StepStrip<kVectors, kAnswers>(run, at, kAnswers ? 1.0f : run.rate[t * run.heads + head],
                                  run.value + t * run.value_stride + column, count, strip,
                                  run.output + t * run.output_stride + column);
  }
  for (int64_t n = 0; n < run.rows; ++n) {
    for (int v = 0; v < kVectors; ++v) {
      StoreChannels(hn::LoadU(df, strip + (n * kVectors + v) * kStep),
                    state + n * run.columns + v * kStep, count - v * kStep);
    }
  }
}

template <bool kAnswers>
void ScanHeads(const DeltaRuleRun& run, int64_t head_begin, int64_t head_end, float* strip) {
  constexpr int kWide = kLanes == 16 ? 2 : 4;
  for (int64_t head = head_begin; head < head_end; ++head) {
    int64_t offset = 0;
    for (; offset + kWide * kStep <= run.columns; offset += kWide * kStep) {
      ScanStrip<kWide, kAnswers>(run, head, offset, strip);
    }
    for (; offset < run.columns; offset += kStep) ScanStrip<1, kAnswers>(run, head, offset, strip);
  }
}

void DeltaRuleScanImpl(const DeltaRuleRun& run, int64_t head_begin, int64_t head_end,
                       float* strip) {
  static_assert(kDeltaStripColumns >= 4 * 16);
  if (run.answer != nullptr) {
    ScanHeads<true>(run, head_begin, head_end, strip);
  } else {
    ScanHeads<false>(run, head_begin, head_end, strip);
  }
}

// out = x * scale / sqrt(sum of x^2 + eps).
HWY_INLINE void ScaleToLength(const float* x, int64_t size, float eps, float scale, float* out) {
  const DF df;
  VF squares = hn::Zero(df);
  for (int64_t i = 0; i < size; i += kStep) {
    const VF v = LoadChannels(x + i, size - i);
    squares = hn::MulAdd(v, v, squares);
  }
  const VF factor = hn::Set(df, scale / std::sqrt(SumLanes(squares) + eps));
  for (int64_t i = 0; i < size; i += kStep) {
    StoreChannels(hn::Mul(factor, LoadChannels(x + i, size - i)), out + i, size - i);
  }
}

// exp(a * softplus(x + bias)) for `size` elements that share `a`, or with one each.
HWY_INLINE void DecayOf(const float* x, const float* bias, const float* a, bool shared,
                        int64_t size, float* out) {
  const DF df;
  for (int64_t i = 0; i < size; i += kStep) {
    const int64_t count = size - i;
    const VF step = Softplus(hn::Add(LoadChannels(x + i, count), LoadChannels(bias + i, count)));
    const VF rate = shared ? hn::Set(df, *a) : LoadChannels(a + i, count);
    StoreChannels(hn::Exp(df, hn::Mul(rate, step)), out + i, count);
  }
}

void PrepareGatedDeltaImpl(const GatedDeltaInputs& inputs, int64_t token_begin, int64_t token_end,
                           const GatedDeltaRows& rows) {
  const DF df;
  const GatedDelta& m = *inputs.mixer;
  const int64_t per_key_head = m.value_heads / m.key_heads;
  for (int64_t t = token_begin; t < token_end; ++t) {
    const float* q = inputs.qkv + t * inputs.qkv_stride;
    const float* k = q + m.key_heads * m.key_dim;
    const float* decay_in = inputs.decay + t * inputs.decay_stride;
    float* rate = rows.rate + t * m.value_heads;
    const int64_t first = t * m.value_heads * m.key_dim;
    if (m.decay_per_channel) {
      for (int64_t head = 0; head < m.value_heads; ++head) {
        const int64_t at = head * m.key_dim;
        DecayOf(decay_in + at, inputs.dt_bias + at, inputs.a + head, true, m.key_dim,
                rows.decay + first + at);
      }
    } else {
      // One decay per head, kept in `rate` until it is spread below.
      DecayOf(decay_in, inputs.dt_bias, inputs.a, false, m.value_heads, rate);
    }
    for (int64_t head = 0; head < m.value_heads; ++head) {
      const int64_t at = first + head * m.key_dim;
      const int64_t key = head / per_key_head * m.key_dim;
      ScaleToLength(q + key, m.key_dim, m.qk_eps, m.query_scale, rows.query + at);
      ScaleToLength(k + key, m.key_dim, m.qk_eps, 1.0f, rows.write + at);
      for (int64_t n = 0; n < m.key_dim; n += kStep) {
        const int64_t count = m.key_dim - n;
        VF decay;
        if (m.decay_per_channel) {
          decay = LoadChannels(rows.decay + at + n, count);
        } else {
          decay = hn::Set(df, rate[head]);
          StoreChannels(decay, rows.decay + at + n, count);
        }
        StoreChannels(hn::Mul(decay, LoadChannels(rows.write + at + n, count)), rows.read + at + n,
                      count);
      }
    }
    const float* beta = inputs.beta + t * inputs.beta_stride;
    for (int64_t head = 0; head < m.value_heads; head += kStep) {
      const int64_t count = m.value_heads - head;
      StoreChannels(hn::Mul(hn::Set(df, m.beta_scale), Sigmoid(LoadChannels(beta + head, count))),
                    rate + head, count);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace adder
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace adder {

HWY_EXPORT(DeltaRuleScanImpl);
HWY_EXPORT(PrepareGatedDeltaImpl);

void DeltaRuleScan(const DeltaRuleRun& run, int64_t head_begin, int64_t head_end, float* strip) {
  HWY_DYNAMIC_DISPATCH(DeltaRuleScanImpl)(run, head_begin, head_end, strip);
}

void PrepareGatedDelta(const GatedDeltaInputs& inputs, int64_t token_begin, int64_t token_end,
                       const GatedDeltaRows& rows) {
  HWY_DYNAMIC_DISPATCH(PrepareGatedDeltaImpl)(inputs, token_begin, token_end, rows);
}

}  // namespace adder
#endif  // HWY_ONCE
