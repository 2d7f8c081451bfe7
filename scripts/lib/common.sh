# shellcheck shell=bash disable=SC2034
# Shared by the scripts of this folder: source it, do not run it.
# Provides: say, note, die, as_root, install_packages, build_jobs, configure, build, python_env.

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

# What a build needs, by Debian/Ubuntu package name; docs/dependencies.md says what each is for.
build_packages=(g++ cmake ninja-build pkg-config git nlohmann-json3-dev libcli11-dev libpcre2-dev
                libutf8proc-dev libsentencepiece-dev libhwy-dev libedit-dev libgtest-dev libbenchmark-dev)

say() { printf '\n==> %s\n' "$*"; }
note() { printf '    %s\n' "$*"; }
die() {
  printf '\nerror: %s\n' "$*" >&2
  exit 1
}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  else
    command -v sudo >/dev/null 2>&1 ||
      die "packages have to be installed and neither root nor sudo is available; as root, run: $*"
    sudo "$@"
  fi
}

is_installed() {
  [ "$(dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# install_packages NAME...: installs what is not there yet; with everything there, asks nobody.
install_packages() {
  if ! command -v apt-get >/dev/null 2>&1 || ! command -v dpkg-query >/dev/null 2>&1; then
    note "no apt-get here: assuming that the equivalents of these packages are installed: $*"
    return 0
  fi
  local missing=() name
  for name in "$@"; do
    is_installed "$name" || missing+=("$name")
  done
  if [ ${#missing[@]} -eq 0 ]; then
    note "all $# packages are installed"
    return 0
  fi
  note "installing with apt-get: ${missing[*]}"
  local log
  log=$(mktemp)
  local apt=(as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y
             -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300)
  if ! "${apt[@]}" update >"$log" 2>&1 </dev/null; then
    cat "$log" >&2
    note "apt-get update failed; trying with the package lists that are there"
  fi
  if ! "${apt[@]}" install --no-install-recommends "${missing[@]}" >"$log" 2>&1 </dev/null; then
    cat "$log" >&2
    rm -f "$log"
    die "apt-get could not install: ${missing[*]}. Install them by hand and run this again."
  fi
  rm -f "$log"
}

# Compilers of the largest sources (JSON, SIMD kernels) take about 1.2 GB each, so the number of
# parallel jobs is bounded by free memory as well as by cores. ADDER_JOBS overrides it.
build_jobs() {
  if [ -n "${ADDER_JOBS:-}" ]; then
    echo "$ADDER_JOBS"
    return
  fi
  local jobs available_mb by_memory
  jobs=$(nproc)
  available_mb=$(awk '/^MemAvailable:/ {print int($2 / 1024)}' /proc/meminfo)
  by_memory=$((available_mb / 1200))
  [ "$by_memory" -ge 1 ] || by_memory=1
  [ "$jobs" -le "$by_memory" ] || jobs=$by_memory
  echo "$jobs"
}

# configure PRESET [cmake options...]
configure() {
  local preset=$1
  shift
  local options=("$@")
  if command -v ccache >/dev/null 2>&1 && [ -z "${CMAKE_CXX_COMPILER_LAUNCHER:-}" ]; then
    options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  fi
  local log
  log=$(mktemp)
  if ! (cd "$repository" && cmake --preset "$preset" "${options[@]}") >"$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    die "CMake could not configure the '$preset' preset; the lines above say why."
  fi
  rm -f "$log"
}

# build PRESET [targets...]
build() {
  local preset=$1
  shift
  local targets=()
  [ $# -eq 0 ] || targets=(--target "$@")
  (cd "$repository" && cmake --build --preset "$preset" -j "$(build_jobs)" "${targets[@]}") ||
    die "building the '$preset' preset failed; the compiler's message is above."
}

# python_env: makes .venv with the packages of tools/requirements-test.txt (required) and
# tools/requirements-optional.txt (tried once; the tests that need them skip without them).
python_env() {
  local venv=$repository/.venv interpreter=/usr/bin/python3
  [ -x "$interpreter" ] || interpreter=$(command -v python3) || die "python3 is not installed."
  local version
  version=$("$interpreter" --version)
  # A virtual environment does not survive an upgrade of its interpreter.
  if ! "$venv/bin/python" --version 2>/dev/null | grep -qxF "$version"; then
    note "making .venv with $version"
    rm -rf "$venv"
    "$interpreter" -m venv "$venv" ||
      die "'$interpreter -m venv' failed; is the package python3-venv installed?"
  fi
  local kind file stamp wanted
  for kind in test optional; do
    file=$repository/tools/requirements-$kind.txt
    stamp=$venv/adder-$kind.stamp
    wanted=$(sha256sum <"$file")
    if [ "$(head -n 1 "$stamp" 2>/dev/null)" = "$wanted" ]; then
      if [ "$(sed -n 2p "$stamp")" = failed ]; then
        note "optional Python packages could not be installed last time (remove .venv to try again)"
      fi
      continue
    fi
    note "installing the packages of tools/requirements-$kind.txt into .venv"
    if timeout 600 "$venv/bin/python" -m pip install -q --disable-pip-version-check --no-input \
      -r "$file" </dev/null; then
      echo "$wanted" >"$stamp"
    elif [ "$kind" = optional ]; then
      note "they are not available here: the tests that need them will skip and say so"
      printf '%s\nfailed\n' "$wanted" >"$stamp"
    else
      die "pip could not install tools/requirements-$kind.txt; its message is above."
    fi
  done
}
