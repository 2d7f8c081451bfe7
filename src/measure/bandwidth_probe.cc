#include "measure/bandwidth_probe.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"

namespace adder {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr int kPasses = 5;
constexpr size_t kWordsPerLine = 8;

// Kilobytes of /proc/meminfo's MemAvailable as bytes; 0 when unknown.
int64_t AvailableMemory() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  int64_t kilobytes = 0;
  std::string unit;
  while (file >> name >> kilobytes && std::getline(file, unit)) {
    if (name == "MemAvailable:") return kilobytes * 1024;
  }
  return 0;
}

int64_t LargestCache() {
  int64_t largest = 0;
  for (int name : {_SC_LEVEL2_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE, _SC_LEVEL4_CACHE_SIZE}) {
    largest = std::max<int64_t>(largest, sysconf(name));
  }
  return largest;
}

class Buffer {
 public:
  explicit Buffer(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {
    memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) Fail("No memory for a read-bandwidth buffer of ", bytes, " bytes.");
    // As weights of this size would be: address translation is not what is measured.
    madvise(memory_, bytes_, MADV_HUGEPAGE);
  }
  ~Buffer() { munmap(memory_, bytes_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  uint64_t* words() { return static_cast<uint64_t*>(memory_); }
  size_t lines() const { return bytes_ / (kWordsPerLine * sizeof(uint64_t)); }

 private:
  size_t bytes_;
  void* memory_;
};

// One sum per word of a cache line: independent, and in vector registers.
uint64_t SumLines(const uint64_t* words, size_t lines) {
  uint64_t sums[kWordsPerLine] = {};
  for (size_t line = 0; line < lines; ++line) {
    for (size_t i = 0; i < kWordsPerLine; ++i) sums[i] += words[line * kWordsPerLine + i];
  }
  uint64_t total = 0;
  for (uint64_t sum : sums) total += sum;
  return total;
}

// Runs function(begin, end) over equal parts of [0, count), a thread each.
template <class Function>
void OnThreads(int threads, size_t count, const Function& function) {
  std::vector<std::thread> workers;
  const auto parts = static_cast<size_t>(threads);
  for (size_t part = 1; part < parts; ++part) {
    workers.emplace_back(function, count * part / parts, count * (part + 1) / parts);
  }
  function(0, count / parts);
  for (std::thread& worker : workers) worker.join();
}

}  // namespace

BandwidthProbe ProbeReadBandwidth(int threads) {
  BandwidthProbe probe;
  probe.cache_bytes = LargestCache();
  probe.buffer_bytes = std::max(kGiB, 4 * probe.cache_bytes);
  if (const int64_t available = AvailableMemory(); available > 0) {
    probe.buffer_bytes = std::clamp(available / 4, int64_t{1} << 22, probe.buffer_bytes);
  }
  Buffer buffer(probe.buffer_bytes);
  // Untouched memory would all be one page of zeros.
  OnThreads(threads, buffer.lines(), [&](size_t begin, size_t end) {
    constexpr size_t kLineBytes = kWordsPerLine * sizeof(uint64_t);
    std::memset(buffer.words() + begin * kWordsPerLine, 1, (end - begin) * kLineBytes);
  });
  std::atomic<uint64_t> sum{0};
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    OnThreads(threads, buffer.lines(), [&](size_t begin, size_t end) {
      sum += SumLines(buffer.words() + begin * kWordsPerLine, end - begin);
    });
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    probe.bytes_per_second =
        std::max(probe.bytes_per_second, static_cast<double>(probe.buffer_bytes) / seconds);
  }
  // The sums are looked at so that the reads cannot be left out.
  const uint64_t expected =
      uint64_t{0x0101010101010101u} * buffer.lines() * kWordsPerLine * kPasses;
  if (sum != expected) Fail("The read-bandwidth probe read other values than it wrote.");
  return probe;
}

int64_t PeakResidentBytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

}  // namespace adder
