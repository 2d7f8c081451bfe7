"""What a GPU runs of the depthwise convolution in a decode step of every model family, as a table:

    python3 tools/conv_audit.py [--adder BINARY] [--shared DIR] [--temporary DIR] [NAME...]

Each row is a model with random weights at its real size: a file of SHARED/geometries, or for families
without one a case of the conformance kit with the sizes that transformers' configuration class of the
family has for its defaults (cut to fewer layers where a GPU has no room). `adder audit` traces its
decode step; the columns come from that trace. The verdict is on the claim "a step has launches per
channel or group of its convolution". Exits 1 when one failed or a rule is broken.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Geometry and --bits of its weights.
GEOMETRIES = [
    ("granite-4.0-h-350m", "4"), ("granite-4.0-h-350m", "none"), ("granite-4.0-h-tiny", "4"),
    ("granite-4.0-h-small", "4"), ("mamba2-130m", "none"), ("mamba2-1.3b", "4"),
    ("mamba-130m", "none"), ("falcon-mamba-7b", "4"), ("falcon-h1-0.5b", "4"), ("bamba-9b", "4"),
    ("zamba2-1.2b", "4"), ("nvidia-nemotron-nano-9b-v2", "4"), ("nemotron-3-nano-30b-a3b", "4"),
    ("jamba-reasoning-3b", "4"), ("jamba-v0.1", "4"), ("plamo-2-1b", "4"), ("lfm2-350m", "8"),
    ("lfm2-1.2b", "4"), ("lfm2-8b-a1b", "4"), ("qwen3.5-0.8b", "4"), ("qwen3.5-35b-a3b", "4"),
    ("qwen3-next-80b-a3b", "4"), ("kimi-linear-48b-a3b", "4"), ("recurrentgemma-2b", "4"),
    ("rwkv7-168m-pile", "none"), ("gemma-4-26b-a4b", "4"), ("glm-4.7-flash", "4"),
    ("hunyuan-1.8b", "4"), ("hunyuan-a13b", "4"), ("llama-3.2-1b", "4"),
]
# Name: config (below conformance/), and fields over it.
KIT = {
    "olmo_hybrid": ("models/olmo_hybrid", {
        "vocab_size": 100352, "hidden_size": 3840, "intermediate_size": 11008,
        "num_hidden_layers": 32, "num_attention_heads": 30, "num_key_value_heads": 30,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 8,
        "linear_num_key_heads": 30, "linear_num_value_heads": 30, "linear_key_head_dim": 96,
        "linear_value_head_dim": 192}),
    "zaya": ("models/zaya", {
        "vocab_size": 262272, "hidden_size": 2048, "num_hidden_layers": 40, "head_dim": 128,
        "num_attention_heads": 8, "num_key_value_heads": 2, "moe_intermediate_size": 2048,
        "num_experts": 16, "router_hidden_size": 256, "layer_types": ["hybrid"] * 40}),
    "granite": ("models/granite", {
        "vocab_size": 49152, "hidden_size": 2048, "intermediate_size": 8192,
        "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8}),
    "qwen3": ("models/qwen3", {
        "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
        "head_dim": 128}),
    "qwen3_moe": ("models/qwen3", {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 151936,
        "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
        "num_hidden_layers": 24, "num_attention_heads": 32, "num_key_value_heads": 4,
        "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True}),
    "minimax": ("models/minimax", {
        "vocab_size": 200064, "hidden_size": 6144, "intermediate_size": 9216,
        "num_hidden_layers": 8, "num_attention_heads": 64, "num_key_value_heads": 8,
        "head_dim": 128, "rotary_dim": 64, "num_local_experts": 32,
        "layer_types": (["linear_attention"] * 7 + ["full_attention"])}),
}
# Kernels that convolve, and what else they do.
HOLDERS = {
    "ConvStepKernel": "alone",
    "Mamba2StepKernel": "in the state step",
    "GatedDeltaStepKernel": "in the state step",
    "HeadMixKernel": "in the mixing of heads",
}


def run(adder, *arguments):
    done = subprocess.run([str(adder), *map(str, arguments)], capture_output=True, text=True,
                          check=False)
    return done.stdout, done.stderr


def synthesise(adder, geometry, bits, folder):
    _, error = run(adder, "synthesize", "--geometry", geometry, "--output", folder / "model",
                   "--bits", bits)
    return error


def convolution(facts, report):
    """Launches of the convolution per layer that has one, where it is, its share, and the verdict."""
    layers = facts["layers"]
    kernels = {kernel["name"]: kernel for kernel in report["kernels"]}
    for name, place in HOLDERS.items():
        if name not in kernels:
            continue
        kernel = kernels[name]
        mixers = {"Mamba1", "Mamba2", "GatedDelta", "RgLru", "Attention"}
        if name != "HeadMixKernel":
            mixers.discard("Attention")
        with_one = sum(bool(mixers & set(layer["mixers"].split(" + "))) for layer in layers)
        per_layer = kernel["instances_per_step"] / with_one
        share = f"{100 * kernel['share']:.1f}%"
        if place == "alone":
            return f"{per_layer:.3g}", f"`{name}`", share, per_layer > 1
        return "0", f"{place} (`{name}`)", share + " with it", per_layer > 1
    if any("ShortConv" in layer["mixers"] for layer in layers):
        return "0", "in the launch of out_proj (`MatvecKernel`)", "of that launch", False
    return "none", "", "", False


def row_of(adder, name, bits, model):
    facts = json.loads(run(adder, "inspect", "-m", model, "--json")[0])
    out, error = run(adder, "audit", "-m", model, "--json")
    try:
        report = json.loads(out)
    except ValueError:
        raise RuntimeError(error.strip()) from None
    broken = [rule["name"] for rule in report["rules"] if not rule["kept"]]
    launches, place, share, per_channel = convolution(facts, report)
    dtype = "bf16" if bits == "none" else f"{bits}-bit"
    verdict = "no convolution" if launches == "none" else "confirmed" if per_channel else "refuted"
    return broken, [facts["family"], name, dtype, f"{report['launches_per_step']:.0f}",
                    f"{report['most_launches_per_layer']:.0f}", launches, place, share, verdict,
                    f"{100 * report['gpu_busy_share']:.1f}%",
                    "broken: " + ", ".join(broken) if broken else "kept"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--adder", type=pathlib.Path, default=ROOT / "build/cuda/apps/adder/adder")
    parser.add_argument("--shared", type=pathlib.Path,
                        default=os.environ.get("ADDER_SHARED") or ROOT.parent / "shared")
    parser.add_argument("--temporary", type=pathlib.Path)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()

    columns = ["family", "checkpoint", "weights", "launches per step", "most in a layer",
               "of the convolution, per layer", "where it is", "share of the GPU's time",
               "launches per channel", "busy", "rules"]
    print("| " + " | ".join(columns) + " |")
    print("| --- " * len(columns) + "|", flush=True)
    failed = []
    with concurrent.futures.ThreadPoolExecutor(1) as writer, \
            tempfile.TemporaryDirectory(dir=options.temporary) as temporary:
        folder = pathlib.Path(temporary)
        models = [(name, bits, options.shared / "geometries" / f"{name}.json")
                  for name, bits in GEOMETRIES]
        for name, (case, fields) in KIT.items():
            config = json.loads((options.shared / "conformance" / case / "config.json").read_text())
            config.pop("quantization", None)
            path = folder / f"{name}.json"
            path.write_text(json.dumps({**config, **fields}))
            models.append((name, "4", path))
        if options.names:
            models = [model for model in models if model[0] in options.names]

        def write(index):
            if index >= len(models):
                return None
            (folder / str(index)).mkdir()
            return writer.submit(synthesise, options.adder, models[index][2], models[index][1],
                                 folder / str(index))

        written = write(0)
        for i, (name, bits, _) in enumerate(models):
            error = written.result()
            written = write(i + 1)
            try:
                if error:
                    raise RuntimeError(error.strip())
                broken, row = row_of(options.adder, name, bits, folder / str(i) / "model")
                failed += [name] if broken else []
            except (RuntimeError, ValueError) as problem:
                failed.append(name)
                row = [name, f"FAILED: {problem}"]
            print("| " + " | ".join(row) + " |", flush=True)
            for file in sorted((folder / str(i)).rglob("*"), reverse=True):
                file.rmdir() if file.is_dir() else file.unlink()
    if failed:
        sys.exit(f"{len(failed)} failed or broke a rule: {', '.join(failed)}")


if __name__ == "__main__":
    main()
