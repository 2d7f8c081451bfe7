"""Trains the demo model from scratch on one GPU.

The corpus is small (about 10 million tokens), so the model sees it many times; dropout and weight
decay keep it from learning the books by heart, and the held-out books say when it starts to.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from evaluate import Windows, exact_losses, load_heldout
from model import HybridModel, Linear, ModelConfig

DEVICE = torch.device("cuda")


def batches(
    tokens: Tensor, batch: int, length: int, generator: torch.Generator
) -> Iterator[Tensor]:
    """Endless batches [batch, length + 1]; every epoch cuts the text at other places."""
    while True:
        offset = int(torch.randint(length, (1,), generator=generator))
        count = (len(tokens) - offset - 1) // length
        order = torch.randperm(count, generator=generator)
        reach = torch.arange(length + 1, device=tokens.device)
        for chosen in order[: count // batch * batch].split(batch):
            starts = (offset + chosen * length).to(tokens.device, non_blocking=True)
            yield tokens[starts[:, None] + reach].long()


def make_optimizer(model: HybridModel, peak: float, weight_decay: float) -> torch.optim.AdamW:
    """AdamW; only matrices decay (decay would pull norms and SSM parameters off their scale)."""
    matrices = [m.weight for m in model.modules() if isinstance(m, (Linear, nn.Embedding))]
    chosen = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in chosen]
    groups = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.95), eps=1e-8, fused=True)


def learning_rate(step: int, arguments: argparse.Namespace) -> float:
    """Linear warm-up, then a cosine to 0."""
    if step < arguments.warmup:
        return arguments.lr * (step + 1) / arguments.warmup
    progress = (step - arguments.warmup) / (arguments.steps - arguments.warmup)
    return arguments.lr * 0.5 * (1 + math.cos(math.pi * progress))


class Trainer:
    """The model, its compiled forward pass and the held-out measurements of one run."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.weights = arguments.out / "weights.pt"
        torch.manual_seed(arguments.seed)
        self.model = HybridModel(ModelConfig(), dropout=arguments.dropout).to(DEVICE)
        # Layers of one kind share their compiled code, which is far quicker to compile than the
        # whole network.
        for layer in self.model.model.layers:
            layer.compile(dynamic=False)
        self.token_losses = torch.compile(self.model.token_losses, dynamic=False)
        self.optimizer = make_optimizer(self.model, arguments.lr, arguments.weight_decay)
        self.heldout = load_heldout(arguments.data / "heldout.npz", DEVICE)
        tokens = np.load(arguments.data / "train.npz")["tokens"].astype(np.int16)
        generator = torch.Generator().manual_seed(arguments.seed)
        self.batches = batches(
            torch.from_numpy(tokens).to(DEVICE), arguments.batch, arguments.length, generator
        )
        self.start = time.perf_counter()
        self.history: list[dict[str, float]] = []

    def losses(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Losses in bfloat16 arithmetic with float32 weights."""
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return self.token_losses(self.model.hidden_states(inputs), targets)

    def run(self) -> None:
        """Trains, and leaves the model at its best held-out measurement.

        The best weights so far are always in the file, so an interrupted run loses little.
        """
        best = math.inf
        for step in range(self.arguments.steps):
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate(step, self.arguments)
            batch = next(self.batches)
            loss = self.losses(batch[:, :-1], batch[:, 1:]).mean()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            if (step + 1) % self.arguments.evaluate_every == 0 or step + 1 == self.arguments.steps:
                measured = self.measure(step + 1, loss.item())
                if measured < best:
                    best = measured
                    torch.save(self.model.state_dict(), self.weights)
        self.model.load_state_dict(torch.load(self.weights))

    def measure(self, step: int, train_loss: float) -> float:
        """Logs and returns the held-out bits per byte."""
        self.model.eval()
        bits = self.heldout.bits_per_byte(self.losses)
        self.model.train()
        seconds = time.perf_counter() - self.start
        tokens = step * self.arguments.batch * self.arguments.length
        record = {"step": step, "tokens": tokens, "seconds": round(seconds, 1)}
        record |= {"train_nats_per_token": round(train_loss, 4), "heldout_bits_per_byte": bits}
        self.history.append(record)
        print(
            f"step {step:6d}  {tokens / 1e6:7.1f} M tokens  {seconds:6.1f} s  "
            f"train {train_loss:.4f} nats/token  held out {bits:.4f} bits/byte",
            flush=True,
        )
        return bits


def exact_bits_per_byte(model: HybridModel, heldout: Windows) -> float:
    """Held-out bits per byte in float32, without compiled code."""
    plain = HybridModel(model.config).to(DEVICE).eval()
    plain.load_state_dict(model.state_dict())
    return heldout.bits_per_byte(exact_losses(plain))


def main() -> None:
    """Command line entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="what prepare.py wrote")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=6400)
    parser.add_argument("--warmup", type=int, default=200)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--dropout", type=float, default=0.15)
    parser.add_argument("--weight-decay", type=float, default=0.3)
    parser.add_argument("--evaluate-every", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)

    trainer = Trainer(arguments)
    parameters = sum(p.numel() for p in trainer.model.parameters())
    print(f"{parameters} parameters")

    trainer.run()
    bits = exact_bits_per_byte(trainer.model, trainer.heldout)

    report = {
        "arguments": {k: v for k, v in vars(arguments).items() if k not in ("data", "out")},
        "parameters": parameters,
        "heldout_bits_per_byte": bits,
        "history": trainer.history,
    }
    (arguments.out / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    print(f"held-out bits per byte in float32: {bits:.5f}")


if __name__ == "__main__":
    main()
