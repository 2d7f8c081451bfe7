#!/usr/bin/env bash
# Every GPU test, then the decode bench of several models' geometries as a table (synthetic weights),
# an audit of decode steps of several families, and the convolution of a step three ways.
#   scripts/gpu_test.sh [BUILD] [--sanitizer]     (default BUILD: build/cuda, else build/gpu-portable)
# BUILD is a build folder, or any folder with the programs in it. Needs a CUDA device, nothing to be
# installed. --sanitizer also runs compute-sanitizer's memcheck and racecheck over the op tests.
# ADDER_BENCH_CSV names a file to which the bench's rows are appended, ADDER_AUDIT_DIR a folder for
# the audits' reports.
# The checkout that this script is part of has the test cases and the demo model; the programs may
# have been built elsewhere.
# ADDER_SHARED names the folder with conformance/ and geometries/ (default: ../shared).
set -uo pipefail
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

build=""
sanitizer=0
for argument in "$@"; do
  case $argument in
    --sanitizer) sanitizer=1 ;;
    *) build=$argument ;;
  esac
done
if [ -z "$build" ]; then
  build=$repository/build/cuda
  [ -d "$build" ] || build=$repository/build/gpu-portable
fi
export ADDER_REPOSITORY=$repository
export ADDER_DEMO_MODEL=${ADDER_DEMO_MODEL:-$repository/models/demo}
export ADDER_SHARED=${ADDER_SHARED:-$repository/../shared}
program() { find "$build" -name "$1" -type f -perm -u+x -print -quit; }
adder=$(program adder)
if [ -z "$adder" ]; then
  echo "error: there is no program adder under $build; build it with: cmake --preset cuda && cmake --build --preset cuda" >&2
  exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# Tests wait for references on the CPU most of the time, so all run at once, the longest in shards.
tests=(cuda_test:6 op_difference_test:2 state_invariants_test:4 conformance_test:2
       device_decode_test:2 state_dtype_test:2 wide_slices_test:1 router_test:1
       rope_scaling_test:1 cuda_support_test:1 demo_parity_test:1)
echo "==> tests"
for entry in "${tests[@]}"; do
  name=${entry%:*} shards=${entry#*:}
  test=$(program "$name")
  if [ -z "$test" ]; then
    echo "error: $name is missing under $build" >&2
    failed=1
    continue
  fi
  # Programs that test CUDA alone need not say so in their tests' names.
  filter='*cuda*'
  case $name in cuda_test | cuda_support_test | demo_parity_test) filter='*' ;; esac
  for ((shard = 0; shard < shards; ++shard)); do
    (
      # A kernel that hangs must not keep the rest from running.
      GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard timeout 120 "$test" \
        --gtest_filter="$filter" --gtest_brief=1 >"$work/$name.$shard.log" 2>&1
      echo $? >"$work/$name.$shard.code"
    ) &
  done
