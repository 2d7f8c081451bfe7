// Latent attention of single tokens against a plain reference; heads that are only wide are tested
// with attention (attention_test.cc). Runs where there is a CUDA device.
#include "cuda/kernels/attention_step_wide.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <ostream>

#include "core/dtype.h"
#include "cuda/kernels/kernel_test_support.h"

namespace adder::cuda::test {
namespace {

struct Sizes {
  int heads;
  int latent;
  int rope_dim;
  int nope_dim;
  bool rotates;
  bool interleaved;
  int window = 0;
};
std::ostream& operator<<(std::ostream& out, const Sizes& s) {
  return out << s.heads << " heads, " << s.latent << " + " << s.rope_dim
             << (s.interleaved ? ", interleaved" : "") << ", window " << s.window;
}

constexpr int kPage = 64;
constexpr float kScale = 0.2f;
constexpr float kRotationFactor = 1.125f;
constexpr float kEps = 1e-3f;
// Own positions at the borders of tiles, of pages, and of what one block or one unit takes.
const std::vector<int> kPositions = {0,   1,   30,  31,   32,   63,   64,
                                     255, 300, 767, 1023, 1024, 1310, 4500};

class LatentStep : public testing::TestWithParam<Sizes> {
 protected:
  void SetUp() override {
    if (DeviceCount() == 0) GTEST_SKIP() << "there is no CUDA device";
    const Sizes& s = GetParam();
    Numbers numbers(7);
    const auto of_rows = [&](int width) {
      return numbers.Vector(kPositions.size() * static_cast<size_t>(width), 1.5f);
    };
    query_ = of_rows(s.heads * QueryDim());
    absorbed_ = of_rows(s.heads * s.latent);
    kv_ = of_rows(KeyDim() + 2);
    weight_ = numbers.Vector(static_cast<size_t>(s.latent), 0.5f, 1);
    for (int i = 0; i < s.rope_dim / 2; ++i) {
      frequencies_.push_back(std::pow(100.0f, -static_cast<float>(i) / 8));
    }
    int pages = 0;
    for (int position : kPositions) {
      first_pages_.push_back(pages);
      pages += position / kPage + 1;
    }
    // Pages lie in another order than their positions; what is behind a sequence's end is no
    // number.
    order_.resize(static_cast<size_t>(pages));
    std::iota(order_.begin(), order_.end(), 0);
    std::shuffle(order_.begin(), order_.end(), std::mt19937(1));
    pages_.resize(static_cast<size_t>(pages * kPage * KeyDim()), __float2bfloat16(NAN));
    for (size_t row = 0; row < kPositions.size(); ++row) {
      for (int at = 0; at < kPositions[row]; ++at) {
        for (int d = 0; d < KeyDim(); ++d) {
          pages_[Element(row, at, d)] = __float2bfloat16(numbers.Next());
        }
      }
    }
  }

