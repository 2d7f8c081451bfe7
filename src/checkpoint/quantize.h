// `adder quantize`: a float checkpoint in, an MLX-layout quantised checkpoint out.
#pragma once

#include <filesystem>
#include <functional>

#include "core/weight_matrix.h"

namespace adder {

struct QuantizeOptions {
  std::filesystem::path model;   // Hugging Face or MLX layout, float weights
  std::filesystem::path output;  // must not exist, or be empty
  QuantizationMode mode = QuantizationMode::kAffine;
  int bits = 0;            // affine: 2, 3, 4, 5, 6 or 8; 0: 4, or what the mode has
  int group_size = 0;      // affine: 32, 64 or 128; 0: 64, or what the mode has
  int keep_head_bits = 0;  // affine bits of the head (and of an embedding tied to it); 0: as others
  std::function<void(double fraction)> progress;
};

// Writes names and layouts that mlx-lm loads: weights quantised row by row, everything else copied
// in its own dtype. Routers of experts get 8 affine bits, as mlx-lm gives them. A matrix whose
// input width the groups do not divide stays as it is and is listed as not quantised. Tokenizer and
// generation files are copied. Memory stays within one module. Throws Error for bad options, an
// input that is already quantised, or a bad checkpoint; a directory that was begun is left without
// model.safetensors.
void QuantizeCheckpoint(const QuantizeOptions& options);

}  // namespace adder
