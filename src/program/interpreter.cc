#include "program/interpreter.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"
#include "program/batch_checks.h"
#include "program/formulas.h"
#include "program/host_executor.h"
#include "program/recurrence_formulas.h"

namespace adder {
namespace {

// cap * tanh(x / cap), or x without a cap.
double Capped(double cap, double x) { return cap > 0 ? cap * std::tanh(x / cap) : x; }

// One token of the batch.
struct Row {
  SequenceId sequence;
  int64_t position;
  int32_t token;
};

class Interpreter : public HostExecutor {
 public:
  explicit Interpreter(Program program)
      : HostExecutor(std::move(program)), buffers_(program_.buffers.size()) {}

  std::string Description() const override { return "reference"; }

  int64_t WeightBytes() const override {
    int64_t total = VectorBytes();
    for (const WeightMatrix& matrix : program_.weights->matrices) total += matrix.bytes();
    return total;
  }

  void Forward(const Batch& batch) override {
    Prepare(batch);
    RunOps(static_cast<int>(program_.ops.size()) - 1);
    for (const BatchEntry& entry : batch) {
      state_.Advance(entry.sequence, static_cast<int64_t>(entry.tokens.size()));
    }
  }

  std::vector<float> ForwardUntil(const Batch& batch, int last_op) override {
    CheckLastOp(program_, last_op);
    Prepare(batch);
    RunOps(last_op);
    return Values(OutputOf(program_.ops[static_cast<size_t>(last_op)]));
  }

  int64_t LogitsCount() const override { return static_cast<int64_t>(logits_rows_.size()); }
  std::span<const float> Logits(int64_t row) const override {
    CheckLogitsRow(*this, row);
    const auto vocab = static_cast<size_t>(program_.plan->vocab);
    return std::span<const float>(buffers_[static_cast<size_t>(program_.logits)])
        .subspan(static_cast<size_t>(row) * vocab, vocab);
  }

 private:
  // Checks the whole batch, then makes room for it; nothing changes when the check fails.
  void Prepare(const Batch& batch) {
    CheckBatch(*this, batch);
    rows_.clear();
    logits_rows_.clear();
    for (const BatchEntry& entry : batch) {
      state_.Reserve(entry.sequence, static_cast<int64_t>(entry.tokens.size()));
      const int64_t position = state_.Position(entry.sequence);
      for (size_t i = 0; i < entry.tokens.size(); ++i) {
        const bool last = i + 1 == entry.tokens.size();
        if (entry.logits == LogitsRows::kAll || (entry.logits == LogitsRows::kLast && last)) {
          logits_rows_.push_back(rows_.size());
        }
        rows_.push_back({entry.sequence, position + static_cast<int64_t>(i), entry.tokens[i]});
      }
    }
    for (size_t b = 0; b < buffers_.size(); ++b) {
      const size_t count =
          static_cast<BufferId>(b) == program_.logits ? logits_rows_.size() : rows_.size();
      buffers_[b].assign(count * static_cast<size_t>(program_.buffers[b].width), 0.0f);
    }
  }

  void RunOps(int last_op) {
    for (int i = 0; i <= last_op; ++i) {
      std::visit([this](const auto& op) { Run(op); }, program_.ops[static_cast<size_t>(i)].body);
    }
  }

  std::vector<float>& Values(BufferId id) { return buffers_[static_cast<size_t>(id)]; }
  int64_t Width(BufferId id) const { return program_.buffers[static_cast<size_t>(id)].width; }
  float* RowOf(BufferId id, size_t row) {
    return Values(id).data() + row * static_cast<size_t>(Width(id));
  }
  const WeightMatrix& Matrix(MatrixId id) const {
    return program_.weights->matrices[static_cast<size_t>(id)];
  }
  const float* Vector(VectorId id) const {
    return program_.weights->vectors[static_cast<size_t>(id)].data();
  }

  size_t VectorSize(VectorId id) const {
    return program_.weights->vectors[static_cast<size_t>(id)].size();
  }

  // Row `row` of a buffer, after the norm if there is one. Not rounded to f32 in between.
  std::vector<double> NormalizedRow(BufferId id, size_t row, const std::optional<RmsNorm>& norm) {
    return Normalized(RowOf(id, row), Width(id), norm);
  }