  int KeyDim() const { return GetParam().latent + GetParam().rope_dim; }
  int QueryDim() const { return GetParam().nope_dim + GetParam().rope_dim; }
  size_t Element(size_t row, int position, int d) const {
    const int page = order_[static_cast<size_t>(first_pages_[row] + position / kPage)];
    return static_cast<size_t>((page * kPage + position % kPage) * KeyDim() + d);
  }
  std::vector<double> Rotated(size_t row, const float* from) const {
    const Sizes& s = GetParam();
    std::vector<double> x(from, from + s.rope_dim);
    for (int i = 0; i < s.rope_dim / 2 && s.rotates; ++i) {
      const double angle =
          static_cast<float>(kPositions[row]) * frequencies_[static_cast<size_t>(i)];
      double& a = x[static_cast<size_t>(s.interleaved ? 2 * i : i)];
      double& b = x[static_cast<size_t>(s.interleaved ? 2 * i + 1 : i + s.rope_dim / 2)];
      const double first = a;
      a = kRotationFactor * (first * std::cos(angle) - b * std::sin(angle));
      b = kRotationFactor * (b * std::cos(angle) + first * std::sin(angle));
    }
    return x;
  }
  // A row's own key, before it is rounded.
  std::vector<double> OwnKey(size_t row) const {
    const Sizes& s = GetParam();
    const float* c = kv_.data() + row * static_cast<size_t>(KeyDim() + 2);
    std::vector<double> key(c, c + s.latent);
    double squares = 0;
    for (double x : key) squares += x * x;
    for (size_t i = 0; i < key.size(); ++i) {
      key[i] *= weight_[i] / std::sqrt(squares / s.latent + static_cast<double>(kEps));
    }
    const std::vector<double> rope = Rotated(row, c + s.latent);
    key.insert(key.end(), rope.begin(), rope.end());
    return key;
  }
  // Of a head, with the keys that are in `pages`.
  std::vector<double> Attend(size_t row, int head, const std::vector<float>& pages) const {
    const Sizes& s = GetParam();
    const size_t at_head = row * static_cast<size_t>(s.heads) + static_cast<size_t>(head);
    const float* of_absorbed = absorbed_.data() + at_head * static_cast<size_t>(s.latent);
    std::vector<double> q(of_absorbed, of_absorbed + s.latent);
    const std::vector<double> rope =
        Rotated(row, query_.data() + at_head * static_cast<size_t>(QueryDim()) + s.nope_dim);
    q.insert(q.end(), rope.begin(), rope.end());
    const int first = s.window > 0 ? std::max(0, kPositions[row] + 1 - s.window) : 0;
    std::vector<double> values(static_cast<size_t>(s.latent));
    double sum = 0;
    for (int at = first; at <= kPositions[row]; ++at) {
      const float* key = pages.data() + Element(row, at, 0);
      const double weight = std::exp(kScale * std::inner_product(q.begin(), q.end(), key, 0.0));
      sum += weight;
      for (size_t d = 0; d < values.size(); ++d) values[d] += weight * key[d];
    }
    for (double& x : values) x /= sum;
    return values;
  }

  struct Result {
    std::vector<float> output;
    std::vector<__nv_bfloat16> rounded;
    std::vector<float> pages;
  };
  // Rows `at_a_time` together.
  Result Run(size_t at_a_time) const {
    const Sizes& s = GetParam();
    const DeviceArray<__nv_bfloat16> pages(pages_);
    std::vector<char*> addresses;
    for (int page : order_) {
      addresses.push_back(reinterpret_cast<char*>(pages.data() + page * kPage * KeyDim()));
    }
    const DeviceArray<char*> table(addresses);
    const DeviceArray<float> query(query_), absorbed(absorbed_), kv(kv_), weight(weight_),
        frequencies(frequencies_);
    const DeviceArray<float> output(absorbed_.size());
    const DeviceArray<__nv_bfloat16> rounded(absorbed_.size());
    const auto most = static_cast<int>(kPositions.size());
    const DeviceArray<float> partial(AttentionScratchFloats(most, s.heads, s.latent));
    const DeviceArray<unsigned> arrivals(AttentionCounters(most, s.heads));
    const Stream stream;
    for (size_t begin = 0; begin < kPositions.size(); begin += at_a_time) {
      const size_t count = std::min(at_a_time, kPositions.size() - begin);
      std::vector<SequenceRun> runs;
      for (size_t i = 0; i < count; ++i) {
        runs.push_back({nullptr, table.data() + first_pages_[begin + i], kPositions[begin + i],
                        static_cast<int>(i), 1, 0});
      }
      const DeviceArray<SequenceRun> device_runs(runs);
      LatentPlaceParams place;
      AttentionParams& p = place.attention;
      p.heads = s.heads;
      p.kv_heads = 1;
      p.head_dim = KeyDim();
      p.latent = s.latent;
      p.scale = kScale;
      p.inverse_frequencies = s.rotates ? frequencies.data() : nullptr;
      p.rotary_dim = s.rotates ? s.rope_dim : 0;
      p.rotation_factor = kRotationFactor;
      p.interleaved = s.interleaved;
      p.window = s.window;
      p.page_positions = kPage;
      p.runs = device_runs.data();
      p.run_count = p.rows = static_cast<int>(count);
      const size_t width = static_cast<size_t>(s.heads * s.latent);
      p.output = output.data() + begin * width;
      p.rounded_output = reinterpret_cast<uint16_t*>(rounded.data() + begin * width);
      p.output_stride = p.rounded_output_stride = s.heads * s.latent;
      p.partial = partial.data();
      p.arrivals = arrivals.data();
      place.query = query.data() + begin * static_cast<size_t>(s.heads * QueryDim());
      place.query_stride = s.heads * QueryDim();
      place.nope_dim = s.nope_dim;
      place.absorbed = absorbed.data() + begin * width;
      place.absorbed_stride = s.heads * s.latent;
      place.kv = kv.data() + begin * static_cast<size_t>(KeyDim() + 2);
      place.kv_stride = KeyDim() + 2;
      place.norm_weight = weight.data();
      place.norm_eps = kEps;
      EXPECT_TRUE(TakesLatentStep(p));
      LaunchLatentStep(place, stream.get());
      stream.Synchronize();
    }
    for (unsigned count : arrivals.Download()) EXPECT_EQ(count, 0u);
    return {output.Download(), rounded.Download(), Widened(pages.Download())};
  }

