#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <string>

#include "model/family_test_support.h"

namespace adder {
namespace {

using namespace testing;  // NOLINT: the helpers of this room's tests

// A figure that is rounded: `digit` is the last one stated.
struct Rounded {
  double figure = 0;
  double digit = 0;
};

// How many parameters a model has, exactly. Of multimodal models the text model counts, and layers
// for the prediction of several tokens never do.
struct Published {
  int64_t parameters;
  // "card": the publisher's own words. "tensors": the published checkpoint counted tensor by tensor
  // (the total in its index, the hub's figure, or the count that users of the checkpoint report).
  // "sum": no exact count was found, and `parameters` is a sum written out below from the fields of
  // the geometry by hand, apart from the families; what is published of it in fewer digits is
  // `stated`.
  std::string source;
  Rounded active = {};  // parameters that one token uses, of a mixture of experts
  Rounded stated = {};
};

constexpr double kMillion = 1e6, kBillion = 1e9;

constexpr int64_t GatedMlp(int64_t hidden, int64_t intermediate) {
  return 3 * hidden * intermediate;
}

constexpr int64_t AttentionSize(int64_t hidden, int64_t heads, int64_t kv_heads, int64_t width) {
  return 2 * hidden * (heads + kv_heads) * width;
}

// With one group: the input projection, the convolution of width 4 and its bias, the step bias, A
// and D of every head, the gated norm and the output projection.
constexpr int64_t Mamba2Size(int64_t hidden, int64_t heads, int64_t width, int64_t state) {
  const int64_t inner = heads * width;
  const int64_t convolved = inner + 2 * state;
  return hidden * (inner + convolved + heads) + 5 * convolved + 3 * heads + inner + inner * hidden;
}

// The input projection, the convolution of width 4 and its bias, the projection to step, B and C,
// the step's projection and bias, A, D and the output projection.
constexpr int64_t Mamba1Size(int64_t hidden, int64_t inner, int64_t state, int64_t rank) {
  return hidden * 2 * inner + 5 * inner + inner * (rank + 2 * state) + rank * inner + inner +
         inner * state + inner + inner * hidden;
}

// Every layer: two norms and an MLP.
constexpr int64_t kBamba9b = 2 * 128256 * 4096 + 4096 + 32 * (2 * 4096 + GatedMlp(4096, 14336)) +
                             29 * Mamba2Size(4096, 128, 64, 128) +
                             3 * AttentionSize(4096, 32, 8, 128);
constexpr int64_t kFalconMamba7b =
    2 * 65024 * 4096 + 64 * (4096 + Mamba1Size(4096, 8192, 16, 256)) + 4096;
constexpr int64_t kGranite1b = 100352 * 1536 + 1536 + 40 * (2 * 1536 + GatedMlp(1536, 4096)) +
                               36 * Mamba2Size(1536, 48, 64, 128) +
                               4 * AttentionSize(1536, 12, 4, 128);
// Step, B and C have norms.
constexpr int64_t kJambaReasoning3b = 65536 * 2560 + 2560 + 28 * (2 * 2560 + GatedMlp(2560, 8192)) +
                                      26 * (Mamba1Size(2560, 5120, 16, 160) + 160 + 2 * 16) +
                                      2 * AttentionSize(2560, 20, 1, 128);
constexpr int64_t kMamba2x1b3 = 50288 * 2048 + 48 * (2048 + Mamba2Size(2048, 64, 64, 128)) + 2048;
// Four norms and an MLP in every layer. Mamba layers: the input projection, the convolution without
// a bias, the projection to B, C and the step, norms of these, the step's projection to the heads,
// three numbers a head, the output projection. Attention layers: a vector for every head of the
// queries and of the keys besides.
constexpr int64_t kPlamo1b = 100000 * 2048 + 2048 + 16 * (4 * 2048 + GatedMlp(2048, 8192)) +
                             8 * (2048 * 2 * 4096 + 4 * 4096 + 4096 * (2 * 64 + 128) + 2 * 64 +
                                  128 + 128 * 32 + 3 * 32 + 4096 * 2048) +
                             8 * (AttentionSize(2048, 16, 1, 128) + (16 + 1) * 128);
// Vectors: six shifts, three of keys and heads, norms with biases for the heads, the time mix and
// the channel mix, whose own shift is one more. Pairs of low-rank matrices: decay and step with a
// bias, gate without one, and, but for the first layer, values with one.
constexpr int64_t kRwkv168m =
    2 * 50304 * 768 + 2 * 768 + 2 * 768 +
    12 * (16 * 768 + 4 * 768 * 768 + 2 * (2 * 768 * 64 + 768) + 2 * 768 * 128 + 2 * 768 * 3072) +
    11 * (2 * 768 * 32 + 768);

const std::map<std::string, Published>& PublishedSizes() {
  static const std::map<std::string, Published> sizes = {
      // 9.78 billion, though the name says 9.
      {"bamba-9b",
       {kBamba9b, "sum; card of ibm-ai-platform/Bamba-9B", {}, {9.78 * kBillion, 0.01 * kBillion}}},
      {"falcon-h1-0.5b", {521411104, "tensors of tiiuae/Falcon-H1-0.5B-Base"}},
      // The geometry leaves the norms of the SSM out, which is why it has 73,728 fewer.
      {"falcon-h1-1.5b", {1554863488, "tensors of tiiuae/Falcon-H1-1.5B-Instruct"}},
      // 7.59 billion, though the name says 7.
      {"falcon-h1-7b", {7585648736, "tensors of tiiuae/Falcon-H1-7B-Base"}},
      {"falcon-h1-tiny-90m-instruct", {91131072, "tensors of tiiuae/Falcon-H1-Tiny-90M-Base"}},
      {"falcon-mamba-7b",
       {kFalconMamba7b,
        "sum; tensors of tiiuae/falcon-mamba-7b in the table of Uncheatable Eval",
        {},
        {7.273 * kBillion, 0.001 * kBillion}}},
      // The card says 25.2B, of which 3.8B are active; 256 of the counted are rotary frequencies.
      // The name says 26.
      {"gemma-4-26b-a4b",
       {25233142046, "tensors of google/gemma-4-26B-A4B-it", {3.8 * kBillion, 0.1 * kBillion}}},
      // The card says 30B-A3B; the hub's 31B have the layer for a second token in them.
      {"glm-4.7-flash",
       {29943393920, "tensors of zai-org/GLM-4.7-Flash", {3 * kBillion, kBillion}}},
      // The card says 1.5B.
      {"granite-4.0-h-1b",
       {kGranite1b,
        "sum; tensors of ibm-granite/granite-4.0-h-1b-GGUF as llama.cpp prints them",
        {},
        {1.46 * kBillion, 0.01 * kBillion}}},
      // 340 million, though the name says 350.
      {"granite-4.0-h-350m", {340332224, "tensors of ibm-granite/granite-4.0-h-350m"}},
      {"granite-4.0-h-micro", {3191396096, "tensors of ibm-granite/granite-4.0-h-micro"}},
      // The card says 32B, of which 9B are active.
      {"granite-4.0-h-small",
       {32207337984, "tensors of ibm-granite/granite-4.0-h-small", {9 * kBillion, kBillion}}},
      {"granite-4.0-h-tiny",
       {6939037248, "tensors of ibm-granite/granite-4.0-h-tiny-base", {kBillion, kBillion}}},
      {"hunyuan-1.8b", {1791080448, "tensors of tencent/HY-MT1.5-1.8B"}},
      {"hunyuan-a13b",
       {80393183232, "tensors of tencent/Hunyuan-A13B-Instruct", {13 * kBillion, kBillion}}},
      {"jamba-reasoning-3b",
       {kJambaReasoning3b,
        "sum; name of ai21labs/AI21-Jamba-Reasoning-3B",
        {},
        {3 * kBillion, kBillion}}},
      // The card says 52B, of which 12B are active.
      {"jamba-v0.1", {51570323328, "tensors of ai21labs/Jamba-v0.1", {12 * kBillion, kBillion}}},
      // 49.1 billion, though the name says 48.
      {"kimi-linear-48b-a3b",
       {49122681728,
        "tensors of moonshotai/Kimi-Linear-48B-A3B-Instruct",
        {3 * kBillion, kBillion}}},
      {"lfm2-1.2b", {1170340608, "card of LiquidAI/LFM2-1.2B"}},
      {"lfm2-2.6b", {2569272320, "card of LiquidAI/LFM2-2.6B"}},
      {"lfm2-350m", {354483968, "card of LiquidAI/LFM2-350M"}},
      // The card says 8.3B and 1.5B; the index leaves the routers' 704 float32 biases out.
      {"lfm2-8b-a1b",
       {8339929856, "tensors of LiquidAI/LFM2-8B-A1B", {1.5 * kBillion, 0.1 * kBillion}}},
      // The card says 1.23B.
      {"llama-3.2-1b", {1235814400, "tensors of meta-llama/Llama-3.2-1B"}},
      {"mamba-130m", {129135360, "tensors of state-spaces/mamba-130m-hf"}},
      {"mamba2-1.3b",
       {kMamba2x1b3,
        "sum; tensors of state-spaces/mamba2-1.3b in the table of Uncheatable Eval",
        {},
        {1.344 * kBillion, 0.001 * kBillion}}},
      {"mamba2-130m", {128989632, "tensors of state-spaces/mamba2-130m"}},
      {"mamba2-2.7b", {2702599680, "tensors of state-spaces/mamba2-2.7b"}},
      // The paper (arXiv:2512.20848) says 31.6B, of which 3.6B are active; the index leaves the
      // routers' 2,944 biases out. The name says 30.
      {"nemotron-3-nano-30b-a3b",
       {31577937344,
        "tensors of nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
        {3.6 * kBillion, 0.1 * kBillion}}},
      {"nemotron-h-8b", {8100852736, "tensors of nvidia/Nemotron-H-8B-Base-8K"}},
      {"nvidia-nemotron-nano-9b-v2", {8888227328, "tensors of nvidia/NVIDIA-Nemotron-Nano-9B-v2"}},
      // 1.29 billion, which the name rounds to 1.
      {"plamo-2-1b", {kPlamo1b, "sum; name of pfnet/plamo-2-1b", {}, {kBillion, kBillion}}},
      {"qwen3-next-80b-a3b",
       {79674391296, "tensors of Qwen/Qwen3-Coder-Next", {3 * kBillion, kBillion}}},
      {"qwen3.5-0.8b", {752393024, "tensors of Qwen/Qwen3.5-0.8B"}},
      {"qwen3.5-35b-a3b",
       {34660610688, "tensors of Qwen/Qwen3.5-35B-A3B", {3 * kBillion, kBillion}}},
      {"qwen3.5-4b", {4205751296, "tensors of Qwen/Qwen3.5-4B"}},
      // 2.68 billion, though the name says 2.
      {"recurrentgemma-2b", {2682862080, "tensors of google/recurrentgemma-2b"}},
      {"rwkv7-168m-pile",
       {kRwkv168m, "sum; name of RWKV/RWKV7-Goose-Pile-168M-HF", {}, {168 * kMillion, kMillion}}},
      // The paper (arXiv:2411.15242) says 1.2B.
      {"zamba2-1.2b", {1215064704, "tensors of Zyphra/Zamba2-1.2B-Instruct-v2"}},
  };
  return sizes;
}

// Parameters that one token uses: of each mixture the chosen experts, and everything else.
int64_t ActiveParameterCount(const Plan& plan) {
  int64_t count = ParameterCount(plan);
  const auto elements = [&plan](const std::vector<MatrixId>& experts) {
    const MatrixRef& matrix = plan.matrices[static_cast<size_t>(experts.front())];
    return matrix.rows * matrix.cols;
  };
  for (const Block& block : plan.blocks) {
    for (const Mixer& mixer : block.mixers) {
      const auto* moe = std::get_if<MoeMlp>(&mixer);
      if (moe == nullptr) continue;
      count -= (moe->experts - moe->top_k) * (elements(moe->gate_up) + elements(moe->down));
    }
  }
  return count;
}

// Publishers cut this figure short rather than round it (Qwen3-Next's 3.9 billion are its "A3B"),
// and some leave the look-up in the embedding out.
void ExpectActive(const Plan& plan, const Published& published, const std::string& name) {
  const double active = static_cast<double>(ActiveParameterCount(plan));
  const double without_embedding = active - static_cast<double>(plan.vocab * plan.hidden);
  const auto [figure, digit] = published.active;
  const double miss = std::min(std::abs(active - figure), std::abs(without_embedding - figure));
  EXPECT_LE(miss, digit) << name << ": " << active << " active";
}

TEST(PublishedSizes, EveryGeometryHasItsNumberOfParameters) {
  ADDER_SKIP_WITHOUT("geometries");
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(SharedFolder() / "geometries")) {
    if (entry.path().extension() != ".json") continue;
    const std::string name = entry.path().stem();
    const auto found = PublishedSizes().find(name);
    if (found == PublishedSizes().end()) {
      ADD_FAILURE() << "no published size of " << name;
      continue;
    }
    const Published& published = found->second;
    const Plan plan = BuildPlan(ReadJsonFile(entry.path()), TensorNames::Planned(false));
    const auto parameters = static_cast<double>(published.parameters);
    EXPECT_NEAR(static_cast<double>(ParameterCount(plan)), parameters, 0.01 * parameters)
        << name << ", " << published.source;
    const bool mixture = ActiveParameterCount(plan) != ParameterCount(plan);
    EXPECT_EQ(mixture, published.active.figure > 0) << name;
    if (mixture) ExpectActive(plan, published, name);
    ++count;
  }
  EXPECT_GE(count, 38);
}

// A sum of ours is what the publisher rounded.
TEST(PublishedSizes, SumsRoundToWhatIsStated) {
  for (const auto& [name, published] : PublishedSizes()) {
    const bool summed = published.source.rfind("sum; ", 0) == 0;
    EXPECT_EQ(summed, published.stated.digit > 0) << name;
    if (!summed) continue;
    EXPECT_NEAR(static_cast<double>(published.parameters), published.stated.figure,
                0.5 * published.stated.digit)
        << name << ", " << published.source;
  }
}

}  // namespace
}  // namespace adder
