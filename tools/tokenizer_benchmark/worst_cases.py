#!/usr/bin/env python3
"""Times adder's tokenizers on one megabyte of text that invites quadratic algorithms.

    tools/tokenizer_benchmark/worst_cases.py DIR...

DIR holds a tokenizer, or folders of tokenizers. Prints the slowest time of each text over all
tokenizers and exits with 1 where one takes more than two seconds.
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SIZE = 1_000_000
LIMIT_SECONDS = 2.0
FILES = ("tokenizer.json", "tokenizer.jsonl", "tokenizer.model")


def worst_cases(added: list[str]) -> dict[str, str]:
    """Texts by name, each of about SIZE bytes of UTF-8."""
    rng = random.Random(1)

    def fill(unit: str) -> str:
        return unit * (SIZE // len(unit.encode()) + 1)

    def draw(alphabet: str) -> str:
        width = sum(len(c.encode()) for c in alphabet) / len(alphabet)
        return "".join(rng.choices(alphabet, k=int(SIZE / width)))

    lower = "abcdefghijklmnopqrstuvwxyz"
    cases = {
        "a repeated": fill("a"),
        "letters": draw(lower),
        "mixed case": draw(lower + lower.upper()),
        "digits": draw("0123456789"),
        "zeros": fill("0"),
        "spaces": fill(" "),
        "newlines": fill("\n"),
        "spaces and newlines": draw(" \n"),
        "tabs": fill("\t"),
        "punctuation": draw("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"),
        "apostrophes": fill("'"),
        "CJK": draw("".join(chr(c) for c in range(0x4E00, 0x5A00))),
        "CJK repeated": fill("\u4e00"),
        "Hangul letters": draw("".join(chr(c) for c in range(0x1100, 0x1200))),
        "emoji": draw("".join(chr(c) for c in range(0x1F600, 0x1F640))),
        "marks": "a" + draw("".join(chr(c) for c in range(0x300, 0x34F))),
        "two marks in turn": "a" + fill("\u0300\u0316"),
        "marks that decompose": fill("\u0344"),
        "metaspaces": fill("\u2581"),
        "byte token names": fill("<0x41>"),
        "control characters": fill("\0"),
        "unassigned": fill("\U00050000"),
    }
    if added:
        longest = max(added, key=len)
        cases["added tokens"] = fill(longest)
        cases["spaced added tokens"] = fill(" " + longest + "  ")
        cases["almost added tokens"] = fill(longest[:-1])
        cases["first characters of added tokens"] = fill(longest[0])
    return cases


def added_tokens(folder: pathlib.Path) -> list[str]:
    path = folder / "tokenizer.json"
    if not path.exists():
        return []
    description = json.loads(path.read_text(encoding="utf-8"))
    return [token["content"] for token in description.get("added_tokens") or []]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=pathlib.Path)
    parser.add_argument("--adder", default=ROOT / "build/release/apps/adder/adder")
    arguments = parser.parse_args()
    folders = sorted({path.parent for given in arguments.folders for name in FILES
                      for path in (*given.glob(name), *given.glob(f"*/{name}"))})
    if not folders:
        parser.error("none of the folders holds a tokenizer")

    slowest: dict[str, tuple[float, str]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        file = pathlib.Path(temporary) / "text"
        for folder in folders:
            for name, text in worst_cases(added_tokens(folder)).items():
                file.write_bytes(text.encode())
                command = [arguments.adder, "bench", "tokenize", "-m", folder, "--file", file,
                           "--repeat", "1", "--json"]
                output = subprocess.run(command, check=True, capture_output=True).stdout
                report = json.loads(output)
                seconds = report["bytes"] / 1e6 / report["megabytes_per_second_min"]
                slowest[name] = max(slowest.get(name, (0.0, "")), (seconds, folder.name))
    print(f"{len(folders)} tokenizers, 1 MB each; the slowest of each text:")
    for name, (seconds, folder) in slowest.items():
        print(f"  {name:33} {seconds:7.3f} s  {folder}")
    return 1 if max(seconds for seconds, _ in slowest.values()) > LIMIT_SECONDS else 0


if __name__ == "__main__":
    sys.exit(main())
