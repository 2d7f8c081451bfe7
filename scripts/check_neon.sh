#!/usr/bin/env bash
# Compiles the CPU backend for 64-bit Arm, to see that its NEON kernels build. Needs a cross
# compiler (Debian: g++-aarch64-linux-gnu) and the Highway headers of this machine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

compiler=${AARCH64_CXX:-aarch64-linux-gnu-g++}
if ! command -v "$compiler" > /dev/null; then
  echo "check_neon: $compiler is not installed (apt-get install g++-aarch64-linux-gnu)." >&2
  exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Only Highway: the rest of /usr/include belongs to another architecture.
mkdir "$work/include"
ln -s "${HIGHWAY_INCLUDE:-/usr/include}/hwy" "$work/include/hwy"

for file in src/core/thread_pool.cc src/cpu/*.cc; do
  case $file in *_test.cc | *_benchmark.cc) continue ;; esac
  echo "$file"
  "$compiler" -std=c++20 -O2 -march=armv8-a+crypto -ffp-contract=off -Wall -Wextra -Wshadow -Werror \
    "-DHWY_DISABLED_TARGETS=(HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)" \
    -Isrc -isystem "$work/include" -c "$file" -o "$work/object.o"
done
echo "check_neon: all files compile."
