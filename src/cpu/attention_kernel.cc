#include "cpu/attention_kernel.h"

#include <cmath>
#include <cstring>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/attention_kernel.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which compiles this file once per target.
#include "hwy/highway.h"

#include "cpu/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace adder {
namespace HWY_NAMESPACE {

HWY_INLINE int64_t RoundUp(int64_t count) { return (count + kStep - 1) / kStep * kStep; }

// Dot products of one query with kKeys keys that lie `stride` floats apart, times `scale`.
template <int kKeys>
HWY_INLINE void ScoreKeys(const float* q, const float* keys, int64_t stride, int64_t head_dim,
                          float scale, float* scores) {
  const DF df;
  VF sums[kKeys];
  for (VF& sum : sums) sum = hn::Zero(df);
  int64_t i = 0;
  for (; i + kStep <= head_dim; i += kStep) {
    const VF query = hn::LoadU(df, q + i);
    for (int j = 0; j < kKeys; ++j) {
      sums[j] = hn::MulAdd(query, hn::LoadU(df, keys + j * stride + i), sums[j]);
    }
  }
  if (i < head_dim) {
    const auto rest = static_cast<size_t>(head_dim - i);
    const VF query = LoadFirst(q + i, rest);
    for (int j = 0; j < kKeys; ++j) {
      sums[j] = hn::MulAdd(query, LoadFirst(keys + j * stride + i, rest), sums[j]);
    }
  }
  for (int j = 0; j < kKeys; ++j) scores[j] = scale * SumLanes(sums[j]);
}

// kVectors vectors of the running output: out = out * correction + sum of weights[j] * values[j].
template <int kVectors>
HWY_INLINE void Accumulate(const float* weights, int64_t count, const float* values, int64_t stride,
                           float correction, float* out) {
  const DF df;
  VF sums[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    sums[v] = hn::Mul(hn::LoadU(df, out + v * kStep), hn::Set(df, correction));
  }
  for (int64_t j = 0; j < count; ++j, values += stride) {
    const VF weight = hn::Set(df, weights[j]);
    for (int v = 0; v < kVectors; ++v) {
      sums[v] = hn::MulAdd(weight, hn::LoadU(df, values + v * kStep), sums[v]);
    }
  }
  for (int v = 0; v < kVectors; ++v) hn::StoreU(sums[v], df, out + v * kStep);
}

HWY_INLINE void AccumulateFirst(const float* weights, int64_t count, const float* values,
                                int64_t stride, float correction, size_t lanes, float* out) {
  const DF df;
  VF sum = hn::Mul(LoadFirst(out, lanes), hn::Set(df, correction));
  for (int64_t j = 0; j < count; ++j, values += stride) {
    sum = hn::MulAdd(hn::Set(df, weights[j]), LoadFirst(values, lanes), sum);
  }
  StoreFirst(sum, out, lanes);
}

// Running softmax of one query head.
struct Running {
  float largest;
  float sum;
};

// Takes one query head over `count` positions of a page. `scores` has room for RoundUp(count).
HWY_INLINE void AttendPage(const AttentionRun& run, const float* q, const float* keys,
                           const float* values, int64_t count, Running& running, float* scores,
                           float* out) {
  const DF df;
  int64_t j = 0;
  for (; j + 4 <= count; j += 4) {
    ScoreKeys<4>(q, keys + j * run.key_stride, run.key_stride, run.key_dim, run.scale, scores + j);
  }
  for (; j < count; ++j) {
    ScoreKeys<1>(q, keys + j * run.key_stride, run.key_stride, run.key_dim, run.scale, scores + j);
  }
  float largest = running.largest;
  for (int64_t i = 0; i < count; ++i) largest = HWY_MAX(largest, scores[i]);
  // Far enough below the largest that exp gives zero.
  for (int64_t i = count; i < RoundUp(count); ++i) scores[i] = largest - 1000.0f;
  VF sums = hn::Zero(df);
  for (int64_t i = 0; i < count; i += kStep) {
    const VF weight = hn::Exp(df, hn::Sub(hn::LoadU(df, scores + i), hn::Set(df, largest)));
    hn::StoreU(weight, df, scores + i);
    sums = hn::Add(sums, weight);
  }
  const float correction = std::exp(running.largest - largest);
  running.sum = running.sum * correction + SumLanes(sums);
  running.largest = largest;
  int64_t d = 0;
  for (; d + 4 * kStep <= run.value_dim; d += 4 * kStep) {
    Accumulate<4>(scores, count, values + d, run.value_stride, correction, out + d);
  }
  for (; d + kStep <= run.value_dim; d += kStep) {
    Accumulate<1>(scores, count, values + d, run.value_stride, correction, out + d);
  }
  if (d < run.value_dim) {
    AccumulateFirst(scores, count, values + d, run.value_stride, correction,
                    static_cast<size_t>(run.value_dim - d), out + d);
  }
}

void AttendImpl(const AttentionRun& run, int64_t kv_head, int64_t token_begin, int64_t token_end,
                Scratch<float>& scratch) {
  const int64_t tokens = token_end - token_begin;
  const int64_t queries = tokens * run.group;
  const int64_t score_floats = RoundUp(run.page_positions);
  float* scores =
      scratch.Get(static_cast<size_t>(score_floats + queries * (run.key_dim + RoundUp(2))));
  float* q = scores + score_floats;  // [tokens, group, key_dim], rotated
  Running* running = reinterpret_cast<Running*>(q + queries * run.key_dim);  // [tokens, group]
  const auto output = [&](int64_t t) {
    return run.output + (token_begin + t) * run.output_stride + kv_head * run.group * run.value_dim;
  };
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t token = token_begin + t;
    RotateHeads(run.q + token * run.q_stride + kv_head * run.group * run.key_dim, run.group,
                run.key_dim, run.rope.From(token), q + t * run.group * run.key_dim);
    std::memset(output(t), 0, static_cast<size_t>(run.group * run.value_dim) * sizeof(float));
    for (int64_t h = 0; h < run.group; ++h) {
      running[t * run.group + h] = {-std::numeric_limits<float>::infinity(), 0.0f};
    }
  }
  // The first position that a token attends to. It depends on the token alone, so what is summed
  // does too.
  const auto first_of = [&](int64_t position) {
    return run.window > 0 ? HWY_MAX(int64_t{0}, position + 1 - run.window) : int64_t{0};
  };
  const int64_t last_position = run.first_position + token_end - 1;
  const int64_t first_page = first_of(run.first_position + token_begin) / run.page_positions;
  for (int64_t page = first_page; page * run.page_positions <= last_position; ++page) {
    const int64_t page_begin = page * run.page_positions;
    const float* keys = run.keys[static_cast<size_t>(page)] + kv_head * run.key_step;
    const float* values = run.values[static_cast<size_t>(page)] + kv_head * run.value_step;
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t position = run.first_position + token_begin + t;
      const int64_t begin = HWY_MAX(int64_t{0}, first_of(position) - page_begin);
      const int64_t count = HWY_MIN(run.page_positions, position + 1 - page_begin) - begin;
      if (count <= 0) continue;
      for (int64_t h = 0; h < run.group; ++h) {
        AttendPage(run, q + (t * run.group + h) * run.key_dim, keys + begin * run.key_stride,
                   values + begin * run.value_stride, count, running[t * run.group + h], scores,
                   output(t) + h * run.value_dim);
      }
    }
  }
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t h = 0; h < run.group; ++h) {
      const float factor = 1.0f / running[t * run.group + h].sum;
      float* out = output(t) + h * run.value_dim;
      for (int64_t d = 0; d < run.value_dim; ++d) out[d] *= factor;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace adder
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace adder {

HWY_EXPORT(AttendImpl);

void FillRopeRow(const Rope& rope, int64_t position, float* row) {
  const int64_t half = rope.rotary_dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    const float angle =
        static_cast<float>(position) * rope.inverse_frequencies[static_cast<size_t>(i)];
    row[i] = static_cast<float>(std::cos(static_cast<double>(angle))) * rope.factor;
    row[half + i] = static_cast<float>(std::sin(static_cast<double>(angle))) * rope.factor;
  }
}

void RotateHeads(const float* from, int64_t heads, int64_t head_dim, const RopeTable& rope,
                 float* to) {
  const int64_t rotary_dim = rope.values == nullptr ? 0 : rope.rotary_dim;
  const int64_t half = rotary_dim / 2;
  // Pair i is the elements i * step and i * step + distance.
  const int64_t step = rope.interleaved ? 2 : 1;
  const int64_t distance = rope.interleaved ? 1 : half;
  for (int64_t head = 0; head < heads; ++head, from += head_dim, to += head_dim) {
    for (int64_t i = 0; i < half; ++i) {
      const float cosine = rope.values[i];
      const float sine = rope.values[half + i];
      const float first = from[i * step];
      const float second = from[i * step + distance];
      to[i * step] = first * cosine - second * sine;
      to[i * step + distance] = second * cosine + first * sine;
    }
    for (int64_t i = rotary_dim; i < head_dim; ++i) to[i] = from[i];
  }
}

void Attend(const AttentionRun& run, int64_t kv_head, int64_t token_begin, int64_t token_end,
            Scratch<float>& scratch) {
  HWY_DYNAMIC_DISPATCH(AttendImpl)(run, kv_head, token_begin, token_end, scratch);
}

}  // namespace adder
#endif  // HWY_ONCE
