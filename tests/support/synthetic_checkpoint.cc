#include "tests/support/synthetic_checkpoint.h"

#include <cmath>
#include <cstring>
#include <map>

#include "checkpoint/quantization_config.h"
#include "checkpoint/safetensors.h"
#include "core/file.h"
#include "model/family.h"
#include "tests/support/numbers.h"

namespace adder::test {
namespace {

constexpr const char* kHybridDense = R"({
  "model_type": "granitemoehybrid", "vocab_size": 160, "hidden_size": 64, "num_hidden_layers": 4,
  "layer_types": ["mamba", "attention", "mamba", "mamba"], "hidden_act": "silu",
  "shared_intermediate_size": 96, "intermediate_size": 96, "num_local_experts": 0,
  "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16,
  "position_embedding_type": "nope", "attention_multiplier": 0.2,
  "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_expand": 2, "mamba_n_groups": 1,
  "mamba_d_state": 24, "mamba_d_conv": 4, "mamba_proj_bias": false, "mamba_conv_bias": true,
  "rms_norm_eps": 1e-5, "embedding_multiplier": 8, "residual_multiplier": 0.4,
  "logits_scaling": 0.3, "tie_word_embeddings": true)";

constexpr const char* kHybridMoe = R"({
  "model_type": "granitemoehybrid", "vocab_size": 144, "hidden_size": 64, "num_hidden_layers": 3,
  "layer_types": ["mamba", "attention", "mamba"], "hidden_act": "silu",
  "shared_intermediate_size": 64, "intermediate_size": 32, "num_local_experts": 5,
  "num_experts_per_tok": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
  "position_embedding_type": "rope", "rope_theta": 500, "attention_multiplier": 0.25,
  "attention_bias": true, "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_expand": 2,
  "mamba_n_groups": 2, "mamba_d_state": 16, "mamba_d_conv": 3, "mamba_proj_bias": true,
  "mamba_conv_bias": false, "rms_norm_eps": 1e-5, "embedding_multiplier": 8,
  "residual_multiplier": 0.5, "logits_scaling": 0.3, "tie_word_embeddings": false)";

constexpr const char* kMamba2 = R"({
  "model_type": "mamba2", "vocab_size": 130, "hidden_size": 64, "num_hidden_layers": 3,
  "expand": 2, "num_heads": 16, "head_dim": 8, "state_size": 32, "n_groups": 4, "conv_kernel": 4,
  "time_step_limit": [0.05, 0.8], "use_bias": false, "use_conv_bias": true, "hidden_act": "silu",
  "layer_norm_epsilon": 1e-5, "rms_norm": true, "tie_word_embeddings": false)";

constexpr const char* kMamba = R"({
  "model_type": "mamba", "vocab_size": 134, "hidden_size": 64, "num_hidden_layers": 3,
  "intermediate_size": 96, "state_size": 20, "conv_kernel": 3, "time_step_rank": 6,
  "use_bias": true, "use_conv_bias": false, "hidden_act": "silu", "layer_norm_epsilon": 1e-5,
  "tie_word_embeddings": true)";

constexpr const char* kFalconMamba = R"({
  "model_type": "falcon_mamba", "vocab_size": 138, "hidden_size": 64, "num_hidden_layers": 3,
  "intermediate_size": 160, "state_size": 8, "conv_kernel": 4, "time_step_rank": 32,
  "use_bias": false, "use_conv_bias": true, "hidden_act": "silu", "layer_norm_epsilon": 1e-5,
  "mixer_rms_eps": 1e-4, "tie_word_embeddings": false)";

constexpr const char* kJamba = R"({
  "model_type": "jamba", "vocab_size": 142, "hidden_size": 64, "num_hidden_layers": 4,
  "intermediate_size": 96, "attn_layer_period": 3, "attn_layer_offset": 1,
  "expert_layer_period": 2, "expert_layer_offset": 0, "num_experts": 5, "num_experts_per_tok": 3,
  "num_attention_heads": 8, "num_key_value_heads": 2, "mamba_d_state": 8, "mamba_d_conv": 4,
  "mamba_expand": 2, "mamba_dt_rank": 64, "mamba_proj_bias": true, "hidden_act": "silu",
  "rms_norm_eps": 1e-5, "tie_word_embeddings": false)";

