"""Runs published geometries with random weights: synthesises each at 4 bits in a temporary folder,
inspects it, generates tokens and checks that every logit is finite, the smallest model first.

    python3 tools/run_geometries.py [--adder BINARY] [--shared DIR] [--largest BILLIONS]
                                    [--device cpu] [--bench] [--audit] [--temporary DIR]
                                    [NAME...]

Takes the files of SHARED/geometries whose _params_computed is at most --largest (default: 3.3, which
is what models named 3B have) or, with names, those alone. While one runs, the next is written. Prints
one row for each; exits 1 when one of them failed. --bench adds what `adder bench decode` measures
behind 512 tokens of prompt: tokens per second, launches of a step, and the share of the device's read
bandwidth that its bytes come to. --audit (on a GPU) adds what `adder audit` says of a step: launches of
the layer with most of them, how long the GPU is busy, and which rules are broken.
"""

import argparse
import concurrent.futures
import json
import math
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROMPT = [1, 2, 3, 5, 8, 13, 21, 34, 55, 89]
TOKENS = 8


def run(adder, *arguments):
    done = subprocess.run([str(adder), *map(str, arguments)], capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip())
    return done.stdout


def logits_of(path):
    """All f32 values of a safetensors file."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    for name, tensor in header.items():
        if name.startswith("logits_"):
            begin, end = tensor["data_offsets"]
            yield from memoryview(data)[8 + size + begin : 8 + size + end].cast("f")


def synthesise(adder, geometry, folder):
    """Seconds that it took."""
    began = time.monotonic()
    run(adder, "synthesize", "--geometry", geometry, "--output", folder / "model", "--bits", 4)
    return time.monotonic() - began


def bench(adder, model, device):
    """Columns of --bench."""
    measured = json.loads(run(
        adder, "bench", "decode", "-m", model, "--device", device, "--prompt-tokens", 512,
        "--max-tokens", 64, "--repeat", 1, "--json"))
    return [f"{measured['decode_tokens_per_second_median']:,.0f}",
            f"{measured.get('launches_per_step', 0):.0f}",
            f"{100 * measured['bandwidth_fraction']:.0f}%"]


def audit(adder, model):
    """Columns of --audit."""
    done = subprocess.run([str(adder), "audit", "-m", str(model), "--json"], capture_output=True,
                          text=True, check=False)
    try:
        report = json.loads(done.stdout)
    except ValueError:
        raise RuntimeError(done.stderr.strip()) from None
    broken = [rule["name"] for rule in report["rules"] if not rule["kept"]]
    return [f"{report['most_launches_per_layer']:.0f}", f"{100 * report['gpu_busy_share']:.1f}%",
            "broken: " + ", ".join(broken) if broken else "kept"]


def try_geometry(options, geometry, folder, synthesised):
    """One row of the table."""
    adder, device, model = options.adder, options.device, folder / "model"
    facts = json.loads(run(adder, "inspect", "-m", model, "--json"))
    generated = json.loads(run(
        adder, "generate", "-m", model, "--tokens", ",".join(map(str, PROMPT)), "-n", TOKENS,
        "--temperature", 0, "--ignore-eos", "--device", device, "--json"))
    tokens = generated["output_tokens"]
    rate = generated["timings"]["decode_tokens_per_second"]
    if len(tokens) != TOKENS:
        raise RuntimeError(f"{len(tokens)} tokens instead of {TOKENS}")
    prompts = folder / "prompts.json"
    prompts.write_text(json.dumps({"prompts": [PROMPT + tokens]}), encoding="utf-8")
    run(adder, "logits", "-m", model, "--prompts", prompts, "--output", folder / "logits",
        "--device", device)
    largest = 0.0
    for value in logits_of(folder / "logits"):
        if not math.isfinite(value):
            raise RuntimeError("a logit is not finite")
        largest = max(largest, abs(value))
    return [geometry.stem, facts["family"], f"{facts['parameters']:,}",
            f"{facts['checkpoint_bytes'] / 1e6:,.0f} MB", f"{synthesised:.0f} s",
            f"{rate:.1f}", f"{largest:.3g}", " ".join(map(str, tokens)),
            *(bench(adder, model, device) if options.bench else []),
            *(audit(adder, model) if options.audit else [])]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--adder", type=pathlib.Path,
                        default=ROOT / "build/release/apps/adder/adder")
    parser.add_argument("--shared", type=pathlib.Path,
                        default=os.environ.get("ADDER_SHARED") or ROOT.parent / "shared")
    parser.add_argument("--largest", type=float, default=3.3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--bench", action="store_true")
    parser.add_argument("--audit", action="store_true")
    parser.add_argument("--temporary", type=pathlib.Path)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()

    chosen = []
    for geometry in (options.shared / "geometries").glob("*.json"):
        size = json.loads(geometry.read_text(encoding="utf-8"))["_params_computed"]
        if geometry.stem in options.names if options.names else size <= options.largest * 1e9:
            chosen.append((size, geometry))
    chosen.sort()
    columns = ["geometry", "family", "parameters", "at 4 bits", "written in", "decode tok/s",
               "largest logit", "tokens"]
    columns += ["behind 512, tok/s", "launches", "of the bandwidth"] if options.bench else []
    columns += ["most in a layer", "busy", "rules"] if options.audit else []
    print("| " + " | ".join(columns) + " |")
    print("| --- " * len(columns) + "|", flush=True)
    failed = []
    with concurrent.futures.ThreadPoolExecutor(1) as writer:
        folders = {}

        def write(index):
            folders[index] = tempfile.TemporaryDirectory(dir=options.temporary)
            return writer.submit(synthesise, options.adder, chosen[index][1],
                                 pathlib.Path(folders[index].name))

        written = write(0) if chosen else None
        for i, (_, geometry) in enumerate(chosen):
            this, written = written, None
            try:
                try:
                    synthesised = this.result()
                except RuntimeError:  # perhaps the disk had no room for two
                    synthesised = synthesise(options.adder, geometry,
                                             pathlib.Path(folders[i].name))
                written = write(i + 1) if i + 1 < len(chosen) else None
                row = try_geometry(options, geometry, pathlib.Path(folders[i].name), synthesised)
            except RuntimeError as error:
                failed.append(geometry.stem)
                row = [geometry.stem, f"FAILED: {error}"]
            print("| " + " | ".join(row) + " |", flush=True)
            folders.pop(i).cleanup()
            if written is None and i + 1 < len(chosen):
                written = write(i + 1)
    if failed:
        sys.exit(f"{len(failed)} failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
