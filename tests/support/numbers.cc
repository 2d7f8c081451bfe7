#include "tests/support/numbers.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace adder::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// log of the sum of exp(values).
double LogSumExp(std::span<const float> values) {
  const double largest = *std::max_element(values.begin(), values.end());
  double sum = 0;
  for (float value : values) sum += std::exp(value - largest);
  return largest + std::log(sum);
}

}  // namespace

double MaxDifference(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return kInfinity;
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(double{a[i]} - b[i]);
    if (!std::isfinite(difference)) return kInfinity;
    largest = std::max(largest, difference);
  }
  return largest;
}

double RelativeDifference(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return kInfinity;
  double error = 0;
  double size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    error += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    size += double{b[i]} * b[i];
  }
  if (!std::isfinite(error) || !std::isfinite(size)) return kInfinity;
  return error == 0 ? 0 : std::sqrt(error / size);
}

double KlDivergence(std::span<const float> reference, std::span<const float> ours) {
  if (reference.size() != ours.size()) return kInfinity;
  const double reference_sum = LogSumExp(reference);
  const double our_sum = LogSumExp(ours);
  double divergence = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    const double log_p = reference[i] - reference_sum;
    divergence += std::exp(log_p) * (log_p - (ours[i] - our_sum));
  }
  return divergence;
}

int32_t ArgMax(std::span<const float> values) {
  return static_cast<int32_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

float Margin(std::span<const float> values) {
  std::vector<float> sorted(values.begin(), values.end());
  std::partial_sort(sorted.begin(), sorted.begin() + 2, sorted.end(), std::greater<>());
  return sorted[0] - sorted[1];
}

uint64_t Random::Bits() {
  // SplitMix64 (Steele, Lea and Flood, 2014).
  state_ += 0x9e3779b97f4a7c15u;
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

std::vector<int32_t> RandomTokens(uint64_t seed, int64_t count, int64_t vocab) {
  Random random(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = static_cast<int32_t>(random.Below(vocab));
  return tokens;
}

}  // namespace adder::test
