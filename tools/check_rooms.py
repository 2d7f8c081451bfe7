#!/usr/bin/env python3
"""Rejects an #include that goes the wrong way between the rooms of src/.

Usage: check_rooms.py [ROOT]    (ROOT defaults to the repository of this script)

Prints one line per fault, "file:line: what is wrong", and exits with status 1 when there is any.
"""

import pathlib
import re
import sys

# What each room may include besides itself. Dependencies are one-way and acyclic; the same edges,
# transitively, are the DEPS of the rooms' CMake targets.
ALLOWED = {
    "core": [],
    "model": ["core"],
    "checkpoint": ["core", "model"],
    "text": ["core"],
    "program": ["core", "model"],
    "cpu": ["core", "model", "program"],
    "cuda": ["core", "model", "program"],
    "engine": ["core", "model", "program", "text"],
    "loader": ["core", "model", "checkpoint", "text", "program", "cpu", "cuda",
               "engine"],
    "measure": ["core", "model", "checkpoint", "text", "program", "cpu", "cuda",
                "engine", "loader"],
}

# Folders above all rooms: nothing in src/ may include from them.
ABOVE = ["apps", "tests", "fuzz", "tools"]

SOURCE_SUFFIXES = {".cc", ".cu", ".cuh", ".h", ".in"}
INCLUDE = re.compile(r'\s*#\s*include\s*(["<])([^">]+)[">]')


def fault_of_include(room, quote, path, folder):
    """Says what is wrong with one #include of a file in `folder` of `room`, or returns None."""
    parts = pathlib.PurePosixPath(path).parts
    if ".." in parts or parts[0] == ".":
        return f'"{path}" is a relative path; name the room: "room/file.h"'
    target = parts[0]
    if len(parts) == 1:
        if quote == '"' and (folder / path).exists():
            return f'"{path}" does not name its room; write "{room}/{path}"'
        return None
    if target in ABOVE:
        return f'room "{room}" includes "{path}", but {target}/ lies above all rooms'
    if target in ALLOWED and target != room and target not in ALLOWED[room]:
        allowed = ", ".join(ALLOWED[room]) or "no other room"
        return f'room "{room}" includes "{path}", but may only include from {allowed}'
    return None


def without_block_comments(text):
    """Blanks out /* */ comments, keeping line numbers."""
    return re.sub(r"/\*.*?\*/", lambda match: "\n" * match.group().count("\n"), text, flags=re.S)


def faults_of_file(root, file, room):
    """Yields a line for each fault of one source file."""
    text = without_block_comments(file.read_text(encoding="utf-8", errors="replace"))
    for number, line in enumerate(text.splitlines(), start=1):
        match = INCLUDE.match(line)
        if match:
            fault = fault_of_include(room, match.group(1), match.group(2), file.parent)
            if fault:
                yield f"{file.relative_to(root)}:{number}: {fault}"


def check(root):
    """Returns the faults of all of ROOT/src, in order of file and line."""
    faults = []
    rooms = sorted(path for path in (root / "src").iterdir() if path.is_dir())
    if not rooms:
        faults.append("src:0: there are no rooms here; is this the root of the repository?")
    for folder in rooms:
        if folder.name not in ALLOWED:
            faults.append(
                f"{folder.relative_to(root)}:0: room \"{folder.name}\" is not in the table of "
                "tools/check_rooms.py; add it with what it may include"
            )
            continue
        for file in sorted(folder.rglob("*")):
            if file.suffix in SOURCE_SUFFIXES and file.is_file():
                faults.extend(faults_of_file(root, file, folder.name))
    return faults


def main(arguments):
    if len(arguments) > 1:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    default = pathlib.Path(__file__).resolve().parent.parent
    root = pathlib.Path(arguments[0]).resolve() if arguments else default
    if not (root / "src").is_dir():
        print(f"{root} has no folder src/ to check.", file=sys.stderr)
        return 2
    faults = check(root)
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
