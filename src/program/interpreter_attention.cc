// Attention, to keys and values or to latents, and what is done to heads around it.
#include <algorithm>
#include <cmath>

#include "program/formulas.h"
#include "program/interpreter_ops.h"

namespace adder {

void Interpreter::Run(const HeadMixOp& op) {
  const Attention& a = op.mixer;
  const HeadMixing& m = *a.mixing;
  const int64_t q_width = a.q_width();
  const int64_t channels = q_width + a.kv_width();
  const int64_t half = a.kv_width() / 2;
  const int64_t group = a.heads / a.kv_heads;
  // Tokens of one sequence lie in order.
  for (size_t i = 0; i < rows_.size(); ++i) {
    const float* in = RowOf(op.input, i);
    float* out = RowOf(op.output, i);
    float* window = state_.Recurrent(rows_[i].sequence, op.conv_state);
    // Row `age` tokens ago; age 0 is this token's.
    const auto row = [&](int64_t age) {
      return age == 0 ? in : window + (m.past() - age) * channels;
    };
    const auto convolved = [&](int64_t c, int64_t age) {
      double sum = Vector(m.conv_bias)[c];
      for (int64_t t = 0; t < m.taps; ++t) {
        sum += static_cast<double>(Vector(m.conv_weight)[t * channels + c]) *
               row(age + m.taps - 1 - t)[c];
      }
      return sum;
    };
    const auto mean = [&](int64_t head, int64_t d) {
      return (in[head * a.head_dim + d] + in[q_width + head / group * a.head_dim + d]) * 0.5;
    };
    for (int64_t c = 0; c < channels; ++c) {
      const int64_t first = c / a.head_dim * a.head_dim;  // channel of its head
      double sum = Vector(m.group_bias)[c];
      for (int64_t t = 0; t < m.group_taps; ++t) {
        for (int64_t j = 0; j < a.head_dim; ++j) {
          sum += Vector(m.group_weight)[(t * a.head_dim + j) * channels + c] *
                 convolved(first + j, m.group_taps - 1 - t);
        }
      }
      if (c < q_width) {
        sum += mean(c / a.head_dim, c % a.head_dim);
      } else {
        const int64_t kv_head = (c - q_width) / a.head_dim;
        for (int64_t h = 0; h < group; ++h) {
          sum += mean(kv_head * group + h, c % a.head_dim) / static_cast<double>(group);
        }
      }
      out[c] = static_cast<float>(sum);
    }
    float* delayed = state_.Recurrent(rows_[i].sequence, op.value_state);
    std::copy(in + channels, in + channels + half, out + channels);
    std::copy(delayed, delayed + half, out + channels + half);
    std::copy(in + channels + half, in + channels + 2 * half, delayed);
    if (m.past() > 0) {
      std::copy(window + channels, window + m.past() * channels, window);
      std::copy(in, in + channels, window + (m.past() - 1) * channels);
    }
  }
}

void Interpreter::Run(const AttentionOp& op) {
  const Attention& a = op.mixer;
  const int64_t q_width = a.q_width();
  const int64_t kv_width = a.kv_width();
  const int64_t page_positions = state_.layout().page_positions;
  for (size_t i = 0; i < rows_.size(); ++i) {
    const Row& row = rows_[i];
    std::vector<float> q(RowOf(op.input, i), RowOf(op.input, i) + q_width);
    PlaceHeads(a, a.q_norm, row.position, a.heads, q.data());
    if (a.owns_kv()) {
      const int64_t page = row.position / page_positions;
      const int64_t slot = row.position % page_positions;
      const float* k = RowOf(op.input, i) + q_width;
      const float* v = a.values_from_keys ? k : k + kv_width;
      float* keys = state_.Keys(row.sequence, op.kv, page) + slot * kv_width;
      float* values = state_.Values(row.sequence, op.kv, page) + slot * kv_width;
      std::copy(k, k + kv_width, keys);
      PlaceHeads(a, a.k_norm, row.position, a.kv_heads, keys);
      std::copy(v, v + kv_width, values);
      if (a.v_norm) NormHeads(*a.v_norm, a.kv_heads, a.head_dim, values);
    }
    for (int64_t head = 0; head < a.heads; ++head) {
      AttendHead(op, row, head, q.data() + head * a.head_dim,
                 RowOf(op.output, i) + head * a.head_dim);
    }
    if (!a.output_gate) continue;
    const float* gate = RowOf(op.input, i) + a.qkv_rows() - q_width;
    for (int64_t c = 0; c < q_width; ++c) {
      float& out = RowOf(op.output, i)[c];
      out = static_cast<float>(out * Sigmoid(gate[c]));
    }
  }
}

void Interpreter::PlaceHeads(const Attention& a, const std::optional<RmsNorm>& norm,
                             int64_t position, int64_t heads, float* x) const {
  if (norm && !a.qk_norm_after_rope) NormHeads(*norm, heads, a.head_dim, x);
  for (int64_t head = 0; a.rope && head < heads; ++head) {
    Rotate(*a.rope, position, x + head * a.head_dim);
  }
  if (norm && a.qk_norm_after_rope) NormHeads(*norm, heads, a.head_dim, x);
}

void Interpreter::NormHeads(const RmsNorm& norm, int64_t heads, int64_t head_dim, float* x) const {
  const int64_t width =
      norm.weight == kNoId ? head_dim : static_cast<int64_t>(VectorSize(norm.weight));
  for (int64_t begin = 0; begin < heads * head_dim; begin += width) {
    const std::vector<double> normed = Normalized(x + begin, width, norm);
    std::transform(normed.begin(), normed.end(), x + begin,
                   [](double value) { return static_cast<float>(value); });
  }
}

void Interpreter::Rotate(const Rope& rope, int64_t position, float* head) {
  const int64_t half = rope.rotary_dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    float& a = head[rope.interleaved ? 2 * i : i];
    float& b = head[rope.interleaved ? 2 * i + 1 : i + half];
    const float angle =
        static_cast<float>(position) * rope.inverse_frequencies[static_cast<size_t>(i)];
    const double cosine = rope.factor * std::cos(static_cast<double>(angle));
    const double sine = rope.factor * std::sin(static_cast<double>(angle));
    const double first = a;
    const double second = b;
    a = static_cast<float>(first * cosine - second * sine);
    b = static_cast<float>(second * cosine + first * sine);
  }
}

