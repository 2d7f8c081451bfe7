#include "cuda/wide_support.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "cuda/program_for_test.h"
#include "model/family_test_support.h"

namespace adder::cuda {
namespace {

using namespace adder::testing;  // NOLINT: what the tests of families share

TEST(PartWithoutWideKernel, NoPublishedGeometryHasOne) {
  ADDER_SKIP_WITHOUT("geometries");
  const int count = ForEachPublishedGeometry([](const std::string& name, const Program& program) {
    EXPECT_EQ(PartWithoutWideKernel(program), "") << name;
  });
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
