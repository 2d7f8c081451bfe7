#include "checkpoint/quantize.h"

#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/checkpoint_writer.h"
#include "checkpoint/synthesize.h"
#include "checkpoint/temporary_checkpoint.h"
#include "checkpoint/weight_store.h"

namespace adder {
namespace {

using testing::ErrorOf;
using testing::TemporaryDirectory;

constexpr char kHybridConfig[] = R"({"model_type": "granitemoehybrid", "attention_bias": true,
  "attention_multiplier": 0.1, "embedding_multiplier": 6.0, "hidden_act": "silu", "hidden_size": 64,
  "intermediate_size": 96, "layer_types": ["mamba", "attention"], "logits_scaling": 3.0,
  "mamba_d_conv": 4, "mamba_d_head": 32, "mamba_d_state": 16, "mamba_expand": 2,
  "mamba_n_groups": 1, "mamba_n_heads": 4, "max_position_embeddings": 4096,
  "num_attention_heads": 4, "num_experts_per_tok": 2, "num_hidden_layers": 2,
  "num_key_value_heads": 2, "num_local_experts": 4, "position_embedding_type": "nope",
  "residual_multiplier": 0.6, "rms_norm_eps": 1e-05, "shared_intermediate_size": 64,
  "tie_word_embeddings": true, "vocab_size": 225, "_note": "dropped"})";

// A bf16 checkpoint in Hugging Face layout, with a tokenizer file beside it.
std::filesystem::path WriteSource(const TemporaryDirectory& directory) {
  directory.Write("geometry.json", kHybridConfig);
  SynthesizeOptions options;
  options.geometry = directory.path() / "geometry.json";
  options.output = directory.path() / "source";
  options.bits = 0;
  options.seed = 7;
  SynthesizeCheckpoint(options);
  WriteFile(options.output / "tokenizer.json", "{}");
  return options.output;
}

struct Opened {
  Plan plan;
  std::shared_ptr<const BoundWeights> weights;
};

Opened Open(const std::filesystem::path& directory) {
  const auto store = WeightStore::Open(directory);
  const JsonObject config = store->config_object();
  Opened opened{FindFamily(config).build(config, store->names()), nullptr};
  opened.weights = BindWeights(store, opened.plan);
  return opened;
}

TEST(Synthesize, WeightsAreRandomFiniteAndMarked) {
  const TemporaryDirectory directory;
  const Opened source = Open(WriteSource(directory));
  const std::string config = ReadFile(directory.path() / "source" / "config.json");
  EXPECT_NE(config.find("adder_synthetic"), std::string::npos);
  EXPECT_EQ(config.find("_note"), std::string::npos);
  const WeightMatrix& embedding =
      source.weights->matrices[static_cast<size_t>(source.plan.embedding)];
  double sum = 0, squares = 0;
  std::vector<float> row(64);
  for (int64_t r = 0; r < 225; ++r) {
    DequantizeRow(embedding, r, row.data());
    for (float value : row) {
      sum += value;
      squares += value * value;
    }
  }
  const double count = 225 * 64;
  EXPECT_NEAR(sum / count, 0.0, 0.01);
  EXPECT_NEAR(std::sqrt(squares / count), 1.0 / 8.0, 0.005);
  EXPECT_LT(
      source.weights
          ->vectors[static_cast<size_t>(std::get<Mamba2>(source.plan.blocks[0].mixers[0]).a)][0],
      -0.9f);
}

TEST(Synthesize, TheSeedDecides) {
  const TemporaryDirectory directory;
  directory.Write("geometry.json", kHybridConfig);
  std::vector<std::string> files;
  for (uint64_t seed : {3u, 3u, 4u}) {
    SynthesizeOptions options;
    options.geometry = directory.path() / "geometry.json";
    options.output = directory.path() / ("out" + std::to_string(files.size()));
    options.seed = seed;
    SynthesizeCheckpoint(options);
    files.push_back(ReadFile(options.output / "model.safetensors"));
    EXPECT_EQ(Open(options.output).weights->matrices[0].segments[0].bits, 4);
  }
  EXPECT_EQ(files[0], files[1]);
  EXPECT_NE(files[0], files[2]);
}

