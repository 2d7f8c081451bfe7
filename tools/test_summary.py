"""Adds up JUnit result files of ctest and pytest, and names what failed and what was skipped and why.

    python3 tools/test_summary.py RESULTS.xml... [--check NAME=passed|failed]...

Each --check counts as one more test. The last line is "N passed, N failed" (", N skipped" where
any were). Exits 1 when a test failed or none ran, 2 when a file cannot be read.
"""

import argparse
import collections
import re
import sys
import xml.etree.ElementTree as ElementTree

# Where GoogleTest prints the reason of GTEST_SKIP: "<file>:<line>: Skipped", then the message.
_GTEST_SKIP = re.compile(r"^.*: Skipped\n(.*)$", re.MULTILINE)


def _skip_reason(case, skipped):
    """The reason as pytest (attribute) or GoogleTest under ctest (output) gives it."""
    output = case.findtext("system-out") or ""
    match = _GTEST_SKIP.search(output)
    if match and match.group(1).strip():
        return match.group(1).strip()
    return (skipped.get("message") or "no reason given").strip()


def read_results(path):
    """Yields (name, outcome, reason) of every test in one file; outcome is passed/failed/skipped."""
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = case.get("name", "?")
        if case.get("classname") not in (None, "", name):
            name = f"{case.get('classname')}.{name}"
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            yield name, "failed", ""
        elif skipped is not None:
            yield name, "skipped", _skip_reason(case, skipped)
        elif case.get("status") in ("notrun", "disabled"):
            # ctest reports a test whose binary is missing this way: it must not look like a pass.
            yield name, "failed", ""
        else:
            yield name, "passed", ""


def summarize(results):
    """Returns (counts, lines): outcome counts and what a reader has to know beside them."""
    counts = collections.Counter()
    failed, skipped = [], collections.defaultdict(list)
    for name, outcome, reason in results:
        counts[outcome] += 1
        if outcome == "failed":
            failed.append(name)
        elif outcome == "skipped":
            skipped[reason].append(name)
    lines = [f"failed: {name}" for name in failed]
    for reason, names in sorted(skipped.items()):
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        lines.append(f"skipped: {names[0]}{more}: {reason}")
    return counts, lines


def closing_line(counts):
    line = f"{counts['passed']} passed, {counts['failed']} failed"
    if counts["skipped"]:
        line += f", {counts['skipped']} skipped"
    return line


def main(arguments):
    parser = argparse.ArgumentParser(description="Adds up JUnit result files.")
    parser.add_argument("files", nargs="*")
    parser.add_argument("--check", action="append", default=[], metavar="NAME=passed|failed")
    options = parser.parse_args(arguments)
    results = []
    for path in options.files:
        try:
            results.extend(read_results(path))
        except (OSError, ElementTree.ParseError) as error:
            print(f"error: cannot read test results {path}: {error}", file=sys.stderr)
            return 2
    for check in options.check:
        name, _, outcome = check.rpartition("=")
        if not name or outcome not in ("passed", "failed"):
            print(f"error: --check takes NAME=passed or NAME=failed, not {check!r}", file=sys.stderr)
            return 2
        results.append((name, outcome, ""))
    counts, lines = summarize(results)
    for line in lines:
        print(line)
    print(closing_line(counts))
    return 1 if counts["failed"] or not counts["passed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
