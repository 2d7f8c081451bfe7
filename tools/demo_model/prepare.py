"""Trains the tokenizer and turns the corpus into token arrays.

Writes into --out:
  tokenizer.json        byte-level BPE, trained on the training books alone
  train.npz             `tokens`: every training document, each preceded by <|endoftext|>
  heldout.npz           `tokens`, and `lengths` and `bytes` of each held-out document
  heldout_sample.txt    the one held-out book that is small enough to ship with the model
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from corpus import DOCUMENT_SEPARATOR, drop_overlapping_documents, load_books

VOCAB_SIZE = 4096
SAMPLE_PG_ID = "701"
"""The King of the Golden River: one complete tale of 50 KB whose author died in 1900."""


def train_tokenizer(documents: list[str]) -> Tokenizer:
    """Byte-level BPE: any byte string round-trips, and no unknown token is needed."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[DOCUMENT_SEPARATOR],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    return tokenizer


def encode_documents(tokenizer: Tokenizer, documents: list[str]) -> list[np.ndarray]:
    """Token ids of each document, without the separator."""
    encodings = tokenizer.encode_batch(documents, add_special_tokens=False)
    return [np.array(encoding.ids, dtype=np.uint16) for encoding in encodings]


def main() -> None:
    """Command line entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, required=True, help="folder of the corpus files")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)

    books = load_books(arguments.corpus)
    # A text file ends with a line end, and the held-out text is scored as `adder perplexity` would
    # read it from a file; training documents get the same ending, so that it is not a surprise.
    held_out = [d + "\n" for book in books if book.split == "heldout" for d in book.documents]
    everything = [d + "\n" for book in books if book.split == "train" for d in book.documents]
    training = drop_overlapping_documents(everything, held_out)

    tokenizer = train_tokenizer(training)
    tokenizer.save(str(arguments.out / "tokenizer.json"), pretty=False)
    separator = np.array([tokenizer.token_to_id(DOCUMENT_SEPARATOR)], dtype=np.uint16)

    encoded = encode_documents(tokenizer, training)
    stream = np.concatenate([part for ids in encoded for part in (separator, ids)])
    np.savez_compressed(arguments.out / "train.npz", tokens=stream)

    encoded = encode_documents(tokenizer, held_out)
    np.savez_compressed(
        arguments.out / "heldout.npz",
        tokens=np.concatenate(encoded),
        lengths=np.array([len(ids) for ids in encoded]),
        bytes=np.array([len(document.encode()) for document in held_out]),
    )
    sample = next(book for book in books if book.pg_id == SAMPLE_PG_ID)
    assert sample.split == "heldout" and len(sample.documents) == 1
    (arguments.out / "heldout_sample.txt").write_text(sample.documents[0] + "\n")

    training_bytes = sum(len(document.encode()) for document in training)
    print(f"training: {len(training)} documents ({len(everything) - len(training)} dropped for")
    print(f"  overlap), {training_bytes} bytes, {len(stream)} tokens,")
    print(f"  {training_bytes / len(stream):.3f} bytes per token")
    print(f"held out: {len(held_out)} documents, {sum(map(len, held_out))} bytes")


if __name__ == "__main__":
    main()
