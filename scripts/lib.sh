# shellcheck shell=bash
# The code that all scripts share: strict mode, folders, and plain progress lines.
# Sourced, never run. Progress goes to stderr, so that a script's stdout stays its result.

set -euo pipefail

HEADGATE_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
HEADGATE_CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/headgate
HEADGATE_SCRIPT=$(realpath "$0")
export HEADGATE_ROOT HEADGATE_CACHE
cd "$HEADGATE_ROOT"

# Colour is used only if stderr is a terminal and NO_COLOR isn't set (https://no-color.org).
if [[ -t 2 && -z ${NO_COLOR:-} ]]; then
  _bold=$'\e[1m' _red=$'\e[31m' _green=$'\e[32m' _dim=$'\e[2m' _off=$'\e[0m'
else
  _bold='' _red='' _green='' _dim='' _off=''
fi

# say TEXT: prints a line of progress.
say() { printf '%s==>%s %s\n' "$_bold" "$_off" "$*" >&2; }

# note TEXT: prints a detail below a line of progress.
note() { printf '    %s%s%s\n' "$_dim" "$*" "$_off" >&2; }

# die TEXT: prints the error and ends the script.
die() {
  printf '%serror:%s %s\n' "$_red" "$_off" "$*" >&2
  exit 1
}

# The exit status of a script that can't get something on this kind of machine, such as a Debian
# package on another system. Tests that need it are then skipped, and counted as skipped. Any other
# status is a failure.
UNAVAILABLE=77

# unavailable TEXT: prints in one line why something isn't available here, and ends the script with
# that status.
unavailable() {
  printf '%s\n' "$*" >&2
  exit "$UNAVAILABLE"
}

# need COMMAND HINT: ends the script with the hint when the command is missing.
need() { command -v "$1" >/dev/null 2>&1 || die "$1 not found: $2"; }

# timed LABEL COMMAND...: runs the command under a line of progress, and prints how long it took.
timed() {
  local label=$1 start=$SECONDS
  shift
  say "$label"
  if "$@"; then
    note "${_green}done${_off}${_dim} in $((SECONDS - start)) s"
  else
    local status=$?
    note "${_red}failed${_off}${_dim} after $((SECONDS - start)) s: $*"
    return "$status"
  fi
}

