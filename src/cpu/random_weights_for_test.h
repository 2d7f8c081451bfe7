// Random weights in memory, for tests and benchmarks.
#pragma once

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "core/weight_matrix.h"
#include "model/bound_weights.h"
#include "model/plan.h"

namespace adder {

// Bytes of float values in a storage type.
inline std::vector<std::byte> FloatBytes(const std::vector<float>& values, DType dtype) {
  const size_t size = DTypeSize(dtype);
  std::vector<std::byte> bytes(values.size() * size);
  for (size_t i = 0; i < values.size(); ++i) {
    std::byte* to = bytes.data() + i * size;
    if (dtype == DType::kF64) {
      const double value = values[i];
      std::memcpy(to, &value, size);
    } else if (dtype == DType::kF32) {
      std::memcpy(to, &values[i], size);
    } else {
      const uint16_t raw = dtype == DType::kBF16 ? FloatToBF16(values[i]) : FloatToF16(values[i]);
      std::memcpy(to, &raw, size);
    }
  }
  return bytes;
}

// A segment and its memory. bits = 0: dense. The memory starts on odd addresses, as it may in a
// mapped file. Weights have a standard deviation of about `deviation`; scales take both signs.
class RandomSegment {
 public:
  RandomSegment(int64_t rows, int64_t cols, int bits, int group_size, DType dtype, float deviation,
                uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    segment_.rows = rows;
    segment_.cols = cols;
    segment_.dtype = dtype;
    segment_.bits = bits;
    segment_.group_size = group_size;
    if (bits == 0) {
      std::vector<float> values(static_cast<size_t>(rows * cols));
      for (float& value : values) value = deviation * normal(random);
      segment_.data = Own(FloatBytes(values, dtype));
      return;
    }
    std::vector<std::byte> data(static_cast<size_t>(rows * segment_.row_bytes()));
    for (size_t i = 0; i + 4 <= data.size(); i += 4) {
      const auto word = static_cast<uint32_t>(random());
      std::memcpy(data.data() + i, &word, 4);
    }
    segment_.data = Own(data);
    // A uniform q has a standard deviation of about 2^bits / sqrt(12) and half of 2^bits as mean.
    std::vector<float> scales(static_cast<size_t>(rows * segment_.groups()));
    std::vector<float> biases(scales.size());
    const float levels = static_cast<float>(1 << bits);
    for (size_t i = 0; i < scales.size(); ++i) {
      const float sign = i % 3 == 1 ? -1.0f : 1.0f;
      scales[i] = sign * deviation * std::sqrt(12.0f) / levels * (1.0f + 0.3f * std::sin(i * 0.7f));
      biases[i] = -scales[i] * (levels - 1) / 2 + 0.02f * deviation * normal(random);
    }
    segment_.scales = Own(FloatBytes(scales, dtype));
    segment_.biases = Own(FloatBytes(biases, dtype));
  }

  // Of a mode of small floating-point numbers; `global_scale` as in MatrixSegment.
  RandomSegment(int64_t rows, int64_t cols, QuantizationMode mode, uint32_t seed,
                float global_scale = 1) {
    std::mt19937 random(seed);
    segment_.rows = rows;
    segment_.cols = cols;
    segment_.dtype = DType::kU8;
    segment_.mode = mode;
    segment_.bits = ModeBits(mode);
    segment_.group_size = ModeGroupSize(mode);
    segment_.global_scale = global_scale;
    std::vector<std::byte> data(static_cast<size_t>(rows * segment_.row_bytes()));
    for (std::byte& byte : data) {
      do {
        byte = static_cast<std::byte>(random());
      } while (segment_.bits == 8 && (byte & std::byte{0x7f}) == std::byte{0x7f});  // NaN
    }
    segment_.data = Own(data);
    std::vector<std::byte> scales(static_cast<size_t>(rows * segment_.groups()));
    for (std::byte& byte : scales) {
      // 2^-4 to 2^3 with E8M0, 2^-5 to 1.9 of either sign with E4M3.
      byte = static_cast<std::byte>(mode == QuantizationMode::kNvfp4
                                        ? 16 + random() % 48 + (random() % 2 << 7)
                                        : 123 + random() % 8);
    }
    segment_.scales = Own(scales);
  }

  const MatrixSegment& segment() const { return segment_; }

 private:
  const std::byte* Own(const std::vector<std::byte>& bytes) {
    auto copy = std::make_unique<std::byte[]>(bytes.size() + 1);
    std::memcpy(copy.get() + 1, bytes.data(), bytes.size());
    memory_.push_back(std::move(copy));
    return memory_.back().get() + 1;
  }

  MatrixSegment segment_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

struct RandomFormat {
  int bits = 0;  // 0: dense
  int group_size = 0;
  DType dtype = DType::kF32;
};

// Weights for a plan, scaled so that activations keep their size. Matrices whose columns the group
// size does not divide are dense; matrix i has formats[i % size].
inline std::shared_ptr<const BoundWeights> MakeRandomWeights(
    const Plan& plan, const std::vector<RandomFormat>& formats, uint32_t seed) {
  auto weights = std::make_shared<BoundWeights>();
  auto memory = std::make_shared<std::vector<RandomSegment>>();
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (size_t i = 0; i < plan.matrices.size(); ++i) {
    const MatrixRef& ref = plan.matrices[i];
    RandomFormat format = formats[i % formats.size()];
    if (format.bits != 0 && ref.cols % format.group_size != 0) format = {0, 0, format.dtype};
    const float deviation = 1.0f / std::sqrt(static_cast<float>(ref.cols));
    memory->emplace_back(ref.rows, ref.cols, format.bits, format.group_size, format.dtype,
                         deviation, static_cast<uint32_t>(random()));
    weights->matrices.push_back({ref.rows, ref.cols, {memory->back().segment()}});
  }
  for (const VectorRef& ref : plan.vectors) {
    std::vector<float> values(static_cast<size_t>(VectorSize(ref)));
    for (float& value : values) {
      value = ref.transform == VectorTransform::kNegativeExp ? -std::exp(normal(random))
                                                             : 0.5f + 0.5f * normal(random);
    }
    weights->vectors.push_back(std::move(values));
  }
  weights->storage = memory;
  return weights;
}

}  // namespace adder
