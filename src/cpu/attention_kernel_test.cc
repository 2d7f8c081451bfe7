#include "cpu/attention_kernel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/simd_targets_for_test.h"

namespace adder {
namespace {

class AttentionKernelTest : public OnEveryTarget {};

// A sequence of keys and values in pages of 8 positions, and the queries of its last tokens.
struct Scene {
  Scene(int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t positions, int64_t tokens,
        int64_t rotary_dim) {
    mixer.heads = heads;
    mixer.kv_heads = kv_heads;
    mixer.head_dim = head_dim;
    mixer.scale = 0.3f;
    const int64_t kv_width = kv_heads * head_dim;
    for (int64_t page = 0; page * kPage < positions; ++page) {
      keys.emplace_back(static_cast<size_t>(kPage * kv_width));
      values.emplace_back(keys.back().size());
      for (size_t i = 0; i < keys.back().size(); ++i) {
        const auto at = static_cast<float>(static_cast<size_t>(page * 997) + i);
        keys.back()[i] = 1.5f * std::sin(0.37f * at);
        values.back()[i] = std::cos(0.11f * at) + 0.001f * at;
      }
    }
    for (const auto& page : keys) key_pages.push_back(page.data());
    for (const auto& page : values) value_pages.push_back(page.data());
    stride = heads * head_dim + 2 * kv_width;
    qkv.resize(static_cast<size_t>(tokens * stride));
    for (size_t i = 0; i < qkv.size(); ++i) qkv[i] = std::sin(0.7f * static_cast<float>(i));
    if (rotary_dim > 0) {
      Rope rope;
      rope.rotary_dim = rotary_dim;
      for (int64_t i = 0; i < rotary_dim / 2; ++i) {
        rope.inverse_frequencies.push_back(std::pow(100.0f, -2.0f * i / rotary_dim));
      }
      table.resize(static_cast<size_t>(tokens * rotary_dim));
      for (int64_t t = 0; t < tokens; ++t) {
        FillRopeRow(rope, positions - tokens + t, table.data() + t * rotary_dim);
      }
    }
    output.assign(static_cast<size_t>(tokens * heads * head_dim), -1.0f);
    run.SetSizes(mixer);
    run.q = qkv.data();
    run.q_stride = stride;
    run.output = output.data();
    run.output_stride = heads * head_dim;
    run.first_position = positions - tokens;
    if (rotary_dim > 0) run.rope = {table.data(), rotary_dim};
    run.keys = key_pages;
    run.values = value_pages;
    run.page_positions = kPage;
  }

  // softmax(scale * q . k) v in f64, by the definition.
  double Expected(int64_t token, int64_t head, int64_t d) const {
    const int64_t kv_head = head / (mixer.heads / mixer.kv_heads);
    std::vector<double> q(qkv.begin() + token * stride + head * mixer.head_dim,
                          qkv.begin() + token * stride + (head + 1) * mixer.head_dim);
    const int64_t half = run.rope.rotary_dim / 2;
    for (int64_t i = 0; i < half; ++i) {
      const double cosine = run.rope.Row(token)[i];
      const double sine = run.rope.Row(token)[half + i];
      const double first = q[static_cast<size_t>(i)];
      const double second = q[static_cast<size_t>(i + half)];
      q[static_cast<size_t>(i)] = first * cosine - second * sine;
      q[static_cast<size_t>(i + half)] = first * sine + second * cosine;
    }
    double sum = 0;
    double weighted = 0;
    const int64_t position = run.first_position + token;
    const int64_t first = run.window > 0 ? std::max<int64_t>(0, position + 1 - run.window) : 0;
    for (int64_t p = first; p <= position; ++p) {
      const auto page = static_cast<size_t>(p / kPage);
      const int64_t at = (p % kPage * mixer.kv_heads + kv_head) * mixer.head_dim;
      double dot = 0;
      for (int64_t i = 0; i < mixer.head_dim; ++i) {
        dot += q[static_cast<size_t>(i)] * keys[page][static_cast<size_t>(at + i)];
      }
      const double weight = std::exp(mixer.scale * dot);
      sum += weight;
      weighted += weight * values[page][static_cast<size_t>(at + d)];
    }
    return weighted / sum;
  }

