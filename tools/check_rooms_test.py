#!/usr/bin/env python3
"""Tests of check_rooms.py. Run: python3 -m unittest discover -s tools -p '*_test.py'"""

import contextlib
import io
import pathlib
import re
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import check_rooms  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent


class CheckRooms(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name).resolve()

    def write(self, path, *lines):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(lines) + "\n")

    def test_allowed_includes_pass(self):
        self.write("src/core/a.h", "#include <vector>", "#include <sys/mman.h>")
        self.write("src/program/b.cc", '#include "program/b.h"', '#include "core/a.h"',
                   '#include "hwy/highway.h"', "#include <gtest/gtest.h>")
        self.write("src/loader/c.cc", '#include "cpu/x.h"', '#include "engine/y.h"')
        self.assertEqual(check_rooms.check(self.root), [])

    def test_wrong_way_names_file_and_line(self):
        self.write("src/program/b.cc", "// first", "", '#include "cpu/kernels.h"')
        faults = check_rooms.check(self.root)
        self.assertEqual(len(faults), 1)
        self.assertTrue(faults[0].startswith('src/program/b.cc:3: room "program" includes '
                                             '"cpu/kernels.h"'), faults[0])
        self.assertIn("core, model", faults[0])

    def test_headers_angle_brackets_and_spaces_count(self):
        self.write("src/text/deep/er.h", "  #  include  <engine/session.h>")
        self.write("src/core/t_test.cc", '#include "model/plan.h"')
        faults = check_rooms.check(self.root)
        self.assertEqual([fault.split(" ")[0] for fault in faults],
                         ["src/core/t_test.cc:1:", "src/text/deep/er.h:1:"])

    def test_comments_are_not_includes(self):
        self.write("src/core/a.h", '// #include "cpu/x.h"', "/*", '#include "cpu/x.h"', "*/",
                   '#include "model/plan.h"')
        faults = check_rooms.check(self.root)
        self.assertEqual(len(faults), 1)
        self.assertTrue(faults[0].startswith("src/core/a.h:5:"))

    def test_relative_and_roomless_paths_are_faults(self):
        self.write("src/core/a.h")
        self.write("src/core/b.cc", '#include "a.h"', '#include "../model/plan.h"',
                   '#include "elsewhere.h"')
        faults = check_rooms.check(self.root)
        self.assertEqual([fault.split(" ")[0] for fault in faults],
                         ["src/core/b.cc:1:", "src/core/b.cc:2:"])

    def test_folders_above_and_unknown_rooms_are_faults(self):
        self.write("src/measure/a.cc", '#include "tests/support.h"')
        self.write("src/novelty/a.cc", "#include <vector>")
        faults = check_rooms.check(self.root)
        self.assertEqual(len(faults), 2)
        self.assertIn("above all rooms", faults[0])
        self.assertIn('room "novelty" is not in the table', faults[1])

    def test_exit_status(self):
        self.write("src/core/a.h", '#include "cpu/x.h"')
        with contextlib.redirect_stdout(io.StringIO()) as out:
            self.assertEqual(check_rooms.main([str(self.root)]), 1)
        self.assertIn("src/core/a.h:1:", out.getvalue())
        self.write("src/core/a.h")
        self.assertEqual(check_rooms.main([str(self.root)]), 0)
        with contextlib.redirect_stderr(io.StringIO()):
            self.assertEqual(check_rooms.main([str(self.root / "missing")]), 2)
            self.assertEqual(check_rooms.main(["a", "b"]), 2)

    def test_table_is_acyclic_and_closed(self):
        for room, allowed in check_rooms.ALLOWED.items():
            for other in allowed:
                self.assertNotIn(room, check_rooms.ALLOWED[other])
                self.assertLessEqual(set(check_rooms.ALLOWED[other]), set(allowed), room)

    def test_table_agrees_with_cmake(self):
        direct = {}
        for file in (ROOT / "src").glob("*/CMakeLists.txt"):
            call = re.search(r"adder_room\((\w+)([^)]*)\)", file.read_text())
            self.assertIsNotNone(call, file)
            # Dependencies that only some builds have are linked in a line of their own.
            linked = re.findall(r"target_link_libraries\(([^)]*)\)", file.read_text())
            direct[call.group(1)] = [
                name for name in re.findall(r"\badder_(\w+)", " ".join([call.group(2), *linked]))
                if name != call.group(1)]
        self.assertEqual(set(direct), set(check_rooms.ALLOWED))

        def reachable(room):
            found = set(direct[room])
            for other in direct[room]:
                found |= reachable(other)
            return found

        for room in direct:
            self.assertEqual(reachable(room), set(check_rooms.ALLOWED[room]), room)


if __name__ == "__main__":
    unittest.main()
