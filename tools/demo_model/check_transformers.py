"""Compares the model with Hugging Face GraniteMoeHybridForCausalLM on the same float32 weights."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from transformers import GraniteMoeHybridConfig, GraniteMoeHybridForCausalLM

from checkpoint import load_checkpoint
from model import HybridModel, ModelConfig

LENGTH = 300
"""Not a multiple of either side's chunk length, so that padding is checked too."""
TOLERANCE = 1e-3


@torch.no_grad()
def main() -> None:
    """Command line entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="checkpoint folder; random weights without it")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    if arguments.model:
        model = load_checkpoint(arguments.model)
    else:
        model = HybridModel(ModelConfig()).eval()
        # Fresh parameters are too regular for a check: ones as norm weights hide a wrong axis.
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    config = GraniteMoeHybridConfig.from_dict(model.config.to_hugging_face())
    reference = GraniteMoeHybridForCausalLM(config).float().eval()
    keys = reference.load_state_dict(model.state_dict(), strict=False)
    assert not keys.unexpected_keys, keys.unexpected_keys
    assert set(keys.missing_keys) <= {"lm_head.weight"}, keys.missing_keys
    reference.tie_weights()

    tokens = torch.randint(model.config.vocab_size, (2, LENGTH))
    expected = reference(tokens, use_cache=False).logits
    difference = (model(tokens) - expected).abs().max().item()
    print(f"logits: standard deviation {expected.std():.4f}, max abs difference {difference:.2e}")
    if not difference < TOLERANCE:
        raise SystemExit("differs from transformers")


if __name__ == "__main__":
    main()
