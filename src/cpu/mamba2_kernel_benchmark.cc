// Speed of the Mamba-2 scan on one thread, at the shape of granite-4.0-h-350m. Arguments: tokens
// per run, and how many states are taken in turn (1: it stays in the cache; 28: one per layer).
#include <benchmark/benchmark.h>

#include <cmath>
#include <vector>

#include "cpu/mamba2_kernel.h"

namespace adder {
namespace {

void BM_Mamba2(benchmark::State& state) {
  const int64_t tokens = state.range(0);
  const auto states = static_cast<size_t>(state.range(1));
  Mamba2 m;
  m.heads = 48;
  m.head_dim = 32;
  m.d_state = 128;
  m.groups = 1;
  m.d_conv = 4;
  const auto wave = [](int64_t size, float step) {
    std::vector<float> values(static_cast<size_t>(size));
    for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(step * static_cast<float>(i));
    return values;
  };
  const std::vector<float> conv_weight = wave(m.d_conv * m.conv_channels(), 0.3f);
  const std::vector<float> per_head = wave(m.heads, 0.9f);
  const std::vector<float> a(static_cast<size_t>(m.heads), -0.5f);
  const Mamba2Weights weights{&m,       conv_weight.data(), nullptr, per_head.data(),
                              a.data(), per_head.data()};
  const std::vector<float> projected = wave(tokens * m.in_proj_rows(), 0.7f);
  std::vector<float> window(static_cast<size_t>((m.d_conv - 1) * m.conv_channels()));
  const int64_t state_size = m.heads * m.d_state * m.head_dim;
  std::vector<float> memory(states * static_cast<size_t>(state_size));
  std::vector<float> convolved(static_cast<size_t>(tokens * m.conv_channels()));
  std::vector<float> steps(static_cast<size_t>(tokens * 2 * m.heads));
  std::vector<float> output(static_cast<size_t>(tokens * m.inner()));
  size_t next = 0;
  for (auto _ : state) {
    const Mamba2Run run{tokens,
                        projected.data(),
                        m.in_proj_rows(),
                        projected.data() + m.inner() + m.conv_channels(),
                        m.in_proj_rows(),
                        window.data(),
                        memory.data() + next * static_cast<size_t>(state_size),
                        convolved.data(),
                        steps.data(),
                        output.data(),
                        m.inner()};
    Mamba2Conv(weights, run, 0, m.conv_channels());
    Mamba2Steps(weights, run, 0, tokens);
    Mamba2Scan(weights, run, 0, m.heads);
    next = (next + 1) % states;
  }
  state.counters["tokens/s"] = benchmark::Counter(static_cast<double>(state.iterations() * tokens),
                                                  benchmark::Counter::kIsRate);
  state.counters["state/s"] = benchmark::Counter(
      static_cast<double>(state.iterations()) * 8.0 * static_cast<double>(state_size),
      benchmark::Counter::kIsRate);
}
BENCHMARK(BM_Mamba2)->Args({1, 1})->Args({1, 28})->Args({4, 1})->Args({256, 1});

}  // namespace
}  // namespace adder

BENCHMARK_MAIN();
