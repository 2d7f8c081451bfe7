// The matrix kernel of batches against a plain reference. Runs where there is a CUDA device.
#include "cuda/kernels/batch_linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "cuda/kernels/kernel_test_support.h"

namespace adder::cuda {
namespace {

using test::DeviceArray;

// A matrix of bf16 numbers, packed on the device; its rows as the checkpoint has them.
class Bf16Matrix {
 public:
  Bf16Matrix(int rows, int cols, bool interleaved, uint64_t seed)
      : values_(Rounded(test::Numbers(seed).Vector(static_cast<size_t>(rows * cols)))),
        raw_(Bits(values_)) {
    packed_.format = WeightFormat::kBf16;
    packed_.rows = rows;
    packed_.cols = cols;
    packed_.interleaved = interleaved;
    packed_.tiles = interleaved ? (rows / 2 + 7) / 8 : (rows + kTileRows - 1) / kTileRows;
    packed_.chunks = (cols + kChunkCols - 1) / kChunkCols;
    const size_t bytes = static_cast<size_t>(packed_.tiles) * static_cast<size_t>(packed_.chunks) *
                         LoadsOf(packed_.format) * 512;
    memory_ = DeviceMemory(bytes);
    packed_.data = memory_.as<uint4>();
    RawMatrix raw;
    raw.count = 1;
    raw.segments[0].data = reinterpret_cast<const unsigned char*>(raw_.get());
    raw.segments[0].rows = rows;
    raw.segments[0].float_bytes = 2;
    raw.segments[0].bfloat16 = true;
    raw.segments[0].row_bytes = int64_t{2} * cols;
    LaunchPack(raw, packed_, 0, nullptr);
  }
  const PackedMatrix& packed() const { return packed_; }
  double At(int row, int col) const {
    return values_[static_cast<size_t>(row * packed_.cols + col)];
  }

  static std::vector<uint16_t> Bits(const std::vector<float>& values) {
    std::vector<uint16_t> bits(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      uint32_t word = 0;
      std::memcpy(&word, &values[i], sizeof(word));
      bits[i] = static_cast<uint16_t>(word >> 16);
    }
    return bits;
  }
  // Cuts numbers to what bf16 holds.
  static std::vector<float> Rounded(std::vector<float> values) {
    for (float& value : values) {
      uint32_t word = 0;
      std::memcpy(&word, &value, sizeof(word));
      word &= 0xffff0000u;
      std::memcpy(&value, &word, sizeof(word));
    }
    return values;
  }

