// Times the matrix kernels of batches, each in a chain inside one graph, with weights that have
// left the cache, as in a decode step: batch_linear.cu against wgmma_linear.cu. Prints microseconds
// per kernel, and how far the results of the two lie apart, relative to their size.
//   matrix_benchmark [FILTER [all]]      (a part of a row's name; all: every geometry, best first)
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <random>
#include <string>
#include <vector>

#include "cuda/kernels/batch_linear.h"
#include "cuda/kernels/chain_for_benchmark.h"
#include "cuda/kernels/device_data_for_test.h"
#include "cuda/kernels/unpacked_linear.h"
#include "cuda/kernels/wgmma_linear.h"

namespace adder::cuda {
namespace {

constexpr int kRepeats = 3;
constexpr int kMultiprocessors = 132;
constexpr int kSharedBytes = 226 * 1024;
constexpr size_t kOutOfCache = size_t{128} << 20;

const char* filter = "";
bool every_geometry = false;
bool every_stream = false;

struct MatrixCase {
  const char* name;
  int rows;
  int cols;
  LinearEpilogue epilogue;
  bool has_norm;
  WeightFormat format = WeightFormat::kQ4;
};

constexpr MatrixCase kCases[] = {
    {"granite-350m gate-up", 4096, 768, LinearEpilogue::kSiluMul, true},
    {"granite-350m down", 768, 2048, LinearEpilogue::kAdd, false},
    {"granite-350m in", 3352, 768, LinearEpilogue::kStore, true},
    {"granite-350m out", 768, 1536, LinearEpilogue::kAdd, false},
    {"granite-350m qkv", 1280, 768, LinearEpilogue::kStore, true},
    {"granite-350m head", 100352, 768, LinearEpilogue::kStore, true},
    {"mamba2-1.3b in", 8512, 2048, LinearEpilogue::kStore, true},
    {"mamba2-1.3b out", 2048, 4096, LinearEpilogue::kAdd, false},
    {"mamba2-130m bf16 in", 3352, 768, LinearEpilogue::kStore, true, WeightFormat::kBf16},
};

// Bits of moderate bf16 numbers, which serve as weights and as scales.
DeviceMemory RandomBits(size_t bytes, unsigned low, unsigned span) {
  std::vector<unsigned short> bits(size_t{1} << 20);
  std::mt19937 random(1);
  for (unsigned short& b : bits) b = static_cast<unsigned short>(low + random() % span);
  DeviceMemory data(bytes);
  for (size_t at = 0; at < bytes; at += 2 * bits.size()) {
    Check(cudaMemcpy(data.as<char>() + at, bits.data(), std::min(2 * bits.size(), bytes - at),
                     cudaMemcpyHostToDevice),
          "cudaMemcpy");
  }
  return data;
}

double Difference(const std::vector<float>& a, const std::vector<float>& b) {
  double error = 0;
  double size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i]) || !std::isfinite(b[i])) return INFINITY;
    error += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    size += double{b[i]} * b[i];
  }
  return std::sqrt(error / size);
}

std::vector<WgmmaGeometry> Geometries(const LinearParams& p) {
  std::vector<WgmmaGeometry> found;
  for (const int tokens : {16, 32, 64}) {
    if ((tokens > 16 && tokens / 2 >= p.tokens) || tokens * 8 < p.tokens) continue;
    for (const int column_groups : {1, 2, 4}) {
      for (const int row_groups : {1, 2, 4}) {
        for (const int split : {1, 2, 4, 8}) {
          const WgmmaGeometry g = {tokens, column_groups, row_groups, split};
          const int rows = kWgmmaRows * row_groups;
          const int blocks =
              (p.matrix.rows + rows - 1) / rows * split * ((p.tokens + tokens - 1) / tokens);
          if (blocks >= 40 && WgmmaTakes(p, g, kSharedBytes)) found.push_back(g);
        }
      }
    }
  }
  return found;
}

std::vector<UnpackedGeometry> UnpackedGeometries(const LinearParams& p) {
  std::vector<UnpackedGeometry> found;
  const int row_blocks = (p.matrix.rows + kUnpackedRows - 1) / kUnpackedRows;
  for (const int tokens : {16, 32, 64, 128}) {
    if ((tokens > 16 && tokens / 2 >= p.tokens) || tokens * 2 < p.tokens) continue;
    const int token_blocks = (p.tokens + tokens - 1) / tokens;
    for (const int groups : {2, 4})
      for (const int split : {1, 2, 4, 8}) {
        for (const int stages : {2, 3, 4, 6}) {
          for (const int blocks : {0, 132 / token_blocks, 264 / token_blocks}) {
            const UnpackedGeometry g = {tokens, groups, split, stages, blocks};
            if (!UnpackedTakes(p, g, kSharedBytes)) continue;
            if (blocks > 0 && row_blocks <= blocks * 5 / 4) continue;
            if (blocks == 0 && row_blocks * token_blocks > 800) continue;
            const int count = row_blocks * split * token_blocks;
            if (count < 40 || (split > 1 && count > 280)) continue;
            found.push_back(g);
          }
        }
      }
  }
  return found;
}

