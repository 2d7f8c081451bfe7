#include "program/recurrence_formulas.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "program/formulas.h"

namespace adder {
namespace {

// x, of length `scale`.
std::vector<double> OfLength(const float* x, int64_t size, double eps, double scale) {
  double squares = eps;
  for (int64_t i = 0; i < size; ++i) squares += static_cast<double>(x[i]) * x[i];
  std::vector<double> out;
  for (int64_t i = 0; i < size; ++i) out.push_back(scale * x[i] / std::sqrt(squares));
  return out;
}

}  // namespace

void GatedDeltaStep(const GatedDelta& m, const GatedDeltaToken& token, float* state, float* out) {
  const auto rows = static_cast<size_t>(m.key_dim);
  const auto columns = static_cast<size_t>(m.value_dim);
  for (int64_t head = 0; head < m.value_heads; ++head, state += rows * columns) {
    const int64_t key = head / (m.value_heads / m.key_heads) * m.key_dim;
    const std::vector<double> q = OfLength(token.qkv + key, m.key_dim, m.qk_eps, m.query_scale);
    const std::vector<double> k = OfLength(token.qkv + m.keys() + key, m.key_dim, m.qk_eps, 1);
    const float* v = token.qkv + 2 * m.keys() + head * m.value_dim;
    const double beta = m.beta_scale * Sigmoid(token.beta[head]);
    std::vector<double> s(state, state + rows * columns);
    for (size_t n = 0; n < rows; ++n) {
      const int64_t row = m.decay_per_channel ? head * m.key_dim + static_cast<int64_t>(n) : head;
      const double step = Softplus(static_cast<double>(token.decay[row]) + token.dt_bias[row]);
      for (size_t c = 0; c < columns; ++c) s[n * columns + c] *= std::exp(token.a[head] * step);
    }
    std::vector<double> y(columns);
    double squares = 0;
    for (size_t c = 0; c < columns; ++c) {
      double answer = 0;
      for (size_t n = 0; n < rows; ++n) answer += k[n] * s[n * columns + c];
      for (size_t n = 0; n < rows; ++n) {
        s[n * columns + c] += k[n] * beta * (v[c] - answer);
        y[c] += q[n] * s[n * columns + c];
        state[n * columns + c] = static_cast<float>(s[n * columns + c]);
      }
      squares += y[c] * y[c];
    }
    const double size = std::sqrt(squares / static_cast<double>(columns) + m.norm.eps);
    for (size_t c = 0; c < columns; ++c) {
      const size_t at = static_cast<size_t>(head) * columns + c;
      out[at] = static_cast<float>(y[c] / size * token.norm[c] *
                                   Activate(m.gate_activation, token.gate[at]));
    }
  }
}

void RgLruStep(const RgLru& m, const RgLruToken& token, float* state, float* out) {
  for (int64_t c = 0; c < m.width; ++c) {
    const int64_t head = c / m.block() * m.block();
    double input = token.input_bias[c];
    double recurrent = token.recurrent_bias[c];
    for (int64_t i = 0; i < m.block(); ++i) {
      const int64_t at = (head + i) * m.block() + c - head;
      input += static_cast<double>(token.x[head + i]) * token.input_weight[at];
      recurrent += static_cast<double>(token.x[head + i]) * token.recurrent_weight[at];
    }
    const double log_a = -m.decay_scale * Sigmoid(recurrent) * Softplus(token.decay[c]);
    const double size = token.first ? 1 : std::sqrt(-std::expm1(2 * log_a));
    const double h = std::exp(log_a) * state[c] + size * Sigmoid(input) * token.x[c];
    state[c] = static_cast<float>(h);
    out[c] = static_cast<float>(h * Activate(m.gate_activation, token.y[c]));
  }
}

Rwkv7Answer Rwkv7Step(const Rwkv7& m, const Rwkv7Inputs& token, float* state) {
  const auto dim = static_cast<size_t>(m.head_dim);
  Rwkv7Answer answer;
  for (size_t begin = 0; begin < static_cast<size_t>(m.inner()); begin += dim, state += dim * dim) {
    double squares = 0;
    std::vector<double> kappa;
    for (size_t i = begin; i < begin + dim; ++i) {
      kappa.push_back(static_cast<double>(token.k[i]) * token.key_scale[i]);
      squares += kappa.back() * kappa.back();
    }
    const double length = std::max<double>(std::sqrt(squares), kRwkv7ShortestKey);
    std::vector<double> key;
    std::vector<double> alpha;
    double own = 0;
    for (size_t n = 0; n < dim; ++n) {
      kappa[n] /= length;
      alpha.push_back(Sigmoid(token.rate[begin + n]));
      key.push_back(token.k[begin + n] * (1 + (alpha[n] - 1) * token.key_rate[begin + n]));
      own += token.r[begin + n] * key[n] * token.bonus[begin + n];
    }
    for (size_t c = 0; c < dim; ++c) {
      double found = 0;
      for (size_t n = 0; n < dim; ++n) found -= kappa[n] * state[n * dim + c];
      double y = 0;
      for (size_t n = 0; n < dim; ++n) {
        const double decay = std::exp(-kRwkv7DecayScale * Sigmoid(token.decay[begin + n]));
        const double next =
            decay * state[n * dim + c] + alpha[n] * kappa[n] * found + key[n] * token.v[begin + c];
        state[n * dim + c] = static_cast<float>(next);
        y += token.r[begin + n] * next;
      }
      answer.y.push_back(y);
      answer.bonus.push_back(own * token.v[begin + c]);
    }
  }
  return answer;
}

}  // namespace adder
