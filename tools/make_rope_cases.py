"""Writes tests/cases/rope_scalings.json: logits of models of the conformance kit with other rotary
scalings than their own, by the reference implementations.

Runs the models of transformers in float32 on the first tokens of a prompt of the kit, all at once,
and takes down the logits of the last ones. Needs torch, transformers and the kit ($ADDER_SHARED,
default: ../shared beside the repository).
"""

import json
import os
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file

REPOSITORY = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("ADDER_SHARED") or REPOSITORY.parent / "shared")
OUTPUT = REPOSITORY / "tests/cases/rope_scalings.json"
LOGITS_ROWS = 2

DIVISORS = {"short_factor": [1.0, 1.1, 1.3, 1.2, 1.6, 1.5, 1.9, 2.0],
            "long_factor": [1.0, 1.5, 2.5, 2.0, 7.0, 5.0, 4.5, 9.0]}
# Name: (model of the kit, prompt tokens, fields of the config, tokens of the longest text; 0: all
# positions of the model).
CASES = {
    "llama_yarn": ("llama", 48, {"max_position_embeddings": 256, "rope_scaling": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}}, 0),
    "qwen3_yarn_by_hand": ("qwen3", 40, {"max_position_embeddings": 256, "rope_scaling": {
        "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32,
        "attention_factor": 1.3, "beta_fast": 8.0, "beta_slow": 0.5, "truncate": False}}, 0),
    "qwen3_next_yarn_partial": ("qwen3_next", 40, {"max_position_embeddings": 256, "rope_scaling": {
        "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32,
        "mscale": 2.0, "mscale_all_dim": 0.5}}, 0),
    "glm4_moe_lite_yarn": ("glm4_moe_lite", 40, {"max_position_embeddings": 256, "rope_scaling": {
        "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32,
        "mscale": 0.7, "mscale_all_dim": 1.5}}, 0),
    "llama_longrope_short": ("llama", 48, {"max_position_embeddings": 256, "rope_scaling": {
        "rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 64,
        **DIVISORS}}, 64),
    "llama_longrope_long": ("llama", 48, {"max_position_embeddings": 256, "rope_scaling": {
        "rope_type": "longrope", "factor": 8.0, "original_max_position_embeddings": 32,
        **DIVISORS}}, 0),
    "qwen3_dynamic_within": ("qwen3", 40, {"max_position_embeddings": 64, "rope_scaling": {
        "rope_type": "dynamic", "factor": 2.0}}, 0),
    "qwen3_dynamic_beyond": ("qwen3", 40, {"max_position_embeddings": 32, "rope_scaling": {
        "rope_type": "dynamic", "factor": 3.0}}, 40),
}


def prompt_of(directory, length):
    expected = load_file(directory / "expected.safetensors")
    prompts = [values.tolist() for name, values in expected.items() if name.startswith("prompt_")]
    return min((p for p in prompts if len(p) >= length), key=len)[:length]


def load(directory, fields):
    config = transformers.AutoConfig.from_pretrained(directory)
    # As if the fields had been in the file.
    own = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    config = type(config).from_dict({**own, **fields})
    return transformers.AutoModelForCausalLM.from_pretrained(
        directory, config=config, dtype=torch.float32, attn_implementation="eager").eval()


def logits_of(model, tokens):
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].float()


def main():
    cases = {}
    for name, (kit_model, length, fields, context) in CASES.items():
        directory = SHARED / "conformance/models" / kit_model
        tokens = prompt_of(directory, length)
        plain = logits_of(load(directory, {}), tokens)
        logits = logits_of(load(directory, fields), tokens)
        print(f"{name}: differs by {float((logits - plain).abs().max()):.3f} from the kit's model")
        rows = [[float(f"{value:.7g}") for value in row] for row in logits[-LOGITS_ROWS:].tolist()]
        cases[name] = {"model": kit_model, "config": fields, "context": context, "tokens": tokens,
                       "logits": rows}
    lines = [f"  {json.dumps(name)}: {json.dumps(case)}" for name, case in cases.items()]
    OUTPUT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
