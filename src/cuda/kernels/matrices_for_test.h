// Random matrices on the device in every weight format, with their values, for tests of kernels.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ostream>
#include <vector>

#include "cuda/device_memory.h"
#include "cuda/kernels/kernel_test_support.h"
#include "cuda/kernels/linear.h"

namespace adder::cuda::test {

enum class Store { kBf16, kF16, kF32 };  // of dense weights, or of scales and biases

inline uint16_t ToBf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
// Numbers that all three formats hold: multiples of 1/64 up to 4.
inline float Coarse(float x) { return std::round(x * 64) / 64; }
// Of such a number.
inline uint16_t ToF16(float x) {
  if (x == 0) return 0;
  int exponent;
  const float fraction = std::frexp(std::fabs(x), &exponent);  // in [0.5, 1)
  const auto mantissa = static_cast<uint16_t>(std::lround((fraction * 2 - 1) * 1024));
  return static_cast<uint16_t>((x < 0 ? 0x8000 : 0) | ((exponent - 1 + 15) << 10 | mantissa));
}

inline void Append(std::vector<unsigned char>& bytes, float value, Store store) {
  const auto* raw = reinterpret_cast<const unsigned char*>(&value);
  if (store == Store::kF32) {
    bytes.insert(bytes.end(), raw, raw + 4);
    return;
  }
  const uint16_t two = store == Store::kBf16 ? ToBf16(value) : ToF16(value);
  bytes.push_back(static_cast<unsigned char>(two));
  bytes.push_back(static_cast<unsigned char>(two >> 8));
}

struct Format {
  const char* name;
  int bits;  // 0: dense
  int group_size;
  Store store;
};
inline std::ostream& operator<<(std::ostream& out, const Format& format) {
  return out << format.name;
}

inline constexpr Format kFormats[] = {
    {"4bit_g64_bf16", 4, 64, Store::kBf16},
    {"4bit_g64_f16", 4, 64, Store::kF16},
    {"4bit_g32_bf16", 4, 32, Store::kBf16},
    {"4bit_g64_f32", 4, 64, Store::kF32},
    {"8bit_g64_bf16", 8, 64, Store::kBf16},
    {"8bit_g32_f16", 8, 32, Store::kF16},
    {"3bit_g64_bf16", 3, 64, Store::kBf16},
    {"bf16", 0, 0, Store::kBf16},
    {"f16", 0, 0, Store::kF16},
    {"f32", 0, 0, Store::kF32},
};

// A stack of random matrices on the device, and their values.
class Matrices {
 public:
  Matrices(const Format& format, int count, int rows, int cols, bool interleaved, uint64_t seed) {
    view.rows = rows;
    view.cols = cols;
    view.interleaved = interleaved;
    const int packed_rows = interleaved ? rows / 2 : rows;
    const int rows_per_tile = interleaved ? kTileRows / 2 : kTileRows;
    view.tiles = (packed_rows + rows_per_tile - 1) / rows_per_tile;
    view.chunks = (cols + kChunkCols - 1) / kChunkCols;
    const bool compact = format.group_size == kChunkCols && format.store != Store::kF32;
    view.format = format.bits > 4                ? WeightFormat::kQ8
                  : format.bits > 0              ? WeightFormat::kQ4
                  : format.store == Store::kBf16 ? WeightFormat::kBf16
                  : format.store == Store::kF16  ? WeightFormat::kF16
                                                 : WeightFormat::kF32;
    view.scale_format = format.bits == 0               ? ScaleFormat::kNone
                        : !compact                     ? ScaleFormat::kWide
                        : format.store == Store::kBf16 ? ScaleFormat::kCompactBf16
                                                       : ScaleFormat::kCompactF16;
    const int64_t places = int64_t{view.tiles} * view.chunks;
    view.data_stride = places * LoadsOf(view.format) * 32;
    view.scales_stride = places * ScaleBytesPerChunk(view.scale_format);
    data_ = DeviceMemory(static_cast<size_t>(view.data_stride * count) * sizeof(uint4));
    scales_ = DeviceMemory(static_cast<size_t>(view.scales_stride * count) + 16);
    view.data = data_.as<const uint4>();
    view.scales = scales_.data();
    Numbers numbers(seed);
    for (int i = 0; i < count; ++i) Pack(format, i, numbers);
  }

  double at(int matrix, int row, int col) const {
    return values_[(static_cast<size_t>(matrix) * static_cast<size_t>(view.rows) +
                    static_cast<size_t>(row)) *
                       static_cast<size_t>(view.cols) +
                   static_cast<size_t>(col)];
  }

  PackedMatrix view;

 private:
  void Pack(const Format& format, int index, Numbers& numbers) {
    std::vector<unsigned char> data;
    std::vector<unsigned char> scales;
    std::vector<unsigned char> biases;
    const size_t row_bytes =
        format.bits > 0 ? (static_cast<size_t>(view.cols * format.bits) + 31) / 32 * 4
                        : static_cast<size_t>(view.cols) * (format.store == Store::kF32 ? 4 : 2);
    for (int row = 0; row < view.rows; ++row) {
      std::vector<unsigned char> packed(row_bytes, 0);
      float scale = 0;
      float bias = 0;
      const int levels = 1 << format.bits;
      for (int col = 0; col < view.cols; ++col) {
        if (format.bits == 0) {
          const float weight = Coarse(numbers.Next());
          values_.push_back(weight);
          Append(data, weight, format.store);
          continue;
        }
        if (col % format.group_size == 0) {
          // Weights are about as often positive as negative: sums of all of one sign would leave
          // nothing of gated products.
          scale = Coarse(0.25f + 0.2f * numbers.Next()) * 16 / static_cast<float>(levels);
          bias = Coarse(0.3f * numbers.Next() - scale * static_cast<float>(levels - 1) / 2);
          Append(scales, scale, format.store);
          Append(biases, bias, format.store);
        }
        const int q = std::min(
            levels - 1, static_cast<int>((numbers.Next() + 1) / 2 * static_cast<float>(levels)));
        values_.push_back(static_cast<double>(scale) * q + bias);
        for (int bit = 0; bit < format.bits; ++bit) {
          const int place = col * format.bits + bit;
          packed[static_cast<size_t>(place / 8)] |=
              static_cast<unsigned char>((q >> bit & 1) << place % 8);
        }
      }
      if (format.bits > 0) data.insert(data.end(), packed.begin(), packed.end());
    }
    const DeviceArray<unsigned char> device_data(data);
    const DeviceArray<unsigned char> device_scales(scales.empty() ? data : scales);
    const DeviceArray<unsigned char> device_biases(biases.empty() ? data : biases);
    RawMatrix raw;
    raw.count = 1;
    RawSegment& segment = raw.segments[0];
    segment.data = device_data.data();
    segment.scales = device_scales.data();
    segment.biases = device_biases.data();
    segment.rows = view.rows;
    segment.bits = format.bits;
    segment.group_size = format.group_size;
    segment.float_bytes = format.store == Store::kF32 ? 4 : 2;
    segment.bfloat16 = format.store == Store::kBf16;
    segment.row_bytes = static_cast<long long>(row_bytes);
    const Stream stream;
    LaunchPack(raw, view, index, stream.get());
    stream.Synchronize();
  }

  DeviceMemory data_;
  DeviceMemory scales_;
  std::vector<double> values_;
};

inline LinearShape OnDevice(bool f32, int multiprocessors = 132) {
  LinearShape shape;
  shape.multiprocessors = multiprocessors;
  shape.batch_invariant = f32;
  return shape;
}

}  // namespace adder::cuda::test
