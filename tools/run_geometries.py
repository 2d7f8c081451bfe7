"""Runs published geometries with random weights: synthesises each at 4 bits in a temporary folder,
inspects it, generates tokens and checks that every logit is finite, one model at a time.

    python3 tools/run_geometries.py [--adder BINARY] [--shared DIR] [--largest BILLIONS]
                                    [--device cpu] [--temporary DIR] [NAME...]

Takes the files of SHARED/geometries whose _params_computed is at most --largest (default: 3.3, which
is what models named 3B have) or, with names, those alone. Prints one row for each; exits 1 when one
of them failed.
"""

import argparse
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


def try_geometry(adder, geometry, device, folder):
    """One row of the table."""
    model = folder / "model"
    began = time.monotonic()
    run(adder, "synthesize", "--geometry", geometry, "--output", model, "--bits", 4)
    synthesised = time.monotonic() - began
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
            f"{rate:.1f}", f"{largest:.3g}", " ".join(map(str, tokens))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--adder", type=pathlib.Path,
                        default=ROOT / "build/release/apps/adder/adder")
    parser.add_argument("--shared", type=pathlib.Path,
                        default=os.environ.get("ADDER_SHARED") or ROOT.parent / "shared")
    parser.add_argument("--largest", type=float, default=3.3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--temporary", type=pathlib.Path)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()

    print("| geometry | family | parameters | at 4 bits | written in | decode tok/s | largest logit | tokens |")
    print("| --- | --- | --: | --: | --: | --: | --: | --- |", flush=True)
    failed = []
    for geometry in sorted((options.shared / "geometries").glob("*.json")):
        size = json.loads(geometry.read_text(encoding="utf-8"))["_params_computed"]
        chosen = geometry.stem in options.names if options.names else size <= options.largest * 1e9
        if not chosen:
            continue
        with tempfile.TemporaryDirectory(dir=options.temporary) as folder:
            try:
                row = try_geometry(options.adder, geometry, options.device, pathlib.Path(folder))
            except RuntimeError as error:
                failed.append(geometry.stem)
                row = [geometry.stem, f"FAILED: {error}"]
        print("| " + " | ".join(row) + " |", flush=True)
    if failed:
        sys.exit(f"{len(failed)} failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