TEST(Quantize, EveryWeightSurvivesWithinAStep) {
  const TemporaryDirectory directory;
  const std::filesystem::path source_path = WriteSource(directory);
  QuantizeOptions options;
  options.model = source_path;
  options.output = directory.path() / "quantized";
  options.bits = 4;
  options.group_size = 32;
  options.keep_head_bits = 8;
  double last = 0;
  options.progress = [&](double fraction) { last = fraction; };
  QuantizeCheckpoint(options);
  EXPECT_EQ(last, 1.0);
  EXPECT_EQ(ReadFile(options.output / "tokenizer.json"), "{}");

  const Opened source = Open(source_path);
  const Opened result = Open(options.output);
  ASSERT_EQ(source.weights->matrices.size(), result.weights->matrices.size());
  for (size_t m = 0; m < source.weights->matrices.size(); ++m) {
    const WeightMatrix& original = source.weights->matrices[m];
    const WeightMatrix& quantized = result.weights->matrices[m];
    const bool is_head = static_cast<MatrixId>(m) == result.plan.head.weight;
    const bool is_router = source.plan.matrices[m].label.find("router") != std::string::npos;
    std::vector<float> a(static_cast<size_t>(original.cols)), b(a.size());
    for (const MatrixSegment& segment : quantized.segments) {
      EXPECT_EQ(segment.bits, is_head || is_router ? 8 : 4) << source.plan.matrices[m].label;
    }
    // Uniform weights of deviation 1/sqrt(cols) span 2 sqrt(3 / cols). Half a step of rounding, up
    // to half a step more at the far end of the range, 2^-9 of scale (times the code) and bias.
    const float reach = std::sqrt(3.0f / static_cast<float>(original.cols));
    const float step = 2 * reach / (is_head || is_router ? 255.0f : 15.0f);
    for (int64_t r = 0; r < original.rows; ++r) {
      DequantizeRow(original, r, a.data());
      DequantizeRow(quantized, r, b.data());
      for (size_t k = 0; k < a.size(); ++k) {
        ASSERT_NEAR(a[k], b[k], step + 3 * reach * 0x1p-9f) << source.plan.matrices[m].label;
      }
    }
  }
  EXPECT_EQ(source.weights->vectors, result.weights->vectors);
}

TEST(Quantize, ModesOfSmallFloatsKeepRoutersAndHeadsAffine) {
  const TemporaryDirectory directory;
  const std::filesystem::path source_path = WriteSource(directory);
  const Opened source = Open(source_path);
  for (const QuantizationMode mode :
       {QuantizationMode::kMxfp4, QuantizationMode::kMxfp8, QuantizationMode::kNvfp4}) {
    QuantizeOptions options;
    options.model = source_path;
    options.output = directory.path() / std::string(QuantizationModeName(mode));
    options.mode = mode;
    options.keep_head_bits = 6;
    QuantizeCheckpoint(options);
    const Opened result = Open(options.output);
    for (size_t m = 0; m < source.weights->matrices.size(); ++m) {
      const std::string& label = source.plan.matrices[m].label;
      const bool is_head = static_cast<MatrixId>(m) == result.plan.head.weight;
      const bool is_router = label.find("router") != std::string::npos;
      const WeightMatrix& original = source.weights->matrices[m];
      std::vector<float> a(static_cast<size_t>(original.cols)), b(a.size());
      for (const MatrixSegment& segment : result.weights->matrices[m].segments) {
        EXPECT_EQ(segment.FormatName(), is_head     ? "6-bit, groups of 64"
                                        : is_router ? "8-bit, groups of 64"
                                                    : std::string(QuantizationModeName(mode)))
            << label;
      }
      // Rounding is a part of each weight, or of a group's largest where it is below the least
      // number: a fourth of it with one bit of mantissa (and an eighth more from the scale of
      // nvfp4), a sixteenth with three.
      const float reach = std::sqrt(3.0f / static_cast<float>(original.cols));
      const float part = mode == QuantizationMode::kMxfp8 ? 1.0f / 16 : 0.25f + 1.0f / 8;
      for (int64_t r = 0; r < original.rows; ++r) {
        DequantizeRow(original, r, a.data());
        DequantizeRow(result.weights->matrices[m], r, b.data());
        for (size_t k = 0; k < a.size(); ++k) ASSERT_NEAR(a[k], b[k], part * reach) << label;
      }
    }
  }
}

