// The attention kernels against a plain reference. Runs where there is a CUDA device.
#include "cuda/kernels/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <ostream>

#include "core/dtype.h"
#include "cuda/kernels/device_data_for_test.h"

namespace adder::cuda {
namespace {

// Of q and k: over each head, over all heads, over each half of all k heads (and all q heads), over
// k's heads alone, and after the rotation; over each head without weights.
enum class Norms {
  kNone,
  kHeads,
  kEachHead,
  kAll,
  kHalves,
  kKeys,
  kHeadsAfter,
  kKeysAfter,
  kUnweighted
};
// v is a part of the row, that part normed, k, or k normed; or the pages have k and v already.
enum class Values { kOwn, kNormed, kKeys, kNormedKeys, kShared };

struct Sizes {
  int heads;
  int kv_heads;
  int head_dim;
  int rotary_dim;  // 0: no rotation
  bool bf16;
  Norms norms = Norms::kNone;
  int window = 0;
  Values values = Values::kOwn;
  bool interleaved = false;
  bool gate = false;
};
std::ostream& operator<<(std::ostream& out, const Sizes& s) {
  return out << s.heads << "/" << s.kv_heads << " heads of " << s.head_dim << ", rotary "
             << s.rotary_dim << (s.bf16 ? ", bf16" : ", f32") << ", norms "
             << static_cast<int>(s.norms) << ", window " << s.window << ", values "
             << static_cast<int>(s.values) << (s.interleaved ? ", interleaved" : "")
             << (s.gate ? ", gate" : "");
}

constexpr int kPagePositions = 64;
// Own positions at the borders of tiles, pages and units.
const std::vector<int> kPositions = {0,  1,  7,   8,   15,  16,  17,  63,   64,
                                     65, 79, 127, 128, 511, 512, 700, 1025, 4500};

class AttentionKernels : public testing::TestWithParam<Sizes> {
 protected:
  void SetUp() override {
    if (DeviceCount() == 0) GTEST_SKIP() << "there is no CUDA device";
    const Sizes& s = GetParam();
    const bool from_keys = s.values == Values::kKeys || s.values == Values::kNormedKeys;
    const int parts = s.values == Values::kShared ? 0 : from_keys ? 1 : 2;
    width_ = (s.heads * (s.gate ? 2 : 1) + parts * s.kv_heads) * s.head_dim;
    half_page_ = kPagePositions * s.kv_heads * s.head_dim;
    for (int position : kPositions) {
      first_pages_.push_back(page_count_);
      page_count_ += position / kPagePositions + 1;
    }
    // Pages lie in another order than their positions.
    order_.resize(static_cast<size_t>(page_count_));
    std::iota(order_.begin(), order_.end(), 0);
    std::shuffle(order_.begin(), order_.end(), std::mt19937(1));
    pages_ = RandomFloats(2, static_cast<size_t>(page_count_) * PageElements());
    for (float& value : pages_) value = Stored(value);
    qkv_ = RandomFloats(3, kPositions.size() * static_cast<size_t>(width_), -2, 2);
    for (int i = 0; i < s.rotary_dim / 2; ++i) {
      frequencies_.push_back(
          std::pow(10000.0f, -2.0f * static_cast<float>(i) / static_cast<float>(s.rotary_dim)));
    }
    q_norm_weight_ = RandomFloats(4, static_cast<size_t>(s.heads * s.head_dim), 0.2f, 1.8f);
    k_norm_weight_ = RandomFloats(5, static_cast<size_t>(s.kv_heads * s.head_dim), 0.2f, 1.8f);
  }