# usage: prints the comment at the head of the running script.
usage() { awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' "$HEADGATE_SCRIPT"; }

# pip_download DIR ARGUMENT...: downloads one Python package into DIR/package, with these arguments
# of pip download. This project gets prebuilt programs from Python packages: package registries are
# reachable, mirrored and verified in places where arbitrary downloads aren't.
pip_download() {
  local dir=$1
  shift
  need python3 "install Python 3.9 or newer; it downloads and unpacks ${*: -1}"
  local pip=(python3 -m pip)
  if ! "${pip[@]}" --version >/dev/null 2>&1; then
    python3 -m venv "$dir/venv" >&2 ||
      die "python3 has neither pip nor venv: install one (Debian: python3-pip)"
    pip=("$dir/venv/bin/python" -m pip)
  fi
  local bar=off
  if [[ -t 2 ]]; then bar=on; fi
  "${pip[@]}" download --quiet --progress-bar "$bar" --disable-pip-version-check --no-deps \
    --dest "$dir/package" "$@" >&2 ||
    die "cannot download ${*: -1} with pip (see above)"
}

# fetch_wheel PACKAGE==VERSION DIR [SHA256]: downloads one Python wheel and unpacks it into
# DIR/unpacked.
fetch_wheel() {
  local requirement=$1 dir=$2 sha256=${3:-}
  pip_download "$dir" --only-binary=:all: "$requirement"
  local wheels=("$dir"/package/*.whl)
  if [[ -n $sha256 ]]; then
    echo "$sha256  ${wheels[0]}" | sha256sum --check --quiet >&2 ||
      die "$requirement: the downloaded wheel is not the one this script was written for"
  fi
  python3 -m zipfile -e "${wheels[0]}" "$dir/unpacked"
}

# fetch_sdist PACKAGE==VERSION DIR SHA256: downloads a Python package's source and unpacks it into
# DIR/unpacked. pip runs the package's setup to read its metadata, so pip itself checks the hash.
fetch_sdist() {
  local requirement=$1 dir=$2 sha256=$3
  mkdir -p "$dir/unpacked"
  echo "$requirement --hash=sha256:$sha256" >"$dir/${requirement%%==*}"
  pip_download "$dir" --no-binary="${requirement%%==*}" --requirement "$dir/${requirement%%==*}"
  tar -xzf "$dir"/package/*.tar.gz -C "$dir/unpacked"
}

# fetch_debs DIR PACKAGE...: downloads Debian packages, and the packages that they need and this
# machine lacks, and unpacks them into DIR. Nothing is installed: it needs no root, starts no
# service and changes nothing on the machine.
fetch_debs() {
  local dir=$1 plan line packages=()
  shift
  local tool
  for tool in apt-get dpkg-deb; do
    command -v "$tool" >/dev/null 2>&1 ||
      unavailable "$* come as Debian packages, and this system has no $tool"
  done
  # A simulated installation prints the packages that would be installed, in matching versions.
  local simulate=(apt-get --simulate --no-install-recommends --option Debug::NoLocking=1
    install "$@")
  if ! plan=$("${simulate[@]}" 2>&1); then
    # A new machine has no package lists.
    if ((EUID == 0)); then apt-get update >/dev/null 2>&1 || true; fi
    plan=$("${simulate[@]}" 2>&1) || {
      if ((EUID != 0)); then
        unavailable "apt has no package lists for $*; run apt-get update once as root"
      fi
      die "apt doesn't find $*: $plan"
    }
  fi
  while read -r line; do
    if [[ $line =~ ^Inst\ ([^ ]+)\ .*\(([^ ]+)\  ]]; then
      packages+=("${BASH_REMATCH[1]}=${BASH_REMATCH[2]}")
    fi
  done <<<"$plan"
  mkdir -p "$dir"
  ((${#packages[@]} > 0)) || return 0
  note "${packages[*]}"
  local debs
  debs=$(mktemp -d "$dir/.debs.XXXXXX")
  # apt would print long warnings, because its sandbox user can't write into a private folder.
  (cd "$debs" && apt-get download --quiet --option APT::Sandbox::User=root "${packages[@]}" >&2) ||
    die "cannot download ${packages[*]} (see above); as root, run apt-get update and try again"
  local deb
  for deb in "$debs"/*.deb; do dpkg-deb --extract "$deb" "$dir"; done
  rm -rf "$debs"
}

# go_program NAME PACKAGE VERSION: prints the path of a program, built from a Go module once and
# kept in the cache. Go verifies downloads against the public checksum database.
go_program() {
  local program=$HEADGATE_CACHE/$1-$3/$1 scratch
  if [[ ! -x $program ]]; then
    need go "install Go 1.21 or newer (https://go.dev/dl); it builds $1 from source"
    say "Building $1 $3 from source (a minute, once; kept in $HEADGATE_CACHE)"
    mkdir -p "$HEADGATE_CACHE"
    scratch=$(mktemp -d "$HEADGATE_CACHE/.$1.XXXXXX")
    CGO_ENABLED=0 GOWORK=off GOFLAGS='-buildvcs=false -trimpath' GOBIN=$scratch go install \
      -ldflags '-s -w' "$2@$3" >&2 || {
      rm -rf "$scratch"
      die "cannot build $2 $3 (see above)"
    }
    mkdir -p "${program%/*}"
    mv -f "$scratch/$1" "$program"
    rm -rf "$scratch"
  fi
  echo "$program"
}

# go_module NAME MODULE VERSION [HASH]: prepares a long build of NAME from a Go module, and sets
# `source` to the folder of its files, and `scratch` to a folder that is removed when the script
# ends. The build cache is in it too: gigabytes that aren't needed again. A user's own GOCACHE is
# kept. Ends the script as unavailable without Go, or if the module can't be downloaded.
go_module() {
  command -v go >/dev/null 2>&1 ||
    unavailable "$1 is built from source by Go 1.21 or newer (https://go.dev/dl)," \
      "which is not installed"
  mkdir -p "$HEADGATE_CACHE"
  scratch=$(mktemp -d "$HEADGATE_CACHE/.$1.XXXXXX")
  # Go unpacks files as read-only, so they are made writable before they are removed.
  trap 'chmod -R u+w "$scratch"; rm -rf "$scratch"' EXIT
  export CGO_ENABLED=0 GOWORK=off GOFLAGS="${GOFLAGS:-} -buildvcs=false -trimpath" \
    GOCACHE=${GOCACHE:-$scratch/build-cache}
  local answer
  # Runs outside of any Go module.
  answer=$(cd "$scratch" && go mod download -json "$2@$3" 2>&1) || true
  # field NAME: prints a field of the answer.
  field() { sed -n 's/^\t"'"$1"'": "\(.*\)",\{0,1\}$/\1/p' <<<"$answer"; }
  source=$(field Dir)
  [[ -n $source ]] ||
    unavailable "$1 is built from the Go module $2 $3, which can't be had: $(field Error)"
  [[ -z ${4:-} || $(field Sum) == "$4" ]] ||
    die "$2 $3: the downloaded module is not the one this script was written for"
}
