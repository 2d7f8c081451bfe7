import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import check_docs

# Stands for the program: two commands, one of them with a command of its own.
FAKE_ADDER = """#!/bin/sh
case "$*" in
  --help) echo "commands: generate bench; options: --help --version" ;;
  "generate --help") echo "options: -m,--model DIR -p,--prompt TEXT --ignore-eos" ;;
  "bench --help") echo "commands: decode" ;;
  "bench decode --help") echo "options: --csv FILE -m" ;;
  *) echo "unknown command" >&2; exit 1 ;;
esac
"""


@pytest.fixture
def check(tmp_path, capsys):
    """Returns a function that writes README.md with the text and returns what the checker says."""
    (tmp_path / "src/model").mkdir(parents=True)
    (tmp_path / "src/model/plan.h").write_text("")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/tour.md").write_text("# The tour\n\n## Two rooms, one door\n")
    (tmp_path / "CMakePresets.json").write_text(
        '{"configurePresets": [{"name": "base", "hidden": true}, {"name": "release"}]}')
    adder = tmp_path / "adder-program"
    adder.write_text(FAKE_ADDER)
    adder.chmod(0o755)

    def run(text):
        (tmp_path / "README.md").write_text(text)
        status = check_docs.main(["--root", str(tmp_path), "--adder", str(adder),
                                  str(tmp_path / "README.md")])
        lines = capsys.readouterr().out.splitlines()[:-1]
        assert status == (1 if lines else 0)
        return lines

    return run


def test_paths_in_code(check):
    assert check("See `src/model/plan.h`, `src/model/*.h`, `./src/model/` and `src/`.\n") == []
    assert check("Write `src/model/<model_type>.cc` or `src/model/NAME_test.cc`.\n") == []
    assert check("a\n\n`src/model/gone.h`\n") == [
        "README.md:3: path src/model/gone.h: there is no such file or folder"]
    assert check("```\nless src/modle/<x>.cc\n```\n") == [
        "README.md:2: path src/modle: there is no such file or folder"]
    assert check('```\nOpen("src/kit");\n```\n') == []
    assert check("Other people's `lib/src/gone.h` is not ours; src/gone.h is prose.\n") == []


def test_links_and_anchors(check):
    assert check("[tour](docs/tour.md#two-rooms-one-door) [web](https://example.org/x)\n") == []
    assert check("[tour](docs/tour.md#three)\n") == [
        "README.md:1: link to docs/tour.md#three: there is no such heading"]
    assert check("[tour](docs/gone.md)\n") == [
        "README.md:1: link to docs/gone.md: there is no such file"]


def test_presets(check):
    assert check("`cmake --preset release` makes `build/release/apps`\n") == []
    assert check("`cmake --preset base`\n") == [
        "README.md:1: preset base: CMakePresets.json has none of that name"]
    assert check("`build/relaese/x`\n") == [
        "README.md:1: preset relaese: CMakePresets.json has none of that name"]


def test_commands_and_options(check):
    assert check("`adder generate -m DIR --prompt 'a b' --ignore-eos`\n") == []
    assert check("```\n$ build/release/apps/adder/adder bench decode --csv f.csv\n```\n") == []
    assert check("```\nadder says many words in its output\n```\n") == [
        "README.md:2: adder has no command 'says'"]
    assert check("```\nthe adder wrote --this\n```\n") == []
    assert check("`adder genrate`\n") == ["README.md:1: adder has no command 'genrate'"]
    assert check("`adder bench decode --cvs f`\n") == [
        "README.md:1: 'adder bench decode' has no option --cvs"]
    assert check("`adder --version`\n") == []
