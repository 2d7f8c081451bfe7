"""Writes tests/cases/router_choices.json: which experts the reference implementations choose for
the tokens of the conformance kit, and how they weigh them.

Runs the models of transformers in float32 on the first PROMPT_TOKENS tokens of one prompt of each
case with experts, and takes down what reaches the experts. Needs torch, transformers and the kit
($ADDER_SHARED, default: ../shared beside the repository). A case of which transformers lacks the
family is left out.
"""

import json
import os
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file

REPOSITORY = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("ADDER_SHARED") or REPOSITORY.parent / "shared")
OUTPUT = REPOSITORY / "tests/cases/router_choices.json"
PROMPT_TOKENS = 12
TOLERANCE = 1e-3  # of logits with a standard deviation of about 3


def choices_of(model, tokens):
    """Per layer with experts and token: [expert, weight] of each expert that counts, by number; and
    the logits."""
    layers = []

    def take_down(_, arguments):
        _, experts, weights = arguments
        layers.append([
            sorted([int(expert), float(f"{weight:.7g}")] for expert, weight in zip(*row) if weight)
            for row in zip(experts.tolist(), weights.tolist())
        ])

    hooks = [module.register_forward_pre_hook(take_down)
             for name, module in model.named_modules() if name.endswith(".experts")]
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0]
    for hook in hooks:
        hook.remove()
    return layers, logits


def prompt_of(directory):
    """The tokens and the logits of the shortest prompt that is long enough, cut."""
    expected = load_file(directory / "expected.safetensors")
    lengths = {name.removeprefix("prompt_"): len(values) for name, values in expected.items()
               if name.startswith("prompt_") and len(values) >= PROMPT_TOKENS}
    number = min(lengths, key=lengths.get)
    return (expected[f"prompt_{number}"].tolist()[:PROMPT_TOKENS],
            expected[f"prefill_logits_{number}"][:PROMPT_TOKENS])


def main():
    cases = {}
    for config in sorted(SHARED.glob("conformance/models/*/config.json")):
        if "expert" not in config.read_text(encoding="utf-8"):
            continue
        name = config.parent.name
        try:
            model = transformers.AutoModelForCausalLM.from_pretrained(
                config.parent, dtype=torch.float32, attn_implementation="eager").eval()
        except (KeyError, ValueError, ImportError) as error:
            print(f"{name}: left out, {error}")
            continue
        tokens, expected = prompt_of(config.parent)
        layers, logits = choices_of(model, tokens)
        error = float((logits - expected).abs().max())
        if layers and error < TOLERANCE:
            cases[name] = {"tokens": tokens, "layers": layers}
        print(f"{name}: {len(layers)} layers, logits differ by {error:.1e}")
    lines = [f'  {json.dumps(name)}: {json.dumps(case)}' for name, case in cases.items()]
    OUTPUT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
