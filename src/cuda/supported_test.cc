// What the CUDA backend runs: every published geometry. tests/cuda_support_test.cc has checkpoints.
#include "cuda/supported.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "cuda/program_for_test.h"
#include "model/family_test_support.h"

namespace adder::cuda {
namespace {

using namespace adder::testing;  // NOLINT: what the tests of families share

TEST(UnsupportedPart, NoPublishedGeometryHasOne) {
  ADDER_SKIP_WITHOUT("geometries");
  const int count = ForEachPublishedGeometry([](const std::string& name, const Program& program) {
    EXPECT_EQ(UnsupportedPart(program), "") << name;
  });
  EXPECT_GE(count, 38);
}

TEST(UnsupportedPart, NamesTheOpAndWhatHasNoKernel) {
  const Json config = ParseJson(R"({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048,
    "intermediate_size": 4096, "num_hidden_layers": 1, "num_attention_heads": 2,
    "head_dim": 1024, "vocab_size": 32000, "rms_norm_eps": 1e-6, "tie_word_embeddings": false})",
                                "config.json");
  const Program program = LowerWithoutValues(BuildPlan(config));
  const std::string part = "layers.0.attention.attend: attention with heads of 1024, more than 768";
  EXPECT_EQ(UnsupportedPart(program), part);
  try {
    CheckSupported(program);
    FAIL() << "a program without kernels was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.what(),
              "The CUDA backend cannot run this model yet (" + part + "). Use --device cpu.");
  }
}

}  // namespace
}  // namespace adder::cuda
