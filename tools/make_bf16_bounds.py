"""Writes tests/cases/reference_bf16.json: how far the reference implementations, run in bf16, are
from what they compute in f32, for the conformance kit's cases in Hugging Face form.

The tokens of each case, its greedy continuations included, go through transformers in bf16 at once.
Taken down are the mean KL divergence of the rows whose f32 logits the kit has, and the widest f32
margin of a greedy step at which bf16 chooses another token. adder's fast mode rounds activations to
bf16 too; with experts one rounding can choose another expert, so no fixed bound fits all cases.
Needs torch, transformers and the kit ($ADDER_SHARED, default: ../shared beside the repository); uses
a GPU when there is one.
"""

import json
import os
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file

REPOSITORY = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("ADDER_SHARED") or REPOSITORY.parent / "shared")
OUTPUT = REPOSITORY / "tests/cases/reference_bf16.json"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def load(directory, dtype):
    return transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=dtype, attn_implementation="eager",
        experts_implementation="eager").eval().to(DEVICE)


def divergences(reference, logits):
    """KL(softmax(reference) || softmax(logits)) of each row, in nats."""
    p = torch.log_softmax(reference.double(), -1)
    q = torch.log_softmax(logits.double(), -1)
    return (p.exp() * (p - q)).sum(-1)


def compare(model, expected):
    """Mean KL divergence and widest miss over all prompts."""
    kl, miss = [], 0.0
    number = 0
    while f"prompt_{number}" in expected:
        prompt = expected[f"prompt_{number}"].long()
        greedy = expected[f"greedy_{number}"].long()
        margins = expected[f"margins_{number}"]
        with torch.no_grad():
            tokens = torch.cat([prompt, greedy])[None].to(DEVICE)
            logits = model(tokens, use_cache=False).logits[0].float().cpu()
        if f"prefill_logits_{number}" in expected:
            kl.append(divergences(expected[f"prefill_logits_{number}"], logits[:len(prompt)]))
        of_steps = logits[len(prompt) - 1:-1]
        if f"step_logits_{number}" in expected:
            steps = expected[f"step_logits_{number}"]
            kl.append(divergences(steps, of_steps[:len(steps)]))
        missed = of_steps.argmax(-1) != greedy
        if missed.any():
            miss = max(miss, float(margins[missed].max()))
        number += 1
    return float(torch.cat(kl).mean()), miss


def main():
    bounds = {}
    for config in sorted(SHARED.glob("conformance/models/*/config.json")):
        name = config.parent.name
        expected = load_file(config.parent / "expected.safetensors")
        try:
            exact, _ = compare(load(config.parent, torch.float32), expected)
            kl, miss = compare(load(config.parent, torch.bfloat16), expected)
        except (KeyError, ValueError, ImportError, RuntimeError) as error:
            print(f"{name}: left out, {error}")
            continue
        print(f"{name}: f32 mean KL {exact:.1e}; bf16 mean KL {kl:.2e}, widest miss {miss:.3f}")
        if exact < 1e-5:
            bounds[name] = {"mean_kl": float(f"{kl:.3g}"), "widest_miss": float(f"{miss:.3g}")}
    lines = [f"  {json.dumps(name)}: {json.dumps(bound)}" for name, bound in bounds.items()]
    OUTPUT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
