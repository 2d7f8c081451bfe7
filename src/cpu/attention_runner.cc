#include "cpu/attention_runner.h"

#include <algorithm>
#include <cstring>

#include "cpu/elementwise.h"

namespace adder {
namespace {

// Tokens that one task takes in a slice.
constexpr int64_t kTaskTokens = 8;

}  // namespace

AttentionRunner::AttentionRunner(const Program& program, HostState& state, ThreadPool& pool)
    : program_(program),
      state_(state),
      pool_(pool),
      scratch_(static_cast<size_t>(pool.threads())) {}

void AttentionRunner::Begin(std::span<const Span> spans, int64_t rows) {
  spans_ = spans;
  rows_ = rows;
  for (RopeCache& cache : ropes_) cache.filled = false;
}

AttentionRunner::RopeCache& AttentionRunner::FindRope(const Rope& rope) {
  for (RopeCache& cache : ropes_) {
    if (cache.rope.interleaved == rope.interleaved && cache.rope.factor == rope.factor &&
        cache.rope.inverse_frequencies == rope.inverse_frequencies) {
      return cache;
    }
  }
  ropes_.emplace_back();
  ropes_.back().rope = rope;
  return ropes_.back();
}

RopeTable AttentionRunner::FilledRope(const Rope& rope) {
  RopeCache& cache = FindRope(rope);
  if (!cache.filled) {
    float* values = cache.values.Get(static_cast<size_t>(rows_ * rope.rotary_dim));
    for (const Span& span : spans_) {
      for (int64_t t = 0; t < span.tokens; ++t) {
        FillRopeRow(rope, span.position + t, values + (span.row + t) * rope.rotary_dim);
      }
    }
    cache.filled = true;
  }
  return {cache.values.data(), rope.rotary_dim, rope.interleaved};
}

// q | k of all rows (q alone when k is shared) after their norms (and, when that comes first, the
// rotation).
const float* AttentionRunner::NormedHeads(const Attention& m, const RopeTable& rope,
                                          const float* qkv) {
  const int64_t heads = m.heads + (m.owns_kv() ? m.kv_heads : 0);
  const int64_t width = heads * m.head_dim;
  const bool rotates = m.qk_norm_after_rope;
  float* normed = normed_heads_.Get(static_cast<size_t>(rows_ * width));
  pool_.ParallelFor(rows_, 8, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      float* q = normed + t * width;
      RotateHeads(qkv + t * m.qkv_rows(), heads, m.head_dim, rotates ? rope.From(t) : RopeTable{},
                  q);
      if (m.q_norm) NormHeads(*m.q_norm, m.heads, m.head_dim, q);
      if (m.k_norm) NormHeads(*m.k_norm, m.kv_heads, m.head_dim, q + m.q_width());
    }
  });
  return normed;
}

// One weight (or none) for every head alone, or one for all together (plan.h).
void AttentionRunner::NormHeads(const RmsNorm& norm, int64_t heads, int64_t head_dim,
                                float* x) const {
  const bool plain = norm.weight == kNoId;
  const int64_t size =
      plain ? head_dim
            : static_cast<int64_t>(
                  program_.weights->vectors[static_cast<size_t>(norm.weight)].size());
  for (int64_t begin = 0; begin < heads * head_dim; begin += size) {
    RmsNormRow(x + begin, plain ? nullptr : Vector(norm.weight), size, norm.groups, norm.eps,
               x + begin);
  }
}

AttentionRunner::Pages AttentionRunner::PagesOf(const Span& span, int kv) {
  const int64_t page_positions = state_.layout().page_positions;
  const bool has_values = state_.layout().kv[static_cast<size_t>(kv)].has_values;
  Pages pages;
  for (int64_t page = 0; page * page_positions < span.position + span.tokens; ++page) {
    pages.keys.push_back(state_.Keys(span.sequence, kv, page));
    if (has_values) pages.values.push_back(state_.Values(span.sequence, kv, page));
  }
  return pages;
}

void AttentionRunner::AttendAll(const std::vector<AttentionRun>& runs, int64_t kv_heads) {
  struct Task {
    size_t run;
    int64_t kv_head;
    int64_t token_begin;
    int64_t token_end;
  };
  std::vector<Task> tasks;
  for (size_t s = 0; s < runs.size(); ++s) {
    const int64_t tokens = spans_[s].tokens;
    for (int64_t kv_head = 0; kv_head < kv_heads; ++kv_head) {
      for (int64_t t = 0; t < tokens; t += kTaskTokens) {
        tasks.push_back({s, kv_head, t, std::min(t + kTaskTokens, tokens)});
      }
    }
  }
  pool_.ParallelFor(static_cast<int64_t>(tasks.size()), 1,
                    [&](int64_t begin, int64_t end, int thread) {
                      for (int64_t i = begin; i < end; ++i) {
                        const Task& task = tasks[static_cast<size_t>(i)];
                        Attend(runs[task.run], task.kv_head, task.token_begin, task.token_end,
                               scratch_[static_cast<size_t>(thread)]);
                      }
                    });
}

