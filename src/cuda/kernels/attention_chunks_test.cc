// Attention of pieces against softmax in double precision, every head and row for itself. What lies
// in pages behind a sequence is NaN.
#include "cuda/kernels/attention_chunks.h"

#include <algorithm>

#include "cuda/kernels/kernel_test_support.h"

namespace adder::cuda::test {
namespace {

// Queries, keys, values and weights are bf16. Measured: up to 0.004.
constexpr double kTolerance = 0.015;
constexpr int kPagePositions = 64;

struct RunSize {
  int tokens;
  int position;
};

class AttentionChunksTest : public KernelTest {
 protected:
  void Compare(int heads, int kv_heads, int head_dim, const std::vector<RunSize>& runs,
               bool gate = false, int window = 0);
};

void AttentionChunksTest::Compare(int heads, int kv_heads, int head_dim,
                                  const std::vector<RunSize>& sizes, bool gate, int window) {
  SCOPED_TRACE(testing::Message() << heads << " heads of " << head_dim);
  Numbers numbers(23);
  const auto dim = static_cast<size_t>(head_dim);
  const size_t kv_width = static_cast<size_t>(kv_heads) * dim;
  const size_t width = static_cast<size_t>(heads) * dim;
  const size_t stride = (gate ? 2 : 1) * width + 2 * kv_width;
  const size_t page_elements = 2 * kv_width * kPagePositions;
  // Pages hold something else in front.
  constexpr size_t kOffset = 64;
  const size_t page_bytes = kOffset + page_elements * sizeof(__nv_bfloat16);

  // Keys and values of every position; those of the batch's rows also stand in qkv.
  std::vector<std::vector<float>> keys;
  std::vector<std::vector<float>> values;
  std::vector<SequenceRun> runs;
  std::vector<Piece> pieces;
  std::vector<int> row_runs;
  std::vector<float> qkv;
  std::vector<size_t> first_page;
  size_t page_count = 0;
  for (size_t r = 0; r < sizes.size(); ++r) {
    const auto length = static_cast<size_t>(sizes[r].position + sizes[r].tokens);
    keys.push_back(numbers.Vector(length * kv_width, 1.5f));
    values.push_back(numbers.Vector(length * kv_width));
    const auto row = static_cast<int>(row_runs.size());
    runs.push_back({nullptr, nullptr, sizes[r].position, row, sizes[r].tokens, 0});
    for (int done = 0; done < sizes[r].tokens; done += kPieceTokens) {
      pieces.push_back(
          {row + done, std::min(kPieceTokens, sizes[r].tokens - done), static_cast<int>(r), 0});
    }
    for (int token = 0; token < sizes[r].tokens; ++token) {
      row_runs.push_back(static_cast<int>(r));
      const std::vector<float> q = numbers.Vector(width, 1.5f);
      qkv.insert(qkv.end(), q.begin(), q.end());
      const auto from =
          static_cast<std::ptrdiff_t>(static_cast<size_t>(sizes[r].position + token) * kv_width);
      for (const auto* of : {&keys.back(), &values.back()}) {
        qkv.insert(qkv.end(), of->begin() + from,
                   of->begin() + from + static_cast<std::ptrdiff_t>(kv_width));
      }
      const std::vector<float> gates = numbers.Vector(gate ? width : 0, 2);
      qkv.insert(qkv.end(), gates.begin(), gates.end());
    }
    first_page.push_back(page_count);
    page_count += (length + kPagePositions - 1) / kPagePositions;
  }
  const __nv_bfloat16 nan = __float2bfloat16(NAN);
  std::vector<__nv_bfloat16> pool(page_count * page_bytes / sizeof(__nv_bfloat16), nan);
  // Pages of a sequence lie in reverse order.
  std::vector<size_t> page_of(page_count);
  for (size_t r = 0; r < sizes.size(); ++r) {
    const size_t end = r + 1 < sizes.size() ? first_page[r + 1] : page_count;
    for (size_t page = first_page[r]; page < end; ++page) {
      page_of[page] = first_page[r] + end - 1 - page;
    }
    for (size_t position = 0; position < static_cast<size_t>(sizes[r].position); ++position) {
      const size_t page = page_of[first_page[r] + position / kPagePositions];
      __nv_bfloat16* at = pool.data() + (page * page_bytes + kOffset) / sizeof(__nv_bfloat16);
      for (size_t i = 0; i < kv_width; ++i) {
        const size_t to = (i / dim * kPagePositions + position % kPagePositions) * dim + i % dim;
        at[to] = __float2bfloat16(keys[r][position * kv_width + i]);
        at[to + page_elements / 2] = __float2bfloat16(values[r][position * kv_width + i]);
      }
    }
  }
  const DeviceArray<__nv_bfloat16> device_pool(pool);
  std::vector<char*> pages;
  for (size_t page : page_of) {
    pages.push_back(reinterpret_cast<char*>(device_pool.data()) + page * page_bytes);
  }
  const DeviceArray<char*> device_pages(pages);
  for (size_t r = 0; r < runs.size(); ++r) runs[r].pages = device_pages.data() + first_page[r];
  const DeviceArray<SequenceRun> device_runs(runs);
  const DeviceArray<Piece> device_pieces(pieces);
  const DeviceArray<int> device_row_runs(row_runs);
  const DeviceArray<float> device_qkv(qkv);
  const size_t rows = row_runs.size();
  const DeviceArray<__nv_bfloat16> output(std::vector<__nv_bfloat16>(rows * width, nan));

  AttentionChunkParams params;
  AttentionParams& p = params.attention;
  p.heads = heads;
  p.kv_heads = kv_heads;
  p.head_dim = head_dim;
  p.scale = 0.3f / std::sqrt(static_cast<float>(head_dim)) * 4;
  p.kv_offset = kOffset;
  p.page_positions = kPagePositions;
  p.runs = device_runs.data();
  p.run_count = static_cast<int>(runs.size());
  p.rows = static_cast<int>(rows);
  p.row_runs = device_row_runs.data();
  p.qkv = device_qkv.data();
  p.qkv_stride = static_cast<int>(stride);
  p.output_gate = gate;
  p.window = window;
  params.pieces = device_pieces.data();
  params.piece_count = static_cast<int>(pieces.size());
  params.output = output.data();
  params.output_stride = static_cast<int>(width);
  const Stream stream;
  LaunchKvAppend(p, stream.get());
  LaunchAttentionChunks(params, stream.get());
  stream.Synchronize();

  const std::vector<float> found = Widened(output.Download());
  double worst = 0;
  for (size_t row = 0; row < rows; ++row) {
    const auto r = static_cast<size_t>(row_runs[row]);
    const size_t last =
        static_cast<size_t>(runs[r].position) + row - static_cast<size_t>(runs[r].row);
    const size_t seen = window > 0 ? static_cast<size_t>(window) : last + 1;
    const size_t first = last + 1 - std::min(seen, last + 1);
    for (size_t h = 0; h < static_cast<size_t>(heads); ++h) {
      const size_t kv = h / static_cast<size_t>(heads / kv_heads) * dim;
      const float* q = qkv.data() + row * stride + h * dim;
      std::vector<double> weights(last + 1);
      double sum = 0;
      for (size_t position = first; position <= last; ++position) {
        double dot = 0;
        for (size_t i = 0; i < dim; ++i) dot += q[i] * keys[r][position * kv_width + kv + i];
        weights[position] = std::exp(dot * p.scale);
        sum += weights[position];
      }
      std::vector<double> expected(width, 0.0);
      for (size_t position = first; position <= last; ++position) {
        for (size_t i = 0; i < dim; ++i) {
          expected[h * dim + i] +=
              weights[position] / sum * values[r][position * kv_width + kv + i];
        }
      }
      for (size_t i = h * dim; gate && i < (h + 1) * dim; ++i) {
        expected[i] /= 1 + std::exp(-qkv[row * stride + width + 2 * kv_width + i]);
      }
      const std::vector<float> row_found(
          found.begin() + static_cast<std::ptrdiff_t>(row * width),
          found.begin() + static_cast<std::ptrdiff_t>((row + 1) * width));
      const double error = RelativeError(row_found, expected, h * dim, dim);
      ASSERT_LE(error, kTolerance) << "row " << row << ", head " << h;
      worst = std::max(worst, error);
    }
  }
  RecordProperty("worst", std::to_string(worst));
}

TEST_F(AttentionChunksTest, OneRun) { Compare(6, 2, 64, {{200, 0}}); }
TEST_F(AttentionChunksTest, RaggedRunsWithHistory) {
  Compare(6, 2, 64, {{1, 70}, {130, 0}, {64, 64}, {3, 1}, {190, 37}});
}
TEST_F(AttentionChunksTest, HeadSizes) {
  for (const int head_dim : {8, 48, 80, 128, 256, 264, 512}) {
    Compare(4, 4, head_dim, {{70, 3}, {131, 0}});
  }
}
TEST_F(AttentionChunksTest, Window) {
  for (const int window : {1, 7, 65, 150, 1000}) {
    Compare(4, 2, 64, {{1, 70}, {190, 37}, {300, 0}}, false, window);
  }
  Compare(2, 1, 256, {{200, 301}}, false, 48);
  Compare(6, 2, 512, {{1, 70}, {170, 201}}, false, 48);
}
TEST_F(AttentionChunksTest, OutputGate) {
  Compare(6, 2, 256, {{70, 3}, {131, 0}}, true);
  Compare(6, 2, 320, {{70, 3}, {131, 0}}, true);
}

}  // namespace
}  // namespace adder::cuda::test
