#!/usr/bin/env bash
# Installs what is missing, builds adder and lets the bundled model write a story.
#   scripts/demo.sh ["How the story begins"]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"

prompt=${1:-Once upon a time}
adder=build/release/apps/adder/adder

say "Packages"
install_packages "${build_packages[@]}"

say "Build (release, $(build_jobs) jobs; the first time takes minutes, later ones seconds)"
configure release
build release adder

cd "$repository"
story=("$adder" generate -m models/demo -p "$prompt" -n 200 --temperature 0.7 --top-p 0.95 --seed 3)
say "$(printf '%q ' "${story[@]}")"
printf '\n%s' "$prompt"
"${story[@]}"

if [ -t 0 ] && [ -t 1 ]; then
  say "$adder run   (now it is your turn)"
  exec "$adder" run
fi
say "Done. To write with it yourself: $adder run"
