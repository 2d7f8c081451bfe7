"""Held-out bits per byte, by the definition that `adder perplexity` uses.

A text is tokenised once and cut into consecutive windows of 1024 tokens. Each window is processed
from an empty state with <|endoftext|> in front of it, and all of its tokens are scored. Bits per
byte is the sum of the negative log-likelihoods over ln 2 and the text's length in bytes.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from checkpoint import load_checkpoint
from model import HybridModel

WINDOW = 1024
SEPARATOR_ID = 0
IGNORED = -100
BATCH = 32

LossFunction = Callable[[Tensor, Tensor], Tensor]
"""Maps inputs and targets [batch, length] to the losses of all targets in nats."""


@dataclass(frozen=True)
class Windows:
    """Windows of some documents, padded to one length so that all batches have one shape."""

    inputs: Tensor
    targets: Tensor
    bytes: int

    @staticmethod
    def of(documents: Sequence[np.ndarray], size_in_bytes: int, device: torch.device) -> Windows:
        """Cuts each document on its own: no window crosses a document's end."""
        pieces = [d[i : i + WINDOW] for d in documents for i in range(0, len(d), WINDOW)]
        rows = -len(pieces) % BATCH + len(pieces)
        inputs = torch.zeros(rows, WINDOW, dtype=torch.long)
        targets = torch.full((rows, WINDOW), IGNORED)
        for row, piece in enumerate(pieces):
            tokens = torch.from_numpy(piece.astype(np.int64))
            inputs[row, 0] = SEPARATOR_ID
            inputs[row, 1 : len(tokens)] = tokens[:-1]
            targets[row, : len(tokens)] = tokens
        return Windows(inputs.to(device), targets.to(device), size_in_bytes)

    @torch.no_grad()
    def total_nats(self, losses: LossFunction) -> float:
        """Sum of the negative log-likelihoods of all tokens."""
        total = 0.0
        for start in range(0, len(self.inputs), BATCH):
            batch = slice(start, start + BATCH)
            total += losses(self.inputs[batch], self.targets[batch]).double().sum().item()
        return total

    def bits_per_byte(self, losses: LossFunction) -> float:
        """The compression that the model would reach on the documents."""
        return self.total_nats(losses) / math.log(2) / self.bytes

    @property
    def token_count(self) -> int:
        """Number of scored tokens."""
        return int((self.targets != IGNORED).sum())


def load_heldout(path: Path, device: torch.device) -> Windows:
    """Windows of the held-out documents that `prepare.py` wrote."""
    data = np.load(path)
    documents = np.split(data["tokens"], np.cumsum(data["lengths"])[:-1])
    return Windows.of(documents, int(data["bytes"].sum()), device)


def load_text(path: Path, tokenizer: Tokenizer, device: torch.device) -> Windows:
    """Windows of one text file."""
    text = path.read_text(encoding="utf-8")
    ids = np.array(tokenizer.encode(text, add_special_tokens=False).ids)
    return Windows.of([ids], len(text.encode()), device)


def exact_losses(model: HybridModel) -> LossFunction:
    """The model's losses in the precision of its weights."""
    return lambda inputs, targets: model.token_losses(model.hidden_states(inputs), targets)


def main() -> None:
    """Command line entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="checkpoint folder")
    parser.add_argument("--text", type=Path, help="a text file")
    parser.add_argument("--heldout", type=Path, help="heldout.npz of prepare.py")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = load_checkpoint(arguments.model).to(device).eval()
    if arguments.text:
        tokenizer = Tokenizer.from_file(str(arguments.model / "tokenizer.json"))
        windows = load_text(arguments.text, tokenizer, device)
    else:
        windows = load_heldout(arguments.heldout, device)
    nats = windows.total_nats(exact_losses(model))
    print(f"bytes            {windows.bytes}")
    print(f"tokens           {windows.token_count}")
    print(f"nats per token   {nats / windows.token_count:.5f}")
    print(f"bits per byte    {nats / math.log(2) / windows.bytes:.5f}")


if __name__ == "__main__":
    main()
