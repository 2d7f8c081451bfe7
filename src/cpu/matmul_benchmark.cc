// Speed of the matrix kernels on one thread. Arguments: rows, columns, bits (0: dense bf16),
// tokens, and how many matrices are taken in turn (1: they stay in the cache; 200: memory is
// streamed).
#include <benchmark/benchmark.h>

#include <cmath>

#include "cpu/linear.h"
#include "cpu/random_weights_for_test.h"

namespace adder {
namespace {

void BM_Matmul(benchmark::State& state) {
  const int64_t rows = state.range(0);
  const int64_t cols = state.range(1);
  const int bits = static_cast<int>(state.range(2));
  const int64_t tokens = state.range(3);
  const int64_t copies = state.range(4);
  const RandomSegment source(rows, cols, bits, bits == 0 ? 0 : 64, DType::kBF16, 0.03f, 1);
  BoundWeights weights;
  for (int64_t i = 0; i < copies; ++i) {
    weights.matrices.push_back({rows, cols, {source.segment()}});
  }
  ThreadPool pool(1);
  const LoadedWeights loaded(weights, pool);
  std::vector<float> x(static_cast<size_t>(tokens * cols));
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(0.3f * static_cast<float>(i));
  std::vector<float> y(static_cast<size_t>(tokens * rows));
  PreparedInput input;
  input.Prepare(x.data(), cols, tokens, InputNorm{}, loaded.matrix(0), true, pool);
  std::vector<MatmulScratch> scratch(1);
  int64_t next = 0;
  for (auto _ : state) {
    MatmulJob job;
    job.matrix = &loaded.matrix(static_cast<int32_t>(next));
    job.input = &input;
    job.output.data = y.data();
    job.output.stride = rows;
    RunMatmuls({&job, 1}, pool, scratch);
    next = (next + 1) % copies;
  }
  const auto runs = static_cast<double>(state.iterations());
  state.counters["weights/s"] = benchmark::Counter(
      runs * static_cast<double>(loaded.matrix(0).bytes()), benchmark::Counter::kIsRate);
  state.counters["MAC/s"] = benchmark::Counter(runs * static_cast<double>(rows * cols * tokens),
                                               benchmark::Counter::kIsRate);
}
BENCHMARK(BM_Matmul)
    ->Args({2048, 768, 4, 1, 1})
    ->Args({2048, 768, 4, 1, 200})
    ->Args({2048, 768, 8, 1, 100})
    ->Args({2048, 768, 6, 1, 100})
    ->Args({2048, 768, 0, 1, 50})
    ->Args({2048, 768, 4, 8, 1})
    ->Args({2048, 768, 4, 240, 1})
    ->Args({2048, 768, 8, 240, 1})
    ->Args({2048, 768, 0, 240, 1});

}  // namespace
}  // namespace adder

BENCHMARK_MAIN();
