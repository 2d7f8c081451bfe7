#!/usr/bin/env bash
# Installs what the tests need, builds everything and runs all CPU tests.
#   scripts/test.sh [release|debug|asan|tsan]     (default: release)
# With a preset other than release only the C++ tests run. Arguments after -- go to ctest, e.g.
#   scripts/test.sh asan -- -R Safetensors
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"

preset=release
if [ $# -gt 0 ] && [ "$1" != -- ]; then
  preset=$1
  shift
fi
if [ $# -gt 0 ] && [ "$1" = -- ]; then shift; fi
ctest_arguments=("$@")

say "Packages"
install_packages "${build_packages[@]}" python3 python3-venv

say "Python environment (.venv)"
python_env

say "Build ($preset, $(build_jobs) jobs; the first time takes minutes, later ones seconds)"
configure "$preset"
# The Python tests, which drive the program itself, run with the release build only.
if [ "$preset" = release ]; then build release; else build "$preset" adder_tests; fi

cd "$repository"
export ADDER_SHARED=${ADDER_SHARED:-$repository/../shared}
[ -d "$ADDER_SHARED/conformance" ] ||
  note "no conformance kit at $ADDER_SHARED (set ADDER_SHARED): the tests that need it will skip"
results=$repository/build/$preset/test-results
mkdir -p "$results"
rm -f "$results"/*.xml
failed=0

say "C++ tests: ctest --preset $preset"
ctest --preset "$preset" -j "$(nproc)" --output-junit "$results/ctest.xml" \
  "${ctest_arguments[@]}" </dev/null || failed=1

if [ "$preset" = release ] && [ ${#ctest_arguments[@]} -eq 0 ]; then
  say "Python tests: .venv/bin/python -m pytest tools tests"
  ADDER_BINARY=$repository/build/release/apps/adder/adder \
    .venv/bin/python -m pytest -q -rs -p no:cacheprovider --junitxml="$results/pytest.xml" \
    tools tests </dev/null || failed=1
fi

say "Summary"
.venv/bin/python tools/test_summary.py "$results"/*.xml || failed=1
exit "$failed"
