"""Writes tests/cases/reference_bf16.json: how far the reference implementations, run in bf16, are
from themselves in f32, on the tokens of the conformance cases.

    python3 tools/make_bf16_bounds.py          # cases in Hugging Face form, by transformers
    python3 tools/make_bf16_bounds.py --mlx    # tests/cases in modes of small floats, by mlx-lm

The tokens of each prompt and its greedy continuation go through the model at once. Taken down are the
mean KL divergence of the logits, and the widest f32 margin of a step of the continuation at which
bf16 chooses another token. adder's fast mode rounds activations to bf16 too; with experts one
rounding can choose another expert, so no fixed bound fits all cases. (Of checkpoints in MLX's affine
mode bf16 would round the scales as well, which is another model.)

Entries of the file that a call does not make stay. Needs torch and transformers, or mlx-lm, and the
kit ($ADDER_SHARED, default: ../shared beside the repository); transformers uses a GPU when there is
one.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

REPOSITORY = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("ADDER_SHARED") or REPOSITORY.parent / "shared")
CASES = REPOSITORY / "tests/cases"
OUTPUT = CASES / "reference_bf16.json"


def transformers_model(directory, dtype):
    """A function from tokens to logits."""
    import torch
    import transformers
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=getattr(torch, dtype), attn_implementation="eager",
        experts_implementation="eager").eval().to(device)

    def logits(tokens):
        with torch.no_grad():
            output = model(torch.tensor([tokens]).to(device), use_cache=False)
        return output.logits[0].double().cpu().numpy()

    return logits


def mlx_model(directory, dtype):
    import mlx.core as mx
    from mlx_lm.utils import load_model
    model, _ = load_model(directory)
    model.set_dtype(getattr(mx, dtype))
    return lambda tokens: np.array(model(mx.array([tokens]))[0].astype(mx.float32), np.float64)


def log_softmax(logits):
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def compare(exact, rounded, expected):
    """Mean KL divergence and widest miss over all prompts."""
    divergences, miss = [], 0.0
    number = 0
    while f"prompt_{number}" in expected:
        prompt = expected[f"prompt_{number}"].tolist()
        tokens = prompt + expected[f"greedy_{number}"].tolist()
        reference, ours = exact(tokens), rounded(tokens)
        p, q = log_softmax(reference), log_softmax(ours)
        divergences.append((np.exp(p) * (p - q)).sum(-1))
        steps = slice(len(prompt) - 1, len(tokens) - 1)
        missed = reference[steps].argmax(-1) != ours[steps].argmax(-1)
        largest = np.sort(reference[steps][missed], -1)[:, -2:]
        miss = max([miss, *(largest[:, 1] - largest[:, 0])])
        number += 1
    return float(np.concatenate(divergences).mean()), float(miss)


def cases(mlx):
    if not mlx:
        yield from sorted(SHARED.glob("conformance/models/*/config.json"))
        return
    for config in sorted(CASES.glob("*/config.json")):
        quantization = json.loads(config.read_text(encoding="utf-8")).get("quantization", {})
        if quantization.get("mode", "affine") != "affine":
            yield config


def main():
    mlx = "--mlx" in sys.argv[1:]
    load = mlx_model if mlx else transformers_model
    bounds = json.loads(OUTPUT.read_text(encoding="utf-8")) if OUTPUT.exists() else {}
    for config in cases(mlx):
        name = config.parent.name
        expected = load_file(config.parent / "expected.safetensors")
        try:
            kl, miss = compare(load(config.parent, "float32"), load(config.parent, "bfloat16"),
                               expected)
        except (KeyError, ValueError, ImportError, RuntimeError) as error:
            print(f"{name}: left out, {str(error).splitlines()[0]}")
            continue
        print(f"{name}: mean KL {kl:.2e}, widest miss {miss:.3f}")
        bounds[name] = {"mean_kl": float(f"{kl:.3g}"), "widest_miss": float(f"{miss:.3g}")}
    lines = [f"  {json.dumps(name)}: {json.dumps(bounds[name])}" for name in sorted(bounds)]
    OUTPUT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
