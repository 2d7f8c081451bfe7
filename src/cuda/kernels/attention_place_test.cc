// Latent attention, what comes before it and itself, against a plain reference; the other kernel of
// attention_place.h is tested with attention (attention_test.cc). Runs where there is a CUDA
// device.
#include "cuda/kernels/attention_place.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ostream>

#include "core/dtype.h"
#include "cuda/kernels/attention_wide_heads.h"
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
  bool bf16;
};
std::ostream& operator<<(std::ostream& out, const Sizes& s) {
  return out << s.heads << " heads, " << s.latent << " + " << s.rope_dim
             << (s.interleaved ? ", interleaved" : "") << (s.bf16 ? ", bf16" : ", f32");
}

constexpr int kPage = 64;
// One run of several tokens, over the border of a page, behind random keys.
constexpr int kPosition = 150;
constexpr int kTokens = 50;
constexpr int kPages = 4;
constexpr float kScale = 0.2f;
constexpr float kRotationFactor = 1.125f;

class LatentKernels : public testing::TestWithParam<Sizes> {
 protected:
  void SetUp() override {
    if (DeviceCount() == 0) GTEST_SKIP() << "there is no CUDA device";
  }
  static float Stored(float x) {
    if (!GetParam().bf16) return x;
    const uint16_t bits = FloatToBF16(x);
    return LoadFloat(reinterpret_cast<const std::byte*>(&bits), DType::kBF16, 0);
  }
  static std::vector<float> Chunks(LatentPlaceParams place, const std::vector<float>& absorbed);
};

// What attention over chunks makes of the same, the run being cut into two pieces.
std::vector<float> LatentKernels::Chunks(LatentPlaceParams place,
                                         const std::vector<float>& absorbed) {
  const Sizes& s = GetParam();
  std::vector<__nv_bfloat16> rounded;
  for (float x : absorbed) rounded.push_back(__float2bfloat16(x));
  const DeviceArray<__nv_bfloat16> device_absorbed(rounded);
  const DeviceArray<__nv_bfloat16> output(
      std::vector<__nv_bfloat16>(rounded.size(), __float2bfloat16(NAN)));
  const DeviceArray<Piece> pieces(std::vector<Piece>{{0, 31, 0, 0}, {31, kTokens - 31, 0, 0}});
  AttentionChunkParams params;
  params.attention = place.attention;
  params.pieces = pieces.data();
  params.piece_count = 2;
  params.output = output.data();
  params.output_stride = s.heads * s.latent;
  place.attention.heads = 0;
  const Stream stream;
  LaunchLatentPlace(place, stream.get());
  LaunchLatentChunks(
      params,
      {device_absorbed.data(), s.heads * s.latent, place.query, place.query_stride, place.nope_dim},
      stream.get());
  stream.Synchronize();
  return Widened(output.Download());
}

