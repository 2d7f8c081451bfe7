#include "cpu/cpu_executor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <unordered_map>

#include "core/error.h"
#include "core/thread_pool.h"
#include "cpu/attention_runner.h"
#include "cpu/causal_conv.h"
#include "cpu/delta_rule.h"
#include "cpu/elementwise.h"
#include "cpu/head_mix_kernel.h"
#include "cpu/linear.h"
#include "cpu/loaded_weights.h"
#include "cpu/mamba1_kernel.h"
#include "cpu/mamba2_kernel.h"
#include "cpu/moe.h"
#include "cpu/rg_lru_kernel.h"
#include "cpu/simd_target.h"
#include "cpu/span.h"
#include "program/batch_checks.h"
#include "program/host_executor.h"

namespace adder {
namespace {

// A batch is run in slices of at most so many tokens. Enough that reading the weights costs little
// beside the arithmetic; few enough that activations stay in the cache and memory stays small.
// Results do not depend on it.
constexpr int64_t kSliceTokens = 256;
// Channels of the convolution that one task takes in a slice.
constexpr int64_t kChannelBlock = 128;

int CountThreads(const CpuOptions& options) {
  return options.threads == 0 ? AvailableCores() : options.threads;
}

class CpuExecutor : public HostExecutor {
 public:
  CpuExecutor(Program program, const CpuOptions& options)
      : HostExecutor(std::move(program)),
        quantize_(options.compute == Compute::kFast),
        pool_(CountThreads(options)),
        weights_(*program_.weights, pool_, options.progress),
        buffers_(program_.buffers.size()),
        matmul_scratch_(static_cast<size_t>(pool_.threads())),
        attention_(program_, state_, pool_),
        head_mix_scratch_(static_cast<size_t>(pool_.threads())) {
    for (const Op& op : program_.ops) {
      if (const auto* linear = std::get_if<LinearOp>(&op.body)) ExpandRowScales(linear->linear);
      if (const auto* router = std::get_if<RouterOp>(&op.body)) ExpandRowScales(router->router);
      if (const auto* scan = std::get_if<Mamba1ScanOp>(&op.body)) {
        ExpandRowScales(scan->mixer.dt_proj);
      }
      if (const auto* scan = std::get_if<Mamba2SelectedOp>(&op.body)) {
        ExpandRowScales(scan->mixer.selection->dt_proj);
      }
    }
  }

  std::string Description() const override {
    return Concat("cpu (", CpuSimdTarget(), ", ", pool_.threads(),
                  pool_.threads() == 1 ? " thread" : " threads", quantize_ ? ")" : ", f32)");
  }

  int64_t WeightBytes() const override { return weights_.bytes() + VectorBytes(); }

  void Forward(const Batch& batch) override {
    Run(batch, static_cast<int>(program_.ops.size()) - 1, nullptr);
  }

  std::vector<float> ForwardUntil(const Batch& batch, int last_op) override {
    CheckLastOp(program_, last_op);
    std::vector<float> values;
    Run(batch, last_op, &values);
    return values;
  }

  int64_t LogitsCount() const override { return logits_count_; }
  std::span<const float> Logits(int64_t row) const override {
    CheckLogitsRow(*this, row);
    const int64_t vocab = program_.plan->vocab;
    return {logits_.data() + row * vocab, static_cast<size_t>(vocab)};
  }

 private:
  // ---- batches and slices

  // Runs ops 0 .. last_op over the batch, slice by slice; collects the last op's output when asked.
  void Run(const Batch& batch, int last_op, std::vector<float>* values) {
    CheckBatch(*this, batch);
    int64_t asked = 0;
    for (const BatchEntry& entry : batch) {
      const auto tokens = static_cast<int64_t>(entry.tokens.size());
      state_.Reserve(entry.sequence, tokens);
      asked += entry.logits == LogitsRows::kAll ? tokens : entry.logits == LogitsRows::kLast;
    }
    logits_.Get(static_cast<size_t>(asked * program_.plan->vocab));
    logits_count_ = 0;
    size_t next = 0;
    int64_t done = 0;  // tokens of batch[next]
    while (next < batch.size()) {
      spans_.clear();
      tokens_.clear();
      logits_rows_.clear();
      while (next < batch.size() && static_cast<int64_t>(tokens_.size()) < kSliceTokens) {
        const BatchEntry& entry = batch[next];
        const auto size = static_cast<int64_t>(entry.tokens.size());
        const auto row = static_cast<int64_t>(tokens_.size());
        const int64_t take = std::min(size - done, kSliceTokens - row);
        spans_.push_back({entry.sequence, row, take, state_.Position(entry.sequence)});
        for (int64_t i = done; i < done + take; ++i) {
          if (entry.logits == LogitsRows::kAll ||
              (entry.logits == LogitsRows::kLast && i + 1 == size)) {
            logits_rows_.push_back(static_cast<int64_t>(tokens_.size()));
          }
          tokens_.push_back(entry.tokens[static_cast<size_t>(i)]);
        }
        done += take;
        if (done == size) {
          ++next;
          done = 0;
        }
      }
      RunSlice(last_op);
      if (values != nullptr) Collect(program_.ops[static_cast<size_t>(last_op)], *values);
      logits_count_ += static_cast<int64_t>(logits_rows_.size());
      for (const Span& span : spans_) state_.Advance(span.sequence, span.tokens);
    }
  }