  // Norms behind the rotation would undo it.
  float RotationFactor() const { return NormsAfter() ? 1.0f : 1.125f; }
  bool NormsAfter() const {
    return GetParam().norms == Norms::kHeadsAfter || GetParam().norms == Norms::kKeysAfter;
  }
  // Without the address of the weights, which are q_norm_weight_ or k_norm_weight_.
  HeadNorm NormOf(bool key) const {
    const Sizes& s = GetParam();
    const int all = (key ? s.kv_heads : s.heads) * s.head_dim;
    switch (s.norms) {
      case Norms::kNone:
        return {};
      case Norms::kKeys:
      case Norms::kKeysAfter:
        if (!key) return {};
        [[fallthrough]];
      case Norms::kHeads:
      case Norms::kHeadsAfter:
      case Norms::kUnweighted:
        return {nullptr, s.head_dim, s.head_dim, 1e-3f};
      case Norms::kEachHead:
        return {nullptr, all, s.head_dim, 1e-3f};
      case Norms::kAll:
        return {nullptr, all, all, 1e-3f};
      case Norms::kHalves:
        return {nullptr, all, key ? all / 2 : all, 1e-3f};
    }
    return {};
  }
  // q | k of a row as attention uses them.
  std::vector<double> Prepared(size_t row) const {
    const Sizes& s = GetParam();
    const float* values = qkv_.data() + row * static_cast<size_t>(width_);
    const int heads = s.heads + (s.values == Values::kShared ? 0 : s.kv_heads);
    std::vector<double> x(values, values + heads * s.head_dim);
    const auto norm = [&](bool key) {
      const HeadNorm of = NormOf(key);
      const std::vector<float>& weights = key ? k_norm_weight_ : q_norm_weight_;
      double* from = x.data() + (key ? s.heads * s.head_dim : 0);
      const int count = of.part == 0 ? 0 : (key ? s.kv_heads : s.heads) * s.head_dim / of.part;
      for (int part = 0; part < count; ++part) {
        double squares = 0;
        for (int i = 0; i < of.part; ++i) {
          squares += from[part * of.part + i] * from[part * of.part + i];
        }
        for (int i = 0; i < of.part; ++i) {
          const auto at = static_cast<size_t>((part * of.part + i) % of.size);
          from[part * of.part + i] *= (s.norms == Norms::kUnweighted ? 1.0f : weights[at]) /
                                      std::sqrt(squares / of.part + static_cast<double>(of.eps));
        }
      }
    };
    const auto norms = [&] {
      norm(false);
      if (s.values != Values::kShared) norm(true);
    };
    if (!NormsAfter()) norms();
    const int half = s.rotary_dim / 2;
    for (int head = 0; head < heads; ++head) {
      double* of_head = x.data() + head * s.head_dim;
      for (int i = 0; i < half; ++i) {
        const double angle =
            static_cast<float>(kPositions[row]) * frequencies_[static_cast<size_t>(i)];
        double& a = of_head[s.interleaved ? 2 * i : i];
        double& b = of_head[s.interleaved ? 2 * i + 1 : i + half];
        const double first = a;
        const double second = b;
        a = RotationFactor() * (first * std::cos(angle) - second * std::sin(angle));
        b = RotationFactor() * (second * std::cos(angle) + first * std::sin(angle));
      }
    }
    if (NormsAfter()) norms();
    return x;
  }

  // v of a row's KV head.
  std::vector<double> Value(size_t row, int kv_head) const {
    const Sizes& s = GetParam();
    const bool from_keys = s.values == Values::kKeys || s.values == Values::kNormedKeys;
    const float* v = qkv_.data() + row * static_cast<size_t>(width_) +
                     (s.heads + (from_keys ? 0 : s.kv_heads) + kv_head) * s.head_dim;
    std::vector<double> value(v, v + s.head_dim);
    if (s.values != Values::kNormed && s.values != Values::kNormedKeys) return value;
    double squares = 0;
    for (double x : value) squares += x * x;
    for (double& x : value) x /= std::sqrt(squares / s.head_dim + 1e-3f);
    return value;
  }

  float Stored(float x) const {
    if (!GetParam().bf16) return x;
    const uint16_t bits = FloatToBF16(x);
    return LoadFloat(reinterpret_cast<const std::byte*>(&bits), DType::kBF16, 0);
  }
  // In front of a page's keys lies something else.
  size_t PageElements() const { return 128 + 2 * static_cast<size_t>(half_page_); }
  // Index of an element of a row's keys (or values).
  size_t Element(size_t row, int position, int kv_head, int dim, bool value) const {
    const int page = order_[static_cast<size_t>(first_pages_[row] + position / kPagePositions)];
    return static_cast<size_t>(page) * PageElements() + 128 +
           static_cast<size_t>(
               (value ? half_page_ : 0) +
               (kv_head * kPagePositions + position % kPagePositions) * GetParam().head_dim + dim);
  }