TEST_P(LatentKernels, MatchTheReference) {
  const Sizes& s = GetParam();
  const int key_dim = s.latent + s.rope_dim;
  const int query_dim = s.nope_dim + s.rope_dim;
  Numbers numbers(31);
  const auto rows = [&](int width) {
    return numbers.Vector(static_cast<size_t>(kTokens * width), 1.5f);
  };
  const std::vector<float> query = rows(s.heads * query_dim);
  const std::vector<float> absorbed = rows(s.heads * s.latent);
  const std::vector<float> kv = rows(key_dim + 2);
  const std::vector<float> weight = numbers.Vector(static_cast<size_t>(s.latent), 0.5f, 1);
  std::vector<float> keys = numbers.Vector(static_cast<size_t>(kPages * kPage * key_dim));
  for (float& key : keys) key = Stored(key);
  std::vector<float> frequencies;
  for (int i = 0; i < s.rope_dim / 2; ++i) {
    frequencies.push_back(std::pow(100.0f, -static_cast<float>(i) / 8));
  }

  const size_t element = s.bf16 ? 2 : 4;
  std::vector<std::byte> bytes(keys.size() * element);
  for (size_t i = 0; i < keys.size(); ++i) {
    const uint16_t rounded = FloatToBF16(keys[i]);
    std::memcpy(bytes.data() + i * element, s.bf16 ? static_cast<const void*>(&rounded) : &keys[i],
                element);
  }
  const DeviceArray<std::byte> pages(bytes);
  std::vector<char*> addresses;
  for (size_t page = 0; page < kPages; ++page) {
    addresses.push_back(reinterpret_cast<char*>(pages.data()) + page * bytes.size() / kPages);
  }
  const DeviceArray<char*> table(addresses);
  const DeviceArray<SequenceRun> runs(
      std::vector<SequenceRun>{{nullptr, table.data(), kPosition, 0, kTokens, 0}});
  const DeviceArray<int> row_runs(std::vector<int>(kTokens, 0));
  const DeviceArray<float> device_query(query), device_absorbed(absorbed), device_kv(kv),
      device_weight(weight), device_frequencies(frequencies);
  const DeviceArray<float> joined(static_cast<size_t>(kTokens * s.heads * key_dim));
  const DeviceArray<float> output(static_cast<size_t>(kTokens * s.heads * s.latent));
  const DeviceArray<float> partial(AttentionScratchFloats(kTokens, s.heads, s.latent));
  const DeviceArray<unsigned> arrivals(AttentionCounters(kTokens, s.heads));
  LatentPlaceParams place;
  AttentionParams& p = place.attention;
  p.heads = s.heads;
  p.kv_heads = 1;
  p.head_dim = key_dim;
  p.latent = s.latent;
  p.scale = kScale;
  p.inverse_frequencies = s.rotates ? device_frequencies.data() : nullptr;
  p.rotary_dim = s.rotates ? s.rope_dim : 0;
  p.rotation_factor = kRotationFactor;
  p.interleaved = s.interleaved;
  p.kv_bf16 = s.bf16;
  p.page_positions = kPage;
  p.runs = runs.data();
  p.run_count = 1;
  p.rows = kTokens;
  p.row_runs = row_runs.data();
  p.qkv = joined.data();
  p.qkv_stride = s.heads * key_dim;
  p.output = output.data();
  p.output_stride = s.heads * s.latent;
  p.partial = partial.data();
  p.arrivals = arrivals.data();
  place.query = device_query.data();
  place.query_stride = s.heads * query_dim;
  place.nope_dim = s.nope_dim;
  place.absorbed = device_absorbed.data();
  place.absorbed_stride = s.heads * s.latent;
  place.kv = device_kv.data();
  place.kv_stride = key_dim + 2;
  place.norm_weight = device_weight.data();
  place.norm_eps = 1e-3f;
  const Stream stream;
  LaunchLatentPlace(place, stream.get());
  LaunchAttention(p, stream.get());
  stream.Synchronize();
  for (unsigned count : arrivals.Download()) EXPECT_EQ(count, 0u);
  const std::vector<float> found = output.Download();
  const std::vector<float> of_chunks = s.bf16 ? Chunks(place, absorbed) : std::vector<float>();

  const auto rotate = [&](int token, double* x) {
    for (int i = 0; i < s.rope_dim / 2 && s.rotates; ++i) {
      const double angle =
          static_cast<float>(kPosition + token) * frequencies[static_cast<size_t>(i)];
      double& a = x[s.interleaved ? 2 * i : i];
      double& b = x[s.interleaved ? 2 * i + 1 : i + s.rope_dim / 2];
      const double first = a;
      a = kRotationFactor * (first * std::cos(angle) - b * std::sin(angle));
      b = kRotationFactor * (b * std::cos(angle) + first * std::sin(angle));
    }
  };
  const auto append = [](std::vector<double>& to, const float* from, int count) {
    to.insert(to.end(), from, from + count);
  };
  for (int token = 0; token < kTokens; ++token) {
    std::vector<double> own;
    append(own, kv.data() + token * (key_dim + 2), key_dim);
    double squares = 0;
    for (int i = 0; i < s.latent; ++i)
      squares += own[static_cast<size_t>(i)] * own[static_cast<size_t>(i)];
    for (size_t i = 0; i < weight.size(); ++i) {
      own[i] *= weight[i] / std::sqrt(squares / s.latent + 1e-3f);
    }
    rotate(token, own.data() + s.latent);
    float* place_of = keys.data() + (kPosition + token) * key_dim;
    for (double x : own) *place_of++ = Stored(static_cast<float>(x));
    for (int head = 0; head < s.heads; ++head) {
      std::vector<double> q;
      append(q, absorbed.data() + (token * s.heads + head) * s.latent, s.latent);
      append(q, query.data() + (token * s.heads + head) * query_dim + s.nope_dim, s.rope_dim);
      rotate(token, q.data() + s.latent);
      std::vector<double> weights;
      for (int at = 0; at <= kPosition + token; ++at) {
        double dot = 0;
        for (size_t d = 0; d < q.size(); ++d)
          dot += q[d] * keys[static_cast<size_t>(at * key_dim) + d];
        weights.push_back(std::exp(kScale * dot));
      }
      double sum = 0;
      for (double of : weights) sum += of;
      for (int d = 0; d < s.latent; ++d) {
        double expected = 0;
        for (int at = 0; at <= kPosition + token; ++at) {
          expected +=
              weights[static_cast<size_t>(at)] / sum * keys[static_cast<size_t>(at * key_dim + d)];
        }
        // Keys that round to the neighbour in bf16 weigh differently.
        const auto place_of_value = static_cast<size_t>((token * s.heads + head) * s.latent + d);
        ASSERT_NEAR(found[place_of_value], expected, s.bf16 ? 2e-2 : 5e-5)
            << "token " << token << " head " << head << " dim " << d;
        // Of chunks queries and weights, too, are rounded.
        if (s.bf16) {
          ASSERT_NEAR(of_chunks[place_of_value], expected, 3e-2)
              << "token " << token << " head " << head << " dim " << d << ", of chunks";
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, LatentKernels,
                         testing::Values(Sizes{5, 512, 64, 32, true, true, false},
                                         Sizes{5, 512, 64, 32, true, false, true},
                                         Sizes{3, 24, 8, 12, true, false, false},
                                         Sizes{4, 192, 64, 64, false, false, true},
                                         Sizes{3, 24, 8, 12, true, true, true}));

}  // namespace
}  // namespace adder::cuda::test
