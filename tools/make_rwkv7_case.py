"""Makes the reference case of RWKV-7, which the conformance kit lacks: a tiny random checkpoint with
the logits that mlx-lm computes for it on the CPU in float32, in the form of the kit's cases.

    python3 tools/make_rwkv7_case.py tests/cases/rwkv7

needs mlx-lm (tools/requirements-optional.txt).
"""

import argparse
import pathlib

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models import rwkv7

from reference_case import expected_logits, write_case

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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=pathlib.Path)
    directory = parser.parse_args().directory
    mx.set_default_device(mx.cpu)
    rng = np.random.default_rng(SEED)
    model = rwkv7.Model(rwkv7.ModelArgs.from_dict(CONFIG))
    weights = random_weights(model, rng)
    model.load_weights([(name, value.astype(mx.float32)) for name, value in weights])

    expected, largest = expected_logits(model, CONFIG["vocab_size"], rng)

    # In the layout of Hugging Face files, where vectors of heads are flat.
    def published(name, value):
        flat = name.endswith((".k_k", ".k_a")) or ".g_norm." in name
        return value.reshape(-1) if flat else value

    write_case(directory, {name: published(name, value) for name, value in weights}, expected, CONFIG,
               {"name": "rwkv7", "family": "rwkv7", "format": "hf-safetensors",
                "params": int(sum(value.size for _, value in weights)), "seed": SEED}, largest)


if __name__ == "__main__":
    main()
