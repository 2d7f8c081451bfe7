"""PLaMo-2 tokenizers (tokenizer.jsonl) against a plain implementation of their definition."""

from __future__ import annotations

import json
import random
import re
import unittest

from cli_support import CommandTest
from tokenizer_support import BATCH, batch
from tokenizer_texts import random_texts

UNKNOWN_COST = 10_000_000
SPECIAL = ["<|plamo:unk|>", "<|plamo:bos|>", "<|plamo:eos|>", "<|plamo:pad|>"]


def random_vocabulary(rng: random.Random, texts: list[str]) -> list[list]:
    """Rows of tokenizer.jsonl: pieces of the texts, with few different scores, so that ties abound."""
    rows = [[token, 0.0, "CONTROL"] for token in SPECIAL]
    rows += [[f"<0x{byte:02X}>", 0.0, "BYTE"] for byte in range(256)]
    pieces = set()
    for text in texts:
        for _ in range(3):
            begin = rng.randrange(len(text) + 1)
            pieces.add(text[begin : begin + rng.choice((1, 1, 2, 2, 3, 4, 9))])
    known = {row[0] for row in rows} | {""}
    for piece in sorted(pieces - known):
        score = rng.choice((-1.0, -2.0, -3.0, -4.0, -6.5, -2.00005, rng.uniform(-12, 0)))
        if rng.random() < 0.02:
            score = rng.choice((-1500.0, -2500.0, float("nan"), 3.0))
        rows.append([piece, score, "NORMAL"])
    return rows


def encode(rows: list[list], text: str) -> list[int]:
    """From the end: at each place the cheapest way on, of equal ones the longest token."""
    tokens = {}
    byte_ids = {}
    for i, (token, score, kind) in enumerate(rows):
        if kind == "BYTE":
            byte_ids[int(token[3:5], 16)] = i
        elif score == score and round(score * 1e4) > -2 * UNKNOWN_COST:
            tokens[token] = (-round(score * 1e4), i)
    longest = max(map(len, tokens))
    best = [(0, 0, None)] * (len(text) + 1)
    for begin in range(len(text) - 1, -1, -1):
        choices = []
        for length in range(min(longest, len(text) - begin), 0, -1):
            if text[begin : begin + length] in tokens:
                cost, i = tokens[text[begin : begin + length]]
                choices.append((best[begin + length][0] + cost, -length, [i]))
        unknown = [byte_ids[byte] for byte in text[begin].encode()]
        # Against a token of the same cost, bytes lose.
        choices.append((best[begin + 1][0] + UNKNOWN_COST, 1, unknown))
        cost, length, ids = min(choices, key=lambda choice: choice[:2])
        best[begin] = (cost, abs(length), ids)
    ids = []
    begin = 0
    while begin < len(text):
        ids += best[begin][2]
        begin += best[begin][1]
    return ids


def encode_with_special(rows: list[list], text: str) -> list[int]:
    """Special tokens are found first."""
    ids = []
    for part in re.split("(" + "|".join(map(re.escape, SPECIAL)) + ")", text):
        ids += [SPECIAL.index(part)] if part in SPECIAL else encode(rows, part)
    return ids


def decode(rows: list[list], ids: list[int]) -> str:
    """All bytes together."""
    data = b""
    for i in ids:
        token = rows[i][0]
        data += bytes([int(token[3:5], 16)]) if rows[i][2] == "BYTE" else token.encode()
    return data.decode(errors="replace")


@unittest.skipUnless(BATCH.exists(), f"no tokenizer_batch at {BATCH}; build it")
class PlamoTest(CommandTest):
    """Encoding and decoding of random texts by random vocabularies."""

    def write(self, rows: list[list], config: dict | None = None) -> None:
        self.file("tokenizer.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        if config is not None:
            self.file("tokenizer_config.json", json.dumps(config))

    def test_agrees_with_the_definition(self) -> None:
        for seed in range(12):
            texts = random_texts(seed, 400, SPECIAL)
            rows = random_vocabulary(random.Random(seed), texts)
            begins = seed % 2 == 1
            self.write(rows, {"add_bos_token": True} if begins else None)
            for text, answer in zip(texts, batch(self.folder, texts)):
                plain = encode_with_special(rows, text)
                ids = [1, *plain] if begins else plain
                visible = [i for i in ids if rows[i][0] not in SPECIAL]
                self.assertEqual(answer, [ids, plain, decode(rows, plain), decode(rows, visible)],
                                 ascii(text))
            (self.folder / "tokenizer_config.json").unlink(missing_ok=True)

    def test_command(self) -> None:
        rows = random_vocabulary(random.Random(1), ["abcabc", "hello"])
        self.write(rows)
        ids = self.succeed("tokenize", "-m", self.folder, "--text", "hello \u4e00", "--ids")
        self.assertEqual([int(i) for i in ids.split()], encode(rows, "hello \u4e00"))
        back = self.succeed("tokenize", "-m", self.folder, "--decode", ids.strip().replace(" ", ","))
        self.assertEqual(back, "hello \u4e00\n")

    def test_errors(self) -> None:
        rows = random_vocabulary(random.Random(1), ["abc"])
        for change, words in (
            (lambda: rows[:-1] + [["<0x41>", 0.0, "BYTE"]], ["twice"]),
            (lambda: rows[:4] + rows[5:], ["lacks the token <0x00>"]),
            (lambda: rows + [["x", "1"]], ["line", "score"]),
            (lambda: rows + [["y" * 2000, 1.0, "NORMAL"]], ["1 to 1024 bytes"]),
            (lambda: rows + [["y", -1000.0, "NORMAL"]], ["-1000"]),
            (lambda: rows + [["y", 1e300, "NORMAL"]], ["range"]),
            (lambda: rows + [["<0xZZ>", 0.0, "BYTE"]], ["<0x0A>"]),
        ):
            self.write(change())
            self.fail_with(1, ["tokenizer.jsonl", *words], "tokenize", "-m", self.folder, "--text", "x")
        self.write(rows, {"tokenizer_class": "Plamo3Tokenizer"})
        self.fail_with(1, ["tokenizer_config.json", "Plamo3Tokenizer"], "tokenize", "-m",
                       self.folder, "--text", "x")


if __name__ == "__main__":
    unittest.main()
