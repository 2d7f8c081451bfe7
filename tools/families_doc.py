"""Writes docs/families.md: the table of model families that adder runs.

    python3 tools/families_doc.py [--adder BINARY] [--shared DIR] [--check]

Names and descriptions come from `adder families`, mixers from `adder inspect` of the conformance
kit's checkpoints and those of tests/cases, references from their case.json. What no program knows,
published checkpoints and quirks, is below. --check compares instead, and exits 1 when the document
is not what would be written.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs/families.md"

# Family: published checkpoints whose configuration fits (tests build the plans of those that the
# kit's geometries have), and in what its files or formulas are their own.
NOTES = {
    "bamba": (
        "Bamba 9B",
        "The rotary embedding turns half of each head; the gated norm spans all groups.",
    ),
    "falcon_h1": (
        "Falcon-H1 tiny (90M), 0.5B, 1.5B, 7B",
        "The gated norm comes before or after the gate, or is absent, and counts groups "
        "apart. MLX files hold all multipliers but key_multiplier inside the weights.",
    ),
    "falcon_mamba": (
        "Falcon Mamba 7B",
        "Norms without weights on dt, B and C.",
    ),
    "gemma4": (
        "Gemma 4 26B A4B",
        "Full attention has wider heads, turned in part, and may use keys as values; last "
        "layers may read an earlier layer's keys. The last layer attends to everything "
        "whatever layer_types says.",
    ),
    "glm4_moe_lite": (
        "GLM 4.7 Flash",
        "Norms inside the attention keep an eps of their own. The layers behind the last "
        "are ignored.",
    ),
    "granite": (
        "Granite 3",
        "The attention multiplier is the scale of scores; logits_scaling divides.",
    ),
    "granitemoehybrid": (
        "Granite 4.0 H 350M, 1B, micro, tiny, small",
        "rope_theta is present in models without positions. MLX files split the experts "
        "and the MLP of models without them.",
    ),
    "hunyuan_v1_dense": (
        "Hunyuan 1.8B",
        "Norms of q and k come after the rotation, whose base alpha stretches.",
    ),
    "hunyuan_v1_moe": (
        "Hunyuan A13B",
        "Sizes may be lists with one number per layer.",
    ),
    "jamba": (
        "Jamba v0.1, Jamba Reasoning 3B",
        "Chosen experts keep their part of the softmax over all.",
    ),
    "kimi_linear": (
        "Kimi Linear 48B A3B",
        "Layers are counted from one; latent attention has no positions.",
    ),
    "lfm2": (
        "LFM2 350M, 1.2B, 2.6B",
        "The MLP's width follows from three fields; the last norm is called "
        "embedding_norm.",
    ),
    "lfm2_moe": (
        "LFM2 8B A1B",
        "The router's bias chooses experts but does not weigh them.",
    ),
    "llama": (
        "Llama 3.2 1B",
        "Llama 3's stretching of the rotary embedding.",
    ),
    "mamba": (
        "Mamba 130M",
        "Two forms of config.json, one without model_type.",
    ),
    "mamba2": (
        "Mamba-2 130M, 1.3B, 2.7B",
        "norm_before_gate is written by converters and read by nobody; the original form "
        "norms each group on its own.",
    ),
    "minimax": (
        "MiniMax-Text-01",
        "The residual is what each norm makes of it; every head of every layer has its "
        "own decay.",
    ),
    "nemotron_h": (
        "Nemotron-H 8B, Nemotron Nano 9B v2, Nemotron 3 Nano 30B A3B",
        "MLPs without a gate (squared ReLU); routers are never quantised; layers as a "
        "pattern of letters or as a list.",
    ),
    "olmo_hybrid": (
        "OLMo Hybrid",
        "Norms before the delta rule but after attention; the factor of correction "
        "reaches 2.",
    ),
    "plamo2": (
        "PLaMo 2 1B",
        "Norms are stored as differences to 1, 1/5 or 1/5^1.5; B, C and dt are normed. "
        "Attention slides, and sees attention_window_size positions before the token's own.",
    ),
    "qwen3": (
        "Qwen3",
        "Norms of q and k before the rotation.",
    ),
    "qwen3_5": (
        "Qwen3.5 0.8B, 4B",
        "Norms are stored as w in Hugging Face files and as 1 + w in MLX files. Vision "
        "tensors are ignored.",
    ),
    "qwen3_5_moe": (
        "Qwen3.5 35B A3B",
        "As qwen3_5; a shared expert with a gate of its own.",
    ),
    "qwen3_moe": (
        "Qwen3 with experts",
        "Some layers have one MLP instead of experts.",
    ),
    "qwen3_next": (
        "Qwen3-Next 80B A3B",
        "Projections of the delta rule lie in the files key head by key head; norms as in "
        "qwen3_5.",
    ),
    "recurrent_gemma": (
        "RecurrentGemma 2B",
        "The embedding's factor is rounded to bf16; the MLP is half as wide as "
        "intermediate_size.",
    ),
    "rwkv7": (
        "RWKV-7 168M",
        "Values of the first layer go into all others.",
    ),
    "zamba2": (
        "Zamba2 1.2B",
        "Blocks are shared by layers, each use with adapters of its own; attention scores "
        "have the scale of half the head.",
    ),
    "zaya": (
        "ZAYA",
        "A token may choose no expert; the bias of that choice is set on loading.",
    ),
}

HEAD = """# Model families