// Hugging Face files of this family store norms as w with (1 + w) applied, MLX files 1 + w.
TEST(Quantize, NormsAreStoredAsTheLayoutHasThem) {
  const TemporaryDirectory directory;
  directory.Write("geometry.json", R"({"model_type": "qwen3_next", "hidden_size": 64,
      "num_hidden_layers": 2, "full_attention_interval": 2, "num_attention_heads": 4,
      "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 70, "linear_num_key_heads": 2,
      "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 16,
      "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
      "shared_expert_intermediate_size": 64, "tie_word_embeddings": false})");
  SynthesizeOptions synthesize;
  synthesize.geometry = directory.path() / "geometry.json";
  synthesize.output = directory.path() / "source";
  synthesize.bits = 0;
  SynthesizeCheckpoint(synthesize);
  QuantizeOptions options;
  options.model = synthesize.output;
  options.output = directory.path() / "quantized";
  options.group_size = 32;
  QuantizeCheckpoint(options);
  const Opened source = Open(synthesize.output);
  const Opened result = Open(options.output);
  const auto first = static_cast<size_t>(source.plan.blocks[0].pre_norm.weight);
  EXPECT_EQ(source.plan.vectors[first].transform, VectorTransform::kPlusOne);
  EXPECT_EQ(result.plan.vectors[first].transform, VectorTransform::kIdentity);
  ASSERT_EQ(source.weights->vectors.size(), result.weights->vectors.size());
  for (size_t v = 0; v < source.weights->vectors.size(); ++v) {
    ASSERT_EQ(source.weights->vectors[v].size(), result.weights->vectors[v].size());
    for (size_t i = 0; i < source.weights->vectors[v].size(); ++i) {
      // 1 + w is rounded to bf16 once more.
      ASSERT_NEAR(source.weights->vectors[v][i], result.weights->vectors[v][i], 0x1p-8f)
          << source.plan.vectors[v].label;
    }
  }
}

TEST(Quantize, LeavesWidthsThatGroupsDoNotDivide) {
  const TemporaryDirectory directory;
  const std::filesystem::path source_path = WriteSource(directory);
  QuantizeOptions options;
  options.model = source_path;
  options.output = directory.path() / "quantized";
  options.group_size = 64;  // the experts' down projections have 96 inputs
  QuantizeCheckpoint(options);
  const Opened result = Open(options.output);
  const MoeMlp* moe = nullptr;
  for (const Mixer& mixer : result.plan.blocks[1].mixers) {
    if (std::get_if<MoeMlp>(&mixer) != nullptr) moe = std::get_if<MoeMlp>(&mixer);
  }
  ASSERT_NE(moe, nullptr);
  EXPECT_FALSE(result.weights->matrices[static_cast<size_t>(moe->down[2])].segments[0].quantized());
  EXPECT_TRUE(
      result.weights->matrices[static_cast<size_t>(moe->gate_up[2])].segments[0].quantized());
  EXPECT_NE(ReadFile(options.output / "config.json").find("\"mode\": \"affine\""),
            std::string::npos);
}