  // Outputs of all rows. kAppend: puts their keys and values into `pages`, else they are there.
  template <bool kAppend>
  std::vector<double> Reference(std::vector<float>& pages) const {
    const Sizes& s = GetParam();
    std::vector<double> output;
    for (size_t row = 0; row < kPositions.size(); ++row) {
      const int position = kPositions[row];
      const std::vector<double> prepared = Prepared(row);
      const auto rotated = [&](int head, int dim) {
        return prepared[static_cast<size_t>(head * s.head_dim + dim)];
      };
      for (int head = 0; kAppend && head < s.kv_heads && s.values != Values::kShared; ++head) {
        const std::vector<double> value = Value(row, head);
        for (int dim = 0; dim < s.head_dim; ++dim) {
          pages[Element(row, position, head, dim, false)] =
              Stored(static_cast<float>(rotated(s.heads + head, dim)));
          pages[Element(row, position, head, dim, true)] =
              Stored(static_cast<float>(value[static_cast<size_t>(dim)]));
        }
      }
      for (int head = 0; head < s.heads; ++head) {
        const int kv_head = head / (s.heads / s.kv_heads);
        const int first = s.window > 0 ? std::max(0, position + 1 - s.window) : 0;
        std::vector<double> weights;
        for (int at = first; at <= position; ++at) {
          double dot = 0;
          for (int dim = 0; dim < s.head_dim; ++dim) {
            dot += rotated(head, dim) * pages[Element(row, at, kv_head, dim, false)];
          }
          weights.push_back(dot * kScale);
        }
        const double largest = *std::max_element(weights.begin(), weights.end());
        double sum = 0;
        for (double& weight : weights) sum += weight = std::exp(weight - largest);
        for (int dim = 0; dim < s.head_dim; ++dim) {
          double value = 0;
          for (int at = first; at <= position; ++at) {
            value += weights[static_cast<size_t>(at - first)] *
                     pages[Element(row, at, kv_head, dim, true)];
          }
          const int gate = (s.heads + 2 * s.kv_heads + head) * s.head_dim + dim;
          const double of_gate =
              s.gate ? qkv_[row * static_cast<size_t>(width_) + static_cast<size_t>(gate)] : 0.0;
          output.push_back(value / sum / (s.gate ? 1 + std::exp(-of_gate) : 1));
        }
      }
    }
    return output;
  }