  std::vector<float> query_, absorbed_, kv_, weight_, frequencies_;
  std::vector<int> first_pages_;
  std::vector<int> order_;
  std::vector<__nv_bfloat16> pages_;
};

// One row at a time, a few, and all: each is spread over the device in another way.
TEST_P(LatentStep, MatchesTheReference) {
  const Sizes& s = GetParam();
  const Result first = Run(1);
  std::vector<double> expected;
  for (size_t row = 0; row < kPositions.size(); ++row) {
    const std::vector<double> own = OwnKey(row);
    for (int d = 0; d < KeyDim(); ++d) {
      const double key = own[static_cast<size_t>(d)];
      ASSERT_NEAR(first.pages[Element(row, kPositions[row], d)], key, std::abs(key) * 0.005 + 1e-5)
          << "own key at position " << kPositions[row] << " element " << d;
    }
    for (int head = 0; head < s.heads; ++head) {
      const std::vector<double> values = Attend(row, head, first.pages);
      expected.insert(expected.end(), values.begin(), values.end());
    }
  }
  const auto compare = [&](const Result& found, size_t at_a_time) {
    for (size_t i = 0; i < expected.size(); ++i) {
      const size_t head = i / static_cast<size_t>(s.latent);
      const auto heads = static_cast<size_t>(s.heads);
      ASSERT_NEAR(found.output[i], expected[i], 1e-4)
          << "position " << kPositions[head / heads] << " head " << head % heads << " dim "
          << i % static_cast<size_t>(s.latent) << " of " << at_a_time << " rows at a time";
      ASSERT_EQ(__bfloat162float(found.rounded[i]),
                __bfloat162float(__float2bfloat16(found.output[i])));
    }
  };
  compare(first, 1);
  for (const size_t at_a_time : {size_t{4}, kPositions.size()}) {
    const Result found = Run(at_a_time);
    for (size_t row = 0; row < kPositions.size(); ++row) {
      for (int d = 0; d < KeyDim(); ++d) {
        const size_t at = Element(row, kPositions[row], d);
        ASSERT_EQ(found.pages[at], first.pages[at]);
      }
    }
    compare(found, at_a_time);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, LatentStep,
    testing::Values(Sizes{20, 512, 64, 192, true, true}, Sizes{32, 512, 64, 128, false, false},
                    Sizes{5, 512, 64, 32, true, false}, Sizes{11, 192, 32, 64, true, false, 100},
                    Sizes{1, 24, 8, 12, true, true}, Sizes{27, 64, 16, 16, true, true, 1000}));

}  // namespace
}  // namespace adder::cuda::test