void AttentionRunner::Run(const AttentionOp& op, const float* qkv, float* output) {
  const Attention& m = op.mixer;
  RopeTable rope = m.rope ? FilledRope(*m.rope) : RopeTable{};
  const float* qk = qkv;
  int64_t qk_stride = m.qkv_rows();
  if (m.q_norm || m.k_norm) {
    qk = NormedHeads(m, rope, qkv);
    qk_stride = m.q_width() + (m.owns_kv() ? m.kv_width() : 0);
    if (m.qk_norm_after_rope) rope = {};
  }
  pages_.clear();
  for (const Span& span : spans_) pages_.push_back(PagesOf(span, op.kv));
  if (m.owns_kv()) Append(m, rope, qkv, qk, qk_stride);
  std::vector<AttentionRun> runs;
  for (size_t s = 0; s < spans_.size(); ++s) {
    const Span& span = spans_[s];
    AttentionRun run;
    run.SetSizes(m);
    run.q = qk + span.row * qk_stride;
    run.q_stride = qk_stride;
    run.output_stride = m.q_width();
    run.output = output + span.row * m.q_width();
    run.first_position = span.position;
    run.rope = rope.From(span.row);
    run.keys = pages_[s].keys;
    run.values = pages_[s].values;
    run.page_positions = state_.layout().page_positions;
    runs.push_back(run);
  }
  AttendAll(runs, m.kv_heads);
}

// A copy of a few kilobytes per token. qk: q | k of all rows, to be rotated by `rope`.
void AttentionRunner::Append(const Attention& m, const RopeTable& rope, const float* qkv,
                             const float* qk, int64_t qk_stride) {
  const int64_t page_positions = state_.layout().page_positions;
  const int64_t v_column = m.q_width() + (m.values_from_keys ? 0 : m.kv_width());
  for (size_t s = 0; s < spans_.size(); ++s) {
    const Span& span = spans_[s];
    for (int64_t t = 0; t < span.tokens; ++t) {
      const int64_t row = span.row + t;
      const auto page = static_cast<size_t>((span.position + t) / page_positions);
      const int64_t at = (span.position + t) % page_positions * m.kv_width();
      RotateHeads(qk + row * qk_stride + m.q_width(), m.kv_heads, m.head_dim, rope.From(row),
                  pages_[s].keys[page] + at);
      float* values = pages_[s].values[page] + at;
      std::memcpy(values, qkv + row * m.qkv_rows() + v_column,
                  static_cast<size_t>(m.kv_width()) * sizeof(float));
      if (m.v_norm) NormHeads(*m.v_norm, m.kv_heads, m.head_dim, values);
    }
  }
}

void AttentionRunner::Run(const LatentAttentionOp& op, const float* query, const float* absorbed,
                          const float* kv, float* output) {
  const LatentAttention& m = op.mixer;
  const int64_t key_dim = m.key_dim();
  const int64_t page_positions = state_.layout().page_positions;
  const RopeTable rope = m.rope ? FilledRope(*m.rope) : RopeTable{};
  pages_.clear();
  for (const Span& span : spans_) pages_.push_back(PagesOf(span, op.state));
  // Per head what it compares with the stored c | kr: K^T qn | qr.
  float* queries = queries_.Get(static_cast<size_t>(rows_ * m.heads * key_dim));
  pool_.ParallelFor(rows_, 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t head = 0; head < m.heads; ++head) {
        float* to = queries + (t * m.heads + head) * key_dim;
        std::memcpy(to, absorbed + (t * m.heads + head) * m.latent,
                    static_cast<size_t>(m.latent) * sizeof(float));
        RotateHeads(query + (t * m.heads + head) * m.query_dim() + m.nope_dim, 1, m.rope_dim,
                    rope.From(t), to + m.latent);
      }
    }
  });
  std::vector<AttentionRun> runs;
  for (size_t s = 0; s < spans_.size(); ++s) {
    const Span& span = spans_[s];
    for (int64_t t = 0; t < span.tokens; ++t) {
      const float* from = kv + (span.row + t) * key_dim;
      const auto page = static_cast<size_t>((span.position + t) / page_positions);
      float* to = pages_[s].keys[page] + (span.position + t) % page_positions * key_dim;
      RmsNormRow(from, Vector(m.kv_norm.weight), m.latent, m.kv_norm.groups, m.kv_norm.eps, to);
      RotateHeads(from + m.latent, 1, m.rope_dim, rope.From(span.row + t), to + m.latent);
    }
    AttentionRun run;
    run.scale = m.scale;
    run.key_dim = key_dim;
    run.value_dim = m.latent;
    // Every head is a KV head of its own over the same keys, whose first part are the values.
    run.key_stride = key_dim;
    run.value_stride = key_dim;
    run.q = queries + span.row * m.heads * key_dim;
    run.q_stride = m.heads * key_dim;
    run.output_stride = m.heads * m.latent;
    run.output = output + span.row * run.output_stride;
    run.first_position = span.position;
    run.keys = pages_[s].keys;
    run.values = pages_[s].keys;
    run.page_positions = page_positions;
    runs.push_back(run);
  }
  AttendAll(runs, m.heads);
}

}  // namespace adder
