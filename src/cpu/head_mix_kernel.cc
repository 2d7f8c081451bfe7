#include "cpu/head_mix_kernel.h"

#include <algorithm>
#include <cstring>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/head_mix_kernel.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which compiles this file once per target.
#include "hwy/highway.h"

#include "cpu/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace adder {
namespace HWY_NAMESPACE {

// The depthwise convolution of one head at one position: rows[t] is the row of tap t.
HWY_INLINE void Depthwise(const HeadMixWeights& weights, const float* const* rows, int64_t first,
                          int64_t channels, float* out) {
  const Attention& m = *weights.mixer;
  for (int64_t d = 0; d < m.head_dim; d += kStep) {
    const int64_t count = m.head_dim - d;
    VF sum = LoadChannels(weights.conv_bias + first + d, count);
    for (int64_t t = 0; t < m.mixing->taps; ++t) {
      sum = hn::MulAdd(LoadChannels(weights.conv_weight + t * channels + first + d, count),
                       LoadChannels(rows[t] + first + d, count), sum);
    }
    StoreChannels(sum, out + d, count);
  }
}

// The convolution over the head's channels, of `group_taps` rows of `convolved` [head_dim].
HWY_INLINE void Grouped(const HeadMixWeights& weights, const float* convolved, int64_t first,
                        int64_t channels, float* out) {
  const Attention& m = *weights.mixer;
  const DF df;
  for (int64_t d = 0; d < m.head_dim; d += kStep) {
    const int64_t count = m.head_dim - d;
    VF sum = LoadChannels(weights.group_bias + first + d, count);
    const float* weight = weights.group_weight + first + d;
    for (int64_t i = 0; i < m.mixing->group_taps * m.head_dim; ++i, weight += channels) {
      sum = hn::MulAdd(hn::Set(df, convolved[i]), LoadChannels(weight, count), sum);
    }
    StoreChannels(sum, out + d, count);
  }
}

// Adds the mean of q and k to one head of a token: `in` is its row.
HWY_INLINE void AddMeans(const Attention& m, const float* in, int64_t head, float* out) {
  const DF df;
  const int64_t group = m.heads / m.kv_heads;
  const bool is_query = head < m.heads;
  const int64_t kv_head = is_query ? head / group : head - m.heads;
  const float* k = in + m.q_width() + kv_head * m.head_dim;
  const float* q = in + (is_query ? head : kv_head * group) * m.head_dim;
  const int64_t queries = is_query ? 1 : group;
  const VF half = hn::Set(df, 0.5f);
  const VF share = hn::Set(df, 1.0f / static_cast<float>(queries));
  for (int64_t d = 0; d < m.head_dim; d += kStep) {
    const int64_t count = m.head_dim - d;
    const VF key = LoadChannels(k + d, count);
    VF sum = hn::Zero(df);
    for (int64_t h = 0; h < queries; ++h) {
      sum = hn::MulAdd(hn::Add(LoadChannels(q + h * m.head_dim + d, count), key), half, sum);
    }
    StoreChannels(hn::MulAdd(sum, share, LoadChannels(out + d, count)), out + d, count);
  }
}

void MixHeadImpl(const HeadMixWeights& weights, const HeadMixRun& run, int64_t head,
                 Scratch<float>& scratch) {
  const Attention& m = *weights.mixer;
  const HeadMixing& mixing = *m.mixing;
  const int64_t channels = m.q_width() + m.kv_width();
  const int64_t first = head * m.head_dim;
  const int64_t past = mixing.past();
  const int64_t earlier = mixing.group_taps - 1;  // positions before the run that still count
  float* convolved = scratch.Get(static_cast<size_t>((run.tokens + earlier) * m.head_dim));
  const auto row = [&](int64_t token) {
    return token < 0 ? run.window + (past + token) * channels : run.input + token * m.qkv_rows();
  };
  std::vector<const float*> rows(static_cast<size_t>(mixing.taps));
  for (int64_t token = -earlier; token < run.tokens; ++token) {
    for (int64_t t = 0; t < mixing.taps; ++t) {
      rows[static_cast<size_t>(t)] = row(token - (mixing.taps - 1) + t);
    }
    Depthwise(weights, rows.data(), first, channels, convolved + (token + earlier) * m.head_dim);
  }
  for (int64_t token = 0; token < run.tokens; ++token) {
    float* out = run.output + token * m.qkv_rows() + first;
    Grouped(weights, convolved + token * m.head_dim, first, channels, out);
    AddMeans(m, run.input + token * m.qkv_rows(), head, out);
  }
  // Oldest first, so that no row is read after it was overwritten.
  for (int64_t p = 0; p < past; ++p) {
    std::memmove(run.window + p * channels + first, row(run.tokens - past + p) + first,
                 static_cast<size_t>(m.head_dim) * sizeof(float));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace adder
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace adder {

HWY_EXPORT(MixHeadImpl);

void MixHead(const HeadMixWeights& weights, const HeadMixRun& run, int64_t head,
             Scratch<float>& scratch) {
  HWY_DYNAMIC_DISPATCH(MixHeadImpl)(weights, run, head, scratch);
}

void DelayValues(const Attention& mixer, const HeadMixRun& run) {
  const int64_t half = mixer.kv_width() / 2;
  const int64_t column = mixer.q_width() + mixer.kv_width();
  for (int64_t token = 0; token < run.tokens; ++token) {
    const float* in = run.input + token * mixer.qkv_rows() + column;
    float* out = run.output + token * mixer.qkv_rows() + column;
    std::copy_n(in, half, out);
    std::copy_n(run.delayed, half, out + half);
    std::copy_n(in + half, half, run.delayed);
  }
}

}  // namespace adder
#endif  // HWY_ONCE
