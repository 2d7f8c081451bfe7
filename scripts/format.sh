#!/usr/bin/env bash
# Formats the C++ sources, or with --check only says which are not formatted (exit code 1).
# Uses the clang-format of .venv, since each version formats differently.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"

cd "$repository"
formatter=.venv/bin/clang-format
[ -x "$formatter" ] || python_env
[ -x "$formatter" ] || die "$formatter is missing; run scripts/test.sh once."
mapfile -d '' files < <(git ls-files -z '*.cc' '*.h' '*.cu' '*.cuh')
[ ${#files[@]} -gt 0 ] || die "git lists no C++ sources here."
if [ "${1:-}" = --check ]; then
  "$formatter" --dry-run -Werror "${files[@]}" || die "format these files with scripts/format.sh"
  note "${#files[@]} files are formatted"
else
  "$formatter" -i "${files[@]}"
fi
