"""Writes `expected.safetensors`: reference logits and greedy tokens of a checkpoint, in float32.

Computed on the dequantised weights, the whole sequence at once. To keep the file small, logits of
every prompt position are stored for the short prompts only (prompts 0 to 2), and logits of the
first greedy steps for the longer ones only (prompts 2 and 3):

  prompt_i          I32 [n]         token ids
  prefill_logits_i  F32 [n, vocab]  logits at every prompt position, i = 0, 1, 2
  greedy_i          I32 [40]        greedy continuation; <|endoftext|> does not stop it
  step_logits_i     F32 [8, vocab]  logits that chose the first 8 greedy tokens, i = 2, 3
  margins_i         F32 [40]        largest minus second largest logit at each greedy step
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from checkpoint import load_checkpoint
from model import HybridModel

GREEDY_STEPS = 40
STORED_STEPS = 8
PREFILL_LIMIT = 17
STEPS_MINIMUM = 17


def prompts(tokenizer: Tokenizer, sample: str) -> list[list[int]]:
    """Prompts of 1, 3, 17 and 40 tokens: the separator, an opening, and held-out text."""
    opening = tokenizer.encode("Once upon a time", add_special_tokens=False).ids
    text = tokenizer.encode(sample[:4000], add_special_tokens=False).ids
    return [[0], opening[:3], text[:17], text[200:240]]


@torch.no_grad()
def references(model: HybridModel, prompt: list[int]) -> dict[str, Tensor]:
    """Prefill logits, greedy tokens, step logits and margins of one prompt."""
    tokens = list(prompt)
    rows = []
    for _ in range(GREEDY_STEPS):
        rows.append(model(torch.tensor([tokens]))[0, -1])
        tokens.append(int(rows[-1].argmax()))
    top = torch.stack(rows).topk(2).values
    result = {
        "prompt": torch.tensor(prompt, dtype=torch.int32),
        "greedy": torch.tensor(tokens[len(prompt) :], dtype=torch.int32),
        "margins": top[:, 0] - top[:, 1],
    }
    if len(prompt) <= PREFILL_LIMIT:
        result["prefill_logits"] = model(torch.tensor([prompt]))[0]
    if len(prompt) >= STEPS_MINIMUM:
        result["step_logits"] = torch.stack(rows[:STORED_STEPS])
    return result


def main() -> None:
    """Command line entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="checkpoint folder")
    arguments = parser.parse_args()
    model = load_checkpoint(arguments.model)
    tokenizer = Tokenizer.from_file(str(arguments.model / "tokenizer.json"))
    sample = (arguments.model / "heldout_sample.txt").read_text(encoding="utf-8")
    tensors = {
        f"{name}_{i}": value.contiguous()
        for i, prompt in enumerate(prompts(tokenizer, sample))
        for name, value in references(model, prompt).items()
    }
    save_file(tensors, arguments.model / "expected.safetensors")


if __name__ == "__main__":
    main()
