// Comparing rows of logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace adder::test {

// Largest |a - b|; infinity when sizes differ or a value is not finite.
double MaxDifference(std::span<const float> a, std::span<const float> b);

// |a - b| / |b| in the Euclidean norm; infinity as above.
double RelativeDifference(std::span<const float> a, std::span<const float> b);

// KL(softmax(reference) || softmax(ours)) in nats.
double KlDivergence(std::span<const float> reference, std::span<const float> ours);

// Index of the largest value, the first of equals.
int32_t ArgMax(std::span<const float> values);

// Largest minus second largest value.
float Margin(std::span<const float> values);

// Deterministic numbers that depend on `seed` only.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Bits();
  // Uniform in [-1, 1).
  float Symmetric() { return static_cast<float>(Bits() >> 40) / static_cast<float>(1 << 23) - 1; }
  int64_t Below(int64_t bound) {
    return static_cast<int64_t>(Bits() % static_cast<uint64_t>(bound));
  }

 private:
  uint64_t state_;
};

// `count` token ids below `vocab`.
std::vector<int32_t> RandomTokens(uint64_t seed, int64_t count, int64_t vocab);

}  // namespace adder::test
