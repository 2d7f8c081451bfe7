#!/usr/bin/env python3
"""Encoding speed of adder and of the tokenizers library, one thread each, by turns.

    tools/tokenizer_benchmark/compare.py --file TEXT DIR...

Each DIR holds a tokenizer.json. `adder bench tokenize` encodes the text as a whole; the library gets
it as a whole or by paragraphs, whichever is faster. Both load before the clock starts. Checks that the
number of tokens is the same, prints a table, and exits with 1 where the library is faster.

A tokenizer with a vocabulary of real size can be made from a small one and any text:

    tools/tokenizer_benchmark/compare.py --file TEXT --train 100000 --output BIG DIR
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

# Before the library starts its threads.
os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import tokenizers  # noqa: E402
from tokenizers import models, pre_tokenizers, trainers  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def train(folder: pathlib.Path, text: pathlib.Path, size: int, output: pathlib.Path) -> None:
    """A byte-level BPE tokenizer of `size` tokens that splits like the one in `folder`."""
    path = folder / "tokenizer.json"
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = tokenizers.Tokenizer.from_file(str(path)).pre_tokenizer
    sources = sorted(map(str, pathlib.Path(os.__file__).parent.rglob("*.py")))
    tokenizer.train([str(text), *sources], trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    description = json.loads(tokenizer.to_str())
    small = json.loads(path.read_text(encoding="utf-8"))
    description["decoder"] = small["decoder"]
    description["normalizer"] = small.get("normalizer")
    output.mkdir(parents=True, exist_ok=True)
    (output / "tokenizer.json").write_text(json.dumps(description, ensure_ascii=False),
                                           encoding="utf-8")


def adder_run(adder: pathlib.Path, folder: pathlib.Path, file: pathlib.Path) -> tuple[float, int]:
    """Megabytes per second, and tokens."""
    command = [adder, "bench", "tokenize", "-m", folder, "--file", file, "--repeat", "1", "--json"]
    report = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return report["megabytes_per_second_max"], report["tokens"]


def library_run(tokenizer: tokenizers.Tokenizer, text: str) -> tuple[float, int]:
    size = len(text.encode()) / 1e6
    begin = time.perf_counter()
    tokens = len(tokenizer.encode(text, add_special_tokens=False).ids)
    whole = size / (time.perf_counter() - begin)
    paragraphs = text.split("\n\n")
    begin = time.perf_counter()
    for paragraph in paragraphs:
        tokenizer.encode(paragraph, add_special_tokens=False)
    return max(whole, size / (time.perf_counter() - begin)), tokens


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=pathlib.Path)
    parser.add_argument("--file", required=True, type=pathlib.Path)
    parser.add_argument("--adder", default=ROOT / "build/release/apps/adder/adder")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--train", type=int, help="make a tokenizer of this size instead")
    parser.add_argument("--output", type=pathlib.Path, help="where to, with --train")
    arguments = parser.parse_args()
    if arguments.train:
        if arguments.output is None:
            parser.error("--train needs --output")
        train(arguments.folders[0], arguments.file, arguments.train, arguments.output)
        return 0

    text = arguments.file.read_bytes().decode()
    slower = False
    print(f"{arguments.file.name}: {len(text.encode())} bytes; tokenizers {tokenizers.__version__}")
    print("| tokenizer | vocabulary | adder MB/s | tokenizers MB/s | ratio |\n| --- | --- | --- | --- | --- |")
    for folder in arguments.folders:
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        ours, theirs = [], []
        for _ in range(arguments.repeat):
            rate, count = adder_run(arguments.adder, folder, arguments.file)
            ours.append(rate)
            rate, expected = library_run(tokenizer, text)
            theirs.append(rate)
            if count != expected:
                print(f"{folder}: {count} tokens where the library has {expected}")
                return 1
        mine, other = statistics.median(ours), statistics.median(theirs)
        slower = slower or mine < other
        print(f"| {folder.name} | {tokenizer.get_vocab_size()} | {mine:.1f} | {other:.2f} | "
              f"{mine / other:.1f} |")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
