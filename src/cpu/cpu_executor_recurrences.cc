// Ops that read what tokens before left behind: convolutions, shifts and the recurrences.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/causal_conv.h"
#include "cpu/cpu_executor_ops.h"
#include "cpu/mamba1_kernel.h"
#include "cpu/rg_lru_kernel.h"

namespace adder {

void CpuExecutor::Run(const Mamba2Op& op) {
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

void CpuExecutor::ScanHeads(const Mamba2Weights& weights) {
  const int64_t heads = weights.mixer->heads;
  pool_.ParallelFor(
      static_cast<int64_t>(mamba2_runs_.size()) * heads, 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t head = i % heads;
          Mamba2Scan(weights, mamba2_runs_[static_cast<size_t>(i / heads)], head, head + 1);
        }
      });
}

void CpuExecutor::NormThenGate(const Mamba2Op& op) {
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

Mamba2Weights CpuExecutor::WeightsOf(const Mamba2& m) const {
  return {&m,         Vector(m.conv_weight), Vector(m.conv_bias), Vector(m.dt_bias), Vector(m.a),
          Vector(m.d)};
}

void CpuExecutor::Run(const Mamba2SelectedOp& op) {
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

void CpuExecutor::NormPart(const std::optional<RmsNorm>& norm, const float* from, int64_t size,
                           float* to) const {
  if (norm) {
    RmsNormRow(from, Vector(norm->weight), size, norm->groups, norm->eps, to);
  } else {
    std::copy(from, from + size, to);
  }
}

void CpuExecutor::Run(const CausalConvOp& op) {
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

void CpuExecutor::Run(const Mamba1ScanOp& op) {
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

void CpuExecutor::Run(const TokenShiftOp& op) {
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

void CpuExecutor::Run(const RgLruOp& op) {
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

void CpuExecutor::Run(const Rwkv7Op& op) {
  const Rwkv7& m = op.mixer;
  Rwkv7Inputs inputs;
  inputs.mixer = &m;
  inputs.vectors = {Vector(m.key_scale), Vector(m.key_rate), Vector(m.bonus), Vector(m.norm.weight),
                    Vector(m.norm.bias)};
  inputs.rows = {Values(op.r),    Values(op.k),    Values(op.v), Values(op.decay),
                 Values(op.rate), Values(op.gate), nullptr,      nullptr};
  if (m.value_mix) {
    inputs.rows.value_mix = Values(op.value_mix);
    inputs.rows.first_value = Values(op.first_value);
  }
  SetDeltaSpans(op.state);
  delta_rule_.Run(pool_, inputs, rows(), delta_spans_, Values(op.output));
}

void CpuExecutor::SetDeltaSpans(int state) {
  delta_spans_.clear();
  for (const Span& span : spans_) {
    delta_spans_.push_back({span.row, span.tokens, state_.Recurrent(span.sequence, state)});
  }
}

void CpuExecutor::Run(const GatedDeltaOp& op) {
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

float* CpuExecutor::ProjectSteps(const Linear& linear, const float* low_rank, int64_t stride) {
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

// A recurrence of Mamba-2's form: h = decay * h + 1 * k v^T, y = q^T h, without convolution, skip
// and gate.
void CpuExecutor::Run(const LightningOp& op) {
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

}  // namespace adder
