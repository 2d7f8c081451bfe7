#include "engine/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

#include "core/error.h"

namespace adder {
namespace {

// The largest logit. Lanes let the compiler use vector instructions: float maximum and comparison
// do not reorder on their own.
float LargestLogit(std::span<const float> logits) {
  if (logits.empty()) Fail("There are no logits to sample from.");
  constexpr size_t kLanes = 16;
  std::array<float, kLanes> largest;
  std::array<int32_t, kLanes> not_a_number{};
  largest.fill(-INFINITY);
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const float value = logits[i + lane];
      largest[lane] = value > largest[lane] ? value : largest[lane];
      not_a_number[lane] |= value != value;
    }
  }
  for (; i < logits.size(); ++i) {
    largest[0] = logits[i] > largest[0] ? logits[i] : largest[0];
    not_a_number[0] |= logits[i] != logits[i];
  }
  const float result = *std::max_element(largest.begin(), largest.end());
  const bool any_nan =
      std::any_of(not_a_number.begin(), not_a_number.end(), [](int32_t is) { return is != 0; });
  if (any_nan || !std::isfinite(result)) {
    Fail(
        "The model's logits are not finite numbers, so no token can be chosen; the checkpoint is "
        "damaged, or its weights overflow.");
  }
  return result;
}

}  // namespace

void ValidateSampling(const SamplingParameters& parameters) {
  const auto in = [](float value, float low, float high) { return value >= low && value <= high; };
  if (!std::isfinite(parameters.temperature) || parameters.temperature < 0) {
    Fail("The temperature is ", parameters.temperature, "; it must be a number of at least 0.");
  }
  if (parameters.top_k < 0) {
    Fail("top-k is ", parameters.top_k, "; it must be at least 1, or 0 to keep all tokens.");
  }
  if (!in(parameters.top_p, 0, 1) || parameters.top_p == 0) {
    Fail("top-p is ", parameters.top_p, "; it must be above 0 and at most 1.");
  }
  if (!in(parameters.min_p, 0, 1)) {
    Fail("min-p is ", parameters.min_p, "; it must be between 0 and 1.");
  }
  if (!std::isfinite(parameters.repeat_penalty) || parameters.repeat_penalty <= 0) {
    Fail("The repeat penalty is ", parameters.repeat_penalty,
         "; it must be a number above 0 (1 changes nothing).");
  }
  if (parameters.repeat_window < 0) {
    Fail("The repeat window is ", parameters.repeat_window, "; it must be at least 0 tokens.");
  }
}

uint64_t RandomStream::Next() {
  state_ += 0x9E3779B97F4A7C15u;
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

uint64_t RandomSeed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

int32_t Greedy(std::span<const float> logits) {
  const float largest = LargestLogit(logits);
  return static_cast<int32_t>(std::find(logits.begin(), logits.end(), largest) - logits.begin());
}

Sampler::Sampler(const SamplingParameters& parameters)
    : parameters_((ValidateSampling(parameters), parameters)), random_(parameters.seed) {}

int32_t Sampler::Sample(std::span<const float> logits, std::span<const int32_t> context) {
  if (parameters_.repeat_penalty != 1) {
    penalised_.assign(logits.begin(), logits.end());
    const size_t window = std::min(context.size(), static_cast<size_t>(parameters_.repeat_window));
    for (int32_t id : context.last(window)) {
      if (id < 0 || static_cast<size_t>(id) >= logits.size()) continue;
      // From the original logit, so that a second occurrence changes nothing.
      const float logit = logits[static_cast<size_t>(id)];
      penalised_[static_cast<size_t>(id)] =
          logit > 0 ? logit / parameters_.repeat_penalty : logit * parameters_.repeat_penalty;
    }
    logits = penalised_;
  }
  if (parameters_.temperature == 0) return Greedy(logits);

  const float largest = LargestLogit(logits);
  candidates_.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    candidates_.push_back({logits[i], static_cast<int32_t>(i), 0});
  }
  const auto top_k = static_cast<size_t>(parameters_.top_k);
  if (top_k > 0 && top_k < candidates_.size()) {
    const auto end = candidates_.begin() + static_cast<std::ptrdiff_t>(top_k);
    std::nth_element(candidates_.begin(), end, candidates_.end(), Before);
    candidates_.resize(top_k);
  }
  const double temperature = parameters_.temperature;
  for (Candidate& candidate : candidates_) {
    candidate.weight = std::exp((static_cast<double>(candidate.logit) - largest) / temperature);
  }
  return SampleCandidates();
}

int32_t Sampler::SampleCandidates() {
  const auto sum_of_weights = [&] {
    double sum = 0;
    for (const Candidate& candidate : candidates_) sum += candidate.weight;
    return sum;
  };
  // Top-p is a share of all the probability, so it is measured before min-p takes tokens away.
  const double enough = parameters_.top_p < 1 ? parameters_.top_p * sum_of_weights() : INFINITY;
  const double least = parameters_.min_p;
  std::erase_if(candidates_, [&](const Candidate& candidate) {
    return candidate.weight == 0 || candidate.weight < least;
  });

  // A heap gives the ranking one by one: sorting a whole vocabulary would cost more than the rest.
  const auto after = [](const Candidate& a, const Candidate& b) { return Before(b, a); };
  std::make_heap(candidates_.begin(), candidates_.end(), after);
  size_t ranked = 0;  // how many of the likeliest lie behind the heap, the likeliest last
  const auto rank_one_more = [&] {
    std::pop_heap(candidates_.begin(), candidates_.end() - static_cast<std::ptrdiff_t>(ranked),
                  after);
    ++ranked;
    return candidates_[candidates_.size() - ranked].weight;
  };
  double kept = 0;
  size_t kept_count = candidates_.size();
  if (std::isinf(enough)) {
    kept = sum_of_weights();
  } else {
    while (ranked < candidates_.size() && kept < enough) kept += rank_one_more();
    kept_count = ranked;
  }

  const double threshold = random_.NextUniform() * kept;
  double sum = 0;
  for (size_t rank = 0;; ++rank) {
    if (rank == ranked) rank_one_more();
    const Candidate& candidate = candidates_[candidates_.size() - 1 - rank];
    sum += candidate.weight;
    // The last one also takes what rounding left of the sum.
    if (sum > threshold || rank + 1 == kept_count) return candidate.id;
  }
}

}  // namespace adder
