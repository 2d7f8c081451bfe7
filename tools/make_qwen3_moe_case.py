"""Makes the reference case of Qwen3-MoE in Hugging Face layout, which the conformance kit lacks: a
tiny random checkpoint with the logits that mlx-lm computes for it on the CPU in float32, in the form
of the kit's cases.

    python3 tools/make_qwen3_moe_case.py tests/cases/qwen3_moe

needs mlx-lm (tools/requirements-optional.txt).
"""

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models import qwen3_moe

from reference_case import make_case

# Every second layer has experts, whose weights do not add up to one.
CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "attention_bias": False,
    "decoder_sparse_step": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": 32,
    "intermediate_size": 64,
    "max_position_embeddings": 4096,
    "mlp_only_layers": [],
    "moe_intermediate_size": 32,
    "norm_topk_prob": False,
    "num_attention_heads": 2,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 4,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "vocab_size": 64,
}
SEED = 3030
PROMPT_LENGTHS = [1, 3, 13, 29]
HEAD_GAIN = 3.0  # for logits with a standard deviation of about 3


def random_weights(model, rng):
    weights = []
    for name, value in tree_flatten(model.parameters()):
        noise = rng.uniform(-1, 1, value.shape)
        if "norm" in name:
            values = 1.0 + 0.3 * noise
        else:
            gain = HEAD_GAIN if name == "lm_head.weight" else 1.0
            values = gain * noise * np.sqrt(3 / value.shape[-1])
        # As bf16, which is how the file holds them.
        weights.append((name, mx.array(values.astype(np.float32)).astype(mx.bfloat16)))
    return weights


def published(weights):
    """In the layout of Hugging Face files, where every expert has tensors of its own."""
    tensors = {}
    for name, value in weights:
        if ".switch_mlp." not in name:
            tensors[name] = value
            continue
        for expert in range(value.shape[0]):
            tensors[name.replace("switch_mlp", f"experts.{expert}")] = value[expert]
    return tensors


if __name__ == "__main__":
    make_case("qwen3_moe", qwen3_moe, CONFIG, SEED, random_weights, published, PROMPT_LENGTHS)
