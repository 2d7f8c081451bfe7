"""Turns trained weights into the checkpoint folder: MLX layout, 4-bit weights, 8-bit embedding."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch

from checkpoint import save_checkpoint
from corpus import DOCUMENT_SEPARATOR
from model import HybridModel, ModelConfig

GENERATION_CONFIG = {
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
    "do_sample": True,
    "temperature": 0.8,
    "top_p": 0.95,
}

TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": DOCUMENT_SEPARATOR,
    "eos_token": DOCUMENT_SEPARATOR,
    "pad_token": DOCUMENT_SEPARATOR,
    "add_bos_token": False,
    "add_prefix_space": False,
    "clean_up_tokenization_spaces": False,
    "model_max_length": ModelConfig().context_length,
}


def main() -> None:
    """Command line entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, required=True, help="weights.pt of train.py")
    parser.add_argument("--data", type=Path, required=True, help="what prepare.py wrote")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)

    model = HybridModel(ModelConfig())
    model.load_state_dict(torch.load(arguments.weights, map_location="cpu"))
    save_checkpoint(model, arguments.out)
    for name in ("tokenizer.json", "heldout_sample.txt"):
        shutil.copyfile(arguments.data / name, arguments.out / name)
    for name, content in (
        ("generation_config.json", GENERATION_CONFIG),
        ("tokenizer_config.json", TOKENIZER_CONFIG),
    ):
        (arguments.out / name).write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
