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

// Queries without a low rank; the second layer has experts.
constexpr const char* kLatentAttention = R"({
  "model_type": "glm4_moe_lite", "vocab_size": 145, "hidden_size": 64, "num_hidden_layers": 3,
  "intermediate_size": 96, "num_attention_heads": 3, "kv_lora_rank": 64, "q_lora_rank": null,
  "qk_nope_head_dim": 32, "qk_rope_head_dim": 20, "v_head_dim": 24, "rope_theta": 5000,
  "mlp_layer_types": ["dense", "sparse", "dense"], "n_routed_experts": 6, "n_shared_experts": 1,
  "num_experts_per_tok": 3, "moe_intermediate_size": 32, "attention_bias": true,
  "rms_norm_eps": 1e-5, "tie_word_embeddings": false)";

// Adapters of q, k and v too, biases, and a block that two layers share.
constexpr const char* kSharedBlocks = R"({
  "model_type": "zamba2", "vocab_size": 146, "hidden_size": 64, "num_hidden_layers": 2,
  "layers_block_type": ["hybrid", "hybrid"], "num_mem_blocks": 1,
  "intermediate_size": 96, "num_attention_heads": 4, "adapter_rank": 32, "use_mem_rope": true,
  "use_shared_attention_adapter": true, "add_bias_linear": true, "n_mamba_heads": 8,
  "mamba_d_state": 16, "mamba_ngroups": 2, "mamba_d_conv": 4, "time_step_limit": [0.02, 0.9],
  "rms_norm_eps": 1e-5, "tie_word_embeddings": false)";

// A window shorter than the prompts, shared keys, inputs of every layer.
constexpr const char* kLayerInputs = R"({
  "model_type": "gemma4_text", "vocab_size": 136, "hidden_size": 64, "num_hidden_layers": 5,
  "layer_types": ["sliding_attention", "full_attention", "sliding_attention",
                  "sliding_attention", "full_attention"],
  "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24,
  "global_head_dim": 40, "sliding_window": 5, "num_kv_shared_layers": 2,
  "use_double_wide_mlp": true, "hidden_size_per_layer_input": 32,
  "vocab_size_per_layer_input": 136, "final_logit_softcapping": 3, "tie_word_embeddings": true)";

// Experts beside an MLP, values that are keys.
constexpr const char* kBranchNorms = R"({
  "model_type": "gemma4_text", "vocab_size": 139, "hidden_size": 64, "num_hidden_layers": 2,
  "layer_types": ["sliding_attention", "full_attention"], "intermediate_size": 96,
  "num_attention_heads": 4, "num_key_value_heads": 2, "num_global_key_value_heads": 1,
  "head_dim": 16, "global_head_dim": 32, "sliding_window": 9, "attention_k_eq_v": true,
  "hidden_size_per_layer_input": 0, "enable_moe_block": true, "num_experts": 6,
  "top_k_experts": 3, "moe_intermediate_size": 32, "tie_word_embeddings": true)";

// Residuals that are weighed, heads that do not fill whole vectors.
constexpr const char* kLightning = R"({
  "model_type": "minimax", "vocab_size": 141, "hidden_size": 64, "num_hidden_layers": 3,
  "layer_types": ["linear_attention", "full_attention", "linear_attention"],
  "intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24,
  "rotary_dim": 16, "num_local_experts": 5, "num_experts_per_tok": 2,
  "linear_attn_alpha_factor": 1.2, "linear_attn_beta_factor": 0.9, "mlp_alpha_factor": 0.8,
  "mlp_beta_factor": 1.1, "rms_norm_eps": 1e-5, "tie_word_embeddings": false)";

// Three taps, a window shorter than the prompts, heads that do not fill whole vectors.
constexpr const char* kMixedHeads = R"({
  "model_type": "zaya", "vocab_size": 137, "hidden_size": 64, "num_hidden_layers": 3,
  "layer_types": ["hybrid", "hybrid_sliding", "hybrid"], "sliding_window": 6,
  "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 20, "cca_time0": 3,
  "cca_time1": 2, "num_experts": 5, "num_experts_per_tok": 1, "moe_intermediate_size": 32,
  "router_hidden_size": 40, "rms_norm_eps": 1e-5, "tie_word_embeddings": true)";