  std::vector<double> Normalized(const float* x, int64_t width,
                                 const std::optional<RmsNorm>& norm) const {
    std::vector<double> out(x, x + width);
    if (!norm) return out;
    const size_t size = out.size() / static_cast<size_t>(norm->groups);
    for (size_t begin = 0; begin < out.size(); begin += size) {
      double mean = 0;
      for (size_t i = begin; norm->centered && i < begin + size; ++i) {
        mean += out[i] / static_cast<double>(size);
      }
      double squares = 0;
      for (size_t i = begin; i < begin + size; ++i) {
        out[i] -= mean;
        squares += out[i] * out[i];
      }
      const double factor = 1.0 / std::sqrt(squares / static_cast<double>(size) + norm->eps);
      for (size_t i = begin; i < begin + size; ++i) {
        if (norm->weight == kNoId) {
          out[i] *= factor;
        } else {
          out[i] *= factor * Vector(norm->weight)[i % VectorSize(norm->weight)];
        }
        if (norm->bias != kNoId) out[i] += Vector(norm->bias)[i];
      }
    }
    return out;
  }

  // W x for each of `inputs`: out[i] has one value per row of W.
  std::vector<std::vector<double>> Multiply(MatrixId id,
                                            const std::vector<std::vector<double>>& inputs) const {
    const WeightMatrix& matrix = Matrix(id);
    std::vector<std::vector<double>> out(inputs.size(),
                                         std::vector<double>(static_cast<size_t>(matrix.rows)));
    std::vector<float> weights(static_cast<size_t>(matrix.cols));
    for (int64_t r = 0; r < matrix.rows; ++r) {
      DequantizeRow(matrix, r, weights.data());
      for (size_t i = 0; i < inputs.size(); ++i) {
        double sum = 0;
        for (size_t k = 0; k < weights.size(); ++k) sum += weights[k] * inputs[i][k];
        out[i][static_cast<size_t>(r)] = sum;
      }
    }
    return out;
  }

  std::vector<std::vector<double>> Apply(const Linear& linear,
                                         const std::vector<std::vector<double>>& inputs) const {
    std::vector<std::vector<double>> out = Multiply(linear.weight, inputs);
    for (std::vector<double>& y : out) {
      for (double& value : y) value *= linear.input_scale;
      for (size_t r = 0; linear.bias != kNoId && r < y.size(); ++r) y[r] += Vector(linear.bias)[r];
      size_t row = 0;
      for (const RowScale& scale : linear.row_scales) {
        for (int64_t i = 0; i < scale.rows; ++i) y[row++] *= scale.factor;
      }
    }
    return out;
  }

  void Run(const EmbedOp& op) {
    for (size_t i = 0; i < rows_.size(); ++i) {
      float* out = RowOf(op.output, i);
      DequantizeRow(Matrix(op.embedding), rows_[i].token, out);
      for (int64_t k = 0; k < Width(op.output); ++k) out[k] *= op.scale;
      const std::vector<double> normed = NormalizedRow(op.output, i, op.norm);
      std::transform(normed.begin(), normed.end(), out,
                     [](double x) { return static_cast<float>(x); });
    }
  }

  void Run(const LinearOp& op) {
    std::vector<std::vector<double>> inputs;
    if (op.logits_rows_only) {
      for (size_t row : logits_rows_) inputs.push_back(NormalizedRow(op.input, row, op.norm));
    } else {
      for (size_t i = 0; i < rows_.size(); ++i) {
        inputs.push_back(NormalizedRow(op.input, i, op.norm));
      }
    }
    if (op.input_begin != -1) {
      const int64_t cols = Matrix(op.linear.weight).cols;
      for (std::vector<double>& x : inputs) {
        x.erase(x.begin(), x.begin() + op.input_begin);
        x.resize(static_cast<size_t>(cols));
      }
    }
    std::vector<std::vector<double>> results = Apply(op.linear, inputs);
    for (size_t i = 0; i < results.size(); ++i) {
      std::vector<double>& y = results[i];
      for (size_t r = 0; op.addend != kNoId && r < y.size(); ++r) y[r] += RowOf(op.addend, i)[r];
      float* out = RowOf(op.output, i);
      const auto width = static_cast<size_t>(Width(op.output));
      const double gate = op.row_gate == kNoId ? 1.0 : Sigmoid(RowOf(op.row_gate, i)[0]);
      for (size_t r = 0; r < width; ++r) {
        switch (op.epilogue) {
          case Epilogue::kStore:
            out[r] = static_cast<float>(Capped(op.cap, op.scale * y[r]));
            break;
          case Epilogue::kAdd:
            out[r] = static_cast<float>(out[r] + op.scale * y[r]);
            break;
          case Epilogue::kGated:
            out[r] = static_cast<float>(gate * Activate(op.activation, y[r]) * y[width + r]);
            break;
          case Epilogue::kActivate:
            out[r] = static_cast<float>(
                gate * Activate(op.activation, y[r]) *
                (op.factor == kNoId ? 1.0f : RowOf(op.factor, i)[op.factor_column + r]));
            break;
        }
      }
    }
  }