constexpr const char* kLlama = R"({
  "model_type": "llama", "vocab_size": 150, "hidden_size": 64, "num_hidden_layers": 2,
  "intermediate_size": 80, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 8,
  "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000, "tie_word_embeddings": false)";

constexpr const char* kQwenMoe = R"({
  "model_type": "qwen3_moe", "vocab_size": 150, "hidden_size": 64, "num_hidden_layers": 3,
  "intermediate_size": 80, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24,
  "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000, "num_experts": 6,
  "num_experts_per_tok": 3, "moe_intermediate_size": 32, "norm_topk_prob": false,
  "mlp_only_layers": [1], "tie_word_embeddings": false)";

constexpr const char* kNemotron = R"({
  "model_type": "nemotron_h", "vocab_size": 140, "hidden_size": 64,
  "hybrid_override_pattern": "ME*-E", "num_hidden_layers": 5, "intermediate_size": 96,
  "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24, "layer_norm_epsilon": 1e-5,
  "mamba_num_heads": 6, "mamba_head_dim": 16, "n_groups": 3, "ssm_state_size": 16,
  "conv_kernel": 4, "mlp_hidden_act": "relu2", "n_routed_experts": 8, "n_shared_experts": 1,
  "moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 64,
  "num_experts_per_tok": 3, "routed_scaling_factor": 2.5, "n_group": 4, "topk_group": 2,
  "norm_topk_prob": true, "tie_word_embeddings": false)";
// Convolutions with bias and an even number of taps, experts after a dense layer.
constexpr const char* kShortConvMoe = R"({
  "model_type": "lfm2_moe", "vocab_size": 140, "hidden_size": 64, "num_hidden_layers": 3,
  "layer_types": ["conv", "full_attention", "conv"], "conv_L_cache": 4, "conv_bias": true,
  "intermediate_size": 96, "moe_intermediate_size": 32, "num_dense_layers": 1, "num_experts": 5,
  "num_experts_per_tok": 2, "norm_topk_prob": true, "routed_scaling_factor": 1.5,
  "num_attention_heads": 8, "num_key_value_heads": 2, "norm_eps": 1e-5, "tie_embedding": false)";

constexpr const char* kSelectedMamba2 = R"({
  "model_type": "plamo2", "vocab_size": 135, "hidden_size": 64, "num_hidden_layers": 3,
  "hidden_size_per_head": 16, "intermediate_size": 96, "num_attention_heads": 6,
  "num_key_value_heads": 2, "mamba_num_heads": 5, "mamba_d_state": 24, "mamba_d_conv": 4,
  "mamba_step": 2, "rms_norm_eps": 1e-6, "tie_word_embeddings": false)";

std::string Config(const char* base, const char* dtype, const char* quantization = nullptr) {
  std::string text = std::string(base) + ", \"torch_dtype\": \"" + dtype + "\"";
  if (quantization != nullptr) text += std::string(", \"quantization\": ") + quantization;
  return text + "}";
}

