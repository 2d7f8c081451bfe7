import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import test_summary

CTEST = """<?xml version="1.0"?>
<testsuite name="Linux" tests="4" failures="1" disabled="0" skipped="1">
  <testcase name="Shape.Counts" classname="Shape.Counts" time="0.1" status="run"/>
  <testcase name="Shape.Overflow" classname="Shape.Overflow" time="0.1" status="fail">
    <failure message=""/><system-out>boom</system-out></testcase>
  <testcase name="Kit.Granite" classname="Kit.Granite" time="0.1" status="notrun">
    <skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>
    <system-out>[ RUN      ] Kit.Granite
/src/tests/kit_test.cc:12: Skipped
no conformance kit at /nowhere

[  SKIPPED ] Kit.Granite (0 ms)</system-out></testcase>
  <testcase name="gone_NOT_BUILT" classname="gone_NOT_BUILT" time="0" status="notrun"/>
</testsuite>
"""

PYTEST = """<?xml version="1.0"?>
<testsuites><testsuite name="pytest" tests="2" failures="0" skipped="1">
  <testcase classname="tools.rooms_test" name="test_one" time="0.1"/>
  <testcase classname="tools.mlx_test" name="test_two" time="0.1">
    <skipped type="pytest.skip" message="mlx-lm is not installed">x</skipped></testcase>
</testsuite></testsuites>
"""


def write(folder, **files):
    paths = []
    for name, text in files.items():
        path = folder / f"{name}.xml"
        path.write_text(text)
        paths.append(str(path))
    return paths


def test_adds_up_both_runners(tmp_path, capsys):
    paths = write(tmp_path, ctest=CTEST, pytest=PYTEST)
    assert test_summary.main(paths + ["--check", "format=passed"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "failed: Shape.Overflow",
        "failed: gone_NOT_BUILT",
        "skipped: tools.mlx_test.test_two: mlx-lm is not installed",
        "skipped: Kit.Granite: no conformance kit at /nowhere",
        "3 passed, 2 failed, 2 skipped",
    ]


def test_success_and_no_tests(tmp_path, capsys):
    assert test_summary.main(write(tmp_path, pytest=PYTEST)) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 passed, 0 failed, 1 skipped"
    assert test_summary.main([]) == 1
    assert capsys.readouterr().out.splitlines() == ["0 passed, 0 failed"]


def test_failed_check_fails(capsys):
    assert test_summary.main(["--check", "a=passed", "--check", "fuzz smoke=failed"]) == 1
    assert "failed: fuzz smoke" in capsys.readouterr().out


def test_unreadable_file_and_bad_check(tmp_path, capsys):
    (tmp_path / "cut.xml").write_text(CTEST[:200])
    assert test_summary.main([str(tmp_path / "cut.xml")]) == 2
    assert "cut.xml" in capsys.readouterr().err
    assert test_summary.main(["--check", "format=maybe"]) == 2