done
wait
skipped=0
for entry in "${tests[@]}"; do
  name=${entry%:*} shards=${entry#*:}
  echo "==> $name"
  for ((shard = 0; shard < shards; ++shard)); do
    log=$work/$name.$shard.log
    [ -e "$log" ] || continue
    grep -E 'max error|demo cuda|FAILED|PASSED|Failure|SKIPPED' "$log"
    # The summary has one line "[  SKIPPED ] 2 tests."
    count=$(sed -nE 's/^\[  SKIPPED \] ([0-9]+) tests?[.,].*/\1/p' "$log" | tail -n 1)
    skipped=$((skipped + ${count:-0}))
    code=$(cat "$work/$name.$shard.code" 2>/dev/null || echo unknown)
    [ "$code" = 0 ] && continue
    failed=1
    # What crashed or hung says nothing of its own; 124 is the end of its time.
    echo "error: $name, shard $shard of $shards, exited with $code; its last lines:"
    tail -n 5 "$log"
  done
done
echo "==> $skipped tests skipped"

if [ "$sanitizer" = 1 ]; then
  for tool in memcheck racecheck; do
    echo "==> compute-sanitizer $tool, kernels"
    compute-sanitizer --tool "$tool" --error-exitcode 1 "$(program cuda_test)" --gtest_brief=1 \
      >"$work/$tool.log" 2>&1 || failed=1
    tail -n 3 "$work/$tool.log"
    echo "==> compute-sanitizer $tool, programs"
    compute-sanitizer --tool "$tool" --error-exitcode 1 "$(program op_difference_test)" \
      --gtest_filter='*synthetic*cuda*' --gtest_brief=1 >"$work/$tool.log" 2>&1 || failed=1
    tail -n 3 "$work/$tool.log"
  done
fi

# bench NAME GEOMETRY BITS ARGUMENTS...
table=()
csv=()
[ -n "${ADDER_BENCH_CSV:-}" ] && csv=(--csv "$ADDER_BENCH_CSV")
bench() {
  local name=$1 geometry=$2 bits=$3 model=$work/$1
  shift 3
  if [ ! -d "$model" ]; then
    "$adder" synthesize --geometry "$ADDER_SHARED/geometries/$geometry.json" --output "$model" \
      --bits "$bits" >/dev/null || { failed=1; return; }
  fi
  local row
  while read -r row; do table+=("$row"); done < <(
    "$adder" bench decode -m "$model" --device cuda --json "${csv[@]}" "$@" | python3 -c '
import json, sys
decoder = json.JSONDecoder()
text = sys.stdin.read()
while text.strip():
    r, end = decoder.raw_decode(text.lstrip())
    text = text.lstrip()[end:]
    print("%-22s %5d %6d %12.0f %11.0f %9.1f %9.1f %9d %8.0f%%" % (
        sys.argv[1], r["batch"], r["prompt_tokens"], r["prefill_tokens_per_second_median"],
        r["decode_tokens_per_second_median"], r["step_seconds_p50"] * 1e6,
        r["step_seconds_p99"] * 1e6, r["launches_per_step"], 100 * r["bandwidth_fraction"]))
' "$name")
}
echo "==> bench"
bench granite-4.0-h-350m granite-4.0-h-350m 4 --batch 1
bench granite-350m-bf16 granite-4.0-h-350m none --batch 1
bench granite-4.0-h-tiny granite-4.0-h-tiny 4 --batch 1
bench mamba2-130m-bf16 mamba2-130m none --batch 1
bench mamba2-1.3b mamba2-1.3b 4 --batch 1
bench llama-3.2-1b llama-3.2-1b 4 --batch 1
bench falcon-h1-tiny-90m falcon-h1-tiny-90m-instruct 4 --batch 1
bench falcon-h1-0.5b falcon-h1-0.5b 4 --batch 1
bench lfm2-350m-8bit lfm2-350m 8 --batch 1
bench plamo-2-1b plamo-2-1b 4 --batch 1
bench qwen3.5-0.8b qwen3.5-0.8b 4 --batch 1
bench nemotron-3-nano nemotron-3-nano-30b-a3b 4 --batch 1 --repeat 3
bench mamba-130m-bf16 mamba-130m none --batch 1
bench recurrentgemma-2b recurrentgemma-2b 4 --batch 1
bench rwkv7-168m-bf16 rwkv7-168m-pile none --batch 1
bench granite-4.0-h-350m granite-4.0-h-350m 4 --batch 8,32,128 --prompt-tokens 64 --repeat 3
bench mamba2-1.3b mamba2-1.3b 4 --batch 8,32,128 --prompt-tokens 64 --repeat 3
bench granite-350m-f16-state granite-4.0-h-350m 4 --batch 32,128 --prompt-tokens 64 --repeat 3 --state-dtype f16
bench granite-4.0-h-350m granite-4.0-h-350m 4 --batch 1 --prompt-tokens 4096 --repeat 3
bench mamba2-1.3b mamba2-1.3b 4 --batch 1 --prompt-tokens 4096 --repeat 3
bench granite-4.0-h-350m granite-4.0-h-350m 4 --batch 1 --prompt-tokens 8192 --repeat 3

# audit NAME MODEL: one row of the audit's table. A broken rule fails the whole run.
audits=()
audit() {
  local log=${ADDER_AUDIT_DIR:-$work}/audit-${1%% *}-${2##*/}.json
  "$adder" audit -m "$2" --json >"$log" 2>"$log.err" || { failed=1; tail -n 1 "$log.err" >&2; }
  audits+=("$(python3 -c '
import json, sys
r = json.load(open(sys.argv[2]))
broken = ", ".join(rule["name"] for rule in r["rules"] if not rule["kept"])
print("%-34s %9.0f %9.0f %7.0f %7.1f%%  %s" % (
    sys.argv[1], r["launches_per_step"], r["most_launches_per_layer"],
    r["synchronizations_per_step"], 100 * r["gpu_busy_share"],
    "BROKEN: " + broken if broken else "kept"))
' "$1" "$log" 2>/dev/null || echo "$1: no report")")
}
echo "==> audit"
audit "granitemoehybrid (350m)" "$work/granite-4.0-h-350m"
audit "granitemoehybrid (tiny, experts)" "$work/granite-4.0-h-tiny"
audit "mamba2 (130m, bf16)" "$work/mamba2-130m-bf16"
audit "llama (3.2-1b)" "$work/llama-3.2-1b"
audit "falcon_h1 (0.5b)" "$work/falcon-h1-0.5b"
audit "lfm2 (350m, 8-bit)" "$work/lfm2-350m-8bit"
audit "plamo2 (1b)" "$work/plamo-2-1b"
audit "qwen3_5 (0.8b)" "$work/qwen3.5-0.8b"
audit "nemotron_h (nano 30b, experts)" "$work/nemotron-3-nano"
# No geometry of this family is at hand: the conformance model's, widened to the sizes of a real one.
python3 -c '
import json, sys
config = json.load(open(sys.argv[1]))
config.update(hidden_size=2048, intermediate_size=8192, num_attention_heads=32,
              num_key_value_heads=8, num_hidden_layers=16, vocab_size=49152)
for field in ("quantization", "quantization_config", "head_dim", "layer_types"):
    config.pop(field, None)
json.dump(config, open(sys.argv[2], "w"))
' "$ADDER_SHARED/conformance/models/granite/config.json" "$work/granite.json"
"$adder" synthesize --geometry "$work/granite.json" --output "$work/granite" --bits 4 >/dev/null || failed=1
audit "granite (2048 wide, 16 layers)" "$work/granite"

# From the page cache to the first token, everything included: a checkpoint of 1 GB.
echo "==> load"
loads=()
"$adder" synthesize --geometry "$ADDER_SHARED/geometries/llama-3.2-1b.json" \
  --output "$work/llama-6-bit" --bits 6 >/dev/null || failed=1
for round in first second; do
  loads+=("$(python3 -c '
import json, subprocess, sys, time
begin = time.monotonic()
out = subprocess.run([sys.argv[1], "generate", "-m", sys.argv[2], "--device", "cuda", "--tokens",
                      "1,2,3", "--max-tokens", "1", "--ignore-eos", "--json"],
                     check=True, capture_output=True, text=True).stdout
print("%-34s %9.2f %9.2f" % ("llama-3.2-1b, 6-bit, " + sys.argv[3],
                             json.loads(out)["timings"]["load_seconds"], time.monotonic() - begin))
' "$adder" "$work/llama-6-bit" "$round")") || failed=1
done

echo "==> bench conv"
"$adder" bench conv >"$work/conv.log" 2>&1 || failed=1
cat "$work/conv.log"

printf '\n%-34s %9s %9s %7s %8s  %s\n' family launches per-layer syncs busy rules
printf '%s\n' "${audits[@]}"
printf '\n%-34s %9s %9s\n' 'load, s' load process
printf '%s\n' "${loads[@]}"
printf '\n%-22s %5s %6s %12s %11s %9s %9s %9s %9s\n' model batch prompt prefill/s decode/s p50-us p99-us launches bandwidth
printf '%s\n' "${table[@]}"
exit "$failed"
