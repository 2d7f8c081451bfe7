// Choosing the next token from logits.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "program/sampling_parameters.h"

namespace adder {

// Throws Error naming the parameter that is out of range or not a number.
void ValidateSampling(const SamplingParameters& parameters);

// Random numbers that are the same everywhere: SplitMix64 (Steele, Lea & Flood, "Fast splittable
// pseudorandom number generators", 2014), whose n-th output is a function of seed and n alone.
class RandomStream {
 public:
  explicit RandomStream(uint64_t seed) : state_(seed) {}
  uint64_t Next();
  // In [0, 1): the upper 53 bits of Next() times 2^-53.
  double NextUniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }

 private:
  uint64_t state_;
};

// A seed that differs from run to run.
uint64_t RandomSeed();

// Applies, in this order: repeat penalty, temperature, top-k, top-p, min-p. Top-p looks at the
// probabilities that are left after top-k. Equally likely tokens rank by id, so that the outcome is
// a function of logits, seed and number of tokens sampled before.
class Sampler {
 public:
  // Throws Error for bad parameters.
  explicit Sampler(const SamplingParameters& parameters);

  const SamplingParameters& parameters() const { return parameters_; }

  // `logits` [vocab]; `context` holds the tokens so far, of which the last repeat_window count for
  // the penalty. A logit of a token that occurs there is divided by the penalty when positive and
  // multiplied by it when negative, once however often it occurs. Throws Error when a logit is NaN
  // or the largest is not finite.
  int32_t Sample(std::span<const float> logits, std::span<const int32_t> context);

 private:
  struct Candidate {
    float logit;
    int32_t id;
    double weight;  // probability relative to the likeliest token
  };
  // Whether a ranks before b.
  static bool Before(const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  }
  int32_t SampleCandidates();

  SamplingParameters parameters_;
  RandomStream random_;
  std::vector<float> penalised_;
  std::vector<Candidate> candidates_;
};

// Index of the largest logit, the lowest of equals. Throws Error as Sampler::Sample does.
int32_t Greedy(std::span<const float> logits);

}  // namespace adder