  void Run(const UpdateOp& op) {
    const auto at = [this](VectorId id, size_t k, double absent) {
      return id == kNoId ? absent : static_cast<double>(Vector(id)[k]);
    };
    const double total = at(op.total, 0, 1);
    for (size_t i = 0; i < rows_.size(); ++i) {
      const std::vector<double> y = NormalizedRow(op.input, i, op.norm);
      float* out = RowOf(op.output, i);
      for (size_t k = 0; k < y.size(); ++k) {
        double sum = op.scale * (y[k] + at(op.add_bias, k, 0)) * at(op.add_scale, k, 1);
        if (op.keep != 0) {
          sum += op.keep * (out[k] + at(op.keep_bias, k, 0)) * at(op.keep_scale, k, 1);
        }
        out[k] = static_cast<float>(total * sum);
      }
    }
  }

  void Run(const JoinOp& op) {
    for (size_t i = 0; i < rows_.size(); ++i) {
      float* out = RowOf(op.output, i);
      for (const BufferId input : op.inputs) {
        out = std::copy(RowOf(input, i), RowOf(input, i) + Width(input), out);
      }
    }
  }

  void Run(const Mamba2Op& op) {
    // Tokens of one sequence lie in order, so running the rows in order is the recurrence.
    for (size_t i = 0; i < rows_.size(); ++i) {
      const float* projected = RowOf(op.input, i);
      const float* gate = projected;
      const float* dt = projected + op.mixer.inner() + op.mixer.conv_channels();
      const std::vector<double> convolved =
          Convolve(op.mixer, projected + op.mixer.inner(),
                   state_.Recurrent(rows_[i].sequence, op.conv_state));
      StateStep(op.mixer, convolved, std::vector<double>(dt, dt + op.mixer.heads), gate,
                state_.Recurrent(rows_[i].sequence, op.ssm_state), RowOf(op.output, i));
      if (!op.mixer.norm_before_gate) continue;
      const std::vector<double> normed = NormalizedRow(op.output, i, op.mixer.gated_norm);
      for (size_t c = 0; c < normed.size(); ++c) {
        RowOf(op.output, i)[c] = static_cast<float>(normed[c] * Silu(gate[c]));
      }
    }
  }

