"""mlx-lm loads what `adder quantize` writes, and computes the same logits from it.

Needs mlx and mlx-lm (tools/requirements-optional.txt), the conformance kit and a built adder; skips
without them. The directory of the kit is $ADDER_SHARED (default: ../shared beside the repository),
the program is $ADDER_BINARY (default: build/release/apps/adder/adder).
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

try:
    import mlx.core as mx
    from mlx_lm import utils
except ImportError as error:
    pytest.skip(f"mlx or mlx-lm is not installed ({error})", allow_module_level=True)

REPOSITORY = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("ADDER_SHARED") or REPOSITORY.parent / "shared")
ADDER = Path(os.environ.get("ADDER_BINARY") or REPOSITORY / "build/release/apps/adder/adder")

# Both programs compute these in f32 from the same packed weights, in different orders of summation:
# they differ by up to 5e-5 where the kit's logits have a standard deviation of about 3. A wrong
# layout or multiplier gives errors near 3.
TOLERANCE = 5e-4

# (case, arguments of quantize). Between them: fused MLPs that mlx-lm wants split, stacked experts
# and a router, the convolution layout, tied and untied heads, all widths of codes.
CASES = [
    ("granitemoehybrid_dense", ["--bits", "4", "--group-size", "64"]),
    ("granitemoehybrid_dense", ["--bits", "3", "--group-size", "32", "--keep-head-bits", "6"]),
    ("granitemoehybrid_moe", ["--bits", "4", "--group-size", "64", "--keep-head-bits", "8"]),
    ("granitemoehybrid_moe", ["--bits", "5", "--group-size", "32"]),
    ("granitemoehybrid_rope", ["--bits", "8", "--group-size", "64"]),
    ("mamba2", ["--bits", "4", "--group-size", "64", "--keep-head-bits", "8"]),
    ("mamba2", ["--bits", "2", "--group-size", "32"]),
    ("granite", ["--bits", "6", "--group-size", "32"]),
    ("llama", ["--bits", "4", "--group-size", "64"]),
]


def run_adder(*arguments):
    result = subprocess.run([str(ADDER), *map(str, arguments)], capture_output=True, text=True,
                            timeout=300, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("case,arguments", CASES,
                         ids=[f"{case}-{'-'.join(args[1::2])}" for case, args in CASES])
def test_logits_agree(case, arguments, tmp_path):
    source = SHARED / "conformance" / "models" / case
    if not source.is_dir():
        pytest.skip(f"no conformance case at {source} (set ADDER_SHARED)")
    if not ADDER.is_file():
        pytest.skip(f"adder is not built at {ADDER} (set ADDER_BINARY)")

    quantized = tmp_path / "quantized"
    run_adder("quantize", "--model", source, "--output", quantized, *arguments)
    expected = mx.load(str(source / "expected.safetensors"))
    prompts = [expected[f"prompt_{i}"].tolist()
               for i in range(sum(name.startswith("prompt_") for name in expected))]
    assert prompts
    (tmp_path / "prompts.json").write_text(json.dumps({"prompts": prompts}), encoding="utf-8")
    run_adder("logits", "-m", quantized, "--prompts", tmp_path / "prompts.json",
              "--output", tmp_path / "logits.safetensors", "--compute", "f32")
    ours = mx.load(str(tmp_path / "logits.safetensors"))

    # Strict: every tensor of the file must be one of the model's, and the other way round.
    model, config = utils.load_model(quantized, strict=True)
    bits = int(arguments[1])
    assert config["quantization"]["bits"] == bits
    # Unpacked weights, scales and activations in f32; the packed codes stay.
    model.set_dtype(mx.float32)
    for i, prompt in enumerate(prompts):
        theirs = model(mx.array([prompt]))[0].astype(mx.float32)
        assert theirs.shape == ours[f"logits_{i}"].shape
        error = mx.abs(theirs - ours[f"logits_{i}"]).max().item()
        print(f"prompt {i}: largest difference {error:.2e}")
        assert error < TOLERANCE, f"prompt {i} of {len(prompt)} tokens: error {error}"
