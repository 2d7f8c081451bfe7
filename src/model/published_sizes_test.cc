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

// What is published of a model, as exactly as it is: `digit` is the last one stated. Of multimodal
// models the text model counts, and layers for the prediction of several tokens never do.
struct Published {
  double parameters;
  double digit;
  // "card" and "paper" are the publisher's own words; "tensors": the published checkpoint counted
  // tensor by tensor (the total in its index, the hub's figure, or the count that users of the
  // checkpoint report); "name": nothing closer than the model's name was found.
  std::string source;
  double active = 0;  // that one token uses, of a mixture of experts
  double active_digit = 0;
};

constexpr double kMillion = 1e6, kBillion = 1e9;

const std::map<std::string, Published>& PublishedSizes() {
  static const std::map<std::string, Published> sizes = {
      {"bamba-9b", {9.78 * kBillion, 0.01 * kBillion, "card of ibm-ai-platform/Bamba-9B"}},
      {"falcon-h1-0.5b", {521411104, 1, "tensors of tiiuae/Falcon-H1-0.5B-Base"}},
      // The geometry leaves the norms of the SSM out, which is why it has 73,728 fewer.
      {"falcon-h1-1.5b", {1554863488, 1, "tensors of tiiuae/Falcon-H1-1.5B-Instruct"}},
      {"falcon-h1-7b", {7585648736, 1, "tensors of tiiuae/Falcon-H1-7B-Base"}},
      {"falcon-h1-tiny-90m-instruct", {91131072, 1, "tensors of tiiuae/Falcon-H1-Tiny-90M-Base"}},
      {"falcon-mamba-7b",
       {7.273 * kBillion, 0.001 * kBillion, "tensors, in the table of Uncheatable Eval"}},
      // The card says 25.2B, of which 3.8B are active; 256 of the counted are rotary frequencies.
      {"gemma-4-26b-a4b",
       {25233142046, 1, "tensors of google/gemma-4-26B-A4B-it", 3.8 * kBillion, 0.1 * kBillion}},
      // The card says 30B-A3B; the hub's 31B have the layer for a second token in them.
      {"glm-4.7-flash",
       {29943393920, 1, "tensors of zai-org/GLM-4.7-Flash", 3 * kBillion, kBillion}},
      {"granite-4.0-h-1b",
       {1.5 * kBillion, 0.1 * kBillion, "card of ibm-granite/granite-4.0-h-1b"}},
      {"granite-4.0-h-350m", {340332224, 1, "tensors of ibm-granite/granite-4.0-h-350m"}},
      {"granite-4.0-h-micro", {3191396096, 1, "tensors of ibm-granite/granite-4.0-h-micro"}},
      {"granite-4.0-h-small",
       {32 * kBillion, kBillion, "card of ibm-granite/granite-4.0-h-small", 9 * kBillion,
        kBillion}},
      {"granite-4.0-h-tiny",
       {6939037248, 1, "tensors of ibm-granite/granite-4.0-h-tiny-base", kBillion, kBillion}},
      {"hunyuan-1.8b", {1791080448, 1, "tensors of tencent/HY-MT1.5-1.8B"}},
      {"hunyuan-a13b",
       {80393183232, 1, "tensors of tencent/Hunyuan-A13B-Instruct", 13 * kBillion, kBillion}},
      {"jamba-reasoning-3b", {3 * kBillion, kBillion, "name of ai21labs/AI21-Jamba-Reasoning-3B"}},
      // The card says 52B, of which 12B are active.
      {"jamba-v0.1", {51570323328, 1, "tensors of ai21labs/Jamba-v0.1", 12 * kBillion, kBillion}},
      {"kimi-linear-48b-a3b",
       {49122681728, 1, "tensors of moonshotai/Kimi-Linear-48B-A3B-Instruct", 3 * kBillion,
        kBillion}},
      {"lfm2-1.2b", {1170340608, 1, "card of LiquidAI/LFM2-1.2B"}},
      {"lfm2-2.6b", {2569272320, 1, "card of LiquidAI/LFM2-2.6B"}},
      {"lfm2-350m", {354483968, 1, "card of LiquidAI/LFM2-350M"}},
      // The card says 8.3B and 1.5B; the index leaves the routers' 704 float32 biases out.
      {"lfm2-8b-a1b",
       {8339929856, 1, "tensors of LiquidAI/LFM2-8B-A1B", 1.5 * kBillion, 0.1 * kBillion}},
      // The card says 1.23B.
      {"llama-3.2-1b", {1235814400, 1, "tensors of meta-llama/Llama-3.2-1B"}},
      {"mamba-130m", {129135360, 1, "tensors of state-spaces/mamba-130m-hf"}},
      {"mamba2-1.3b",
       {1.344 * kBillion, 0.001 * kBillion, "tensors, in the table of Uncheatable Eval"}},
      {"mamba2-130m", {128989632, 1, "tensors of state-spaces/mamba2-130m"}},
      {"mamba2-2.7b", {2702599680, 1, "tensors of state-spaces/mamba2-2.7b"}},
      // The paper (arXiv:2512.20848) says 31.6B, of which 3.6B are active; the index leaves the
      // routers' 2,944 biases out.
      {"nemotron-3-nano-30b-a3b",
       {31577937344, 1, "tensors of nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 3.6 * kBillion,
        0.1 * kBillion}},
      {"nemotron-h-8b", {8100852736, 1, "tensors of nvidia/Nemotron-H-8B-Base-8K"}},
      {"nvidia-nemotron-nano-9b-v2",
       {8888227328, 1, "tensors of nvidia/NVIDIA-Nemotron-Nano-9B-v2"}},
      // Its name says 1B, like that of every model from 0.5 to 1.5.
      {"plamo-2-1b", {kBillion, kBillion, "name of pfnet/plamo-2-1b"}},
      {"qwen3-next-80b-a3b",
       {79674391296, 1, "tensors of Qwen/Qwen3-Coder-Next", 3 * kBillion, kBillion}},
      {"qwen3.5-0.8b", {752393024, 1, "tensors of Qwen/Qwen3.5-0.8B"}},
      {"qwen3.5-35b-a3b",
       {34660610688, 1, "tensors of Qwen/Qwen3.5-35B-A3B", 3 * kBillion, kBillion}},
      {"qwen3.5-4b", {4205751296, 1, "tensors of Qwen/Qwen3.5-4B"}},
      {"recurrentgemma-2b", {2682862080, 1, "tensors of google/recurrentgemma-2b"}},
      {"rwkv7-168m-pile", {168 * kMillion, kMillion, "name of RWKV/RWKV7-Goose-Pile-168M-HF"}},
      {"zamba2-1.2b", {1.2 * kBillion, 0.1 * kBillion, "paper of Zamba2 (arXiv:2411.15242)"}},
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
  const double miss =
      std::min(std::abs(active - published.active), std::abs(without_embedding - published.active));
  EXPECT_LE(miss, published.active_digit) << name << ": " << active << " active";
}

// Within one percent, or half of the last digit where less is known.
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
    EXPECT_NEAR(static_cast<double>(ParameterCount(plan)), published.parameters,
                std::max(0.01 * published.parameters, 0.5 * published.digit))
        << name << ", " << published.source;
    const bool mixture = ActiveParameterCount(plan) != ParameterCount(plan);
    EXPECT_EQ(mixture, published.active > 0) << name;
    if (mixture) ExpectActive(plan, published, name);
    ++count;
  }
  EXPECT_GE(count, 38);
}

}  // namespace
}  // namespace adder
