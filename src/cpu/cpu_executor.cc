#include "cpu/cpu_executor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <unordered_map>

#include "core/error.h"
#include "core/thread_pool.h"
#include "cpu/attention_kernel.h"
#include "cpu/causal_conv.h"
#include "cpu/elementwise.h"
#include "cpu/linear.h"
#include "cpu/loaded_weights.h"
#include "cpu/mamba1_kernel.h"
#include "cpu/mamba2_kernel.h"
#include "cpu/moe.h"
#include "cpu/simd_target.h"
#include "program/batch_checks.h"
#include "program/host_executor.h"

namespace adder {
namespace {

// A batch is run in slices of at most so many tokens. Enough that reading the weights costs little
// beside the arithmetic; few enough that activations stay in the cache and memory stays small.
// Results do not depend on it.
constexpr int64_t kSliceTokens = 256;
// Channels of the convolution, and tokens of attention, that one task takes in a slice.
constexpr int64_t kChannelBlock = 128;
constexpr int64_t kAttentionTokens = 8;

// The tokens of one sequence in a slice: rows [row, row + tokens) of the buffers.
struct Span {
  SequenceId sequence;
  int64_t row;
  int64_t tokens;
  int64_t position;  // of the first of them
};

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
        attention_scratch_(static_cast<size_t>(pool_.threads())) {
    for (const Op& op : program_.ops) {
      if (const auto* linear = std::get_if<LinearOp>(&op.body)) ExpandRowScales(linear->linear);
      if (const auto* router = std::get_if<RouterOp>(&op.body)) ExpandRowScales(router->router);
      if (const auto* scan = std::get_if<Mamba1ScanOp>(&op.body)) {
        ExpandRowScales(scan->mixer.dt_proj);
      }
      if (const auto* scan = std::get_if<Mamba2SelectedOp>(&op.body)) {
        ExpandRowScales(scan->mixer.selection->dt_proj);
      }
      const auto* attention = std::get_if<AttentionOp>(&op.body);
      if (attention != nullptr && attention->mixer.rope) FindRope(*attention->mixer.rope);
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
    for (RopeCache& cache : ropes_) cache.filled = false;
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
    return norm ? InputNorm{Vector(norm->weight), norm->groups, norm->eps} : InputNorm{};
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
      }
    });
  }

  void Run(const LinearOp& op) {
    const LoadedMatrix& matrix = weights_.matrix(op.linear.weight);
    const float* x = Values(op.input);
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
    input_.Prepare(x, matrix.cols, tokens, Norm(op.norm), matrix, quantize_, pool_);
    RunMatmuls({&job, 1}, pool_, matmul_scratch_);
    if (activates) {
      const int64_t width = gated ? matrix.rows / 2 : matrix.rows;
      float* out = Values(op.output);
      const float* row_gate = op.row_gate == kNoId ? nullptr : Values(op.row_gate);
      pool_.ParallelFor(tokens, 4, [&](int64_t begin, int64_t end, int) {
        for (int64_t t = begin; t < end; ++t) {
          const float* gate = gate_up_.data() + t * matrix.rows;
          float* to = out + t * width;
          ActivateRow(op.activation, gate, gated ? gate + width : nullptr, width, to);
          if (row_gate == nullptr) continue;
          const float factor = 1.0f / (1.0f + std::exp(-row_gate[t]));
          for (int64_t k = 0; k < width; ++k) to[k] *= factor;
        }
      });
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
    ForChannelBlocks(op.channels, rows() >= 4, [&](const Span& span, int64_t begin, int64_t end) {
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
    ForChannelBlocks(m.inner, true, [&](const Span& span, int64_t begin, int64_t end) {
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

  // Runs work(span, begin, end) for blocks of channels of every span of the slice, on several
  // threads or one.
  template <class Work>
  void ForChannelBlocks(int64_t channels, bool spread, const Work& work) {
    const int64_t blocks = (channels + kChannelBlock - 1) / kChannelBlock;
    const int64_t tasks = static_cast<int64_t>(spans_.size()) * blocks;
    pool_.ParallelFor(tasks, spread ? 1 : tasks, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t first = i % blocks * kChannelBlock;
        work(spans_[static_cast<size_t>(i / blocks)], first,
             std::min(first + kChannelBlock, channels));
      }
    });
  }

  void Run(const AttentionOp& op) {
    const Attention& m = op.mixer;
    const int64_t q_width = m.heads * m.head_dim;
    const int64_t kv_width = m.kv_heads * m.head_dim;
    const int64_t stride = Width(op.input);
    const int64_t page_positions = state_.layout().page_positions;
    RopeTable rope = m.rope ? FilledRope(*m.rope) : RopeTable{};
    const float* qk = Values(op.input);
    int64_t qk_stride = stride;
    if (m.q_norm || m.k_norm) {
      qk = NormedHeads(m, rope, qk, stride);
      qk_stride = q_width + kv_width;
      if (m.qk_norm_after_rope) rope = {};
    }
    // Pages of all sequences, then tasks of all sequences.
    struct Task {
      size_t run;
      int64_t kv_head;
      int64_t token_begin;
      int64_t token_end;
    };
    std::vector<std::vector<float*>> keys(spans_.size());
    std::vector<std::vector<float*>> values(spans_.size());
    std::vector<AttentionRun> runs(spans_.size());
    std::vector<Task> tasks;
    for (size_t s = 0; s < spans_.size(); ++s) {
      const Span& span = spans_[s];
      const int64_t end = span.position + span.tokens;
      for (int64_t page = 0; page * page_positions < end; ++page) {
        keys[s].push_back(state_.Keys(span.sequence, op.kv, page));
        values[s].push_back(state_.Values(span.sequence, op.kv, page));
      }
      AttentionRun& run = runs[s];
      run.mixer = &m;
      run.q = qk + span.row * qk_stride;
      run.q_stride = qk_stride;
      run.output_stride = Width(op.output);
      run.output = Values(op.output) + span.row * run.output_stride;
      run.first_position = span.position;
      run.rope = rope;
      if (rope.values != nullptr) run.rope.values = rope.Row(span.row);
      run.keys = keys[s];
      run.values = values[s];
      run.page_positions = page_positions;
      for (int64_t kv_head = 0; kv_head < m.kv_heads; ++kv_head) {
        for (int64_t t = 0; t < span.tokens; t += kAttentionTokens) {
          tasks.push_back({s, kv_head, t, std::min(t + kAttentionTokens, span.tokens)});
        }
      }
      // Appending is a copy of a few kilobytes per token.
      for (int64_t t = 0; t < span.tokens; ++t) {
        const float* k = run.q + t * qk_stride + q_width;
        const float* v = Values(op.input) + (span.row + t) * stride + q_width + kv_width;
        const auto page = static_cast<size_t>((span.position + t) / page_positions);
        const int64_t at = (span.position + t) % page_positions * kv_width;
        const bool rotates = rope.values != nullptr;
        RotateHeads(k, m.kv_heads, m.head_dim, rotates ? run.rope.Row(t) : nullptr,
                    rotates ? rope.rotary_dim : 0, keys[s][page] + at);
        std::memcpy(values[s][page] + at, v, static_cast<size_t>(kv_width) * sizeof(float));
      }
    }
    pool_.ParallelFor(static_cast<int64_t>(tasks.size()), 1,
                      [&](int64_t begin, int64_t end, int thread) {
                        for (int64_t i = begin; i < end; ++i) {
                          const Task& task = tasks[static_cast<size_t>(i)];
                          Attend(runs[task.run], task.kv_head, task.token_begin, task.token_end,
                                 attention_scratch_[static_cast<size_t>(thread)]);
                        }
                      });
  }

  // q | k of all rows after their norms (and, when that comes first, the rotation).
  const float* NormedHeads(const Attention& m, const RopeTable& rope, const float* qkv,
                           int64_t stride) {
    const int64_t width = (m.heads + m.kv_heads) * m.head_dim;
    const int64_t rotary_dim = m.qk_norm_after_rope ? rope.rotary_dim : 0;
    float* normed = normed_heads_.Get(static_cast<size_t>(rows() * width));
    pool_.ParallelFor(rows(), 8, [&](int64_t begin, int64_t end, int) {
      for (int64_t t = begin; t < end; ++t) {
        float* q = normed + t * width;
        RotateHeads(qkv + t * stride, m.heads + m.kv_heads, m.head_dim,
                    rotary_dim > 0 ? rope.Row(t) : nullptr, rotary_dim, q);
        NormHeads(m.q_norm, m.heads * m.head_dim, q);
        NormHeads(m.k_norm, m.kv_heads * m.head_dim, q + m.heads * m.head_dim);
      }
    });
    return normed;
  }

  // One weight for every head alone, or one for all together (plan.h).
  void NormHeads(const std::optional<RmsNorm>& norm, int64_t width, float* x) const {
    if (!norm) return;
    const auto size =
        static_cast<int64_t>(program_.weights->vectors[static_cast<size_t>(norm->weight)].size());
    for (int64_t begin = 0; begin < width; begin += size) {
      RmsNormRow(x + begin, Vector(norm->weight), size, norm->groups, norm->eps, x + begin);
    }
  }

  void Run(const RouterOp& op) {
    const LoadedMatrix& matrix = weights_.matrix(op.router.weight);
    // Always with f32 activations: it is a small matrix, and a choice is not a matter of degree.
    input_.Prepare(Values(op.input), matrix.cols, rows(), Norm(op.norm), matrix, false, pool_);
    MatmulJob job;
    job.matrix = &matrix;
    job.input = &input_;
    // Behind the scores, room for one row of choice scores.
    job.output.data = router_scores_.Get(static_cast<size_t>((rows() + 1) * op.experts));
    job.output.stride = op.experts;
    SetBiasAndScales(op.router, job.output);
    RunMatmuls({&job, 1}, pool_, matmul_scratch_);
    float* out = Values(op.output);
    for (int64_t t = 0; t < rows(); ++t) {
      ChooseExperts(op.routing, Vector(op.routing.choice_bias), job.output.data + t * op.experts,
                    op.experts, op.top_k, job.output.data + rows() * op.experts,
                    out + t * 2 * op.top_k);
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

  // ---- rotary tables: one per distinct rope, filled once per slice

  struct RopeCache {
    Rope rope;
    bool filled = false;
    Scratch<float> values;
  };

  RopeCache& FindRope(const Rope& rope) {
    for (RopeCache& cache : ropes_) {
      if (cache.rope.rotary_dim == rope.rotary_dim &&
          cache.rope.inverse_frequencies == rope.inverse_frequencies) {
        return cache;
      }
    }
    ropes_.emplace_back();
    ropes_.back().rope = rope;
    return ropes_.back();
  }

  RopeTable FilledRope(const Rope& rope) {
    RopeCache& cache = FindRope(rope);
    if (!cache.filled) {
      float* values = cache.values.Get(static_cast<size_t>(rows() * rope.rotary_dim));
      for (const Span& span : spans_) {
        for (int64_t t = 0; t < span.tokens; ++t) {
          FillRopeRow(rope, span.position + t, values + (span.row + t) * rope.rotary_dim);
        }
      }
      cache.filled = true;
    }
    return {cache.values.data(), rope.rotary_dim};
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
  std::vector<MatmulScratch> matmul_scratch_;      // per thread
  std::vector<Scratch<float>> attention_scratch_;  // per thread
  Scratch<float> gathered_;
  Scratch<float> gate_up_;
  Scratch<float> normed_heads_;
  Scratch<float> convolved_;
  Scratch<float> steps_;
  std::vector<Mamba2Run> mamba2_runs_;
  Scratch<float> low_rank_;
  Scratch<float> dt_;
  Scratch<float> normed_;
  Scratch<float> selected_;
  Scratch<float> router_scores_;
  std::vector<RopeCache> ropes_;
  MoeRunner moe_;
};

}  // namespace

std::unique_ptr<Executor> MakeCpuExecutor(Program program, const CpuOptions& options) {
  UseSimdTargetFromEnvironment();
  return std::make_unique<CpuExecutor>(std::move(program), options);
}

}  // namespace adder