TEST(Quantize, NamesTheTensorOfAWeightThatIsNotFinite) {
  const TemporaryDirectory directory;
  QuantizeOptions options;
  options.model = WriteSource(directory);
  options.output = directory.path() / "quantized";
  const std::string name = "model.layers.1.block_sparse_moe.input_linear.weight";
  const std::filesystem::path path = options.model / "model.safetensors";
  std::string bytes = ReadFile(path);
  {
    const auto store = WeightStore::Open(options.model);
    const std::span<const std::byte> tensor = store->Find(name)->bytes;
    const std::string pattern(reinterpret_cast<const char*>(tensor.data()), tensor.size());
    const size_t place = bytes.find(pattern);
    ASSERT_NE(place, std::string::npos);
    bytes.replace(place + tensor.size() - 2, 2, "\xc0\x7f");  // a bf16 NaN in the last row
  }
  WriteFile(path, bytes);
  EXPECT_NE(ErrorOf([&] {
              QuantizeCheckpoint(options);
            }).find("the tensor " + name + " holds a value that is not finite"),
            std::string::npos);
  // Nothing is left in the way of another attempt.
  EXPECT_FALSE(std::filesystem::exists(options.output));
  std::filesystem::create_directory(options.output);
  EXPECT_THROW(QuantizeCheckpoint(options), Error);
  EXPECT_TRUE(std::filesystem::is_empty(options.output));
}

TEST(Quantize, RefusesBadRequests) {
  const TemporaryDirectory directory;
  QuantizeOptions options;
  options.model = WriteSource(directory);
  options.output = directory.path() / "source";
  EXPECT_NE(ErrorOf([&] { QuantizeCheckpoint(options); }).find("is not empty"), std::string::npos);
  options.output = directory.path() / "first";
  options.mode = QuantizationMode::kMxfp4;
  options.bits = 8;
  EXPECT_NE(ErrorOf([&] {
              QuantizeCheckpoint(options);
            }).find("The mode mxfp4 has 4 bits in groups of 32; it cannot have 8 bits in groups"),
            std::string::npos);
  options.mode = QuantizationMode::kAffine;
  options.bits = 7;
  EXPECT_NE(ErrorOf([&] { QuantizeCheckpoint(options); }).find("Cannot quantise to 7 bits"),
            std::string::npos);
  options.bits = 4;
  options.group_size = 33;
  EXPECT_NE(ErrorOf([&] { QuantizeCheckpoint(options); }).find("groups of 33"), std::string::npos);
  options.group_size = 64;
  QuantizeCheckpoint(options);
  options.model = options.output;
  options.output = directory.path() / "second";
  EXPECT_NE(ErrorOf([&] { QuantizeCheckpoint(options); }).find("is already quantised"),
            std::string::npos);
}

TEST(NewCheckpointDirectory, RefusesWhatDoesNotFitOnTheDisk) {
  const TemporaryDirectory directory;
  const std::filesystem::path path = directory.path() / "huge";
  const std::vector<TensorSpec> tensors{{"w", DType::kF32, {int64_t{1} << 40, 1 << 12}}};
  EXPECT_NE(ErrorOf([&] {
              NewCheckpointDirectory(path, tensors);
            }).find("the checkpoint's tensors take 17179869184 MiB"),
            std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(NewCheckpointDirectory, KeepsWhatIsToBeKept) {
  const TemporaryDirectory directory;
  const std::filesystem::path path = directory.path() / "new";
  {
    NewCheckpointDirectory made(path, {});
    WriteFile(path / "config.json", "{}");
    made.Keep();
  }
  EXPECT_TRUE(std::filesystem::exists(path / "config.json"));
  EXPECT_NE(ErrorOf([&] { NewCheckpointDirectory(path, {}); }).find("is not empty"),
            std::string::npos);
  EXPECT_TRUE(std::filesystem::exists(path / "config.json"));
}

TEST(CheckpointWriter, ShardsAndIndexesLargeCheckpoints) {
  const TemporaryDirectory directory;
  directory.Write("config.json", "{}");
  CheckpointWriter writer(directory.path(),
                          {{"a", DType::kU8, {6}}, {"b", DType::kU8, {5}}, {"c", DType::kU8, {4}}},
                          {}, 10);
  const std::vector<std::byte> bytes(6, std::byte{9});
  writer.Append(bytes);
  writer.Append(std::span(bytes).first(5));
  writer.Append(std::span(bytes).first(2));
  writer.Append(std::span(bytes).first(2));
  writer.Finish();
  const auto store = WeightStore::Open(directory.path());
  EXPECT_EQ(store->Tensors().size(), 3u);
  EXPECT_TRUE(store->Find("c")->file.ends_with("model-00002-of-00002.safetensors"));
}

}  // namespace
}  // namespace adder