uint64_t SeedOf(const std::string& name) {
  uint64_t seed = 0xcbf29ce484222325u;
  for (char c : name) seed = (seed ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return seed;
}

// One tensor to be written: its declaration and its bytes.
struct Tensor {
  TensorSpec spec;
  std::vector<std::byte> bytes;
};

Tensor FloatTensor(const std::string& name, DType dtype, const Shape& shape, auto&& next) {
  Tensor tensor{{name, dtype, shape}, {}};
  const auto count = static_cast<size_t>(*ElementCount(shape));
  tensor.bytes.resize(count * DTypeSize(dtype));
  for (size_t i = 0; i < count; ++i) {
    const float value = next();
    if (dtype == DType::kBF16) {
      const uint16_t bits = FloatToBF16(value);
      std::memcpy(tensor.bytes.data() + i * sizeof(bits), &bits, sizeof(bits));
    } else {
      std::memcpy(tensor.bytes.data() + i * sizeof(value), &value, sizeof(value));
    }
  }
  return tensor;
}

class CheckpointMaker {
 public:
  CheckpointMaker(const Json& config, bool mlx)
      : quantization_(JsonObject(config, "config.json")),
        mlx_(mlx),
        dtype_(config.at("torch_dtype") == "float32" ? DType::kF32 : DType::kBF16) {}

  // A whole module: all parts that name it are slices of one tensor.
  void AddModule(const MatrixPart& part, int64_t cols) {
    if (!seen_.emplace(part.module, true).second) return;
    Shape shape{part.rows, cols};
    if (part.experts > 0) shape.insert(shape.begin(), part.experts);
    Random random(SeedOf(part.module));
    // Inputs of variance 1 give outputs of variance 1.
    const float amplitude = std::sqrt(3.0f / static_cast<float>(cols));
    const auto format = mlx_ ? quantization_.FormatOf(part.module) : std::nullopt;
    if (format && cols % format->group_size == 0) {
      AddQuantized(part.module, *format, shape, amplitude, random);
      return;
    }
    tensors_.push_back(FloatTensor(part.bare_name ? part.module : part.module + ".weight", dtype_,
                                   shape, [&] { return amplitude * random.Symmetric(); }));
  }

  void AddVector(const VectorPart& part) {
    if (!seen_.emplace(part.tensor, true).second) return;
    const auto ends_with = [&](const char* ending) { return part.tensor.ends_with(ending); };
    float offset = 0;
    float amplitude = 0.3f;
    if (ends_with("A_log")) {
      offset = 0.5f;
      amplitude = 1.5f;
    } else if (ends_with("dt_bias") || ends_with("dt_proj.bias")) {
      offset = -1.0f;
      amplitude = 1.0f;
    } else if (ends_with(".D") || part.tensor.find("norm") != std::string::npos) {
      offset = 1.0f;
    } else if (ends_with("conv1d.weight") || ends_with("conv.weight")) {
      amplitude = 0.8f;
    }
    Random random(SeedOf(part.tensor));
    // MLX keeps conv weights as [channels, taps, 1], the last of the accepted shapes.
    tensors_.push_back(FloatTensor(part.tensor, dtype_,
                                   mlx_ ? part.shapes.back() : part.shapes.front(),
                                   [&] { return offset + amplitude * random.Symmetric(); }));
  }

  void Write(const std::filesystem::path& path) const {
    std::vector<TensorSpec> specs;
    for (const Tensor& tensor : tensors_) specs.push_back(tensor.spec);
    SafetensorsWriter writer(path, specs, {{"format", mlx_ ? "mlx" : "pt"}});
    for (const Tensor& tensor : tensors_) writer.Append(tensor.bytes);
    writer.Finish();
  }

 private:
  void AddQuantized(const std::string& module, const QuantizationFormat& format, Shape shape,
                    float amplitude, Random& random) {
    const int64_t cols = shape.back();
    const auto levels = static_cast<float>((1 << format.bits) - 1);
    shape.back() = cols * format.bits / 32;
    Tensor packed{{module + ".weight", DType::kU32, shape}, {}};
    packed.bytes.resize(static_cast<size_t>(*ElementCount(shape)) * 4);
    for (std::byte& byte : packed.bytes) byte = static_cast<std::byte>(random.Bits() & 0xff);
    tensors_.push_back(std::move(packed));
    shape.back() = cols / format.group_size;
    // Every value q stands for is within +-amplitude; every other group counts downwards, as real
    // checkpoints' negative scales do.
    std::vector<float> scales;
    for (int64_t i = 0; i < *ElementCount(shape); ++i) {
      const float size = 2 * amplitude / levels * (1.0f + 0.3f * random.Symmetric());
      scales.push_back(i % 2 == 0 ? size : -size);
    }
    size_t next_scale = 0;
    size_t next_bias = 0;
    tensors_.push_back(
        FloatTensor(module + ".scales", DType::kBF16, shape, [&] { return scales[next_scale++]; }));
    tensors_.push_back(FloatTensor(module + ".biases", DType::kBF16, shape,
                                   [&] { return -scales[next_bias++] * levels / 2; }));
  }

  QuantizationConfig quantization_;
  bool mlx_;
  DType dtype_;
  std::map<std::string, bool> seen_;
  std::vector<Tensor> tensors_;
};

}  // namespace

