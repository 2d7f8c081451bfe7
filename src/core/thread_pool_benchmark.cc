// What handing a loop to the pool and waiting for it costs. Argument: threads.
#include <benchmark/benchmark.h>

#include "core/thread_pool.h"

namespace adder {
namespace {

void BM_EmptyLoop(benchmark::State& state) {
  ThreadPool pool(static_cast<int>(state.range(0)));
  for (auto _ : state) {
    pool.ParallelFor(16, 1, [](int64_t, int64_t, int) {});
  }
}
BENCHMARK(BM_EmptyLoop)->Arg(1)->Arg(2)->Arg(4)->UseRealTime();

}  // namespace
}  // namespace adder

BENCHMARK_MAIN();
