#include "core/thread_pool.h"

#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>

#include "core/error.h"

namespace adder {
namespace {

TEST(ThreadPoolTest, EveryElementIsVisitedOnce) {
  for (int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (int64_t count : {0, 1, 2, 15, 16, 17, 1000}) {
      for (int64_t grain : {1, 4, 100}) {
        std::vector<std::atomic<int>> visits(static_cast<size_t>(count));
        pool.ParallelFor(count, grain, [&](int64_t begin, int64_t end, int thread) {
          ASSERT_GE(thread, 0);
          ASSERT_LT(thread, threads);
          ASSERT_LT(begin, end);
          for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
        });
        for (const auto& visit : visits) ASSERT_EQ(visit, 1);
      }
    }
  }
}

// What a loop wrote, the caller and the next loop see; many loops in a row hit the spinning path,
// the pauses the sleeping one.
TEST(ThreadPoolTest, LoopsFollowEachOther) {
  ThreadPool pool(4);
  constexpr int64_t kCount = 64;
  std::vector<int64_t> values(kCount);
  for (int round = 0; round < 3000; ++round) {
    pool.ParallelFor(kCount, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        // Reads what another thread may have written in the previous loop.
        if (i % 2 == round % 2) values[i] += 1 + values[i] * 0 + (values[(i + 1) % kCount] & 0);
      }
    });
    if (round % 1000 == 999) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  for (int64_t value : values) EXPECT_EQ(value, 1500);
}

// A worker held up between two loops, the second with more ranges than the first, must take no
// range of the second with what it read of the first.
TEST(ThreadPoolTest, LoopsOfUnlikeSizesRunEachRangeOnce) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> visits(32);
  for (int round = 0; round < 30000; ++round) {
    const int64_t count = round % 2 == 0 ? 2 : 32;
    for (auto& visit : visits) visit.store(0, std::memory_order_relaxed);
    pool.ParallelFor(count, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
    });
    for (int64_t i = 0; i < 32; ++i) ASSERT_EQ(visits[static_cast<size_t>(i)], i < count ? 1 : 0);
  }
}

TEST(ThreadPoolTest, ExceptionReachesTheCaller) {
  ThreadPool pool(3);
  for (int round = 0; round < 20; ++round) {
    EXPECT_THROW(pool.ParallelFor(100, 1,
                                  [](int64_t begin, int64_t end, int) {
                                    if (begin <= 57 && 57 < end) throw std::out_of_range("57");
                                  }),
                 std::out_of_range);
    std::atomic<int64_t> sum{0};
    pool.ParallelFor(10, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) sum += i;
    });
    EXPECT_EQ(sum, 45);
  }
}

TEST(ThreadPoolTest, ThreadCountIsChecked) {
  EXPECT_THROW(ThreadPool pool(0), Error);
  EXPECT_THROW(ThreadPool pool(5000), Error);
  EXPECT_GE(AvailableCores(), 1);
}

}  // namespace
}  // namespace adder
