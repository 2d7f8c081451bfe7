"""Checks that what the documents name exists: links, paths, presets, adder commands and options.

    python3 tools/check_docs.py [--adder BINARY] [--root DIR] [FILE.md...]

Looked at, in every Markdown file that git tracks unless files are given:
  - relative links [text](path) and their #anchors;
  - paths below the top-level folders (`src/model/plan.h`, with * as a wildcard), in code spans and
    code blocks but not at the start of a "string", which may be meant relative to another folder;
    a path with a placeholder such as <name> or NAME is taken up to it;
  - `--preset NAME` and `build/NAME/`, against CMakePresets.json;
  - `adder COMMAND --option` in code, against the help of BINARY (left out without --adder).
Exits 1 with one line per finding, naming file and line.
"""

import argparse
import functools
import json
import pathlib
import re
import shlex
import subprocess
import sys

_FENCE = re.compile(r"^\s*(```|~~~)")
_CODE_SPAN = re.compile(r"`([^`]+)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_PRESET = re.compile(r"--preset[= ]([a-z][a-z0-9-]*)")
_BUILD_FOLDER = re.compile(r"(?<![\w/])build/([a-z][a-z0-9-]*)/")
_PLACEHOLDER = re.compile(r"/[^/]*(NAME|FAMILY|MODEL|READER)[^/]*$")
_PATH_CHARACTERS = r"[\w.*\-/+]"
# "adder" as a command: alone or as the end of a path, then its words up to a shell operator.
_ADDER = re.compile(r"(?:^|[\s;&|(])(?:[\w./-]*/)?adder((?:[ \t]+[^;&|<>#)\n]+)?)")
_WORD = re.compile(r"^[a-z][a-z-]*$")
_OPTION = re.compile(r"^-{1,2}[A-Za-z][\w-]*")


def heading_anchors(text):
    """The anchors of a Markdown file, made from its headings the way the usual renderers do."""
    anchors = set()
    in_fence = False
    for line in text.splitlines():
        if _FENCE.match(line):
            in_fence = not in_fence
        match = re.match(r"#+\s+(.*)", line)
        if match and not in_fence:
            title = re.sub(r"[^\w\s-]", "", match.group(1).strip().lower())
            anchors.add(re.sub(r"\s", "-", title))
    return anchors


class Commands:
    """The commands and options of the program, as its own help prints them."""

    def __init__(self, binary):
        self._binary = binary

    @functools.lru_cache(maxsize=None)
    def help_words(self, *command):
        """The words of `adder COMMAND --help`, or None if that is no command."""
        result = subprocess.run([self._binary, *command, "--help"], capture_output=True, text=True,
                                stdin=subprocess.DEVNULL, timeout=60, check=False)
        if result.returncode != 0:
            return None
        return frozenset(re.findall(r"(?<![\w-])-{0,2}[A-Za-z][\w-]*", result.stdout))

    def problems(self, words):
        """What is wrong with the words of a command line after `adder`."""
        command = []
        options = []
        for word in words:
            if _OPTION.match(word):
                options.append(_OPTION.match(word).group(0))
            elif not options and len(command) < 2 and _WORD.match(word):
                if self.help_words(*command, word) is None:
                    # The second word of `adder run models/demo` is an argument, not a command.
                    if command:
                        break
                    return [f"adder has no command '{word}'"]
                command.append(word)
        known = self.help_words(*command) or frozenset()
        name = " ".join(["adder", *command])
        return [f"'{name}' has no option {option}" for option in options if option not in known]


class Checker:
    def __init__(self, root, binary):
        self._root = root
        self._commands = Commands(binary) if binary else None
        self._folders = {path.name for path in root.iterdir()
                         if path.is_dir() and path.name not in (".git", "build", ".venv")}
        presets = json.loads((root / "CMakePresets.json").read_text(encoding="utf-8"))
        self._presets = {preset["name"] for preset in presets["configurePresets"]
                         if not preset.get("hidden")}
        names = "|".join(sorted(map(re.escape, self._folders), key=len, reverse=True))
        self._path = re.compile(rf"(?<![\w/.$}}\"-])(?:\./)?((?:{names})/{_PATH_CHARACTERS}*)([<{{$…]?)")

    def check_file(self, document):
        """Yields (line number, problem) for one Markdown file."""
        text = document.read_text(encoding="utf-8")
        in_fence = False
        for number, line in enumerate(text.splitlines(), start=1):
            if _FENCE.match(line):
                in_fence = not in_fence
                continue
            pieces = [line] if in_fence else _CODE_SPAN.findall(line)
            for piece in pieces:
                yield from ((number, problem) for problem in self._check_code(piece, in_fence))
            if not in_fence:
                for target in _LINK.findall(_CODE_SPAN.sub("", line)):
                    yield from ((number, problem) for problem in self._check_link(document, target))

    def _check_link(self, document, target):
        if re.match(r"[a-z]+:", target):
            return
        path, _, anchor = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        if not file.exists():
            yield f"link to {target}: there is no such file"
        elif anchor and file.suffix == ".md":
            if anchor not in heading_anchors(file.read_text(encoding="utf-8")):
                yield f"link to {target}: there is no such heading"

    def _check_code(self, code, in_fence):
        for match in self._path.finditer(code):
            path = match.group(1).rstrip(".")
            if match.group(2) in ("<", "{", "$", "…") or _PLACEHOLDER.search(path):
                path = path[:path.rfind("/")]  # a placeholder follows: only its folder is checked
            path = path.rstrip("/")
            if "*" in path:
                found = any(self._root.glob(path))
            else:
                found = (self._root / path).exists()
            if path not in self._folders and not found:
                yield f"path {path}: there is no such file or folder"
        for preset in _PRESET.findall(code) + _BUILD_FOLDER.findall(code):
            if preset not in self._presets:
                yield f"preset {preset}: CMakePresets.json has none of that name"
        # Output shown in a code block may speak of adder in prose; a command stands at a line's start.
        is_command = not in_fence or re.match(r"\s*(\$ )?[\w./-]*adder\s", code)
        if self._commands and is_command:
            for match in _ADDER.finditer(code.removeprefix("$ ")):
                try:
                    words = shlex.split(match.group(1).rstrip("\\"))
                except ValueError:
                    words = match.group(1).split()
                yield from self._commands.problems(words)


def tracked_documents(root):
    listing = subprocess.run(["git", "ls-files", "-z", "--", "*.md"], cwd=root, check=True,
                             capture_output=True, text=True).stdout
    return [root / name for name in listing.split("\0") if name]


def main(arguments):
    parser = argparse.ArgumentParser(description="Checks what the documents name.")
    parser.add_argument("--adder", help="binary whose commands and options are compared")
    parser.add_argument("--root", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parent.parent)
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    options = parser.parse_args(arguments)
    root = options.root.resolve()
    checker = Checker(root, options.adder)
    documents = [path.resolve() for path in options.files] or tracked_documents(root)
    problems = 0
    for document in documents:
        for number, problem in checker.check_file(document):
            problems += 1
            print(f"{document.relative_to(root)}:{number}: {problem}")
    print(f"{len(documents)} documents checked, {problems} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