  void RunSlice(int last_op) {
    for (size_t b = 0; b < buffers_.size(); ++b) {
      if (static_cast<BufferId>(b) == program_.logits) continue;
      buffers_[b].Get(static_cast<size_t>(rows() * program_.buffers[b].width));
    }
    attention_.Begin(spans_, rows());
    for (int i = 0; i <= last_op; ++i) {
      std::visit([this](const auto& op) { Run(op); }, program_.ops[static_cast<size_t>(i)].body);
    }
  }

  void Collect(const Op& op, std::vector<float>& values) {
    const BufferId id = OutputOf(op);
    const bool logits = id == program_.logits;
    const int64_t count = logits ? static_cast<int64_t>(logits_rows_.size()) : rows();
    const float* from = logits ? logits_.data() + logits_count_ * Width(id) : Values(id);
    values.insert(values.end(), from, from + count * Width(id));
  }

  int64_t rows() const { return static_cast<int64_t>(tokens_.size()); }
  float* Values(BufferId id) { return buffers_[static_cast<size_t>(id)].data(); }
  int64_t Width(BufferId id) const { return program_.buffers[static_cast<size_t>(id)].width; }
  const float* Vector(VectorId id) const {
    return id == kNoId ? nullptr : program_.weights->vectors[static_cast<size_t>(id)].data();
  }
  InputNorm Norm(const std::optional<RmsNorm>& norm) const {
    if (!norm) return {};
    return {Vector(norm->weight), norm->groups, norm->eps, norm->centered, Vector(norm->bias)};
  }

  // One factor per row, as the kernels read them.
  void ExpandRowScales(const Linear& linear) {
    if (linear.row_scales.empty()) return;
    std::vector<float>& factors = row_scales_[&linear];
    for (const RowScale& scale : linear.row_scales) {
      factors.insert(factors.end(), static_cast<size_t>(scale.rows), scale.factor);
    }
  }

  void SetBiasAndScales(const Linear& linear, MatmulOutput& output) const {
    output.bias = Vector(linear.bias);
    output.input_scale = linear.input_scale;
    const auto factors = row_scales_.find(&linear);
    if (factors != row_scales_.end()) output.row_scales = factors->second.data();
  }

  // ---- ops

  void Run(const EmbedOp& op) {
    const LoadedMatrix& matrix = weights_.matrix(op.embedding);
    float* out = Values(op.output);
    pool_.ParallelFor(rows(), 8, [&](int64_t begin, int64_t end, int) {
      for (int64_t t = begin; t < end; ++t) {
        float* row = out + t * matrix.cols;
        DequantizeLoadedRow(matrix, tokens_[static_cast<size_t>(t)], row);
        for (int64_t k = 0; k < matrix.cols; ++k) row[k] *= op.scale;
        if (op.norm) NormRow(Norm(op.norm), row, matrix.cols, row);
      }
    });
  }

