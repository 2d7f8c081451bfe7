#!/usr/bin/env bash
# Fuzzes every reader of outside data for an equal share of the given time.
#   scripts/fuzz_smoke.sh [SECONDS] [TARGET...]    (default: 60 seconds, all targets)
# Seeds (fuzz/corpus/<target>/) are copied first, so nothing is written into the repository. A crash,
# a leak, an input that takes over 10 s and an allocation over 1 GB all count as findings.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"

seconds=60
if [[ "${1:-}" =~ ^[0-9]+$ ]]; then
  seconds=$1
  shift
fi

say "Packages"
install_packages "${build_packages[@]}" clang
# The sanitizer runtime belongs to one version of clang, and the package is named after it.
clang_version=$(clang++ -dumpversion | cut -d. -f1)
runtime=$(clang++ --print-runtime-dir 2>/dev/null || true)
if [ -z "$(find "$(clang++ -print-resource-dir)" "${runtime:-/nonexistent}" \
           -name 'libclang_rt.fuzzer*' -print -quit 2>/dev/null)" ]; then
  install_packages "libclang-rt-$clang_version-dev"
fi

cd "$repository"
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
  for source in fuzz/fuzz_*.cc; do
    [ -e "$source" ] && targets+=("$(basename "$source" .cc)")
  done
fi
[ ${#targets[@]} -gt 0 ] || die "there is no fuzz/fuzz_*.cc: nothing to fuzz."

say "Build (fuzz, $(build_jobs) jobs)"
configure fuzz
build fuzz "${targets[@]}"

share=$((seconds / ${#targets[@]}))
[ "$share" -ge 1 ] || share=1

work=$(mktemp -d)
findings=$repository/build/fuzz/findings
mkdir -p "$findings"
failed=()
say "Fuzzing ${#targets[@]} readers, $share s each"
for target in "${targets[@]}"; do
  corpus=$work/$target
  mkdir -p "$corpus"
  seeds=fuzz/corpus/$target
  [ ! -d "$seeds" ] || cp -r "$seeds/." "$corpus/"
  log=$work/$target.log
  if ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=0 \
     UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
     "build/fuzz/fuzz/$target" "$corpus" -max_total_time="$share" -timeout=10 \
     -rss_limit_mb=2048 -malloc_limit_mb=1024 -print_final_stats=1 \
     -artifact_prefix="$findings/$target-" >"$log" 2>&1 </dev/null; then
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    note "$target: ${runs:-?} runs from $(find "$corpus" -type f | wc -l) inputs, nothing found"
  else
    failed+=("$target")
    tail -n 60 "$log" >&2
    artifact=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
    note "$target: FOUND something. To see it again:"
    note "  build/fuzz/fuzz/$target ${artifact:-<input>}"
  fi
done
rm -rf "$work"
if [ ${#failed[@]} -gt 0 ]; then
  die "fuzzing found problems in: ${failed[*]}. Fix them, then add the input to fuzz/corpus/."
fi
say "Fuzzing found nothing"
