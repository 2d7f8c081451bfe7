"""Makes the reference case of RWKV-7, which the conformance kit lacks: a tiny random checkpoint with
the logits that mlx-lm computes for it on the CPU in float32, in the form of the kit's cases.

    python3 tools/make_rwkv7_case.py tests/cases/rwkv7

needs mlx-lm (tools/requirements-optional.txt).
"""

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models import rwkv7

from reference_case import make_case

# Two heads of 32: head_dim * norm_eps is the 64e-5 that mlx-lm has for the norm of heads.
CONFIG = {
    "architectures": ["RWKV7ForCausalLM"],
    "model_type": "rwkv7",
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "head_dim": 32,
    "num_heads": None,
    "norm_eps": 2e-5,
    "norm_first": True,
    "norm_bias": True,
    "hidden_act": "sqrelu",
    "attn": None,
    "a_low_rank_dim": 12,
    "decay_low_rank_dim": 16,
    "gate_low_rank_dim": 20,
    "v_low_rank_dim": 8,
    "tie_word_embeddings": False,
    "max_position_embeddings": 2048,
}
SEED = 7007


def random_weights(model, rng):
    """Values of the kinds that trained models have, so that every term of the formulas counts."""
    weights = []
    for name, value in tree_flatten(model.parameters()):
        noise = rng.uniform(-1, 1, value.shape)
        if name.endswith(("attn.x_r", "x_w", "x_k", "x_v", "x_a", "x_g")):
            values = 0.5 + 0.5 * noise
        elif name.endswith(".k_k"):
            values = 0.8 + 0.3 * noise
        elif name.endswith(".k_a"):
            values = 0.9 + 0.4 * noise
        elif name.endswith(".r_k"):
            values = 0.3 * noise
        elif "norm" in name:
            values = (1.0 if name.endswith("weight") else 0.0) + 0.3 * noise
        elif name.endswith("bias"):
            # Of the low-rank projections: decays from fast to slow.
            values = -1.0 + 2.0 * noise
        elif name == "lm_head.weight":
            values = 3.0 * noise * np.sqrt(3 / value.shape[-1])
        else:
            values = noise * np.sqrt(3 / value.shape[-1])
        # As bf16, which is how the file holds them.
        weights.append((name, mx.array(values.astype(np.float32)).astype(mx.bfloat16)))
    return weights


def published(weights):
    """In the layout of Hugging Face files, where vectors of heads are flat."""
    return {name: value.reshape(-1) if name.endswith((".k_k", ".k_a")) or ".g_norm." in name
            else value for name, value in weights}


if __name__ == "__main__":
    make_case("rwkv7", rwkv7, CONFIG, SEED, random_weights, published)
