// A fixed set of worker threads for data-parallel loops inside one forward pass.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace adder {

// Physical cores the process may run on (affinity mask; hyper-threads of one core count once where
// the system tells). At least 1.
int AvailableCores();

// Runs loops over [0, count) on `threads` threads, of which the caller is one. A decode step runs
// several loops per layer, each only microseconds long, so workers spin for a short while after a
// loop and sleep only when nothing follows.
//
// One loop runs at a time: ParallelFor must not be called from inside a loop, nor from two threads.
class ThreadPool {
 public:
  // Throws Error unless 1 <= threads <= 1024.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls function(begin, end, thread) for disjoint ranges that cover [0, count), in any order and
  // on any thread; thread is in [0, threads()), and two calls with the same number never overlap in
  // time. Ranges have at least `grain` elements except the last. Returns when all calls are done;
  // the first exception that one throws is rethrown (ranges not yet begun are then skipped).
  template <class Function>
  void ParallelFor(int64_t count, int64_t grain, const Function& function) {
    using Callable = std::remove_reference_t<Function>;
    Run(
        count, grain,
        [](const void* callable, int64_t begin, int64_t end, int thread) {
          (*static_cast<const Callable*>(callable))(begin, end, thread);
        },
        &function);
  }

 private:
  using Call = void (*)(const void* callable, int64_t begin, int64_t end, int thread);

  void Run(int64_t count, int64_t grain, Call call, const void* callable);
  // Takes ranges of the current loop until none is left.
  void Work(int thread);
  void WorkerLoop(int thread);
  void WaitForNewLoop(uint32_t seen);

  // The loop being run. The fields are atomics because a late worker may read them while the next
  // loop is being set up; it then fails to take a range (cursor_ was closed before).
  std::atomic<Call> call_{nullptr};
  std::atomic<const void*> callable_{nullptr};
  std::atomic<int64_t> count_{0};
  std::atomic<int64_t> range_size_{1};
  std::atomic<uint32_t> ranges_{0};
  // Epoch of the loop in the high half, next range to take in the low half.
  alignas(64) std::atomic<uint64_t> cursor_{0};
  alignas(64) std::atomic<uint32_t> ranges_done_{0};
  std::atomic<bool> failed_{false};
  std::atomic<bool> stop_{false};
  std::atomic<int> sleepers_{0};

  std::mutex mutex_;
  std::condition_variable wake_;  // a new loop, or stop
  std::exception_ptr exception_;  // guarded by mutex_
  std::vector<std::thread> workers_;
};

}  // namespace adder