Written by `tools/families_doc.py`; do not edit. Each family is a file of `src/model/families`, named
after the `model_type` of `config.json`. All run on the CPU, and in the reference interpreter; the CUDA
backend says which part it lacks when it loads a model that it cannot run. How another is added:
[docs/adding-a-family.md](adding-a-family.md).

- Mixers: the parts of layers (`src/model/plan.h`) in the checkpoints that the tests compare.
- Checkpoints: published models whose configuration fits. Where sizes of one were at hand, a test
  builds its plan; the weights themselves were not tried.
- Reference: what computed the logits that the conformance tests compare with.

| family | what it is | mixers | checkpoints | peculiar | reference |
| --- | --- | --- | --- | --- | --- |
"""


def run(adder, *arguments):
    done = subprocess.run([str(adder), *map(str, arguments)], capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        sys.exit(done.stderr.strip())
    return done.stdout


def families(adder):
    """(name, description) of each family."""
    return [line.split(None, 1) for line in run(adder, "families").splitlines() if line.strip()]


def mixers_of(adder, directory):
    """Names of the mixers of one checkpoint, in order of appearance."""
    plan = run(adder, "inspect", "-m", directory, "--json")
    names = []
    for layer in json.loads(plan)["layers"]:
        for name in re.split(r" \+ ", layer["mixers"]):
            if name not in names:
                names.append(name)
    return names


def reference_name(text):
    """The program's name and version: the rest of a case's sentence is how it was run."""
    return text.split(",")[0]


def document(adder, shared):
    mixers = {}
    references = {}
    for folder in (shared / "conformance/models", shared / "conformance/mlx", ROOT / "tests/cases"):
        for directory in sorted(folder.iterdir()):
            if not (directory / "case.json").exists():
                continue
            case = json.loads((directory / "case.json").read_text(encoding="utf-8"))
            family = case["family"]
            known = mixers.setdefault(family, [])
            known += [name for name in mixers_of(adder, directory) if name not in known]
            reference = reference_name(case["reference"])
            if reference not in references.setdefault(family, []):
                references[family].append(reference)
    rows = []
    for name, description in families(adder):
        checkpoints, peculiar = NOTES[name]
        rows.append("| " + " | ".join([
            f"`{name}`", description, ", ".join(mixers.get(name, ["not compared"])), checkpoints,
            peculiar, "; ".join(references.get(name, ["none"]))]) + " |\n")
    return HEAD + "".join(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--adder", type=pathlib.Path,
                        default=ROOT / "build/release/apps/adder/adder")
    parser.add_argument("--shared", type=pathlib.Path,
                        default=os.environ.get("ADDER_SHARED") or ROOT.parent / "shared")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    text = document(options.adder, options.shared)
    if options.check:
        if DOCUMENT.read_text(encoding="utf-8") != text:
            sys.exit("docs/families.md is not up to date: run tools/families_doc.py.")
    else:
        DOCUMENT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
