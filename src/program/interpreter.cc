#include "program/interpreter.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "core/error.h"
#include "program/batch_checks.h"
#include "program/host_executor.h"

namespace adder {
namespace {

double Silu(double x) { return x / (1.0 + std::exp(-x)); }

double Sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

double Activate(Activation activation, double x) {
  switch (activation) {
    case Activation::kSilu:
      return Silu(x);
    case Activation::kGelu:
      return x * 0.5 * std::erfc(-x / std::numbers::sqrt2);
    case Activation::kGeluTanh:
      // sqrt(2 / pi) = (2 / sqrt(pi)) / sqrt(2)
      return 0.5 * x *
             (1.0 + std::tanh(2.0 * std::numbers::inv_sqrtpi / std::numbers::sqrt2 *
                              (x + 0.044715 * x * x * x)));
    case Activation::kRelu2:
      return x > 0 ? x * x : 0.0;
  }
  return x;
}

// log(1 + e^x). Above the threshold the result is x to f32 rounding; the references switch there.
double Softplus(double x) { return x > 20.0 ? x : std::log1p(std::exp(x)); }

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
      double squares = 0;
      for (size_t i = begin; i < begin + size; ++i) squares += out[i] * out[i];
      const double factor = 1.0 / std::sqrt(squares / static_cast<double>(size) + norm->eps);
      for (size_t i = begin; i < begin + size; ++i) {
        out[i] *= factor * (norm->weight == kNoId ? 1.0f : Vector(norm->weight)[i]);
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
    const std::vector<std::vector<double>> results = Apply(op.linear, inputs);
    for (size_t i = 0; i < results.size(); ++i) {
      const std::vector<double>& y = results[i];
      float* out = RowOf(op.output, i);
      const auto width = static_cast<size_t>(Width(op.output));
      const double gate = op.row_gate == kNoId ? 1.0 : Sigmoid(RowOf(op.row_gate, i)[0]);
      for (size_t r = 0; r < width; ++r) {
        switch (op.epilogue) {
          case Epilogue::kStore:
            out[r] = static_cast<float>(op.scale * y[r]);
            break;
          case Epilogue::kAdd:
            out[r] = static_cast<float>(out[r] + op.scale * y[r]);
            break;
          case Epilogue::kGated:
            out[r] = static_cast<float>(gate * Activate(op.activation, y[r]) * y[width + r]);
            break;
          case Epilogue::kActivate:
            out[r] = static_cast<float>(gate * Activate(op.activation, y[r]));
            break;
        }
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

  void Run(const AttentionOp& op) {
    const Attention& a = op.mixer;
    const int64_t q_width = a.heads * a.head_dim;
    const int64_t kv_width = a.kv_heads * a.head_dim;
    const int64_t page_positions = state_.layout().page_positions;
    for (size_t i = 0; i < rows_.size(); ++i) {
      const Row& row = rows_[i];
      std::vector<float> qkv(RowOf(op.input, i), RowOf(op.input, i) + q_width + 2 * kv_width);
      if (!a.qk_norm_after_rope) NormHeads(a, qkv.data());
      // q and k lie side by side: their heads are rotated alike.
      if (a.rope) {
        for (int64_t head = 0; head < a.heads + a.kv_heads; ++head) {
          Rotate(*a.rope, row.position, qkv.data() + head * a.head_dim);
        }
      }
      if (a.qk_norm_after_rope) NormHeads(a, qkv.data());
      const int64_t page = row.position / page_positions;
      const int64_t slot = row.position % page_positions;
      const float* k = qkv.data() + q_width;
      std::copy(k, k + kv_width, state_.Keys(row.sequence, op.kv, page) + slot * kv_width);
      std::copy(k + kv_width, k + 2 * kv_width,
                state_.Values(row.sequence, op.kv, page) + slot * kv_width);
      for (int64_t head = 0; head < a.heads; ++head) {
        AttendHead(op, row, head, qkv.data() + head * a.head_dim,
                   RowOf(op.output, i) + head * a.head_dim);
      }
    }
  }

  // The norms of q [heads * head_dim] and of k behind it, in place.
  void NormHeads(const Attention& a, float* q) const {
    if (a.q_norm) NormHeads(*a.q_norm, a.heads, a.head_dim, q);
    if (a.k_norm) NormHeads(*a.k_norm, a.kv_heads, a.head_dim, q + a.heads * a.head_dim);
  }
  void NormHeads(const RmsNorm& norm, int64_t heads, int64_t head_dim, float* x) const {
    const auto width =
        static_cast<int64_t>(program_.weights->vectors[static_cast<size_t>(norm.weight)].size());
    const int64_t part = width / norm.groups;
    for (int64_t begin = 0; begin < heads * head_dim; begin += part) {
      double squares = 0;
      for (int64_t i = 0; i < part; ++i)
        squares += static_cast<double>(x[begin + i]) * x[begin + i];
      const double factor = 1.0 / std::sqrt(squares / static_cast<double>(part) + norm.eps);
      for (int64_t i = 0; i < part; ++i) {
        x[begin + i] =
            static_cast<float>(x[begin + i] * factor * Vector(norm.weight)[(begin + i) % width]);
      }
    }
  }

  // The angle is rounded to f32 before its sine and cosine, as in the references.
  static void Rotate(const Rope& rope, int64_t position, float* head) {
    const int64_t half = rope.rotary_dim / 2;
    for (int64_t i = 0; i < half; ++i) {
      const float angle =
          static_cast<float>(position) * rope.inverse_frequencies[static_cast<size_t>(i)];
      const double cosine = std::cos(static_cast<double>(angle));
      const double sine = std::sin(static_cast<double>(angle));
      const double first = head[i];
      const double second = head[i + half];
      head[i] = static_cast<float>(first * cosine - second * sine);
      head[i + half] = static_cast<float>(second * cosine + first * sine);
    }
  }

  // softmax(scale * q . k) v over positions 0 .. row.position.
  void AttendHead(const AttentionOp& op, const Row& row, int64_t head, const float* q, float* out) {
    const Attention& a = op.mixer;
    const int64_t kv_head = head / (a.heads / a.kv_heads);
    const int64_t kv_width = a.kv_heads * a.head_dim;
    const int64_t page_positions = state_.layout().page_positions;
    const auto at = [&](float* page, int64_t position) {
      return page + (position % page_positions) * kv_width + kv_head * a.head_dim;
    };
    std::vector<double> scores;
    for (int64_t p = 0; p <= row.position; ++p) {
      const float* k = at(state_.Keys(row.sequence, op.kv, p / page_positions), p);
      double dot = 0;
      for (int64_t d = 0; d < a.head_dim; ++d) dot += static_cast<double>(q[d]) * k[d];
      scores.push_back(a.scale * dot);
    }
    SoftmaxInPlace(scores);
    std::vector<double> sum(static_cast<size_t>(a.head_dim), 0.0);
    for (int64_t p = 0; p <= row.position; ++p) {
      const float* v = at(state_.Values(row.sequence, op.kv, p / page_positions), p);
      for (size_t d = 0; d < sum.size(); ++d) sum[d] += scores[static_cast<size_t>(p)] * v[d];
    }
    std::transform(sum.begin(), sum.end(), out, [](double x) { return static_cast<float>(x); });
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
        const double weight = scores[chosen[j]] / (op.routing.normalize ? sum : 1.0);
        out[j] = static_cast<float>(op.routing.scale * weight);
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
        out[r] = static_cast<float>(out[r] + op.scale * sum[r]);
      }
    }
  }

  std::vector<std::vector<float>> buffers_;  // one per program buffer: [rows, width]
  std::vector<Row> rows_;
  std::vector<size_t> logits_rows_;  // the rows whose logits were asked for
};

}  // namespace

std::unique_ptr<Executor> MakeInterpreter(Program program) {
  return std::make_unique<Interpreter>(std::move(program));
}

}  // namespace adder