const std::vector<SyntheticModel>& SyntheticModels() {
  static const std::vector<SyntheticModel> models{
      {"synthetic_dense_f32", Config(kHybridDense, "float32"), false},
      {"synthetic_dense_bf16", Config(kHybridDense, "bfloat16"), false},
      {"synthetic_dense_4bit", Config(kHybridDense, "bfloat16", R"({"bits": 4, "group_size": 32})"),
       true},
      {"synthetic_moe_f32", Config(kHybridMoe, "float32"), false},
      {"synthetic_moe_mixed",
       Config(kHybridMoe, "bfloat16",
              R"({"bits": 4, "group_size": 64,
                  "model.embed_tokens": {"bits": 6, "group_size": 32},
                  "model.layers.0.mamba.in_proj": {"bits": 3, "group_size": 32},
                  "model.layers.1.self_attn.q_proj": {"bits": 2, "group_size": 32},
                  "model.layers.1.self_attn.k_proj": {"bits": 5, "group_size": 64},
                  "model.layers.1.self_attn.v_proj": false,
                  "model.layers.2.mamba.out_proj": {"bits": 8, "group_size": 128}})"),
       true},
      {"synthetic_mamba2_f32", Config(kMamba2, "float32"), false},
      {"synthetic_mamba2_8bit", Config(kMamba2, "bfloat16", R"({"bits": 8, "group_size": 64})"),
       true},
      {"synthetic_mamba_f32", Config(kMamba, "float32"), false},
      {"synthetic_falcon_mamba_4bit",
       Config(kFalconMamba, "bfloat16", R"({"bits": 4, "group_size": 32})"), true},
      {"synthetic_jamba_4bit", Config(kJamba, "bfloat16", R"({"bits": 4, "group_size": 32})"),
       true},
      {"synthetic_short_conv_moe_f32", Config(kShortConvMoe, "float32"), false},
      {"synthetic_short_conv_moe_4bit",
       Config(kShortConvMoe, "bfloat16", R"({"bits": 4, "group_size": 32})"), true},
      {"synthetic_selected_mamba2_f32", Config(kSelectedMamba2, "float32"), false},
      {"synthetic_selected_mamba2_8bit",
       Config(kSelectedMamba2, "bfloat16", R"({"bits": 8, "group_size": 32})"), true},
      {"synthetic_llama_bf16", Config(kLlama, "bfloat16"), false},
      {"synthetic_qwen3_moe_f32", Config(kQwenMoe, "float32"), false},
      {"synthetic_qwen3_moe_4bit", Config(kQwenMoe, "bfloat16", R"({"bits": 4, "group_size": 32})"),
       true},
      {"synthetic_nemotron_groups_f32", Config(kNemotron, "float32"), false},
  };
  return models;
}

void WriteSyntheticCheckpoint(const SyntheticModel& model, const std::filesystem::path& directory) {
  const Json config = ParseJson(model.config, model.name);
  const JsonObject object(config, model.name);
  const Plan plan = FindFamily(object).build(object, TensorNames::Planned(model.mlx));
  CheckpointMaker maker(config, model.mlx);
  for (const MatrixRef& matrix : plan.matrices) {
    for (const MatrixPart& part : matrix.parts) maker.AddModule(part, matrix.cols);
  }
  for (const VectorRef& vector : plan.vectors) {
    for (const VectorPart& part : vector.parts) maker.AddVector(part);
  }
  std::filesystem::create_directories(directory);
  WriteFile(directory / "config.json", model.config);
  maker.Write(directory / "model.safetensors");
}

}  // namespace adder::test