// Two value heads to a key head, sizes of keys and values apart; attention gated.
constexpr const char* kQwenNext = R"({
  "model_type": "qwen3_next", "vocab_size": 136, "hidden_size": 64, "num_hidden_layers": 3,
  "full_attention_interval": 2, "intermediate_size": 96, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 24, "hidden_act": "silu", "rms_norm_eps": 1e-6,
  "rope_theta": 10000, "partial_rotary_factor": 0.25, "linear_num_key_heads": 3,
  "linear_num_value_heads": 6, "linear_key_head_dim": 20, "linear_value_head_dim": 12,
  "linear_conv_kernel_dim": 3, "num_experts": 5, "num_experts_per_tok": 2,
  "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64, "mlp_only_layers": [1],
  "tie_word_embeddings": false)";

// Low ranks that groups divide, so that every projection is quantised.
constexpr const char* kRwkv7 = R"({
  "model_type": "rwkv7", "vocab_size": 133, "hidden_size": 96, "intermediate_size": 160,
  "num_hidden_layers": 3, "head_dim": 24, "norm_eps": 1e-5, "a_low_rank_dim": 32,
  "decay_low_rank_dim": 64, "gate_low_rank_dim": 96, "v_low_rank_dim": 32,
  "tie_word_embeddings": true)";

constexpr char kFourBits[] = R"({"bits": 4, "group_size": 32})";
constexpr char kEightBits[] = R"({"bits": 8, "group_size": 32})";

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
    } else if (ends_with(".D") || ends_with(".temp") || ends_with("scale") ||
               ends_with("layer_scalar") || part.tensor.find("norm") != std::string::npos) {
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
      {"synthetic_dense_4bit", Config(kHybridDense, "bfloat16", kFourBits), true},
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
      {"synthetic_falcon_mamba_4bit", Config(kFalconMamba, "bfloat16", kFourBits), true},
      {"synthetic_jamba_4bit", Config(kJamba, "bfloat16", kFourBits), true},
      {"synthetic_short_conv_moe_f32", Config(kShortConvMoe, "float32"), false},
      {"synthetic_short_conv_moe_4bit", Config(kShortConvMoe, "bfloat16", kFourBits), true},
      {"synthetic_selected_mamba2_f32", Config(kSelectedMamba2, "float32"), false},
      {"synthetic_selected_mamba2_8bit", Config(kSelectedMamba2, "bfloat16", kEightBits), true},
      {"synthetic_latent_bf16", Config(kLatentAttention, "bfloat16"), false},
      {"synthetic_latent_4bit", Config(kLatentAttention, "bfloat16", kFourBits), true},
      {"synthetic_shared_blocks_f32", Config(kSharedBlocks, "float32"), false},
      {"synthetic_shared_blocks_8bit", Config(kSharedBlocks, "bfloat16", kEightBits), true},
      {"synthetic_layer_inputs_bf16", Config(kLayerInputs, "bfloat16"), false},
      {"synthetic_layer_inputs_8bit", Config(kLayerInputs, "bfloat16", kEightBits), true},
      {"synthetic_branch_norms_f32", Config(kBranchNorms, "float32"), false},
      {"synthetic_branch_norms_4bit", Config(kBranchNorms, "bfloat16", kFourBits), true},
      {"synthetic_lightning_f32", Config(kLightning, "float32"), false},
      {"synthetic_lightning_4bit", Config(kLightning, "bfloat16", kFourBits), true},
      {"synthetic_mixed_heads_f32", Config(kMixedHeads, "float32"), false},
      {"synthetic_mixed_heads_4bit", Config(kMixedHeads, "bfloat16", kFourBits), true},
      {"synthetic_llama_bf16", Config(kLlama, "bfloat16"), false},
      {"synthetic_qwen3_next_f32", Config(kQwenNext, "float32"), false},
      {"synthetic_qwen3_next_4bit", Config(kQwenNext, "bfloat16", kFourBits), true},
      {"synthetic_rwkv7_4bit", Config(kRwkv7, "bfloat16", kFourBits), true},
      {"synthetic_qwen3_moe_f32", Config(kQwenMoe, "float32"), false},
      {"synthetic_qwen3_moe_4bit", Config(kQwenMoe, "bfloat16", kFourBits), true},
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
    for (const MatrixPart& part : matrix.parts) {
      maker.AddModule(part, part.transposed ? matrix.rows : matrix.cols);
    }
  }
  for (const VectorRef& vector : plan.vectors) {
    for (const VectorPart& part : vector.parts) maker.AddVector(part);
  }
  std::filesystem::create_directories(directory);
  WriteFile(directory / "config.json", model.config);
  maker.Write(directory / "model.safetensors");
}

}  // namespace adder::test
