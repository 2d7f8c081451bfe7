#!/usr/bin/env python3
"""Compares `adder tokenize` with the tokenizers library on random Unicode texts.

    pip install tokenizers==0.23.2
    tools/tokenizer_diff/tokenizer_diff.py --adder build/adder MODEL_DIR...

Prints the first differences of each tokenizer and exits with 1 if there are any. Characters that
only newer versions of Unicode have may differ: the two sides use different tables.
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import unicodedata

from tokenizers import Tokenizer

FRAGMENTS = [
    " ", "  ", "    ", "\n", "\r\n", "\t", "'s", "'LL", "'\u017f", "\u3000", "\u180e", "\u200b",
    "\x85", "a", "B", "\u00e9", "e\u0301", "1", "\u00b2", "\u4e00", "\uac00", "\u200d", "\u2581",
    "<0x41>", ".", "_", "-", "!", "\u01c5", "\u00aa", "\ufb01", "\u0130", "\u212a", "\u0345",
    "\u24d0", "\u0300", "\u0316", "\u093f", "\U0001f44d\U0001f3fd", "<s>", "</s>", "<unk>",
]


def characters():
    """All assigned characters."""
    return [
        chr(code)
        for code in range(0x110000)
        if unicodedata.category(chr(code)) not in ("Cn", "Cs")
    ]


def random_text(rng, pool, added):
    parts = []
    for _ in range(rng.randint(1, 25)):
        kind = rng.random()
        if kind < 0.4:
            parts.append(rng.choice(FRAGMENTS))
        elif kind < 0.5 and added:
            parts.append(rng.choice(added))
        elif kind < 0.65:
            parts.append(rng.choice(pool))
        elif kind < 0.9:
            parts.append(chr(rng.randint(32, 126)))
        else:
            parts.append(rng.choice(["a", "A", " ", "\n", "1"]) * rng.randint(1, 120))
    return "".join(parts)


def adder_ids(adder, model_dir, text):
    with tempfile.NamedTemporaryFile() as file:
        file.write(text.encode())
        file.flush()
        command = [adder, "tokenize", "-m", str(model_dir), "--file", file.name, "--ids"]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [int(word) for word in output.replace(",", " ").strip(" []\n").split()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=pathlib.Path)
    parser.add_argument("--adder", default="build/adder")
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()

    pool = characters()
    differences = 0
    for model in arguments.models:
        path = model / "tokenizer.json"
        reference = Tokenizer.from_file(str(path))
        reference.no_truncation()
        reference.no_padding()
        added = [token["content"] for token in json.loads(path.read_text())["added_tokens"]]
        rng = random.Random(arguments.seed)
        found = 0
        for _ in range(arguments.texts):
            text = random_text(rng, pool, added)
            expected = reference.encode(text).ids
            actual = adder_ids(arguments.adder, model, text)
            if actual != expected:
                found += 1
                if found <= 3:
                    print(f"  {ascii(text)}\n    expected {expected}\n    adder    {actual}")
        print(f"{model}: {arguments.texts} texts, {found} differences")
        differences += found
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