  void Run(const LinearOp& op) {
    const LoadedMatrix& matrix = weights_.matrix(op.linear.weight);
    const bool sliced = op.input_begin != -1;
    const float* x = Values(op.input) + (sliced ? op.input_begin : 0);
    const bool gated = op.epilogue == Epilogue::kGated;
    const bool activates = gated || op.epilogue == Epilogue::kActivate;
    int64_t tokens = rows();
    MatmulJob job;
    job.matrix = &matrix;
    job.input = &input_;
    SetBiasAndScales(op.linear, job.output);
    job.output.stride = matrix.rows;
    job.output.scale = op.scale;
    job.output.add = op.epilogue == Epilogue::kAdd;
    if (op.logits_rows_only) {
      tokens = static_cast<int64_t>(logits_rows_.size());
      x = GatherRows(x, matrix.cols);
      job.output.data = logits_.data() + logits_count_ * matrix.rows;
    } else if (activates) {
      job.output.data = gate_up_.Get(static_cast<size_t>(tokens * matrix.rows));
      job.output.scale = 1;
    } else {
      job.output.data = Values(op.output);
    }
    if (tokens == 0) return;
    if (op.addend != kNoId) {
      std::memcpy(job.output.data, Values(op.addend),
                  static_cast<size_t>(tokens * matrix.rows) * sizeof(float));
      job.output.add = true;
    }
    input_.Prepare(x, sliced ? Width(op.input) : matrix.cols, tokens, Norm(op.norm), matrix,
                   quantize_, pool_);
    RunMatmuls({&job, 1}, pool_, matmul_scratch_);
    if (op.cap > 0) {
      float* out = job.output.data;
      pool_.ParallelFor(tokens, 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t k = begin * matrix.rows; k < end * matrix.rows; ++k) {
          out[k] = op.cap * std::tanh(out[k] / op.cap);
        }
      });
    }
    if (activates) {
      const int64_t width = gated ? matrix.rows / 2 : matrix.rows;
      float* out = Values(op.output);
      const float* row_gate = op.row_gate == kNoId ? nullptr : Values(op.row_gate);
      pool_.ParallelFor(tokens, 4, [&](int64_t begin, int64_t end, int) {
        for (int64_t t = begin; t < end; ++t) {
          const float* gate = gate_up_.data() + t * matrix.rows;
          float* to = out + t * width;
          ActivateRow(op.activation, gate, gated ? gate + width : nullptr, width, to);
          if (op.factor != kNoId) {
            const float* factors = Values(op.factor) + t * Width(op.factor) + op.factor_column;
            for (int64_t k = 0; k < width; ++k) to[k] *= factors[k];
          }
          if (row_gate == nullptr) continue;
          const float factor = 1.0f / (1.0f + std::exp(-row_gate[t]));
          for (int64_t k = 0; k < width; ++k) to[k] *= factor;
        }
      });
    }
  }

  void Run(const UpdateOp& op) {
    const int64_t width = Width(op.output);
    const UpdateRow update{op.scale,
                           op.keep,
                           Vector(op.add_bias),
                           Vector(op.add_scale),
                           Vector(op.keep_bias),
                           Vector(op.keep_scale),
                           op.total == kNoId ? 1.0f : Vector(op.total)[0]};
    const float* input = Values(op.input);
    float* normed = op.norm ? normed_.Get(static_cast<size_t>(rows() * width)) : nullptr;
    pool_.ParallelFor(rows(), 4, [&](int64_t begin, int64_t end, int) {
      for (int64_t t = begin; t < end; ++t) {
        const float* y = input + t * width;
        if (op.norm) {
          NormGroups(*op.norm, y, width, normed + t * width);
          y = normed + t * width;
        }
        update.Apply(y, width, Values(op.output) + t * width);
      }
    });
  }

  // A norm whose weight may be that of one group for all.
  void NormGroups(const RmsNorm& norm, const float* x, int64_t width, float* out) const {
    const float* weight = Vector(norm.weight);
    const int64_t part = width / norm.groups;
    const bool repeated =
        weight != nullptr && norm.groups > 1 &&
        static_cast<int64_t>(program_.weights->vectors[static_cast<size_t>(norm.weight)].size()) ==
            part;
    if (!repeated) return RmsNormRow(x, weight, width, norm.groups, norm.eps, out);
    for (int64_t begin = 0; begin < width; begin += part) {
      RmsNormRow(x + begin, weight, part, 1, norm.eps, out + begin);
    }
  }

  void Run(const JoinOp& op) {
    const int64_t stride = Width(op.output);
    int64_t column = 0;
    for (const BufferId input : op.inputs) {
      const int64_t width = Width(input);
      for (int64_t t = 0; t < rows(); ++t) {
        std::memcpy(Values(op.output) + t * stride + column, Values(input) + t * width,
                    static_cast<size_t>(width) * sizeof(float));
      }
      column += width;
    }
  }

  // The rows of x whose logits were asked for, one after the other.
  const float* GatherRows(const float* x, int64_t width) {
    float* to = gathered_.Get(logits_rows_.size() * static_cast<size_t>(width));
    for (size_t i = 0; i < logits_rows_.size(); ++i) {
      std::memcpy(to + i * static_cast<size_t>(width), x + logits_rows_[i] * width,
                  static_cast<size_t>(width) * sizeof(float));
    }
    return to;
  }

