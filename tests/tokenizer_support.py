"""What the comparisons of tokenizers share: many texts through one process."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from cli_support import ADDER, LIMIT_SECONDS

# Lies beside the program in the build folder.
BATCH = ADDER.parents[2] / "tests" / "tokenizer_batch"


def batch(folder: Path, texts: list) -> list:
    """What tokenizer_batch answers for each text or list of ids.

    For a text [ids, plain ids, plain ids decoded, ids decoded without special tokens]; for ids
    [decoded, decoded without special tokens].
    """
    lines = "".join(json.dumps(text) + "\n" for text in texts)
    done = subprocess.run([str(BATCH), str(folder)], input=lines.encode(), capture_output=True,
                          timeout=LIMIT_SECONDS, check=False)
    if done.returncode != 0:
        raise AssertionError(done.stderr.decode())
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    if len(answers) != len(texts):
        raise AssertionError(f"{len(answers)} answers to {len(texts)} texts")
    return answers
