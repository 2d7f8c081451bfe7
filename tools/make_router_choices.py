"""Writes tests/cases/router_choices.json: which experts the reference implementations choose for
the tokens of the conformance kit, and how they weigh them.

Runs the models of transformers in float32 on the first PROMPT_TOKENS tokens of one prompt of each
case with experts, of the kit and of tests/cases, and takes down what reaches the experts. The same
again for EDITED_CASES, whose configs ask for rules that no checkpoint has. Needs torch,
transformers and the kit ($ADDER_SHARED, default: ../shared beside the repository). A case of which
transformers lacks the family is left out, and so is one in MLX's layout.

Prints how far the logits are from those of the case, and of edited cases in how many tokens of each
layer the choices changed and by how much the weights did. It fails when an edit changes nothing.
"""

import json
import os
import tempfile
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file

REPOSITORY = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("ADDER_SHARED") or REPOSITORY.parent / "shared")
OUTPUT = REPOSITORY / "tests/cases/router_choices.json"
PROMPT_TOKENS = 12
TOLERANCE = 1e-3  # of logits with a standard deviation of about 3
LEAST_CHANGE = 1e-2  # of a weight, for an edit to count

# Name: (case, fields of its config). The cases with groups have 8 experts and choose 2, so that with
# half of the groups some tokens have to do without an expert that they would choose.
EDITED_CASES = {
    "glm4_moe_lite_one_group": ("glm4_moe_lite", {"n_group": 2, "topk_group": 1}),
    "glm4_moe_lite_unnormalized": (
        "glm4_moe_lite", {"n_group": 4, "topk_group": 2, "norm_topk_prob": False}),
    "nemotron_h_moe_one_group": ("nemotron_h_moe", {"n_group": 2, "topk_group": 1}),
    "nemotron_h_moe_unnormalized": (
        "nemotron_h_moe", {"n_group": 4, "topk_group": 2, "norm_topk_prob": False}),
    "kimi_linear_one_group": ("kimi_linear", {"num_expert_group": 2, "topk_group": 1}),
    "kimi_linear_unnormalized": (
        "kimi_linear", {"num_expert_group": 4, "topk_group": 2, "moe_renormalize": False}),
    "lfm2_moe_unnormalized": (
        "lfm2_moe", {"norm_topk_prob": False, "routed_scaling_factor": 1.7}),
    "qwen3_next_unnormalized": ("qwen3_next", {"norm_topk_prob": False}),
    "qwen3_moe_normalized": ("qwen3_moe", {"norm_topk_prob": True}),
}
GROUPS = {"n_group", "num_expert_group"}


def load(directory):
    return transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager").eval()


def load_edited(directory, fields):
    """The model of a folder with the fields in its config.json."""
    with tempfile.TemporaryDirectory() as folder:
        for path in directory.iterdir():
            if path.name != "config.json":
                (Path(folder) / path.name).symlink_to(path.resolve())
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        (Path(folder) / "config.json").write_text(json.dumps({**config, **fields}),
                                                  encoding="utf-8")
        return load(folder)


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


def directories():
    """Of the cases with experts in Hugging Face layout, by name."""
    configs = [*SHARED.glob("conformance/models/*/config.json"),
               *REPOSITORY.glob("tests/cases/*/config.json")]
    found = {}
    for path in configs:
        text = path.read_text(encoding="utf-8")
        if "expert" in text and "quantization" not in text:
            found[path.parent.name] = path.parent
    return dict(sorted(found.items()))


def changes(layers, others):
    """How many tokens choose other experts, by layer, and by how much weights of tokens that choose
    the same ones differ at most in the first layer, in front of which nothing differs."""
    moved = []
    largest = 0.0
    for number, pair in enumerate(zip(layers, others, strict=True)):
        experts = [[[expert for expert, _ in token] for token in layer] for layer in pair]
        moved.append(sum(one != other for one, other in zip(*experts, strict=True)))
        if number == 0:
            same = [tokens for tokens, one, other in zip(zip(*pair), *experts) if one == other]
            largest = max((abs(a[1] - b[1]) for one, other in same for a, b in zip(one, other)),
                          default=0.0)
    return moved, largest


def check_edit(name, fields, layers, unedited):
    """Prints what the edit changed, and fails when it is not what the fields are about."""
    moved, largest = changes(layers, unedited)
    print(f"{name}: of {len(layers[0])} tokens {moved} choose otherwise, by layer; weights of the "
          f"same experts differ by {largest:.3f} in the first")
    if GROUPS & fields.keys():
        assert moved[0], f"{name}: no token of the first layer chooses other experts"
    if len(fields.keys() - GROUPS - {"topk_group"}) > 0:
        assert largest > LEAST_CHANGE, f"{name}: the weights of the first layer are the same"


def main():
    cases = {}
    known = directories()
    for name, directory in known.items():
        try:
            model = load(directory)
        except (KeyError, ValueError, ImportError) as error:
            print(f"{name}: left out, {error}")
            continue
        tokens, expected = prompt_of(directory)
        layers, logits = choices_of(model, tokens)
        error = float((logits - expected).abs().max())
        if layers and error < TOLERANCE:
            cases[name] = {"tokens": tokens, "layers": layers}
        print(f"{name}: {len(layers)} layers, logits differ by {error:.1e}")
    for name, (case, fields) in EDITED_CASES.items():
        if case not in cases:
            print(f"{name}: left out with {case}")
            continue
        tokens = cases[case]["tokens"]
        layers, _ = choices_of(load_edited(known[case], fields), tokens)
        check_edit(name, fields, layers, cases[case]["layers"])
        cases[name] = {"model": case, "config": fields, "tokens": tokens, "layers": layers}
    lines = [f'  {json.dumps(name)}: {json.dumps(case)}' for name, case in sorted(cases.items())]
    OUTPUT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
