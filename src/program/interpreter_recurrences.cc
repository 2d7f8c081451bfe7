// Ops that read what tokens before left behind: convolutions, shifts and the recurrences.
#include <algorithm>
#include <cmath>

#include "program/formulas.h"
#include "program/interpreter_ops.h"
#include "program/recurrence_formulas.h"

namespace adder {

void Interpreter::Run(const Mamba2Op& op) {
  // Tokens of one sequence lie in order, so running the rows in order is the recurrence.
  for (size_t i = 0; i < rows_.size(); ++i) {
    const float* projected = RowOf(op.input, i);
    const float* gate = projected;
    const float* dt = projected + op.mixer.inner() + op.mixer.conv_channels();
    const std::vector<double> convolved = Convolve(
        op.mixer, projected + op.mixer.inner(), state_.Recurrent(rows_[i].sequence, op.conv_state));
    StateStep(op.mixer, convolved, std::vector<double>(dt, dt + op.mixer.heads), gate,
              state_.Recurrent(rows_[i].sequence, op.ssm_state), RowOf(op.output, i));
    if (!op.mixer.norm_before_gate) continue;
    const std::vector<double> normed = NormalizedRow(op.output, i, op.mixer.gated_norm);
    for (size_t c = 0; c < normed.size(); ++c) {
      RowOf(op.output, i)[c] = static_cast<float>(normed[c] * Silu(gate[c]));
    }
  }
}

std::vector<double> Interpreter::Convolve(const Mamba2& m, const float* input,
                                          float* window) const {
  const int64_t channels = m.conv_channels();
  const int64_t past = m.d_conv - 1;
  const float* weight = Vector(m.conv_weight);
  std::vector<double> out(static_cast<size_t>(channels));
  for (int64_t c = 0; c < channels; ++c) {
    double sum = m.conv_bias == kNoId ? 0.0 : Vector(m.conv_bias)[c];
    for (int64_t t = 0; t < past; ++t) {
      sum += static_cast<double>(window[t * channels + c]) * weight[t * channels + c];
    }
    sum += static_cast<double>(input[c]) * weight[past * channels + c];
    out[static_cast<size_t>(c)] = Silu(sum);
  }
  if (past > 0) {
    std::copy(window + channels, window + past * channels, window);
    std::copy(input, input + channels, window + (past - 1) * channels);
  }
  return out;
}

void Interpreter::StateStep(const Mamba2& m, const std::vector<double>& convolved,
                            const std::vector<double>& dt_input, const float* gate, float* state,
                            float* out) const {
  const double* x = convolved.data();
  const double* b = x + m.inner();
  const double* c = b + m.groups * m.d_state;
  for (int64_t head = 0; head < m.heads; ++head) {
    const int64_t group = head / (m.heads / m.groups);
    const double dt =
        std::clamp<double>(Softplus(dt_input[static_cast<size_t>(head)] + Vector(m.dt_bias)[head]),
                           m.dt_min, m.dt_max);
    const double decay = std::exp(dt * Vector(m.a)[head]);
    for (int64_t p = 0; p < m.head_dim; ++p) {
      const int64_t channel = head * m.head_dim + p;
      double y = static_cast<double>(Vector(m.d)[head]) * x[channel];
      for (int64_t n = 0; n < m.d_state; ++n) {
        float& h = state[(head * m.d_state + n) * m.head_dim + p];
        const double next = decay * h + dt * b[group * m.d_state + n] * x[channel];
        h = static_cast<float>(next);
        y += c[group * m.d_state + n] * next;
      }
      out[channel] = static_cast<float>(m.norm_before_gate ? y : y * Silu(gate[channel]));
    }
  }
}

void Interpreter::Run(const Mamba2SelectedOp& op) {
  const Mamba2& m = op.mixer;
  const Mamba2Selection& selection = *m.selection;
  const int64_t states = m.groups * m.d_state;
  for (size_t i = 0; i < rows_.size(); ++i) {
    const float* selected = RowOf(op.selected, i);
    const float* x = RowOf(op.convolved, i);
    std::vector<double> x_b_c(x, x + m.inner());
    for (const auto& part : {Normalized(selected, states, selection.b_norm),
                             Normalized(selected + states, states, selection.c_norm)}) {
      x_b_c.insert(x_b_c.end(), part.begin(), part.end());
    }
    const std::vector<double> dt =
        Normalized(selected + 2 * states, selection.dt_rank, selection.dt_norm);
    StateStep(m, x_b_c, Apply(selection.dt_proj, {dt}).front(), RowOf(op.projected, i),
              state_.Recurrent(rows_[i].sequence, op.ssm_state), RowOf(op.output, i));
  }
}

void Interpreter::Run(const CausalConvOp& op) {
  const int64_t past = op.d_conv - 1;
  const float* weight = Vector(op.weight);
  // Tokens of one sequence lie in order.
  for (size_t i = 0; i < rows_.size(); ++i) {
    const float* row = RowOf(op.input, i);
    float* window = state_.Recurrent(rows_[i].sequence, op.conv_state);
    float* out = RowOf(op.output, i);
    for (int64_t c = 0; c < op.channels; ++c) {
      double now = row[op.x + c];
      if (op.gate_before >= 0) now *= row[op.gate_before + c];
      double y = op.bias == kNoId ? 0.0 : Vector(op.bias)[c];
      for (int64_t t = 0; t < past; ++t) {
        y += static_cast<double>(window[t * op.channels + c]) * weight[t * op.channels + c];
      }
      y += now * weight[past * op.channels + c];
      if (op.silu) y = Silu(y);
      if (op.gate_after >= 0) y *= row[op.gate_after + c];
      out[c] = static_cast<float>(y);
      for (int64_t t = 0; t + 1 < past; ++t) {
        window[t * op.channels + c] = window[(t + 1) * op.channels + c];
      }
      if (past > 0) window[(past - 1) * op.channels + c] = static_cast<float>(now);
    }
  }
}

void Interpreter::Run(const Mamba1ScanOp& op) {
  const Mamba1& m = op.mixer;
  std::vector<std::vector<double>> low_rank;
  for (size_t i = 0; i < rows_.size(); ++i) {
    low_rank.push_back(Normalized(RowOf(op.selected, i), m.dt_rank, m.dt_norm));
  }
  const std::vector<std::vector<double>> dt = Apply(m.dt_proj, low_rank);
  for (size_t i = 0; i < rows_.size(); ++i) {
    const float* b_row = RowOf(op.selected, i) + m.dt_rank;
    const std::vector<double> b = Normalized(b_row, m.d_state, m.b_norm);
    const std::vector<double> c = Normalized(b_row + m.d_state, m.d_state, m.c_norm);
    const float* x = RowOf(op.convolved, i);
    const float* gate = RowOf(op.projected, i) + m.inner;
    float* state = state_.Recurrent(rows_[i].sequence, op.ssm_state);
    float* out = RowOf(op.output, i);
    for (int64_t channel = 0; channel < m.inner; ++channel) {
      const double step = Softplus(dt[i][static_cast<size_t>(channel)]);
      double y = static_cast<double>(Vector(m.d)[channel]) * x[channel];
      for (int64_t n = 0; n < m.d_state; ++n) {
        float& h = state[n * m.inner + channel];
        const double next = std::exp(step * Vector(m.a)[n * m.inner + channel]) * h +
                            step * b[static_cast<size_t>(n)] * x[channel];
        h = static_cast<float>(next);
        y += c[static_cast<size_t>(n)] * next;
      }
      out[channel] = static_cast<float>(y * Silu(gate[channel]));
    }
  }
}

void Interpreter::Run(const TokenShiftOp& op) {
  const auto width = static_cast<size_t>(Width(op.input));
  for (size_t i = 0; i < rows_.size(); ++i) {
    const std::vector<double> y = NormalizedRow(op.input, i, op.norm);
    float* previous = state_.Recurrent(rows_[i].sequence, op.state);
    float* out = RowOf(op.output, i);
    for (int64_t part = 0; part < op.parts; ++part) {
      const float* mix = Vector(op.mix) + static_cast<size_t>(part) * width;
      for (size_t k = 0; k < width; ++k) {
        *out++ = static_cast<float>(y[k] + mix[k] * (previous[k] - y[k]));
      }
    }
    std::transform(y.begin(), y.end(), previous, [](double x) { return static_cast<float>(x); });
  }
}

void Interpreter::Run(const RgLruOp& op) {
  const RgLru& m = op.mixer;
  for (size_t i = 0; i < rows_.size(); ++i) {
    RgLruToken token;
    token.x = RowOf(op.convolved, i);
    token.y = RowOf(op.projected, i) + m.width;
    token.first = rows_[i].position == 0;
    token.input_weight = Vector(m.input_weight);
    token.input_bias = Vector(m.input_bias);
    token.recurrent_weight = Vector(m.recurrent_weight);
    token.recurrent_bias = Vector(m.recurrent_bias);
    token.decay = Vector(m.decay);
    RgLruStep(m, token, state_.Recurrent(rows_[i].sequence, op.state), RowOf(op.output, i));
  }
}

void Interpreter::Run(const Rwkv7Op& op) {
  const Rwkv7& m = op.mixer;
  for (size_t i = 0; i < rows_.size(); ++i) {
    Rwkv7Inputs token;
    token.r = RowOf(op.r, i);
    token.k = RowOf(op.k, i);
    token.decay = RowOf(op.decay, i);
    token.rate = RowOf(op.rate, i);
    token.key_scale = Vector(m.key_scale);
    token.key_rate = Vector(m.key_rate);
    token.bonus = Vector(m.bonus);
    const float* v = RowOf(op.v, i);
    token.v.assign(v, v + m.inner());
    for (size_t c = 0; m.value_mix && c < token.v.size(); ++c) {
      token.v[c] += Sigmoid(RowOf(op.value_mix, i)[c]) * (RowOf(op.first_value, i)[c] - token.v[c]);
    }
    const Rwkv7Answer answer = Rwkv7Step(m, token, state_.Recurrent(rows_[i].sequence, op.state));
    float* out = RowOf(op.output, i);
    std::transform(answer.y.begin(), answer.y.end(), out,
                   [](double x) { return static_cast<float>(x); });
    const std::vector<double> normed = Normalized(out, m.inner(), m.norm);
    for (size_t c = 0; c < normed.size(); ++c) {
      out[c] = static_cast<float>((normed[c] + answer.bonus[c]) * RowOf(op.gate, i)[c]);
    }
  }
}

void Interpreter::Run(const GatedDeltaOp& op) {
  const GatedDelta& m = op.mixer;
  for (size_t i = 0; i < rows_.size(); ++i) {
    const float* behind = RowOf(op.projected, i) + m.conv_channels();
    GatedDeltaToken token;
    token.qkv = RowOf(op.convolved, i);
    token.beta = behind;
    behind += m.value_heads;
    token.decay = m.decay_proj ? RowOf(op.decay, i) : behind;
    if (!m.decay_proj) behind += m.decay_rows();
    token.gate = m.gate_proj ? RowOf(op.gate, i) : behind;
    token.dt_bias = Vector(m.dt_bias);
    token.a = Vector(m.a);
    token.norm = Vector(m.norm.weight);
    GatedDeltaStep(m, token, state_.Recurrent(rows_[i].sequence, op.state), RowOf(op.output, i));
  }
}

void Interpreter::Run(const LightningOp& op) {
  const LightningAttention& m = op.mixer;
  // Tokens of one sequence lie in order.
  for (size_t i = 0; i < rows_.size(); ++i) {
    float* state = state_.Recurrent(rows_[i].sequence, op.state);
    float* out = RowOf(op.output, i);
    for (int64_t head = 0; head < m.heads; ++head) {
      const double decay = std::exp(-static_cast<double>(m.slopes[static_cast<size_t>(head)]));
      const float* q = RowOf(op.input, i) + 3 * head * m.head_dim;
      const float* k = q + m.head_dim;
      const float* v = k + m.head_dim;
      for (int64_t p = 0; p < m.head_dim; ++p) {
        double y = 0;
        for (int64_t n = 0; n < m.head_dim; ++n) {
          float& h = state[(head * m.head_dim + n) * m.head_dim + p];
          const double next = decay * h + static_cast<double>(k[n]) * v[p];
          h = static_cast<float>(next);
          y += q[n] * next;
        }
        out[head * m.head_dim + p] = static_cast<float>(y);
      }
    }
    const std::vector<double> normed = NormalizedRow(op.output, i, m.norm);
    std::transform(normed.begin(), normed.end(), out,
                   [](double y) { return static_cast<float>(y); });
  }
}

}  // namespace adder
