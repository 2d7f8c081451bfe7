"""Makes the reference case of RWKV-7, which the conformance kit lacks: a tiny random checkpoint with
the logits that mlx-lm computes for it on the CPU in float32, in the form of the kit's cases.

    python3 tools/make_rwkv7_case.py tests/cases/rwkv7

needs mlx-lm (tools/requirements-optional.txt).
"""

import argparse
import json
import pathlib

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models import rwkv7

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
PROMPT_LENGTHS = [1, 2, 3, 7, 16, 37, 70]
GREEDY = 24
STEP_LOGITS = 8


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


def logits_of(model, tokens, cache):
    return np.array(model(mx.array([tokens]), cache=cache)[0].astype(mx.float32))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=pathlib.Path)
    directory = parser.parse_args().directory
    mx.set_default_device(mx.cpu)
    rng = np.random.default_rng(SEED)
    model = rwkv7.Model(rwkv7.ModelArgs.from_dict(CONFIG))
    weights = random_weights(model, rng)
    model.load_weights([(name, value.astype(mx.float32)) for name, value in weights])

    expected = {}
    largest = 0.0
    for i, length in enumerate(PROMPT_LENGTHS):
        prompt = rng.integers(0, CONFIG["vocab_size"], length).tolist()
        cache = model.make_cache()
        prefill = logits_of(model, prompt, cache)
        greedy, margins, steps = [], [], []
        row = prefill[-1]
        for step in range(GREEDY):
            order = np.argsort(row)
            greedy.append(int(order[-1]))
            margins.append(row[order[-1]] - row[order[-2]])
            if step < STEP_LOGITS:
                steps.append(row)
            row = logits_of(model, [greedy[-1]], cache)[0]
        # The same tokens at once: what rounding alone makes different.
        whole = logits_of(model, prompt + greedy, None)
        for step, logits in enumerate(steps):
            largest = max(largest, np.abs(whole[length - 1 + step] - logits).max())
        expected[f"prompt_{i}"] = mx.array(np.array(prompt, np.int32))
        expected[f"prefill_logits_{i}"] = mx.array(whole[:length])
        expected[f"greedy_{i}"] = mx.array(np.array(greedy, np.int32))
        expected[f"step_logits_{i}"] = mx.array(whole[length - 1 : length - 1 + STEP_LOGITS])
        expected[f"margins_{i}"] = mx.array(np.array(margins, np.float32))
        print(f"prompt of {length}: logits {prefill.std():.2f}, {len(set(greedy))} different greedy "
              f"tokens, least margin {min(margins):.4f}")

    # In the layout of Hugging Face files, where vectors of heads are flat.
    def published(name, value):
        flat = name.endswith((".k_k", ".k_a")) or ".g_norm." in name
        return value.reshape(-1) if flat else value

    directory.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(directory / "model.safetensors"),
                        {name: published(name, value) for name, value in weights},
                        metadata={"format": "pt"})
    mx.save_safetensors(str(directory / "expected.safetensors"), expected, metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(CONFIG, indent=1) + "\n")
    case = {
        "name": "rwkv7",
        "family": "rwkv7",
        "format": "hf-safetensors",
        "params": int(sum(value.size for _, value in weights)),
        "seed": SEED,
        "prompt_lengths": PROMPT_LENGTHS,
        "greedy_tokens": GREEDY,
        "step_logits": STEP_LOGITS,
        "reference": "mlx-lm, float32, CPU",
        "cache_vs_nocache_max_abs": float(largest),
        "suggested_atol": {"fp32_engine": max(2e-4, 30 * float(largest))},
    }
    (directory / "case.json").write_text(json.dumps(case, indent=1) + "\n")
    print(f"cached against uncached: {largest:.2e}")


if __name__ == "__main__":
    main()
