"""Makes the reference cases of MLX's floating-point quantisation (mxfp4, mxfp8, nvfp4), which the
conformance kit lacks: tiny random checkpoints that mlx-lm quantises, with the logits that it
computes for them on the CPU in float32, in the form of the kit's cases.

    python3 tools/make_quantization_cases.py tests/cases

needs mlx-lm (tools/requirements-optional.txt).
"""

import argparse
import copy
import importlib
import pathlib

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.utils import quantize_model

from reference_case import expected_logits, write_case

SEED = 4004
PROMPT_LENGTHS = [1, 3, 16, 45]

GRANITE = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "model_type": "granitemoehybrid",
    "attention_bias": False,
    "attention_multiplier": 0.0625,
    "embedding_multiplier": 12,
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 32,
    "layer_types": ["mamba", "attention", "mamba"],
    "logits_scaling": 6,
    "mamba_conv_bias": True,
    "mamba_d_conv": 4,
    "mamba_d_head": 32,
    "mamba_d_state": 16,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_n_heads": 4,
    "mamba_proj_bias": False,
    "max_position_embeddings": 4096,
    "num_attention_heads": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "num_local_experts": 4,
    "position_embedding_type": "nope",
    "residual_multiplier": 0.45,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "shared_intermediate_size": 32,
    "tie_word_embeddings": False,
    "time_step_limit": [0.0, 1e9],
    "vocab_size": 112,
}
MAMBA2 = {
    "architectures": ["Mamba2ForCausalLM"],
    "model_type": "mamba2",
    "conv_kernel": 4,
    "expand": 2,
    "head_dim": 16,
    "hidden_size": 64,
    "intermediate_size": 128,
    "layer_norm_epsilon": 1e-5,
    "n_groups": 1,
    "num_heads": 8,
    "num_hidden_layers": 3,
    "rms_norm": True,
    "state_size": 16,
    "tie_word_embeddings": True,
    "time_step_limit": [0.0, 1e9],
    "time_step_rank": 4,
    "use_bias": False,
    "use_conv_bias": True,
    "vocab_size": 104,
}
LFM2_MOE = {
    "architectures": ["Lfm2MoeForCausalLM"],
    "model_type": "lfm2_moe",
    "conv_L_cache": 3,
    "conv_bias": False,
    "hidden_size": 64,
    "intermediate_size": 64,
    "layer_types": ["conv", "full_attention", "conv"],
    "max_position_embeddings": 4096,
    "moe_intermediate_size": 32,
    "norm_eps": 1e-5,
    "norm_topk_prob": True,
    "num_attention_heads": 4,
    "num_dense_layers": 1,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
    "use_expert_bias": True,
    "vocab_size": 120,
}
QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "head_dim": 32,
    "hidden_size": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 4096,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "vocab_size": 96,
}
QWEN3_MOE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "decoder_sparse_step": 1,
    "head_dim": 32,
    "hidden_size": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 4096,
    "mlp_only_layers": [1],
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "num_attention_heads": 4,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
    "vocab_size": 88,
}


def mixed_modes(path, _):
    """Every mode in one model, some modules not quantised at all."""
    formats = {
        "q_proj": {"group_size": 32, "bits": 4, "mode": "mxfp4"},
        "k_proj": {"group_size": 16, "bits": 4, "mode": "nvfp4"},
        "v_proj": {"group_size": 32, "bits": 6, "mode": "affine"},
        "o_proj": {"group_size": 32, "bits": 8, "mode": "mxfp8"},
        "up_proj": {"group_size": 64, "bits": 3},
        "gate_proj": {"group_size": 32, "bits": 4, "mode": "mxfp4"},
        "lm_head": {"group_size": 64, "bits": 8},
    }
    if path.endswith("layers.2.mlp.gate_proj"):
        return False
    for suffix, quantization in formats.items():
        if path.endswith(suffix):
            return dict(quantization)
    return True


# name, configuration, mode, arguments of quantize_model
CASES = [
    ("granitemoehybrid_mxfp4", GRANITE, "mxfp4", {}),
    ("mamba2_mxfp8", MAMBA2, "mxfp8", {}),
    ("lfm2_moe_nvfp4", LFM2_MOE, "nvfp4", {}),
    # A family that the kit lacks besides.
    ("qwen3_moe_mxfp4", QWEN3_MOE, "mxfp4", {}),
    ("qwen3_mixed_modes", QWEN3, "nvfp4", {"quant_predicate": mixed_modes}),
]


def random_weights(model, rng, head_gain):
    weights = []
    for name, value in tree_flatten(model.parameters()):
        noise = rng.uniform(-1, 1, value.shape)
        if name.endswith("norm.weight") or "layernorm" in name or name.endswith(".D"):
            values = 1.0 + 0.3 * noise
        elif name.endswith("A_log"):
            values = np.log(rng.uniform(1, 8, value.shape))
        elif name.endswith("dt_bias"):
            values = -2.0 + 1.5 * noise
        elif name.endswith(("bias", "expert_bias")):
            values = 0.1 * noise
        elif "conv" in name and value.ndim == 3:
            values = 0.5 * noise
        else:
            gain = head_gain if name.startswith(("lm_head", "model.embed", "backbone.embed")) else 1.0
            # Groups of different size: scales of one code would hide an error in them.
            sizes = np.exp2(rng.integers(-1, 2, (*value.shape[:-1], value.shape[-1] // 16)))
            values = gain * noise * np.repeat(sizes, 16, -1) * np.sqrt(3 / value.shape[-1])
        weights.append((name, mx.array(values.astype(np.float32)).astype(mx.bfloat16)))
    return weights


def make(directory, name, config, mode, arguments):
    rng = np.random.default_rng(SEED)
    module = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    model = module.Model(module.ModelArgs.from_dict(config))
    model.load_weights(random_weights(model, rng, 3.0 * config.get("logits_scaling", 1)))
    model, quantized = quantize_model(model, copy.deepcopy(config), None, None, mode=mode,
                                      **arguments)
    weights = dict(tree_flatten(model.parameters()))
    model.set_dtype(mx.float32)
    model.eval()
    expected, largest = expected_logits(model, config["vocab_size"], rng, PROMPT_LENGTHS)
    write_case(directory / name, weights, expected, quantized,
               {"name": name, "family": config["model_type"], "format": "mlx-" + mode, "seed": SEED},
               largest, "mlx")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=pathlib.Path)
    directory = parser.parse_args().directory
    mx.set_default_device(mx.cpu)
    for name, config, mode, arguments in CASES:
        print(name)
        make(directory, name, config, mode, arguments)


if __name__ == "__main__":
    main()
