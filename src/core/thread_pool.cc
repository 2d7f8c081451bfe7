#include "core/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <set>
#include <string>
#include <utility>

#include "core/error.h"

namespace adder {
namespace {

constexpr int kMaxThreads = 1024;
// How long an idle worker spins before it sleeps: longer than the serial work between two loops of
// a step, far shorter than a person notices.
constexpr std::chrono::microseconds kSpin{100};
// Ranges per thread: enough that a thread which was held up does not hold up the others.
constexpr int64_t kRangesPerThread = 8;

// In place of the next range: nothing may be taken. Larger than any number of ranges.
constexpr uint32_t kClosed = UINT32_MAX;

void CpuRelax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Calls `ready` until it returns true or the time is over. Returns whether it was true.
template <class Ready>
bool SpinUntil(const Ready& ready) {
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  do {
    // The clock is looked at now and then only, because reading it costs more than a check.
    for (int i = 0; i < 64; ++i) {
      if (ready()) return true;
      CpuRelax();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return ready();
}

uint32_t EpochOf(uint64_t cursor) { return static_cast<uint32_t>(cursor >> 32); }

}  // namespace

int AvailableCores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) {
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  }
  std::set<std::string> cores;  // the sibling lists name a core
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    std::ifstream file(
        Concat("/sys/devices/system/cpu/cpu", cpu, "/topology/thread_siblings_list"));
    std::string siblings;
    if (!std::getline(file, siblings) || siblings.empty()) siblings = Concat("cpu", cpu);
    cores.insert(siblings);
  }
  return std::clamp(static_cast<int>(cores.size()), 1, kMaxThreads);
}

ThreadPool::ThreadPool(int threads) {
  if (threads < 1 || threads > kMaxThreads) {
    Fail("Cannot run on ", threads, " threads: the number must be between 1 and ", kMaxThreads,
         ".");
  }
  for (int thread = 1; thread < threads; ++thread) {
    workers_.emplace_back([this, thread] { WorkerLoop(thread); });
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::Run(int64_t count, int64_t grain, Call call, const void* callable) {
  if (count <= 0) return;
  const int64_t wanted = kRangesPerThread * threads();
  const int64_t size = std::max({grain, int64_t{1}, (count + wanted - 1) / wanted});
  const int64_t ranges = (count + size - 1) / size;
  if (workers_.empty() || ranges == 1) {
    call(callable, 0, count, 0);
    return;
  }
  // Close the loop before: a late worker still holding its cursor could otherwise take a range of
  // this loop between the stores below. Each of them releases, so a worker that sees one of the new
  // values also sees the closed cursor and fails to take a range.
  const uint32_t epoch = EpochOf(cursor_.load(std::memory_order_relaxed)) + 1;
  cursor_.store((uint64_t{epoch - 1} << 32) | kClosed, std::memory_order_relaxed);
  call_.store(call, std::memory_order_release);
  callable_.store(callable, std::memory_order_release);
  count_.store(count, std::memory_order_release);
  range_size_.store(size, std::memory_order_release);
  ranges_.store(static_cast<uint32_t>(ranges), std::memory_order_release);
  ranges_done_.store(0, std::memory_order_relaxed);
  failed_.store(false, std::memory_order_relaxed);
  // Sequentially consistent with sleepers_: either a worker going to sleep sees the new epoch, or
  // its registration is seen here.
  cursor_.store(uint64_t{epoch} << 32);
  if (sleepers_.load() > 0) {
    { const std::lock_guard<std::mutex> lock(mutex_); }
    wake_.notify_all();
  }
  Work(0);
  const auto finished = [this, ranges] {
    return ranges_done_.load(std::memory_order_acquire) == static_cast<uint32_t>(ranges);
  };
  // What is left are ranges that workers are in the middle of. If that takes long, the machine is
  // busy with something else: let it.
  while (!SpinUntil(finished)) std::this_thread::yield();
  if (failed_.load(std::memory_order_acquire)) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::rethrow_exception(std::exchange(exception_, nullptr));
  }
}

void ThreadPool::Work(int thread) {
  uint64_t cursor = cursor_.load(std::memory_order_acquire);
  for (;;) {
    const Call call = call_.load(std::memory_order_acquire);
    const void* callable = callable_.load(std::memory_order_acquire);
    const int64_t count = count_.load(std::memory_order_acquire);
    const int64_t size = range_size_.load(std::memory_order_acquire);
    const auto range = static_cast<uint32_t>(cursor);
    if (range >= ranges_.load(std::memory_order_acquire)) return;
    // Success means that the cursor has not moved since it was read, so the fields above are those
    // of its loop: they change only while the cursor is closed.
    if (!cursor_.compare_exchange_weak(cursor, cursor + 1, std::memory_order_acq_rel,
                                       std::memory_order_acquire)) {
      continue;
    }
    const int64_t begin = range * size;
    if (!failed_.load(std::memory_order_relaxed)) {
      try {
        call(callable, begin, std::min(begin + size, count), thread);
      } catch (...) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (!exception_) exception_ = std::current_exception();
        failed_.store(true, std::memory_order_release);
      }
    }
    ranges_done_.fetch_add(1, std::memory_order_acq_rel);
    cursor = cursor_.load(std::memory_order_acquire);
  }
}

void ThreadPool::WorkerLoop(int thread) {
  uint32_t seen = 0;
  for (;;) {
    WaitForNewLoop(seen);
    if (stop_) return;
    seen = EpochOf(cursor_.load(std::memory_order_acquire));
    Work(thread);
  }
}

void ThreadPool::WaitForNewLoop(uint32_t seen) {
  const auto ready = [this, seen] {
    return EpochOf(cursor_.load(std::memory_order_acquire)) != seen ||
           stop_.load(std::memory_order_relaxed);
  };
  if (SpinUntil(ready)) return;
  std::unique_lock<std::mutex> lock(mutex_);
  sleepers_.fetch_add(1);
  wake_.wait(lock, [this, seen] { return EpochOf(cursor_.load()) != seen || stop_.load(); });
  sleepers_.fetch_sub(1);
}

}  // namespace adder