void Interpreter::AttendHead(const AttentionOp& op, const Row& row, int64_t head, const float* q,
                             float* out) {
  const Attention& a = op.mixer;
  const int64_t kv_head = head / (a.heads / a.kv_heads);
  const int64_t kv_width = a.kv_heads * a.head_dim;
  const int64_t page_positions = state_.layout().page_positions;
  const auto at = [&](float* page, int64_t position) {
    return page + (position % page_positions) * kv_width + kv_head * a.head_dim;
  };
  const int64_t first = a.window > 0 ? std::max<int64_t>(0, row.position + 1 - a.window) : 0;
  std::vector<double> scores;
  for (int64_t p = first; p <= row.position; ++p) {
    const float* k = at(state_.Keys(row.sequence, op.kv, p / page_positions), p);
    double dot = 0;
    for (int64_t d = 0; d < a.head_dim; ++d) dot += static_cast<double>(q[d]) * k[d];
    scores.push_back(a.scale * dot);
  }
  SoftmaxInPlace(scores);
  std::vector<double> sum(static_cast<size_t>(a.head_dim), 0.0);
  for (int64_t p = first; p <= row.position; ++p) {
    const float* v = at(state_.Values(row.sequence, op.kv, p / page_positions), p);
    for (size_t d = 0; d < sum.size(); ++d) sum[d] += scores[static_cast<size_t>(p - first)] * v[d];
  }
  std::transform(sum.begin(), sum.end(), out, [](double x) { return static_cast<float>(x); });
}

void Interpreter::Run(const HeadsLinearOp& op) {
  for (size_t h = 0; h < op.matrices.size(); ++h) {
    const WeightMatrix& matrix = Matrix(op.matrices[h]);
    std::vector<std::vector<double>> inputs;
    for (size_t i = 0; i < rows_.size(); ++i) {
      const float* x = RowOf(op.input, i) + static_cast<int64_t>(h) * op.step;
      inputs.emplace_back(x, x + matrix.cols);
    }
    const std::vector<std::vector<double>> results = Multiply(op.matrices[h], inputs);
    for (size_t i = 0; i < rows_.size(); ++i) {
      std::transform(results[i].begin(), results[i].end(),
                     RowOf(op.output, i) + static_cast<int64_t>(h) * matrix.rows,
                     [](double y) { return static_cast<float>(y); });
    }
  }
}

void Interpreter::Run(const LatentAttentionOp& op) {
  const LatentAttention& a = op.mixer;
  const int64_t page_positions = state_.layout().page_positions;
  for (size_t i = 0; i < rows_.size(); ++i) {
    const Row& row = rows_[i];
    const auto stored = [&](int64_t position) {
      return state_.Keys(row.sequence, op.state, position / page_positions) +
             position % page_positions * a.key_dim();
    };
    const float* kv = RowOf(op.kv, i);
    float* own = stored(row.position);
    const std::vector<double> c = Normalized(kv, a.latent, a.kv_norm);
    std::transform(c.begin(), c.end(), own, [](double x) { return static_cast<float>(x); });
    std::copy(kv + a.latent, kv + a.key_dim(), own + a.latent);
    if (a.rope) Rotate(*a.rope, row.position, own + a.latent);
    for (int64_t head = 0; head < a.heads; ++head) {
      const float* qr = RowOf(op.query, i) + head * a.query_dim() + a.nope_dim;
      std::vector<float> query(RowOf(op.absorbed, i) + head * a.latent,
                               RowOf(op.absorbed, i) + (head + 1) * a.latent);
      query.insert(query.end(), qr, qr + a.rope_dim);
      if (a.rope) Rotate(*a.rope, row.position, query.data() + a.latent);
      std::vector<double> weights;
      for (int64_t p = 0; p <= row.position; ++p) {
        double dot = 0;
        for (size_t d = 0; d < query.size(); ++d) {
          dot += static_cast<double>(query[d]) * stored(p)[d];
        }
        weights.push_back(a.scale * dot);
      }
      SoftmaxInPlace(weights);
      for (int64_t d = 0; d < a.latent; ++d) {
        double sum = 0;
        for (int64_t p = 0; p <= row.position; ++p) {
          sum += weights[static_cast<size_t>(p)] * stored(p)[d];
        }
        RowOf(op.output, i)[head * a.latent + d] = static_cast<float>(sum);
      }
    }
  }
}

}  // namespace adder