  struct Result {
    std::vector<float> output;
    std::vector<float> pages;
  };
  // Rows `rows_at_a_time` together.
  Result Run(size_t rows_at_a_time) const {
    const Sizes& s = GetParam();
    const size_t element = s.bf16 ? 2 : 4;
    std::vector<std::byte> bytes(pages_.size() * element);
    for (size_t i = 0; i < pages_.size(); ++i) {
      const uint16_t rounded = FloatToBF16(pages_[i]);
      std::memcpy(bytes.data() + i * element,
                  s.bf16 ? static_cast<const void*>(&rounded) : &pages_[i], element);
    }
    const DeviceArray<std::byte> pages(bytes);
    std::vector<char*> addresses;
    for (int page : order_) {
      addresses.push_back(reinterpret_cast<char*>(pages.data()) +
                          static_cast<size_t>(page) * PageElements() * element);
    }
    const DeviceArray<char*> table(addresses);
    const DeviceArray<float> qkv(qkv_);
    const DeviceArray<float> frequencies(frequencies_.empty() ? std::vector<float>{0}
                                                              : frequencies_);
    const DeviceArray<float> q_norm_weight(q_norm_weight_), k_norm_weight(k_norm_weight_);
    const DeviceArray<float> output(kPositions.size() * static_cast<size_t>(s.heads * s.head_dim));
    const int most = static_cast<int>(kPositions.size());
    const DeviceArray<float> partial(AttentionScratchFloats(most, s.heads, s.head_dim));
    const DeviceArray<unsigned> arrivals(AttentionCounters(most, s.heads));
    const Stream stream;
    for (size_t begin = 0; begin < kPositions.size(); begin += rows_at_a_time) {
      const size_t count = std::min(rows_at_a_time, kPositions.size() - begin);
      std::vector<SequenceRun> runs;
      std::vector<int> row_runs;
      for (size_t i = 0; i < count; ++i) {
        runs.push_back({nullptr, table.data() + first_pages_[begin + i], kPositions[begin + i],
                        static_cast<int>(i), 1, 0});
        row_runs.push_back(static_cast<int>(i));
      }
      const DeviceArray<SequenceRun> device_runs(runs);
      const DeviceArray<int> device_row_runs(row_runs);
      AttentionParams p;
      p.heads = s.heads;
      p.kv_heads = s.kv_heads;
      p.head_dim = s.head_dim;
      p.scale = kScale;
      p.inverse_frequencies = s.rotary_dim > 0 ? frequencies.data() : nullptr;
      p.rotary_dim = s.rotary_dim;
      p.rotation_factor = RotationFactor();
      p.kv_bf16 = s.bf16;
      p.kv_offset = static_cast<long long>(128 * element);
      p.page_positions = kPagePositions;
      p.runs = device_runs.data();
      p.run_count = static_cast<int>(count);
      p.rows = static_cast<int>(count);
      p.row_runs = device_row_runs.data();
      p.qkv = qkv.data() + begin * static_cast<size_t>(width_);
      p.qkv_stride = width_;
      p.output_gate = s.gate;
      p.output = output.data() + begin * static_cast<size_t>(s.heads * s.head_dim);
      p.output_stride = s.heads * s.head_dim;
      p.partial = partial.data();
      p.arrivals = arrivals.data();
      p.q_norm = NormOf(false);
      p.k_norm = NormOf(true);
      const bool weighted = s.norms != Norms::kUnweighted;
      if (p.q_norm.part > 0 && weighted) p.q_norm.weight = q_norm_weight.data();
      if (p.k_norm.part > 0 && weighted) p.k_norm.weight = k_norm_weight.data();
      p.window = s.window;
      p.interleaved = s.interleaved;
      p.values_from_keys = s.values == Values::kKeys || s.values == Values::kNormedKeys;
      p.owns_kv = s.values != Values::kShared;
      if (s.values == Values::kNormed || s.values == Values::kNormedKeys) {
        p.v_norm = {nullptr, s.head_dim, s.head_dim, 1e-3f};
      }
      p.norm_after_rotation = NormsAfter();
      LaunchAttentionStep(p, stream.get());
      stream.Synchronize();
    }
    for (unsigned count : arrivals.Download()) EXPECT_EQ(count, 0u);
    const std::vector<std::byte> after = pages.Download();
    Result result{output.Download(), {}};
    for (size_t i = 0; i < pages_.size(); ++i) {
      result.pages.push_back(LoadFloat(after.data(), s.bf16 ? DType::kBF16 : DType::kF32, i));
    }
    return result;
  }

