#include "cpu/cpu_executor.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "cpu/cpu_executor_ops.h"
#include "cpu/head_mix_kernel.h"
#include "cpu/simd_target.h"
#include "program/batch_checks.h"

namespace adder {
namespace {

// A batch is run in slices of at most so many tokens. Enough that reading the weights costs little
// beside the arithmetic; few enough that activations stay in the cache and memory stays small.
// Results do not depend on it.
constexpr int64_t kSliceTokens = 256;

int CountThreads(const CpuOptions& options) {
  return options.threads == 0 ? AvailableCores() : options.threads;
}

}  // namespace

CpuExecutor::CpuExecutor(Program program, const CpuOptions& options)
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

std::string CpuExecutor::Description() const {
  return Concat("cpu (", CpuSimdTarget(), ", ", pool_.threads(),
                pool_.threads() == 1 ? " thread" : " threads", quantize_ ? ")" : ", f32)");
}

int64_t CpuExecutor::WeightBytes() const { return weights_.bytes() + VectorBytes(); }

void CpuExecutor::Forward(const Batch& batch) {
  Run(batch, static_cast<int>(program_.ops.size()) - 1, nullptr);
}

std::vector<float> CpuExecutor::ForwardUntil(const Batch& batch, int last_op) {
  CheckLastOp(program_, last_op);
  std::vector<float> values;
  Run(batch, last_op, &values);
  return values;
}

int64_t CpuExecutor::LogitsCount() const { return logits_count_; }

std::span<const float> CpuExecutor::Logits(int64_t row) const {
  CheckLogitsRow(*this, row);
  const int64_t vocab = program_.plan->vocab;
  return {logits_.data() + row * vocab, static_cast<size_t>(vocab)};
}

// Runs ops 0 .. last_op over the batch, slice by slice; collects the last op's output when asked.
void CpuExecutor::Run(const Batch& batch, int last_op, std::vector<float>* values) {
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

void CpuExecutor::RunSlice(int last_op) {
  for (size_t b = 0; b < buffers_.size(); ++b) {
    if (static_cast<BufferId>(b) == program_.logits) continue;
    buffers_[b].Get(static_cast<size_t>(rows() * program_.buffers[b].width));
  }
  attention_.Begin(spans_, rows());
  for (int i = 0; i <= last_op; ++i) {
    std::visit([this](const auto& op) { Run(op); }, program_.ops[static_cast<size_t>(i)].body);
  }
}

void CpuExecutor::Collect(const Op& op, std::vector<float>& values) {
  const BufferId id = OutputOf(op);
  const bool logits = id == program_.logits;
  const int64_t count = logits ? static_cast<int64_t>(logits_rows_.size()) : rows();
  const float* from = logits ? logits_.data() + logits_count_ * Width(id) : Values(id);
  values.insert(values.end(), from, from + count * Width(id));
}

void CpuExecutor::ExpandRowScales(const Linear& linear) {
  if (linear.row_scales.empty()) return;
  std::vector<float>& factors = row_scales_[&linear];
  for (const RowScale& scale : linear.row_scales) {
    factors.insert(factors.end(), static_cast<size_t>(scale.rows), scale.factor);
  }
}

void CpuExecutor::SetBiasAndScales(const Linear& linear, MatmulOutput& output) const {
  output.bias = Vector(linear.bias);
  output.input_scale = linear.input_scale;
  const auto factors = row_scales_.find(&linear);
  if (factors != row_scales_.end()) output.row_scales = factors->second.data();
}

void CpuExecutor::Run(const EmbedOp& op) {
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

void CpuExecutor::Run(const LinearOp& op) {
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

void CpuExecutor::Run(const UpdateOp& op) {
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

void CpuExecutor::NormGroups(const RmsNorm& norm, const float* x, int64_t width, float* out) const {
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

void CpuExecutor::Run(const JoinOp& op) {
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

const float* CpuExecutor::GatherRows(const float* x, int64_t width) {
  float* to = gathered_.Get(logits_rows_.size() * static_cast<size_t>(width));
  for (size_t i = 0; i < logits_rows_.size(); ++i) {
    std::memcpy(to + i * static_cast<size_t>(width), x + logits_rows_[i] * width,
                static_cast<size_t>(width) * sizeof(float));
  }
  return to;
}

void CpuExecutor::Run(const NormAddOp& op) {
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

void CpuExecutor::Run(const HeadMixOp& op) {
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

void CpuExecutor::Run(const AttentionOp& op) {
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

void CpuExecutor::Run(const LatentAttentionOp& op) {
  attention_.Run(op, Values(op.query), Values(op.absorbed), Values(op.kv), Values(op.output));
}

void CpuExecutor::Run(const HeadsLinearOp& op) {
  while (head_inputs_.size() < op.matrices.size()) head_inputs_.emplace_back();
  std::vector<MatmulJob> jobs;
  for (size_t h = 0; h < op.matrices.size(); ++h) {
    const LoadedMatrix& matrix = weights_.matrix(op.matrices[h]);
    const auto head = static_cast<int64_t>(h);
    head_inputs_[h].Prepare(Values(op.input) + head * op.step, Width(op.input), rows(), InputNorm{},
                            matrix, quantize_, pool_);
    MatmulJob job;
    job.matrix = &matrix;
    job.input = &head_inputs_[h];
    job.output.data = Values(op.output) + head * matrix.rows;
    job.output.stride = Width(op.output);
    jobs.push_back(job);
  }
  RunMatmuls(jobs, pool_, matmul_scratch_);
}

void CpuExecutor::Run(const RouterOp& op) {
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

void CpuExecutor::Run(const ExpertGateUpOp& op) {
  moe_.GateUp({weights_, pool_, matmul_scratch_, quantize_}, op, Norm(op.norm), rows(),
              Values(op.input), Values(op.routing), Values(op.output));
}

void CpuExecutor::Run(const ExpertDownOp& op) {
  moe_.Down({weights_, pool_, matmul_scratch_, quantize_}, op, rows(), Values(op.input),
            Values(op.routing), Values(op.output), Width(op.output));
}

std::unique_ptr<Executor> MakeCpuExecutor(Program program, const CpuOptions& options) {
  RequireF32States(program.layout, "The CPU backend");
  UseSimdTargetFromEnvironment();
  return std::make_unique<CpuExecutor>(std::move(program), options);
}

}  // namespace adder
