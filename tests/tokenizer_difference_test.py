"""Our tokenizers against the tokenizers library, on random Unicode texts."""

from __future__ import annotations

import json
import os
import unittest
from pathlib import Path

from cli_support import TOKENIZERS
from tokenizer_support import BATCH, batch
from tokenizer_texts import random_texts

try:
    import tokenizers
except ImportError:
    tokenizers = None

TEXTS = int(os.environ.get("ADDER_DIFFERENCE_TEXTS", "20000"))
SEED = int(os.environ.get("ADDER_DIFFERENCE_SEED", "20261129"))


@unittest.skipUnless(tokenizers, "the package tokenizers is not installed")
@unittest.skipUnless(BATCH.exists(), f"no tokenizer_batch at {BATCH}; build it")
@unittest.skipUnless(TOKENIZERS.exists(), f"no tokenizers at {TOKENIZERS} (ADDER_SHARED)")
class DifferenceTest(unittest.TestCase):
    """Every tokenizer of the kit: ids with and without special tokens, and both decodes."""

    maxDiff = None

    def compare(self, folder: Path) -> None:
        path = folder / "tokenizer.json"
        reference = tokenizers.Tokenizer.from_file(str(path))
        reference.no_truncation()
        reference.no_padding()
        description = json.loads(path.read_text(encoding="utf-8"))
        added = [token["content"] for token in description["added_tokens"]]
        texts = random_texts(SEED, TEXTS, added)
        answers = batch(folder, texts)
        ids = [encoding.ids for encoding in reference.encode_batch_fast(texts)]
        plain = [encoding.ids
                 for encoding in reference.encode_batch_fast(texts, add_special_tokens=False)]
        decoded = reference.decode_batch(plain, skip_special_tokens=False)
        skipped = reference.decode_batch(ids, skip_special_tokens=True)
        differences = [(text, answer, expected)
                       for text, answer, expected in zip(texts, answers,
                                                         map(list, zip(ids, plain, decoded, skipped)))
                       if answer != expected]
        for text, answer, expected in differences[:5]:
            print(f"{folder.name}: {ascii(text)}\n  expected {ascii(expected)}\n"
                  f"  adder    {ascii(answer)}")
        self.assertEqual(len(differences), 0, f"{folder.name}: of {len(texts)} texts")

    def test_kit(self) -> None:
        folders = sorted(path for path in TOKENIZERS.iterdir() if path.is_dir())
        self.assertGreater(len(folders), 0)
        for folder in folders:
            with self.subTest(folder.name):
                self.compare(folder)


if __name__ == "__main__":
    unittest.main()
