// `adder synthesize`: random weights of a real model's geometry, for speed tests only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

namespace adder {

struct SynthesizeOptions {
  std::filesystem::path geometry;  // a config.json; keys that start with "_" are notes
  std::filesystem::path output;    // must not exist, or be empty
  int bits = 4;                    // MLX affine, 2 to 8; 0: bf16 in Hugging Face layout
  int group_size = 64;
  uint64_t seed = 1;
  std::function<void(double fraction)> progress;
};

// Writes a checkpoint whose weights are random, no two alike, and scaled so that activations stay
// finite: matrices have standard deviation 1 / sqrt(inputs), norms lie near 1, A in [-16, -1], time
// steps in [0.001, 0.1]. It says what it is in config.json ("adder_synthetic") and in the
// safetensors metadata. Throws Error for bad options or a geometry that no family accepts.
void SynthesizeCheckpoint(const SynthesizeOptions& options);

}  // namespace adder