  // The causal convolution of one token and its SiLU; rolls the window [d_conv - 1, channels].
  std::vector<double> Convolve(const Mamba2& m, const float* input, float* window) const {
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

  // One step of the recurrence; state is [heads, d_state, head_dim].
  void StateStep(const Mamba2& m, const std::vector<double>& convolved,
                 const std::vector<double>& dt_input, const float* gate, float* state,
                 float* out) const {
    const double* x = convolved.data();
    const double* b = x + m.inner();
    const double* c = b + m.groups * m.d_state;
    for (int64_t head = 0; head < m.heads; ++head) {
      const int64_t group = head / (m.heads / m.groups);
      const double dt = std::clamp<double>(
          Softplus(dt_input[static_cast<size_t>(head)] + Vector(m.dt_bias)[head]), m.dt_min,
          m.dt_max);
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

  void Run(const Mamba2SelectedOp& op) {
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

  void Run(const NormAddOp& op) {
    for (size_t i = 0; i < rows_.size(); ++i) {
      const std::vector<double> y = NormalizedRow(op.input, i, op.norm);
      float* out = RowOf(op.output, i);
      for (size_t k = 0; k < y.size(); ++k) out[k] = static_cast<float>(out[k] + op.scale * y[k]);
    }
  }

  void Run(const CausalConvOp& op) {
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

  void Run(const Mamba1ScanOp& op) {
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

  void Run(const HeadMixOp& op) {
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

  void Run(const TokenShiftOp& op) {
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

  void Run(const RgLruOp& op) {
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

  void Run(const Rwkv7Op& op) {
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
        token.v[c] +=
            Sigmoid(RowOf(op.value_mix, i)[c]) * (RowOf(op.first_value, i)[c] - token.v[c]);
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

  void Run(const GatedDeltaOp& op) {
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

  void Run(const AttentionOp& op) {
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

  // The norm and the rotation of q or k, in place.
  void PlaceHeads(const Attention& a, const std::optional<RmsNorm>& norm, int64_t position,
                  int64_t heads, float* x) const {
    if (norm && !a.qk_norm_after_rope) NormHeads(*norm, heads, a.head_dim, x);
    for (int64_t head = 0; a.rope && head < heads; ++head) {
      Rotate(*a.rope, position, x + head * a.head_dim);
    }
    if (norm && a.qk_norm_after_rope) NormHeads(*norm, heads, a.head_dim, x);
  }
  void NormHeads(const RmsNorm& norm, int64_t heads, int64_t head_dim, float* x) const {
    const int64_t width =
        norm.weight == kNoId ? head_dim : static_cast<int64_t>(VectorSize(norm.weight));
    for (int64_t begin = 0; begin < heads * head_dim; begin += width) {
      const std::vector<double> normed = Normalized(x + begin, width, norm);
      std::transform(normed.begin(), normed.end(), x + begin,
                     [](double value) { return static_cast<float>(value); });
    }
  }

  // The angle is rounded to f32 before its sine and cosine, as in the references.
  static void Rotate(const Rope& rope, int64_t position, float* head) {
    const int64_t half = rope.rotary_dim / 2;
    for (int64_t i = 0; i < half; ++i) {
      float& a = head[rope.interleaved ? 2 * i : i];
      float& b = head[rope.interleaved ? 2 * i + 1 : i + half];
      const float angle =
          static_cast<float>(position) * rope.inverse_frequencies[static_cast<size_t>(i)];
      const double cosine = std::cos(static_cast<double>(angle));
      const double sine = std::sin(static_cast<double>(angle));
      const double first = a;
      const double second = b;
      a = static_cast<float>(first * cosine - second * sine);
      b = static_cast<float>(second * cosine + first * sine);
    }
  }

  // softmax(scale * q . k) v over the positions up to row.position, in the window if there is one.
  void AttendHead(const AttentionOp& op, const Row& row, int64_t head, const float* q, float* out) {
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
      for (size_t d = 0; d < sum.size(); ++d)
        sum[d] += scores[static_cast<size_t>(p - first)] * v[d];
    }
    std::transform(sum.begin(), sum.end(), out, [](double x) { return static_cast<float>(x); });
  }

  void Run(const HeadsLinearOp& op) {
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

  void Run(const LatentAttentionOp& op) {
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

  void Run(const LightningOp& op) {
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

  static void SoftmaxInPlace(std::vector<double>& values) {
    const double largest = *std::max_element(values.begin(), values.end());
    double sum = 0;
    for (double& value : values) {
      value = std::exp(value - largest);
      sum += value;
    }
    for (double& value : values) value /= sum;
  }

  // Indices of the `count` largest, largest first; of equals the lower index first.
  static std::vector<size_t> Largest(const std::vector<double>& values, int64_t count) {
    std::vector<size_t> order(values.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return values[a] > values[b]; });
    order.resize(static_cast<size_t>(count));
    return order;
  }

  // What the choice of experts goes by.
  std::vector<double> ChoiceScores(const Routing& routing, std::vector<double> scores) const {
    if (routing.choice_bias != kNoId) {
      for (size_t e = 0; e < scores.size(); ++e) scores[e] += Vector(routing.choice_bias)[e];
    }
    if (routing.top_groups == routing.groups) return scores;
    const size_t size = scores.size() / static_cast<size_t>(routing.groups);
    std::vector<double> group_scores;
    for (size_t begin = 0; begin < scores.size(); begin += size) {
      std::vector<double> group(scores.begin() + static_cast<std::ptrdiff_t>(begin),
                                scores.begin() + static_cast<std::ptrdiff_t>(begin + size));
      std::sort(group.rbegin(), group.rend());
      group_scores.push_back(group[0] + group[1]);
    }
    const std::vector<size_t> kept = Largest(group_scores, routing.top_groups);
    for (size_t e = 0; e < scores.size(); ++e) {
      if (std::find(kept.begin(), kept.end(), e / size) == kept.end()) scores[e] = 0;
    }
    return scores;
  }

  void Run(const RouterOp& op) {
    for (size_t i = 0; i < rows_.size(); ++i) {
      std::vector<double> scores = Apply(op.router, {NormalizedRow(op.input, i, op.norm)}).front();
      if (op.routing.scores == RouterScores::kSigmoid) {
        std::transform(scores.begin(), scores.end(), scores.begin(), Sigmoid);
      } else {
        SoftmaxInPlace(scores);
      }
      const std::vector<size_t> chosen = Largest(ChoiceScores(op.routing, scores), op.top_k);
      double sum = op.routing.normalize_eps;
      for (size_t expert : chosen) sum += scores[expert];
      float* out = RowOf(op.output, i);
      for (size_t j = 0; j < chosen.size(); ++j) {
        if (static_cast<int64_t>(chosen[j]) >= op.experts) {
          out[j] = 0;
          out[chosen.size() + j] = 0;
          continue;
        }
        const double weight = scores[chosen[j]] / (op.routing.normalize ? sum : 1.0);
        const VectorId scales = op.routing.expert_scale;
        out[j] = static_cast<float>(op.routing.scale * weight *
                                    (scales == kNoId ? 1.0f : Vector(scales)[chosen[j]]));
        out[chosen.size() + j] = static_cast<float>(chosen[j]);
      }
    }
  }

  size_t ChosenExpert(BufferId routing, size_t row, int64_t top_k, int64_t j) {
    return static_cast<size_t>(RowOf(routing, row)[top_k + j]);
  }

  void Run(const ExpertGateUpOp& op) {
    for (size_t i = 0; i < rows_.size(); ++i) {
      const std::vector<double> x = NormalizedRow(op.input, i, op.norm);
      for (int64_t j = 0; j < op.top_k; ++j) {
        const MatrixId matrix = op.gate_up[ChosenExpert(op.routing, i, op.top_k, j)];
        const std::vector<double> y = Multiply(matrix, {x}).front();
        float* out = RowOf(op.output, i) + j * op.intermediate;
        const auto width = static_cast<size_t>(op.intermediate);
        for (size_t r = 0; r < width; ++r) {
          const double up = op.gated ? y[width + r] : 1.0;
          out[r] = static_cast<float>(Activate(op.activation, y[r]) * up);
        }
      }
    }
  }

  void Run(const ExpertDownOp& op) {
    for (size_t i = 0; i < rows_.size(); ++i) {
      float* out = RowOf(op.output, i);
      std::vector<double> sum(static_cast<size_t>(Width(op.output)), 0.0);
      for (int64_t j = 0; j < op.top_k; ++j) {
        const float* x = RowOf(op.input, i) + j * op.intermediate;
        const MatrixId matrix = op.down[ChosenExpert(op.routing, i, op.top_k, j)];
        const std::vector<double> y =
            Multiply(matrix, {std::vector<double>(x, x + op.intermediate)}).front();
        const double weight = RowOf(op.routing, i)[j];
        for (size_t r = 0; r < sum.size(); ++r) sum[r] += weight * y[r];
      }
      for (size_t r = 0; r < sum.size(); ++r) {
        out[r] = static_cast<float>((op.store ? 0.0f : out[r]) + op.scale * sum[r]);
      }
    }
  }

  std::vector<std::vector<float>> buffers_;  // one per program buffer: [rows, width]
  std::vector<Row> rows_;
  std::vector<size_t> logits_rows_;  // the rows whose logits were asked for
};

}  // namespace

std::unique_ptr<Executor> MakeInterpreter(Program program) {
  RequireF32States(program.layout, "The interpreter");
  return std::make_unique<Interpreter>(std::move(program));
}

}  // namespace adder