  static constexpr float kScale = 0.25f;
  int width_ = 0;
  int half_page_ = 0;
  int page_count_ = 0;
  std::vector<int> first_pages_;
  std::vector<int> order_;
  std::vector<float> pages_, qkv_, frequencies_, q_norm_weight_, k_norm_weight_;
};

// One row at a time, a few, and all: each is spread over the device in another way.
// Outputs are compared with those of the keys and values that the kernel stored, since one that
// rounds to the neighbour weighs differently.
TEST_P(AttentionKernels, StepMatchesTheReference) {
  std::vector<float> expected_pages = pages_;
  Reference<true>(expected_pages);
  for (const size_t rows : {size_t{1}, size_t{4}, kPositions.size()}) {
    Result found = Run(rows);
    for (size_t i = 0; i < expected_pages.size(); ++i) {
      // Rotation in f32 may round to the neighbour in bf16.
      ASSERT_NEAR(found.pages[i], expected_pages[i],
                  std::abs(expected_pages[i]) * (GetParam().bf16 ? 0.008 : 1e-6) + 1e-5)
          << "page " << i / PageElements() << " element " << i % PageElements();
    }
    const std::vector<double> expected = Reference<false>(found.pages);
    const auto per_row = static_cast<size_t>(GetParam().heads * GetParam().head_dim);
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(found.output[i], expected[i], 5e-5)
          << "position " << kPositions[i / per_row] << " element " << i % per_row << " of " << rows
          << " rows at a time";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Placed, AttentionKernels,
    testing::Values(Sizes{4, 2, 64, 64, true, Norms::kNone, 100},
                    Sizes{4, 2, 64, 32, false, Norms::kHeads, 16},
                    Sizes{10, 1, 256, 128, true, Norms::kNone, 1000},
                    Sizes{4, 2, 32, 32, false, Norms::kHeads, 0, Values::kNormed},
                    Sizes{6, 2, 256, 256, true, Norms::kHeads, 33, Values::kNormed},
                    Sizes{8, 2, 512, 512, true, Norms::kHeads, 0, Values::kNormedKeys},
                    Sizes{6, 2, 512, 128, false, Norms::kHeads, 0, Values::kNormedKeys},
                    Sizes{4, 1, 320, 64, false, Norms::kNone, 0, Values::kKeys},
                    Sizes{8, 4, 64, 64, true, Norms::kHeads, 65, Values::kShared},
                    Sizes{8, 4, 64, 64, false, Norms::kHeads, 0, Values::kShared},
                    Sizes{4, 2, 64, 32, true, Norms::kNone, 0, Values::kOwn, true},
                    Sizes{6, 2, 24, 16, false, Norms::kHeadsAfter, 0, Values::kOwn, true},
                    Sizes{4, 2, 128, 64, true, Norms::kUnweighted},
                    Sizes{4, 2, 40, 40, false, Norms::kUnweighted, 7, Values::kOwn, true},
                    Sizes{20, 1, 512, 64, true, Norms::kHeads, 0, Values::kNormed},
                    Sizes{18, 2, 320, 320, true, Norms::kNone, 700, Values::kKeys},
                    Sizes{4, 2, 384, 64, true, Norms::kHeads, 0, Values::kOwn, false, true},
                    Sizes{16, 8, 256, 256, true, Norms::kHeads, 1024, Values::kNormed},
                    Sizes{3, 3, 136, 64, true, Norms::kHeads, 0, Values::kShared}));

INSTANTIATE_TEST_SUITE_P(
    Sizes, AttentionKernels,
    testing::Values(
        Sizes{12, 4, 64, 0, true}, Sizes{32, 8, 64, 64, true}, Sizes{4, 4, 64, 32, true},
        Sizes{14, 2, 64, 64, true}, Sizes{16, 2, 128, 128, true}, Sizes{4, 2, 80, 80, true},
        Sizes{6, 2, 24, 16, true}, Sizes{4, 1, 256, 64, true}, Sizes{4, 2, 8, 8, true},
        Sizes{12, 4, 64, 64, false}, Sizes{6, 2, 24, 16, false},
        Sizes{8, 2, 64, 64, true, Norms::kHeads}, Sizes{16, 1, 128, 64, true, Norms::kEachHead},
        Sizes{8, 2, 64, 64, true}, Sizes{16, 8, 64, 64, true, Norms::kHeads},
        Sizes{32, 2, 128, 0, true}, Sizes{16, 1, 128, 128, true, Norms::kEachHead, 600},
        Sizes{5, 1, 128, 128, true}, Sizes{2, 1, 8, 0, true}, Sizes{12, 2, 256, 256, true},
        // All rows at a time are so many blocks that they are smaller ones.
        Sizes{32, 16, 64, 64, true, Norms::kHeads}, Sizes{96, 16, 16, 16, true, Norms::kEachHead},
        Sizes{6, 2, 24, 16, true, Norms::kAll}, Sizes{6, 2, 24, 16, false, Norms::kHalves},
        Sizes{4, 2, 80, 80, true, Norms::kKeys}, Sizes{4, 2, 128, 64, true, Norms::kHeadsAfter},
        Sizes{6, 3, 24, 16, false, Norms::kHeadsAfter},
        Sizes{4, 2, 40, 32, true, Norms::kKeysAfter}, Sizes{4, 1, 256, 64, false, Norms::kHeads},
        Sizes{8, 2, 256, 64, true, Norms::kHeads, 0, Values::kOwn, false, true},
        Sizes{14, 2, 64, 64, true, Norms::kNone, 0, Values::kOwn, false, true},
        Sizes{6, 2, 24, 16, false, Norms::kHeads, 0, Values::kOwn, false, true}));

}  // namespace
}  // namespace adder::cuda