 private:
  std::vector<float> values_;
  DeviceArray<uint16_t> raw_;
  DeviceMemory memory_;
  PackedMatrix packed_;
};

class BatchLinearTest : public test::KernelTest {};

// Every epilogue, with and without a norm, at numbers of tokens of every geometry; the columns are
// no multiple of a chunk and the rows no multiple of a tile.
TEST_F(BatchLinearTest, MatchesReference) {
  constexpr int kRows = 1012;
  constexpr int kCols = 1224;
  constexpr int kRowsOfBuffers = 256;
  constexpr float kScale = 0.75f;
  constexpr float kEps = 1e-5f;
  test::Numbers numbers(3);
  const std::vector<float> x =
      Bf16Matrix::Rounded(numbers.Vector(size_t{kRowsOfBuffers} * kCols, 2, 0.3f));
  const std::vector<float> norm = numbers.Vector(kCols, 0.5f, 1.5f);
  const std::vector<float> bias = numbers.Vector(kRows, 3);
  const std::vector<float> old = numbers.Vector(size_t{kRowsOfBuffers} * kRows, 50);
  const DeviceArray<uint16_t> device_x(Bf16Matrix::Bits(x));
  const DeviceArray<float> device_norm(norm);
  const DeviceArray<float> device_bias(bias);
  for (const LinearEpilogue epilogue :
       {LinearEpilogue::kStore, LinearEpilogue::kAdd, LinearEpilogue::kSiluMul}) {
    const bool gated = epilogue == LinearEpilogue::kSiluMul;
    const int outputs = gated ? kRows / 2 : kRows;
    const Bf16Matrix matrix(kRows, kCols, gated, 7);
    for (const int tokens : {2, 7, 20, 33, 130}) {
      for (const bool has_norm : {false, true}) {
        SCOPED_TRACE(testing::Message() << "epilogue " << static_cast<int>(epilogue) << ", "
                                        << tokens << " tokens, norm " << has_norm);
        const DeviceArray<float> output(old);
        const DeviceArray<uint16_t> rounded(
            std::vector<uint16_t>(size_t{kRowsOfBuffers} * kRows, 0));
        LinearParams p;
        p.matrix = matrix.packed();
        p.rounded_input = device_x.get();
        p.rounded_input_stride = kCols;
        p.tokens = tokens;
        p.norm_weight = has_norm ? device_norm.get() : nullptr;
        p.norm_eps = kEps;
        p.bias = device_bias.get();
        p.epilogue = epilogue;
        p.scale = kScale;
        p.output = output.get();
        p.output_stride = kRows;
        p.rounded_output = rounded.get();
        p.rounded_output_stride = kRows;
        LaunchLinear(p, LinearShape{}, nullptr);
        const std::vector<float> found = output.Read();
        const std::vector<uint16_t> found_rounded = rounded.Read();

        for (int token = 0; token < tokens; token += 1 + tokens / 8) {
          const float* row = x.data() + static_cast<size_t>(token) * kCols;
          double squares = 0;
          for (int c = 0; c < kCols; ++c) squares += double{row[c]} * row[c];
          const double factor = has_norm ? 1 / std::sqrt(squares / kCols + kEps) : 1;
          const auto product = [&](int r) {
            double sum = 0;
            for (int c = 0; c < kCols; ++c) {
              sum += matrix.At(r, c) * row[c] * (has_norm ? norm[static_cast<size_t>(c)] : 1.0f);
            }
            return sum * factor + bias[static_cast<size_t>(r)];
          };
          const size_t begin = static_cast<size_t>(token) * kRows;
          std::vector<float> values(found.begin() + static_cast<long>(begin),
                                    found.begin() + static_cast<long>(begin) + outputs);
          std::vector<double> expected;
          for (int r = 0; r < outputs; ++r) {
            const double y = product(r);
            if (gated) {
              expected.push_back(y / (1 + std::exp(-y)) * product(outputs + r));
            } else {
              expected.push_back(kScale * y + (epilogue == LinearEpilogue::kAdd
                                                   ? double{old[begin + static_cast<size_t>(r)]}
                                                   : 0.0));
            }
          }
          ASSERT_LT(test::RelativeError(values, expected, 0, values.size()), 0.02);
          for (int r = 0; r < outputs; ++r) {
            const auto i = static_cast<size_t>(r);
            uint32_t word = uint32_t{found_rounded[begin + i]} << 16;
            float copy = 0;
            std::memcpy(&copy, &word, sizeof(copy));
            ASSERT_NEAR(copy, values[i], std::abs(values[i]) / 256);
          }
        }
      }
    }
  }
}

// Devices with less shared memory get smaller blocks.
TEST(ChooseBatchGeometry, FitsSharedMemory) {
  for (const WeightFormat format : {WeightFormat::kQ4, WeightFormat::kQ8, WeightFormat::kF32}) {
    for (const int tokens : {5, 32, 128}) {
      for (const int tiles : {48, 211, 532, 6272}) {
        LinearParams p;
        p.matrix.format = format;
        p.matrix.tiles = tiles;
        p.matrix.chunks = 64;
        p.tokens = tokens;
        const BatchDevice device = {84, false, 98 * 1024};
        const BatchGeometry g = ChooseBatchGeometry(p, device);
        EXPECT_EQ(g.split, 1);
        EXPECT_LE(BatchLayout(64, LoadsOf(format) * 512, false, g).total, device.shared_bytes);
      }
    }
  }
}

}  // namespace
}  // namespace adder::cuda
