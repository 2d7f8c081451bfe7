"""docs/families.md says what the program and the conformance kit say."""

import subprocess
import sys
from pathlib import Path

import pytest

from cli_support import ADDER, ROOT, SHARED

TOOL = ROOT / "tools/families_doc.py"


def tool(*arguments):
    return subprocess.run(
        [sys.executable, str(TOOL), "--adder", str(ADDER), "--shared", str(SHARED), *arguments],
        capture_output=True, text=True, timeout=300, check=False)


def test_document_is_up_to_date():
    if not ADDER.is_file():
        pytest.skip(f"adder is not built at {ADDER} (set ADDER_BINARY)")
    if not (SHARED / "conformance").is_dir():
        pytest.skip(f"no conformance kit at {SHARED} (set ADDER_SHARED)")
    done = tool("--check")
    assert done.returncode == 0, done.stderr


def test_every_family_has_a_row():
    """Needs neither the kit nor the program: families are files."""
    names = {path.stem for path in (ROOT / "src/model/families").glob("*.cc")
             if not path.stem.endswith("_test")}
    rows = {line.split("`")[1] for line in Path(ROOT / "docs/families.md").read_text(
        encoding="utf-8").splitlines() if line.startswith("| `")}
    assert rows == names
