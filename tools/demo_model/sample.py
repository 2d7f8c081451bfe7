"""Prints stories that a checkpoint writes, with the settings that reproduce them."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from tokenizers import Tokenizer

from checkpoint import load_checkpoint
from evaluate import SEPARATOR_ID
from model import HybridModel

PROMPTS = (
    "Once upon a time there was a",
    "The Clockmaker and the North Wind\n\n",
    "The Fox who wished to be King\n\nThere was once a fox",
    '"Who are you?" asked the old woman,',
    "In a little cottage at the edge of the great forest",
)


@torch.no_grad()
def generate(
    model: HybridModel,
    prompt: list[int],
    length: int,
    temperature: float,
    top_p: float,
    seed: int,
) -> list[int]:
    """Up to `length` sampled tokens; stops before <|endoftext|>."""
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(seed)
    tokens = list(prompt)
    for _ in range(length):
        logits = model.logits(model.hidden_states(torch.tensor([tokens], device=device))[0, -1])
        sorted_logits, ids = (logits.float().cpu() / temperature).sort(descending=True)
        probabilities = sorted_logits.softmax(dim=-1)
        # Keeps the smallest set of most likely tokens that holds top_p of the probability.
        probabilities[probabilities.cumsum(dim=-1) - probabilities >= top_p] = 0.0
        chosen = int(ids[torch.multinomial(probabilities, 1, generator=generator)])
        if chosen == SEPARATOR_ID:
            break
        tokens.append(chosen)
    return tokens[len(prompt) :]


def main() -> None:
    """Command line entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="checkpoint folder")
    parser.add_argument("--length", type=int, default=200)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--top-p", type=float, default=0.95)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = load_checkpoint(arguments.model).to(device)
    tokenizer = Tokenizer.from_file(str(arguments.model / "tokenizer.json"))
    for text in PROMPTS:
        prompt = tokenizer.encode(text, add_special_tokens=False).ids
        for seed in arguments.seeds:
            ids = generate(
                model, prompt, arguments.length, arguments.temperature, arguments.top_p, seed
            )
            print(f"--- prompt {text!r}, temperature {arguments.temperature}, ", end="")
            print(f"top-p {arguments.top_p}, seed {seed}, {len(ids)} tokens")
            print(text + tokenizer.decode(ids))


if __name__ == "__main__":
    main()
