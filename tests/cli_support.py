"""What the tests of the adder command share.

They drive the binary that the environment variable ADDER_BINARY names (default: the release build)
on the demo model and on the tiny checkpoints of the conformance kit (ADDER_SHARED, default
../shared). What is not there is skipped, with the reason.
"""

from __future__ import annotations

import array
import json
import os
import pty
import select
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import unittest
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ADDER = Path(os.environ.get("ADDER_BINARY", ROOT / "build/release/apps/adder/adder"))
SHARED = Path(os.environ.get("ADDER_SHARED", ROOT.parent / "shared"))
DEMO = ROOT / "models/demo"
CASE = SHARED / "conformance/models/granitemoehybrid_dense"
TOKENIZERS = SHARED / "conformance/tokenizers"
GEOMETRY = SHARED / "geometries/mamba2-130m.json"
LIMIT_SECONDS = 300

ERROR = 1
USAGE = 2

CTRL_C = b"\x03"
CTRL_D = b"\x04"

needs_demo = unittest.skipUnless((DEMO / "model.safetensors").exists(), f"no demo model at {DEMO}")
needs_kit = unittest.skipUnless(CASE.exists(), f"no conformance kit at {SHARED} (ADDER_SHARED)")


def adder(
    *arguments: object, stdin: str = "", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs adder and returns what it wrote and its exit code."""
    done = subprocess.run(
        [str(ADDER), *map(str, arguments)],
        input=stdin.encode(),
        env={**os.environ, **(env or {})},
        capture_output=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    # Decoded here: subprocess would also turn "\r\n" into "\n".
    return subprocess.CompletedProcess(
        done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
    )


def read_tensors(path: Path) -> dict[str, tuple[list[int], array.array]]:
    """Shape and values of the F32 and I32 tensors of a safetensors file."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        values = array.array("f" if entry["dtype"] == "F32" else "i")
        values.frombytes(data[8 + length + begin : 8 + length + end])
        tensors[name] = (entry["shape"], values)
    return tensors


@unittest.skipUnless(ADDER.exists(), f"no adder at {ADDER}; build it or set ADDER_BINARY")
class CommandTest(unittest.TestCase):
    """Helpers: a temporary folder, and what to expect of a run."""

    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="adder-cli-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def interrupt(self, line: bytes, *arguments: object) -> None:
        """Sends `line` through a pipe, Ctrl-C during what is written then, and /stats."""
        process = subprocess.Popen([ADDER, *map(str, arguments)], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE)
        self.addCleanup(process.kill)
        process.stdin.write(line)
        process.stdin.flush()
        self.assertTrue(process.stdout.read(20))
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(b"/stats\n", timeout=LIMIT_SECONDS)
        self.assertEqual(process.returncode, 0)
        self.assertIn(b"tok/s", output)

    def succeed(self, *arguments: object, **options: object) -> str:
        """Standard output of a run that must succeed."""
        done = adder(*arguments, **options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def fail_with(self, code: int, words: Sequence[str], *arguments: object, **options) -> None:
        """A run must end with `code` and one message that holds all the words."""
        done = adder(*arguments, **options)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertTrue(done.stderr.startswith("adder: "), done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)

    def file(self, name: str, contents: str) -> Path:
        """A file in the temporary folder."""
        path = self.folder / name
        path.write_text(contents, encoding="utf-8")
        return path


class Terminal:
    """adder on a pseudo-terminal of its own."""

    def __init__(self, *arguments: str, env: dict[str, str]) -> None:
        self.process, self.master = pty.fork()
        if self.process == 0:
            os.execve(ADDER, [str(ADDER), *arguments], {**os.environ, "TERM": "xterm", **env})
        self.output = b""

    def send(self, data: bytes) -> None:
        os.write(self.master, data)

    def read_some(self, seconds: float) -> bool:
        """Takes what is there; False when nothing came or the program has ended."""
        if not select.select([self.master], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self.master, 65536)
        except OSError:  # the other side is closed
            return False
        self.output += data
        return bool(data)

    def wait_for(self, words: bytes, start: int = 0) -> int:
        """Reads until `words` come after position `start`; the position behind them."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while (at := self.output.find(words, start)) < 0:
            if time.monotonic() > deadline:
                raise AssertionError(f"no {words!r} in {self.output[start:]!r}")
            if not self.read_some(1.0) and self.ended():
                raise AssertionError(f"ended without {words!r}: {self.output[start:]!r}")
        return at + len(words)

    def ended(self) -> bool:
        return self.exit_code(block=False) is not None

    def exit_code(self, block: bool = True) -> int | None:
        """The exit code, or the negative signal, once the program has ended."""
        if not hasattr(self, "status"):
            deadline = time.monotonic() + LIMIT_SECONDS
            while True:
                pid, status = os.waitpid(self.process, os.WNOHANG)
                if pid:
                    self.status = os.waitstatus_to_exitcode(status)
                    break
                if not block or time.monotonic() > deadline:
                    return None
                self.read_some(0.05)
        return self.status

    def close(self) -> None:
        if not self.ended():
            os.kill(self.process, signal.SIGKILL)
            os.waitpid(self.process, 0)
        os.close(self.master)
