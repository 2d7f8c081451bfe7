#include "cuda/wide_support.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <utility>

#include "cuda/program_for_test.h"
#include "model/family_test_support.h"

namespace adder::cuda {
namespace {

using namespace adder::testing;  // NOLINT: what the tests of families share

TEST(PartWithoutWideKernel, NoPublishedGeometryHasOne) {
  ADDER_SKIP_WITHOUT("geometries");
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(SharedFolder() / "geometries")) {
    if (entry.path().extension() != ".json") continue;
    Plan plan = BuildPlan(ReadJsonFile(entry.path()), TensorNames::Planned(false));
    EXPECT_EQ(PartWithoutWideKernel(LowerWithoutValues(std::move(plan))), "")
        << entry.path().stem();
    ++count;
  }
  EXPECT_GE(count, 38);
}

// The sizes of OpenLLaMA 3B, one layer of it.
TEST(PartWithoutWideKernel, NamesTheOpAndTheSize) {
  const Json config = ParseJson(R"({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 3200,
    "intermediate_size": 8640, "num_hidden_layers": 1, "num_attention_heads": 32,
    "vocab_size": 32000, "rms_norm_eps": 1e-6, "tie_word_embeddings": false})",
                                "config.json");
  EXPECT_EQ(PartWithoutWideKernel(LowerWithoutValues(BuildPlan(config))),
            "layers.0.attention.attend: attention with heads of 100 in pages of 64");
}

}  // namespace
}  // namespace adder::cuda