  void Run(const Mamba2Op& op) {
    const Mamba2& m = op.mixer;
    const Mamba2Weights weights = WeightsOf(m);
    float* convolved = convolved_.Get(static_cast<size_t>(rows() * m.conv_channels()));
    float* steps = steps_.Get(static_cast<size_t>(rows() * 2 * m.heads));
    std::vector<Mamba2Run>& runs = mamba2_runs_;
    runs.clear();
    for (const Span& span : spans_) {
      Mamba2Run run;
      run.tokens = span.tokens;
      run.projected_stride = Width(op.input);
      run.projected = Values(op.input) + span.row * run.projected_stride;
      run.dt = run.projected + m.inner() + m.conv_channels();
      run.dt_stride = run.projected_stride;
      // With d_conv = 1 there is no window.
      run.window = op.conv_state < 0 ? nullptr : state_.Recurrent(span.sequence, op.conv_state);
      run.state = state_.Recurrent(span.sequence, op.ssm_state);
      run.convolved = convolved + span.row * m.conv_channels();
      run.steps = steps + span.row * 2 * m.heads;
      run.output_stride = Width(op.output);
      run.output = Values(op.output) + span.row * run.output_stride;
      runs.push_back(run);
    }
    // Per sequence: the channel blocks, then one task for dt. For a token or two the arithmetic is
    // over before another thread has begun.
    const int64_t channel_blocks = (m.conv_channels() + kChannelBlock - 1) / kChannelBlock;
    const int64_t tasks = static_cast<int64_t>(runs.size()) * (channel_blocks + 1);
    pool_.ParallelFor(tasks, rows() >= 4 ? 1 : tasks, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const Mamba2Run& run = runs[static_cast<size_t>(i / (channel_blocks + 1))];
        const int64_t block = i % (channel_blocks + 1);
        if (block == channel_blocks) {
          Mamba2Steps(weights, run, 0, run.tokens);
        } else {
          Mamba2Conv(weights, run, block * kChannelBlock,
                     std::min((block + 1) * kChannelBlock, m.conv_channels()));
        }
      }
    });
    ScanHeads(weights);
    if (m.norm_before_gate) NormThenGate(op);
  }

  // The recurrence of mamba2_runs_.
  void ScanHeads(const Mamba2Weights& weights) {
    const int64_t heads = weights.mixer->heads;
    pool_.ParallelFor(
        static_cast<int64_t>(mamba2_runs_.size()) * heads, 1, [&](int64_t begin, int64_t end, int) {
          for (int64_t i = begin; i < end; ++i) {
            const int64_t head = i % heads;
            Mamba2Scan(weights, mamba2_runs_[static_cast<size_t>(i / heads)], head, head + 1);
          }
        });
  }

  void NormThenGate(const Mamba2Op& op) {
    const InputNorm norm = Norm(op.mixer.gated_norm);
    const int64_t width = op.mixer.inner();
    pool_.ParallelFor(rows(), 4, [&](int64_t begin, int64_t end, int) {
      for (int64_t t = begin; t < end; ++t) {
        float* y = Values(op.output) + t * width;
        RmsNormRow(y, norm.weight, width, norm.groups, norm.eps, y);
        ActivateRow(Activation::kSilu, Values(op.input) + t * Width(op.input), y, width, y);
      }
    });
  }

  Mamba2Weights WeightsOf(const Mamba2& m) const {
    return {&m,         Vector(m.conv_weight), Vector(m.conv_bias), Vector(m.dt_bias), Vector(m.a),
            Vector(m.d)};
  }

  void Run(const Mamba2SelectedOp& op) {
    const Mamba2& m = op.mixer;
    const Mamba2Selection& selection = *m.selection;
    const int64_t states = m.groups * m.d_state;
    const int64_t stride = Width(op.selected);
    float* x_b_c = convolved_.Get(static_cast<size_t>(rows() * m.scan_channels()));
    float* low_rank = low_rank_.Get(static_cast<size_t>(rows() * selection.dt_rank));
    pool_.ParallelFor(rows(), 8, [&](int64_t begin, int64_t end, int) {
      for (int64_t t = begin; t < end; ++t) {
        const float* from = Values(op.selected) + t * stride;
        float* to = x_b_c + t * m.scan_channels();
        std::memcpy(to, Values(op.convolved) + t * m.inner(),
                    static_cast<size_t>(m.inner()) * sizeof(float));
        NormPart(selection.b_norm, from, states, to + m.inner());
        NormPart(selection.c_norm, from + states, states, to + m.inner() + states);
        NormPart(selection.dt_norm, from + 2 * states, selection.dt_rank,
                 low_rank + t * selection.dt_rank);
      }
    });
    ProjectSteps(selection.dt_proj, low_rank, selection.dt_rank);
    const Mamba2Weights weights = WeightsOf(m);
    float* steps = steps_.Get(static_cast<size_t>(rows() * 2 * m.heads));
    mamba2_runs_.clear();
    for (const Span& span : spans_) {
      Mamba2Run run;
      run.tokens = span.tokens;
      run.projected_stride = Width(op.projected);
      run.projected = Values(op.projected) + span.row * run.projected_stride;
      run.dt = dt_.data() + span.row * m.heads;
      run.dt_stride = m.heads;
      run.state = state_.Recurrent(span.sequence, op.ssm_state);
      run.convolved = x_b_c + span.row * m.scan_channels();
      run.steps = steps + span.row * 2 * m.heads;
      run.output_stride = Width(op.output);
      run.output = Values(op.output) + span.row * run.output_stride;
      mamba2_runs_.push_back(run);
      Mamba2Steps(weights, run, 0, run.tokens);
    }
    ScanHeads(weights);
  }

  // A part of a row, through its norm if it has one.
  void NormPart(const std::optional<RmsNorm>& norm, const float* from, int64_t size,
                float* to) const {
    if (norm) {
      RmsNormRow(from, Vector(norm->weight), size, norm->groups, norm->eps, to);
    } else {
      std::copy(from, from + size, to);
    }
  }

  void Run(const NormAddOp& op) {
    const int64_t width = Width(op.input);
    const float* x = Values(op.input);
    float* out = Values(op.output);
    float* normed = normed_.Get(static_cast<size_t>(rows() * width));
    pool_.ParallelFor(rows(), 4, [&](int64_t begin, int64_t end, int) {
      for (int64_t t = begin; t < end; ++t) {
        RmsNormRow(x + t * width, Vector(op.norm.weight), width, op.norm.groups, op.norm.eps,
                   normed + t * width);
        AddScaledRow(normed + t * width, op.scale, width, out + t * width);
      }
    });
  }

  void Run(const CausalConvOp& op) {
    const CausalConvWeights weights{&op, Vector(op.weight), Vector(op.bias)};
    // For a token or two the arithmetic is over before another thread has begun.
    ForChannelBlocks(op.channels, rows() >= 4,
                     [&](const Span& span, int64_t begin, int64_t end, int) {
                       CausalConvRun run;
                       run.tokens = span.tokens;
                       run.input_stride = Width(op.input);
                       run.input = Values(op.input) + span.row * run.input_stride;
                       run.window = state_.Recurrent(span.sequence, op.conv_state);
                       run.output_stride = Width(op.output);
                       run.output = Values(op.output) + span.row * run.output_stride;
                       CausalConv(weights, run, begin, end);
                     });
  }

  void Run(const Mamba1ScanOp& op) {
    const Mamba1& m = op.mixer;
    const int64_t stride = Width(op.selected);
    const float* selected = Values(op.selected);
    if (m.dt_norm || m.b_norm || m.c_norm) {
      float* normed = selected_.Get(static_cast<size_t>(rows() * stride));
      for (int64_t t = 0; t < rows(); ++t) {
        const float* from = selected + t * stride;
        float* to = normed + t * stride;
        NormPart(m.dt_norm, from, m.dt_rank, to);
        NormPart(m.b_norm, from + m.dt_rank, m.d_state, to + m.dt_rank);
        NormPart(m.c_norm, from + m.dt_rank + m.d_state, m.d_state, to + m.dt_rank + m.d_state);
      }
      selected = normed;
    }
    float* dt = ProjectSteps(m.dt_proj, selected, stride);
    ForChannelBlocks(m.inner, true, [&](const Span& span, int64_t begin, int64_t end, int) {
      Mamba1Run run;
      run.inner = m.inner;
      run.d_state = m.d_state;
      run.a = Vector(m.a);
      run.d = Vector(m.d);
      run.tokens = span.tokens;
      run.x = Values(op.convolved) + span.row * m.inner;
      run.dt = dt + span.row * m.inner;
      run.bc_stride = stride;
      run.b = selected + span.row * stride + m.dt_rank;
      run.c = run.b + m.d_state;
      run.z_stride = Width(op.projected);
      run.z = Values(op.projected) + span.row * run.z_stride + m.inner;
      run.state = state_.Recurrent(span.sequence, op.ssm_state);
      run.output_stride = m.inner;
      run.output = Values(op.output) + span.row * m.inner;
      Mamba1Scan(run, begin, end);
    });
  }

  void Run(const TokenShiftOp& op) {
    const int64_t width = Width(op.input);
    const InputNorm norm = Norm(op.norm);
    float* y = normed_.Get(static_cast<size_t>(rows() * width));
    pool_.ParallelFor(rows(), 8, [&](int64_t begin, int64_t end, int) {
      for (int64_t t = begin; t < end; ++t) {
        const float* x = Values(op.input) + t * width;
        if (op.norm) {
          NormRow(norm, x, width, y + t * width);
        } else {
          std::copy(x, x + width, y + t * width);
        }
      }
    });
    for (const Span& span : spans_) {
      float* state = state_.Recurrent(span.sequence, op.state);
      pool_.ParallelFor(span.tokens, 8, [&](int64_t begin, int64_t end, int) {
        for (int64_t t = span.row + begin; t < span.row + end; ++t) {
          TokenShiftRow(y + t * width, t == span.row ? state : y + (t - 1) * width, Vector(op.mix),
                        op.parts, width, Values(op.output) + t * op.parts * width);
        }
      });
      const float* last = y + (span.row + span.tokens - 1) * width;
      std::copy(last, last + width, state);
    }
  }

  void Run(const RgLruOp& op) {
    const RgLru& m = op.mixer;
    lru_scratch_.resize(static_cast<size_t>(pool_.threads()));
    for (Scratch<float>& scratch : lru_scratch_) {
      scratch.Get(static_cast<size_t>(RgLruScratch(m.block())));
    }
    const int64_t stride = Width(op.projected);
    ForChannelBlocks(m.width, true, [&](const Span& span, int64_t begin, int64_t end, int thread) {
      RgLruRun run;
      run.width = m.width;
      run.block = m.block();
      run.input_weight = Vector(m.input_weight);
      run.input_bias = Vector(m.input_bias);
      run.recurrent_weight = Vector(m.recurrent_weight);
      run.recurrent_bias = Vector(m.recurrent_bias);
      run.decay = Vector(m.decay);
      run.decay_scale = m.decay_scale;
      run.tokens = span.tokens;
      run.starts = span.position == 0;
      run.x = Values(op.convolved) + span.row * m.width;
      run.state = state_.Recurrent(span.sequence, op.state);
      run.output_stride = m.width;
      run.output = Values(op.output) + span.row * m.width;
      RgLruScan(run, begin, end, lru_scratch_[static_cast<size_t>(thread)].data());
      for (int64_t t = span.row; t < span.row + span.tokens; ++t) {
        float* out = Values(op.output) + t * m.width + begin;
        ActivateRow(m.gate_activation, Values(op.projected) + t * stride + m.width + begin, out,
                    end - begin, out);
      }
    });
  }

  void Run(const Rwkv7Op& op) {
    const Rwkv7& m = op.mixer;
    Rwkv7Inputs inputs;
    inputs.mixer = &m;
    inputs.vectors = {Vector(m.key_scale), Vector(m.key_rate), Vector(m.bonus),
                      Vector(m.norm.weight), Vector(m.norm.bias)};
    inputs.rows = {Values(op.r),    Values(op.k),    Values(op.v), Values(op.decay),
                   Values(op.rate), Values(op.gate), nullptr,      nullptr};
    if (m.value_mix) {
      inputs.rows.value_mix = Values(op.value_mix);
      inputs.rows.first_value = Values(op.first_value);
    }
    SetDeltaSpans(op.state);
    delta_rule_.Run(pool_, inputs, rows(), delta_spans_, Values(op.output));
  }

  // The states of the slice's sequences, of an op with one matrix per head.
  void SetDeltaSpans(int state) {
    delta_spans_.clear();
    for (const Span& span : spans_) {
      delta_spans_.push_back({span.row, span.tokens, state_.Recurrent(span.sequence, state)});
    }
  }

  void Run(const GatedDeltaOp& op) {
    const GatedDelta& m = op.mixer;
    GatedDeltaInputs inputs;
    inputs.mixer = &m;
    inputs.a = Vector(m.a);
    inputs.dt_bias = Vector(m.dt_bias);
    inputs.qkv = Values(op.convolved);
    inputs.qkv_stride = Width(op.convolved);
    inputs.beta = Values(op.projected) + m.conv_channels();
    inputs.beta_stride = Width(op.projected);
    inputs.decay = m.decay_proj ? Values(op.decay) : inputs.beta + m.value_heads;
    inputs.decay_stride = Width(m.decay_proj ? op.decay : op.projected);
    GatedDeltaOutput output;
    output.norm = Vector(m.norm.weight);
    output.gate = m.gate_proj ? Values(op.gate)
                              : inputs.beta + m.value_heads + (m.decay_proj ? 0 : m.decay_rows());
    output.gate_stride = Width(m.gate_proj ? op.gate : op.projected);
    output.values = Values(op.output);
    SetDeltaSpans(op.state);
    delta_rule_.Run(pool_, inputs, rows(), delta_spans_, output);
  }

  // The time steps of all rows, before softplus, from low-rank ones `stride` apart. Always with f32
  // activations: it is a small matrix, and what comes of it goes through two exponentials into
  // everything the state remembers.
  float* ProjectSteps(const Linear& linear, const float* low_rank, int64_t stride) {
    const LoadedMatrix& matrix = weights_.matrix(linear.weight);
    input_.Prepare(low_rank, stride, rows(), InputNorm{}, matrix, false, pool_);
    MatmulJob job;
    job.matrix = &matrix;
    job.input = &input_;
    job.output.data = dt_.Get(static_cast<size_t>(rows() * matrix.rows));
    job.output.stride = matrix.rows;
    SetBiasAndScales(linear, job.output);
    RunMatmuls({&job, 1}, pool_, matmul_scratch_);
    return job.output.data;
  }

  // Runs work(span, begin, end, thread) for blocks of channels of every span of the slice, on
  // several threads or one.
  template <class Work>
  void ForChannelBlocks(int64_t channels, bool spread, const Work& work) {
    const int64_t blocks = (channels + kChannelBlock - 1) / kChannelBlock;
    const int64_t tasks = static_cast<int64_t>(spans_.size()) * blocks;
    pool_.ParallelFor(tasks, spread ? 1 : tasks, [&](int64_t begin, int64_t end, int thread) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t first = i % blocks * kChannelBlock;
        work(spans_[static_cast<size_t>(i / blocks)], first,
             std::min(first + kChannelBlock, channels), thread);
      }
    });
  }

  void Run(const HeadMixOp& op) {
    const Attention& m = op.mixer;
    const HeadMixWeights weights{&m, Vector(m.mixing->conv_weight), Vector(m.mixing->conv_bias),
                                 Vector(m.mixing->group_weight), Vector(m.mixing->group_bias)};
    const int64_t heads = m.heads + m.kv_heads;
    // Per sequence: its heads, then one task for v.
    const int64_t tasks = static_cast<int64_t>(spans_.size()) * (heads + 1);
    pool_.ParallelFor(tasks, 1, [&](int64_t begin, int64_t end, int thread) {
      for (int64_t i = begin; i < end; ++i) {
        const Span& span = spans_[static_cast<size_t>(i / (heads + 1))];
        HeadMixRun run;
        run.tokens = span.tokens;
        run.input = Values(op.input) + span.row * m.qkv_rows();
        run.output = Values(op.output) + span.row * m.qkv_rows();
        run.window = state_.Recurrent(span.sequence, op.conv_state);
        run.delayed = state_.Recurrent(span.sequence, op.value_state);
        const int64_t head = i % (heads + 1);
        if (head == heads) {
          DelayValues(m, run);
        } else {
          MixHead(weights, run, head, head_mix_scratch_[static_cast<size_t>(thread)]);
        }
      }
    });
  }

  void Run(const AttentionOp& op) {
    attention_.Run(op, Values(op.input), Values(op.output));
    if (!op.mixer.output_gate) return;
    const int64_t width = op.mixer.q_width();
    const int64_t stride = Width(op.input);
    pool_.ParallelFor(rows(), 4, [&](int64_t begin, int64_t end, int) {
      for (int64_t t = begin; t < end; ++t) {
        // The gate is the last of its rows.
        const float* gate = Values(op.input) + (t + 1) * stride - width;
        float* out = Values(op.output) + t * width;
        ActivateRow(Activation::kSigmoid, gate, out, width, out);
      }
    });
  }

  void Run(const LatentAttentionOp& op) {
    attention_.Run(op, Values(op.query), Values(op.absorbed), Values(op.kv), Values(op.output));
  }

  // A recurrence of Mamba-2's form: h = decay * h + 1 * k v^T, y = q^T h, without convolution, skip
  // and gate.
  void Run(const LightningOp& op) {
    const LightningAttention& m = op.mixer;
    const int64_t width = m.width();
    const auto head_bytes = static_cast<size_t>(m.head_dim) * sizeof(float);
    Mamba2 form;
    form.heads = form.groups = m.heads;
    form.head_dim = form.d_state = m.head_dim;
    form.norm_before_gate = true;
    const std::vector<float> no_skip(static_cast<size_t>(m.heads), 0.0f);
    Mamba2Weights weights;
    weights.mixer = &form;
    weights.d = no_skip.data();
    float* v_k_q = convolved_.Get(static_cast<size_t>(rows() * 3 * width));
    float* steps = steps_.Get(static_cast<size_t>(rows() * 2 * m.heads));
    pool_.ParallelFor(rows(), 4, [&](int64_t begin, int64_t end, int) {
      for (int64_t t = begin; t < end; ++t) {
        for (int64_t head = 0; head < m.heads; ++head) {
          const float* from = Values(op.input) + t * 3 * width + 3 * head * m.head_dim;
          float* to = v_k_q + t * 3 * width + head * m.head_dim;
          std::memcpy(to, from + 2 * m.head_dim, head_bytes);
          std::memcpy(to + width, from + m.head_dim, head_bytes);
          std::memcpy(to + 2 * width, from, head_bytes);
          steps[t * 2 * m.heads + head] = 1.0f;
          steps[(t * 2 + 1) * m.heads + head] = std::exp(-m.slopes[static_cast<size_t>(head)]);
        }
      }
    });
    mamba2_runs_.clear();
    for (const Span& span : spans_) {
      Mamba2Run run;
      run.tokens = span.tokens;
      run.convolved = v_k_q + span.row * 3 * width;
      // Where a gate would be read from.
      run.projected = run.convolved;
      run.projected_stride = 3 * width;
      run.steps = steps + span.row * 2 * m.heads;
      run.state = state_.Recurrent(span.sequence, op.state);
      run.output_stride = width;
      run.output = Values(op.output) + span.row * width;
      mamba2_runs_.push_back(run);
    }
    ScanHeads(weights);
    pool_.ParallelFor(rows(), 4, [&](int64_t begin, int64_t end, int) {
      for (int64_t t = begin; t < end; ++t) {
        float* y = Values(op.output) + t * width;
        RmsNormRow(y, Vector(m.norm.weight), width, m.norm.groups, m.norm.eps, y);
      }
    });
  }

  void Run(const HeadsLinearOp& op) {
    while (head_inputs_.size() < op.matrices.size()) head_inputs_.emplace_back();
    std::vector<MatmulJob> jobs;
    for (size_t h = 0; h < op.matrices.size(); ++h) {
      const LoadedMatrix& matrix = weights_.matrix(op.matrices[h]);
      const auto head = static_cast<int64_t>(h);
      head_inputs_[h].Prepare(Values(op.input) + head * op.step, Width(op.input), rows(),
                              InputNorm{}, matrix, quantize_, pool_);
      MatmulJob job;
      job.matrix = &matrix;
      job.input = &head_inputs_[h];
      job.output.data = Values(op.output) + head * matrix.rows;
      job.output.stride = Width(op.output);
      jobs.push_back(job);
    }
    RunMatmuls(jobs, pool_, matmul_scratch_);
  }

  void Run(const RouterOp& op) {
    const LoadedMatrix& matrix = weights_.matrix(op.router.weight);
    // Always with f32 activations: it is a small matrix, and a choice is not a matter of degree.
    input_.Prepare(Values(op.input), matrix.cols, rows(), Norm(op.norm), matrix, false, pool_);
    MatmulJob job;
    job.matrix = &matrix;
    job.input = &input_;
    // Behind the scores, room for one row of choice scores.
    const int64_t classes = op.experts + op.routing.idle;
    job.output.data = router_scores_.Get(static_cast<size_t>((rows() + 1) * classes));
    job.output.stride = classes;
    SetBiasAndScales(op.router, job.output);
    RunMatmuls({&job, 1}, pool_, matmul_scratch_);
    float* out = Values(op.output);
    for (int64_t t = 0; t < rows(); ++t) {
      ChooseExperts(op.routing, Vector(op.routing.choice_bias), Vector(op.routing.expert_scale),
                    job.output.data + t * classes, classes, op.top_k,
                    job.output.data + rows() * classes, out + t * 2 * op.top_k);
    }
  }

  void Run(const ExpertGateUpOp& op) {
    moe_.GateUp({weights_, pool_, matmul_scratch_, quantize_}, op, Norm(op.norm), rows(),
                Values(op.input), Values(op.routing), Values(op.output));
  }

  void Run(const ExpertDownOp& op) {
    moe_.Down({weights_, pool_, matmul_scratch_, quantize_}, op, rows(), Values(op.input),
              Values(op.routing), Values(op.output), Width(op.output));
  }

  const bool quantize_;
  ThreadPool pool_;
  const LoadedWeights weights_;
  std::unordered_map<const Linear*, std::vector<float>> row_scales_;  // keys lie in program_

  // The slice being run.
  std::vector<Span> spans_;
  std::vector<int32_t> tokens_;
  std::vector<int64_t> logits_rows_;     // rows of the slice whose logits were asked for
  std::vector<Scratch<float>> buffers_;  // [rows, width]; the logits are kept apart

  Scratch<float> logits_;  // [rows asked for by the batch, vocab]
  int64_t logits_count_ = 0;

  PreparedInput input_;
  std::vector<MatmulScratch> matmul_scratch_;  // per thread
  AttentionRunner attention_;
  std::vector<Scratch<float>> head_mix_scratch_;  // per thread
  std::deque<PreparedInput> head_inputs_;         // one per head
  Scratch<float> gathered_;
  Scratch<float> gate_up_;
  Scratch<float> convolved_;
  Scratch<float> steps_;
  std::vector<Mamba2Run> mamba2_runs_;
  Scratch<float> low_rank_;
  Scratch<float> dt_;
  Scratch<float> normed_;
  Scratch<float> selected_;
  Scratch<float> router_scores_;
  MoeRunner moe_;
  std::vector<DeltaSpan> delta_spans_;
  DeltaRuleRunner delta_rule_;
  std::vector<Scratch<float>> lru_scratch_;  // per thread
};

}  // namespace

std::unique_ptr<Executor> MakeCpuExecutor(Program program, const CpuOptions& options) {
  RequireF32States(program.layout, "The CPU backend");
  UseSimdTargetFromEnvironment();
  return std::make_unique<CpuExecutor>(std::move(program), options);
}

}  // namespace adder