void TimeMatrix(const MatrixCase& c, int tokens) {
  const std::string name = std::string(c.name) + " tokens " + std::to_string(tokens);
  if (name.find(filter) == std::string::npos) return;
  const bool gated = c.epilogue == LinearEpilogue::kSiluMul;
  const bool quantized = c.format == WeightFormat::kQ4;
  LinearParams p;
  PackedMatrix& m = p.matrix;
  m.format = c.format;
  m.scale_format = quantized ? ScaleFormat::kCompactBf16 : ScaleFormat::kNone;
  m.rows = c.rows;
  m.cols = c.cols;
  m.interleaved = gated;
  m.tiles = (c.rows + kTileRows - 1) / kTileRows;
  m.chunks = (c.cols + kChunkCols - 1) / kChunkCols;
  const int scale_bytes = ScaleBytesPerChunk(m.scale_format);
  const size_t places = static_cast<size_t>(m.tiles) * static_cast<size_t>(m.chunks);
  const size_t bytes = places * static_cast<size_t>(LoadsOf(m.format) * 512);
  const size_t matrices = std::clamp<size_t>(kOutOfCache / bytes, 4, 96);
  const DeviceMemory data = quantized ? RandomBits(bytes * matrices, 0, 0x10000)
                                      : RandomBits(bytes * matrices, 0x3c00, 0x100);
  const DeviceMemory scales =
      RandomBits(places * matrices * static_cast<size_t>(scale_bytes) + 16, 0x3c00, 0x100);
  const auto stride = static_cast<size_t>(gated ? c.rows / 2 : c.rows);
  const auto rows = static_cast<size_t>((tokens + kBatchRows - 1) / kBatchRows * kBatchRows);
  const DeviceArray<float> input(RandomFloats(1, rows * static_cast<size_t>(c.cols), -1.0f, 1.1f));
  const DeviceArray<uint16_t> rounded(rows * static_cast<size_t>(c.cols));
  const DeviceArray<float> norm(RandomFloats(2, static_cast<size_t>(c.cols), 0.5f, 1.5f));
  const DeviceArray<float> output(rows * stride);
  const DeviceArray<uint16_t> rounded_output(rows * stride);
  const Stream stream;
  LaunchRound(input.data(), c.cols, nullptr, tokens, c.cols, rounded.data(), c.cols, stream.get());
  p.rounded_input = rounded.data();
  p.rounded_input_stride = c.cols;
  p.tokens = tokens;
  p.norm_weight = c.has_norm ? norm.data() : nullptr;
  p.norm_eps = 1e-5f;
  p.epilogue = c.epilogue;
  p.scale = gated ? 1.0f : 0.22f;
  p.output = output.data();
  p.output_stride = static_cast<int>(stride);
  p.rounded_output = rounded_output.data();
  p.rounded_output_stride = static_cast<int>(stride);
  const auto of_layer = [&](int i) {
    LinearParams layer = p;
    const size_t index = static_cast<size_t>(i) % matrices;
    layer.matrix.data = reinterpret_cast<const uint4*>(data.as<char>() + index * bytes);
    layer.matrix.scales = scales.as<char>() + index * places * static_cast<size_t>(scale_bytes);
    return layer;
  };
  const size_t unpacked_bytes = UnpackedBytes(m);
  const size_t unpacked_matrices = std::clamp<size_t>(4 * kOutOfCache / unpacked_bytes, 3, 96);
  const DeviceMemory unpacked(unpacked_bytes * unpacked_matrices);
  for (size_t i = 0; i < unpacked_matrices; ++i) {
    const LinearParams layer = of_layer(static_cast<int>(i));
    LaunchUnpackTiles(layer.matrix, p.norm_weight,
                      reinterpret_cast<uint16_t*>(unpacked.as<char>() + i * unpacked_bytes),
                      stream.get());
  }
  const auto unpacked_layer = [&](int i) {
    return reinterpret_cast<const uint16_t*>(
        unpacked.as<char>() + static_cast<size_t>(i) % unpacked_matrices * unpacked_bytes);
  };
  const BatchGeometry batch =
      ChooseBatchGeometry(p, {kMultiprocessors, /*has_clusters=*/true, kSharedBytes});
  // The results of one launch; of a head only of some tokens, since there are so many.
  const auto one = [&](bool wgmma, const WgmmaGeometry& g) {
    Check(cudaMemset(output.data(), 0, output.size() * sizeof(float)), "cudaMemset");
    wgmma ? LaunchWgmmaLinear(of_layer(0), g, stream.get())
          : LaunchBatchLinear(of_layer(0), batch, stream.get());
    stream.Synchronize();
    std::vector<float> values(std::min(static_cast<size_t>(tokens) * stride, size_t{1} << 21));
    Check(cudaMemcpy(values.data(), output.data(), values.size() * sizeof(float),
                     cudaMemcpyDeviceToHost),
          "cudaMemcpy");
    return values;
  };
  const std::vector<float> expected = one(false, {});
  const int length = static_cast<int>(matrices);
  const float before = TimeChain(stream, length, kRepeats, [&](int i) {
                         LaunchBatchLinear(of_layer(i), batch, stream.get());
                       }).median;

  struct Row {
    WgmmaGeometry geometry;
    float time;
    double difference;
  };
  std::vector<Row> found;
  const auto measure = [&](const WgmmaGeometry& g) {
    const double difference = Difference(one(true, g), expected);
    const ChainTimes times = TimeChain(
        stream, length, kRepeats, [&](int i) { LaunchWgmmaLinear(of_layer(i), g, stream.get()); });
    found.push_back({g, times.median, difference});
  };
  WgmmaGeometry chosen;
  const bool takes = ChooseWgmmaGeometry(p, kMultiprocessors, kSharedBytes, &chosen);
  std::printf("%-34s batch %8.2f us", name.c_str(), before);
  if (takes) {
    measure(chosen);
    std::printf("   wgmma %8.2f us   difference %.1e", found[0].time, found[0].difference);
  }
  UnpackedGeometry stream_chosen;
  const auto measure_stream = [&](const UnpackedGeometry& g) {
    Check(cudaMemset(output.data(), 0, output.size() * sizeof(float)), "cudaMemset");
    LaunchUnpackedLinear(p, unpacked_layer(0), g, stream.get());
    stream.Synchronize();
    std::vector<float> values(expected.size());
    Check(cudaMemcpy(values.data(), output.data(), values.size() * sizeof(float),
                     cudaMemcpyDeviceToHost),
          "cudaMemcpy");
    const double difference = Difference(values, expected);
    const ChainTimes times =
        TimeChain(stream, static_cast<int>(unpacked_matrices), kRepeats,
                  [&](int i) { LaunchUnpackedLinear(p, unpacked_layer(i), g, stream.get()); });
    return std::pair<float, double>(times.median, difference);
  };
  if (ChooseUnpackedGeometry(p, kMultiprocessors, kSharedBytes, &stream_chosen)) {
    const auto [time, difference] = measure_stream(stream_chosen);
    std::printf("   unpacked %8.2f us   difference %.1e", time, difference);
  }
  std::printf("\n");
  std::fflush(stdout);
  if (every_stream) {
    std::vector<std::pair<std::pair<float, double>, UnpackedGeometry>> all;
    double far = 0;
    for (const UnpackedGeometry& g : UnpackedGeometries(p)) {
      all.push_back({measure_stream(g), g});
      far = std::max(far, all.back().first.second);
    }
    std::sort(all.begin(), all.end(),
              [](const auto& a, const auto& b) { return a.first.first < b.first.first; });
    for (size_t i = 0; i < std::min<size_t>(all.size(), 6); ++i) {
      const UnpackedGeometry& g = all[i].second;
      std::printf("   {%d, %d, %d, %d, %d} %.2f", g.tokens, g.groups, g.split, g.stages, g.blocks,
                  all[i].first.first);
    }
    std::printf("   of %zu, largest difference %.1e\n", all.size(), far);
    std::fflush(stdout);
  }
  if (!every_geometry) return;
  for (const WgmmaGeometry& g : Geometries(p)) measure(g);
  std::sort(found.begin(), found.end(), [](const Row& a, const Row& b) { return a.time < b.time; });
  double worst = 0;
  for (const Row& row : found) worst = std::max(worst, row.difference);
  for (size_t i = 0; i < std::min<size_t>(found.size(), 3); ++i) {
    const WgmmaGeometry& g = found[i].geometry;
    std::printf("    {%d, %d, %d, %d} %.2f", g.tokens, g.column_groups, g.row_groups, g.split,
                found[i].time);
  }
  std::printf("    of %zu, the largest difference %.1e\n", found.size(), worst);
}

}  // namespace
}  // namespace adder::cuda

int main(int argc, char** argv) {
  if (argc > 1) adder::cuda::filter = argv[1];
  adder::cuda::every_geometry = argc > 2 && std::string(argv[2]) == "all";
  adder::cuda::every_stream = argc > 2 && std::string(argv[2]) == "unpacked";
  try {
    for (const adder::cuda::MatrixCase& c : adder::cuda::kCases) {
      for (const int tokens : {16, 32, 64, 128, 256}) adder::cuda::TimeMatrix(c, tokens);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  return 0;
}
