// Prefill keeps a strip of the state (all d_state rows, one or two vectors of head_dim) moving
// through registers: each element is loaded once, taken through four tokens and stored once, while
// the head's state stays in the L1 cache. That is the recurrence itself, cut into chunks of four
// tokens, so that prefill equals stepping bit for bit.
//
// The other form, chunks as matrix products (SSD), was not taken: it needs two of the recurrence's
// three vector operations per element and token, plus the products inside a chunk. At the shape of
// granite-4.0-h-350m the scan is about a sixth of prefill, so there is at most a twentieth to gain,
// and it would round differently for every cut.
#include "cpu/mamba2_kernel.h"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/mamba2_kernel.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which compiles this file once per target.
#include "hwy/highway.h"

#include "cpu/simd_inl.h"
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace adder {
namespace HWY_NAMESPACE {

// Tokens per pass over the state: their y and dt*x strips stay in registers (four of each, twice
// that with two vectors per strip on AVX-512).
inline constexpr int64_t kScanTokens = 4;
// How far ahead of its use the state is asked for, in floats.
inline constexpr int64_t kPrefetchFloats = 512;

void Mamba2ConvImpl(const Mamba2Weights& weights, const Mamba2Run& run, int64_t channel_begin,
                    int64_t channel_end) {
  const DF df;
  const Mamba2& m = *weights.mixer;
  const int64_t channels = m.conv_channels();
  const int64_t past = m.d_conv - 1;
  const float* inputs = run.projected + m.inner();
  // The input `steps_back` tokens before token t: in this run, or in the window.
  const auto input_at = [&](int64_t t, int64_t steps_back) HWY_ATTR {
    const int64_t at = t - steps_back;
    return at >= 0 ? inputs + at * run.projected_stride : run.window + (past + at) * channels;
  };
  for (int64_t t = 0; t < run.tokens; ++t) {
    for (int64_t c = channel_begin; c < channel_end; c += kStep) {
      const int64_t count = channel_end - c;
      VF sum =
          weights.conv_bias != nullptr ? LoadChannels(weights.conv_bias + c, count) : hn::Zero(df);
      for (int64_t tap = 0; tap <= past; ++tap) {
        sum = hn::MulAdd(LoadChannels(input_at(t, past - tap) + c, count),
                         LoadChannels(weights.conv_weight + tap * channels + c, count), sum);
      }
      StoreChannels(Silu(sum), run.convolved + t * channels + c, count);
    }
  }
  // The window becomes the last `past` inputs. Oldest first, so nothing is overwritten too early.
  const auto bytes = static_cast<size_t>(channel_end - channel_begin) * sizeof(float);
  for (int64_t i = 0; i < past; ++i) {
    const float* from = input_at(run.tokens, past - i) + channel_begin;
    std::memcpy(run.window + i * channels + channel_begin, from, bytes);
  }
}

void Mamba2StepsImpl(const Mamba2Weights& weights, const Mamba2Run& run, int64_t token_begin,
                     int64_t token_end) {
  const DF df;
  const Mamba2& m = *weights.mixer;
  const VF low = hn::Set(df, m.dt_min);
  const VF high = hn::Set(df, m.dt_max);
  for (int64_t t = token_begin; t < token_end; ++t) {
    const float* input = run.dt + t * run.dt_stride;
    float* dt_out = run.steps + t * 2 * m.heads;
    for (int64_t head = 0; head < m.heads; head += kStep) {
      const int64_t count = m.heads - head;
      const VF biased =
          hn::Add(LoadChannels(input + head, count), LoadChannels(weights.dt_bias + head, count));
      const VF dt = hn::Min(hn::Max(Softplus(biased), low), high);
      StoreChannels(dt, dt_out + head, count);
      StoreChannels(hn::Exp(df, hn::Mul(dt, LoadChannels(weights.a + head, count))),
                    dt_out + m.heads + head, count);
    }
  }
}

// What the tokens of one pass bring to a strip.
template <int kTokens, int kVectors>
struct Strip {
  const float* b[kTokens];  // [d_state]
  const float* c[kTokens];  // [d_state]
  float decay[kTokens];
  VF dt_x[kTokens][kVectors];
  VF y[kTokens][kVectors];
};

// Takes a strip of the state [d_state rows, `head_dim` floats apart] through kTokens tokens. With
// `count` < kLanes only so many lanes exist.
template <int kTokens, int kVectors, bool kWhole>
HWY_INLINE void ScanStrip(float* state, int64_t d_state, int64_t head_dim, int64_t count,
                          Strip<kTokens, kVectors>& strip) {
  const DF df;
  VF decay[kTokens];
  VF y[kTokens][kVectors];
  for (int t = 0; t < kTokens; ++t) {
    decay[t] = hn::Set(df, strip.decay[t]);
    for (int v = 0; v < kVectors; ++v) y[t][v] = hn::Zero(df);
  }
  for (int64_t n = 0; n < d_state; ++n, state += head_dim) {
    // A single step streams the state from memory; longer runs find it in the cache.
    if (kTokens == 1) {
      for (int v = 0; v < kVectors; ++v) hwy::Prefetch(state + kPrefetchFloats + v * kStep);
    }
    VF h[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      h[v] =
          kWhole ? hn::LoadU(df, state + v * kStep) : LoadFirst(state, static_cast<size_t>(count));
    }
    for (int t = 0; t < kTokens; ++t) {
      const VF b = hn::Set(df, strip.b[t][n]);
      const VF c = hn::Set(df, strip.c[t][n]);
      for (int v = 0; v < kVectors; ++v) {
        h[v] = hn::MulAdd(decay[t], h[v], hn::Mul(b, strip.dt_x[t][v]));
        y[t][v] = hn::MulAdd(c, h[v], y[t][v]);
      }
    }
    for (int v = 0; v < kVectors; ++v) {
      if (kWhole) {
        hn::StoreU(h[v], df, state + v * kStep);
      } else {
        StoreFirst(h[v], state, static_cast<size_t>(count));
      }
    }
  }
  for (int t = 0; t < kTokens; ++t) {
    for (int v = 0; v < kVectors; ++v) strip.y[t][v] = y[t][v];
  }
}

// Channels [offset, offset + kVectors * kLanes) of a head, tokens [token, token + kTokens).
template <int kTokens, int kVectors, bool kWhole>
void ScanTokens(const Mamba2Weights& weights, const Mamba2Run& run, int64_t head, int64_t offset,
                int64_t token) {
  const DF df;
  const Mamba2& m = *weights.mixer;
  const int64_t channels = m.scan_channels();
  const int64_t channel = head * m.head_dim + offset;
  const int64_t group = head / (m.heads / m.groups);
  const int64_t count = m.head_dim - offset;
  Strip<kTokens, kVectors> strip;
  for (int t = 0; t < kTokens; ++t) {
    const float* row = run.convolved + (token + t) * channels;
    const float* steps = run.steps + (token + t) * 2 * m.heads;
    strip.b[t] = row + m.inner() + group * m.d_state;
    strip.c[t] = strip.b[t] + m.groups * m.d_state;
    strip.decay[t] = steps[m.heads + head];
    for (int v = 0; v < kVectors; ++v) {
      const VF x = LoadChannels(row + channel + v * kStep, count);
      strip.dt_x[t][v] = hn::Mul(hn::Set(df, steps[head]), x);
    }
  }
  float* state = run.state + head * m.d_state * m.head_dim + offset;
  ScanStrip<kTokens, kVectors, kWhole>(state, m.d_state, m.head_dim, count, strip);
  const VF skip = hn::Set(df, weights.d[head]);
  for (int t = 0; t < kTokens; ++t) {
    const float* x = run.convolved + (token + t) * channels + channel;
    const float* z = run.projected + (token + t) * run.projected_stride + channel;
    float* out = run.output + (token + t) * run.output_stride + channel;
    for (int v = 0; v < kVectors; ++v) {
      const VF y = hn::MulAdd(skip, LoadChannels(x + v * kStep, count), strip.y[t][v]);
      const VF gated =
          m.norm_before_gate ? y : hn::Mul(y, Silu(LoadChannels(z + v * kStep, count)));
      StoreChannels(gated, out + v * kStep, count);
    }
  }
}

template <int kVectors, bool kWhole>
void ScanColumns(const Mamba2Weights& weights, const Mamba2Run& run, int64_t head, int64_t offset) {
  int64_t token = 0;
  for (; token + kScanTokens <= run.tokens; token += kScanTokens) {
    ScanTokens<kScanTokens, kVectors, kWhole>(weights, run, head, offset, token);
  }
  for (; token < run.tokens; ++token) {
    ScanTokens<1, kVectors, kWhole>(weights, run, head, offset, token);
  }
}

void Mamba2ScanImpl(const Mamba2Weights& weights, const Mamba2Run& run, int64_t head_begin,
                    int64_t head_end) {
  const int64_t head_dim = weights.mixer->head_dim;
  constexpr int kWide = kLanes == 16 ? 2 : 1;
  for (int64_t head = head_begin; head < head_end; ++head) {
    int64_t offset = 0;
    for (; offset + kWide * kStep <= head_dim; offset += kWide * kStep) {
      ScanColumns<kWide, true>(weights, run, head, offset);
    }
    for (; offset + kStep <= head_dim; offset += kStep) {
      ScanColumns<1, true>(weights, run, head, offset);
    }
    if (offset < head_dim) ScanColumns<1, false>(weights, run, head, offset);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace adder
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace adder {

HWY_EXPORT(Mamba2ConvImpl);
HWY_EXPORT(Mamba2StepsImpl);
HWY_EXPORT(Mamba2ScanImpl);

void Mamba2Conv(const Mamba2Weights& weights, const Mamba2Run& run, int64_t channel_begin,
                int64_t channel_end) {
  HWY_DYNAMIC_DISPATCH(Mamba2ConvImpl)(weights, run, channel_begin, channel_end);
}

void Mamba2Steps(const Mamba2Weights& weights, const Mamba2Run& run, int64_t token_begin,
                 int64_t token_end) {
  HWY_DYNAMIC_DISPATCH(Mamba2StepsImpl)(weights, run, token_begin, token_end);
}

void Mamba2Scan(const Mamba2Weights& weights, const Mamba2Run& run, int64_t head_begin,
                int64_t head_end) {
  HWY_DYNAMIC_DISPATCH(Mamba2ScanImpl)(weights, run, head_begin, head_end);
}

}  // namespace adder
#endif  // HWY_ONCE
