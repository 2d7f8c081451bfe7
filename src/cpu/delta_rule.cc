#include "cpu/delta_rule.h"

#include "cpu/elementwise.h"

namespace adder {

void DeltaRuleRunner::Run(ThreadPool& pool, const GatedDeltaInputs& inputs, int64_t rows,
                          std::span<const DeltaSpan> spans, const GatedDeltaOutput& output) {
  const GatedDelta& m = *inputs.mixer;
  const int64_t weights = m.value_heads * m.key_dim;  // of a row
  float* prepared = prepared_.Get(static_cast<size_t>(4 * rows * weights));
  float* rates = rates_.Get(static_cast<size_t>(rows * m.value_heads));
  const GatedDeltaRows arrays{prepared, prepared + rows * weights, prepared + 2 * rows * weights,
                              prepared + 3 * rows * weights, rates};
  pool.ParallelFor(rows, 4, [&](int64_t begin, int64_t end, int) {
    PrepareGatedDelta(inputs, begin, end, arrays);
  });
  ForHeads(pool, spans, m.value_heads, m.key_dim,
           [&](const DeltaSpan& span, int64_t head, float* strip) {
             DeltaRuleRun run;
             run.heads = m.value_heads;
             run.rows = m.key_dim;
             run.columns = m.value_dim;
             run.tokens = span.tokens;
             run.decay = arrays.decay + span.row * weights;
             run.read = arrays.read + span.row * weights;
             run.write = arrays.write + span.row * weights;
             run.query = arrays.query + span.row * weights;
             run.rate = arrays.rate + span.row * m.value_heads;
             run.value_stride = inputs.qkv_stride;
             run.value = inputs.qkv + span.row * inputs.qkv_stride + 2 * m.keys();
             run.state = span.state;
             run.output_stride = m.values();
             run.output = output.values + span.row * m.values();
             DeltaRuleScan(run, head, head + 1, strip);
             for (int64_t t = span.row; t < span.row + span.tokens; ++t) {
               float* y = output.values + t * m.values() + head * m.value_dim;
               RmsNormRow(y, output.norm, m.value_dim, 1, m.norm.eps, y);
               ActivateRow(m.gate_activation,
                           output.gate + t * output.gate_stride + head * m.value_dim, y,
                           m.value_dim, y);
             }
           });
}

Rwkv7Token Rwkv7Inputs::Row(int64_t t) const {
  Rwkv7Token row = rows;
  for (const float** values : {&row.r, &row.k, &row.v, &row.decay, &row.rate, &row.gate,
                               &row.value_mix, &row.first_value}) {
    if (*values != nullptr) *values += t * mixer->inner();
  }
  return row;
}

void DeltaRuleRunner::Run(ThreadPool& pool, const Rwkv7Inputs& inputs, int64_t rows,
                          std::span<const DeltaSpan> spans, float* output) {
  const Rwkv7& m = *inputs.mixer;
  const int64_t inner = m.inner();
  float* prepared = prepared_.Get(static_cast<size_t>(5 * rows * inner));
  const auto row_of = [&](int64_t t) {
    float* first = prepared + t * inner;
    return Rwkv7Row{first, first + rows * inner, first + 2 * rows * inner, first + 3 * rows * inner,
                    first + 4 * rows * inner};
  };
  pool.ParallelFor(rows, 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      PrepareRwkv7(m, inputs.vectors, inputs.Row(t), row_of(t));
    }
  });
  ForHeads(pool, spans, m.heads, m.head_dim,
           [&](const DeltaSpan& span, int64_t head, float* strip) {
             const Rwkv7Row first = row_of(span.row);
             DeltaRuleRun run;
             run.heads = m.heads;
             run.rows = m.head_dim;
             run.columns = m.head_dim;
             run.tokens = span.tokens;
             run.decay = first.decay;
             run.read = first.read;
             run.write = first.write;
             run.answer = first.answer;
             run.query = inputs.Row(span.row).r;
             run.value_stride = inner;
             run.value = first.value;
             run.state = span.state;
             run.output_stride = inner;
             run.output = output + span.row * inner;
             DeltaRuleScan(run, head, head + 1, strip);
             for (int64_t t = span.row; t < span.row + span.tokens; ++t) {
               FinishRwkv7(m, inputs.vectors, inputs.Row(t), row_of(t), head,
                           output + t * inner + head * m.head_dim);
             }
           });
}

template <class Work>
void DeltaRuleRunner::ForHeads(ThreadPool& pool, std::span<const DeltaSpan> spans, int64_t heads,
                               int64_t state_rows, const Work& work) {
  strips_.resize(static_cast<size_t>(pool.threads()));
  for (Scratch<float>& strip : strips_) {
    strip.Get(static_cast<size_t>(state_rows * kDeltaStripColumns));
  }
  const auto tasks = static_cast<int64_t>(spans.size()) * heads;
  pool.ParallelFor(tasks, 1, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t i = begin; i < end; ++i) {
      work(spans[static_cast<size_t>(i / heads)], i % heads,
           strips_[static_cast<size_t>(thread)].data());
    }
  });
}

}  // namespace adder