  static constexpr int64_t kPage = 8;
  Attention mixer;
  int64_t stride = 0;
  std::vector<std::vector<float>> keys, values;
  std::vector<const float*> key_pages, value_pages;
  std::vector<float> qkv, table, output;
  AttentionRun run;
};

TEST_P(AttentionKernelTest, EqualsTheFormula) {
  struct Case {
    int64_t heads, kv_heads, head_dim, positions, tokens, rotary_dim;
  };
  for (const Case& c :
       {Case{1, 1, 5, 1, 1, 0}, Case{4, 2, 16, 21, 21, 16}, Case{6, 2, 24, 16, 3, 8},
        Case{3, 3, 64, 33, 9, 64}, Case{2, 1, 80, 9, 1, 0}}) {
    Scene scene(c.heads, c.kv_heads, c.head_dim, c.positions, c.tokens, c.rotary_dim);
    Scratch<float> scratch;
    for (int64_t kv_head = 0; kv_head < c.kv_heads; ++kv_head) {
      Attend(scene.run, kv_head, 0, c.tokens, scratch);
    }
    for (int64_t t = 0; t < c.tokens; ++t) {
      for (int64_t head = 0; head < c.heads; ++head) {
        for (int64_t d = 0; d < c.head_dim; ++d) {
          ASSERT_NEAR(scene.Expected(t, head, d),
                      scene.output[static_cast<size_t>((t * c.heads + head) * c.head_dim + d)],
                      1e-5)
              << "token " << t << ", head " << head << ", element " << d;
        }
      }
    }
  }
}

// Latent attention's way: every head reads the same keys, whose first elements are the values.
TEST_P(AttentionKernelTest, HeadsMayShareKeysThatHoldTheirValues) {
  constexpr int64_t kTokens = 3;
  constexpr int64_t kHeads = 4;
  Scene scene(kHeads, 1, 24, 21, kTokens, 0);
  AttentionRun run = scene.run;
  run.group = 1;
  run.key_step = run.value_step = 0;
  run.value_dim = 17;
  run.values = run.keys;
  run.q_stride = scene.stride;
  std::vector<float> output(kTokens * kHeads * 17, -1.0f);
  run.output = output.data();
  run.output_stride = kHeads * 17;
  scene.values = scene.keys;
  Scratch<float> scratch;
  for (int64_t head = 0; head < kHeads; ++head) Attend(run, head, 0, kTokens, scratch);
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t head = 0; head < kHeads; ++head) {
      for (int64_t d = 0; d < 17; ++d) {
        ASSERT_NEAR(scene.Expected(t, head, d),
                    output[static_cast<size_t>((t * kHeads + head) * 17 + d)], 1e-5)
            << "token " << t << ", head " << head << ", element " << d;
      }
    }
  }
}

TEST(RotateHeads, InterleavedPairsAreNeighbours) {
  const float row[] = {0.6f, 1.0f, 0.8f, 0.0f};  // cos, cos, sin, sin
  const std::vector<float> from{1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  std::vector<float> to(10);
  RotateHeads(from.data(), 2, 5, {row, 4, true}, to.data());
  EXPECT_FLOAT_EQ(to[0], 0.6f * 1 - 0.8f * 2);
  EXPECT_FLOAT_EQ(to[1], 0.8f * 1 + 0.6f * 2);
  EXPECT_EQ(to[2], 3);
  EXPECT_EQ(to[4], 5);
  EXPECT_FLOAT_EQ(to[6], 0.8f * 6 + 0.6f * 7);
  RotateHeads(from.data(), 2, 5, {row, 4, false}, to.data());
  EXPECT_FLOAT_EQ(to[0], 0.6f * 1 - 0.8f * 3);
  EXPECT_FLOAT_EQ(to[2], 0.8f * 1 + 0.6f * 3);
}

// Windows that begin inside of a page, at its edge, before the first position, and pages before.
TEST_P(AttentionKernelTest, WindowsEqualTheFormula) {
  for (const int64_t window : {1, 3, 8, 13, 100}) {
    Scene scene(4, 2, 24, 29, 12, 8);
    scene.run.window = window;
    Scratch<float> scratch;
    for (int64_t kv_head = 0; kv_head < 2; ++kv_head) Attend(scene.run, kv_head, 0, 12, scratch);
    for (int64_t t = 0; t < 12; ++t) {
      for (int64_t i = 0; i < 4 * 24; ++i) {
        ASSERT_NEAR(scene.Expected(t, i / 24, i % 24),
                    scene.output[static_cast<size_t>(t * 4 * 24 + i)], 1e-5)
            << "window " << window << ", token " << t << ", element " << i;
      }
    }
  }
}

TEST_P(AttentionKernelTest, BitsDoNotDependOnTheOtherTokens) {
  for (const int64_t window : {0, 5}) {
    Scene together(4, 2, 24, 30, 13, 8);
    Scene apart(4, 2, 24, 30, 13, 8);
    together.run.window = apart.run.window = window;
    Scratch<float> scratch;
    for (int64_t kv_head = 0; kv_head < 2; ++kv_head) {
      Attend(together.run, kv_head, 0, 13, scratch);
      for (int64_t t = 0; t < 13; ++t) Attend(apart.run, kv_head, t, t + 1, scratch);
    }
    EXPECT_EQ(together.output, apart.output) << "window " << window;
  }
}

ADDER_ON_EVERY_TARGET(AttentionKernelTest);

}  // namespace
}  // namespace adder
