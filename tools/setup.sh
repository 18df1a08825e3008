#!/usr/bin/env bash
# Install what podwright needs into this checkout: .venv/, node_modules/ and .cache/. A second run is fast.
#
#   tools/setup.sh            Python packages, cdktf-cli, Terraform; also cdktn-cli if PODWRIGHT_KIT=cdktn
#   tools/setup.sh rehearsal  also a Debian root with Slurm, wheels and prose for the rehearsal's hosts
#   tools/setup.sh docs       also the generator of the documentation site
#   tools/setup.sh rehearsal browser  also what tests use: the generator, a headless browser, zsh, fish, jq
set -euo pipefail
cd "$(dirname "$0")/.."
cache=.cache/podwright
apt_limit_s=600
mkdir -p "$cache/stamps" .cache/bin
export UV_COMPILE_BYTECODE=1 # once: where PYTHONDONTWRITEBYTECODE is set, each of a thousand imports of torch would compile it anew

say() { printf 'setup: %s\n' "$*"; }
fail() {
  printf 'setup: %s\n' "$*" >&2
  exit 1
}

# size_of NAME: what a long step writes, and about how many MB, with PyTorch's build for CPUs. The build with CUDA is
# 5,000 MB larger.
size_of() {
  case $1 in
    python-packages) echo .venv 2000 ;;
    cdktf-cli) echo node_modules 420 ;;
    checkov) echo .cache/checkov 190 ;;
    docs) echo .cache/docs 100 ;;
  esac
}
progress_every_s=20

# show_progress NAME FOLDER MB: print how long the step has run and how much it has written, until somebody kills this.
show_progress() {
  local started=$SECONDS written
  while sleep "$progress_every_s" >/dev/null 2>&1; do # a sleep that outlives this holds no pipe open
    written=$(du -sm "$2" 2>/dev/null | cut -f1) || true
    say "$1: $((SECONDS - started)) s, ${written:-0} of about $3 MB"
  done
}

# once NAME FILE… -- COMMAND…: run the command unless it succeeded before with the same files.
once() {
  local name=$1 key stamp
  shift
  local files=()
  while [[ $1 != -- ]]; do
    files+=("$1")
    shift
  done
  shift
  stamp=$cache/stamps/$name
  key=$(cat "${files[@]}" | sha256sum)
  if [[ -f $stamp && $(<"$stamp") == "$key" ]]; then return; fi
  rm -f "$stamp"
  local folder mb
  read -r folder mb <<<"$(size_of "$name")"
  if [[ $folder ]]; then
    say "$name: about $mb MB"
    show_progress "$name" "$folder" "$mb" &
    progress=$!
    trap 'kill "$progress" 2>/dev/null || true' EXIT
  else
    say "$name"
  fi
  "$@"
  if [[ ${progress:-} ]]; then kill "$progress" 2>/dev/null || true; fi
  progress=
  printf '%s\n' "$key" >"$stamp.part"
  mv "$stamp.part" "$stamp"
}

# need PACKAGE COMMAND…: the command works, or Debian's package that brings it is installed if we may.
need() {
  local package=$1
  shift
  if "$@" >/dev/null 2>&1; then return; fi
  command -v apt-get >/dev/null || fail "'$*' does not work here and there is no apt-get: install what your system calls $package"
  [[ $(id -u) == 0 ]] || fail "'$*' does not work here: run  sudo apt-get install $package  and try again"
  say "installing $package"
  apt update
  apt install --no-install-recommends "$package"
  "$@" >/dev/null 2>&1 || fail "'$*' does not work even with $package installed"
}

apt() { # a mirror that does not answer ends the set-up with a message
  local status=0
  DEBIAN_FRONTEND=noninteractive timeout --foreground "$apt_limit_s" apt-get -qq -y "$@" >/dev/null || status=$?
  if ((status == 124)); then fail "apt-get $1 did not end within $apt_limit_s s: does this machine's package mirror answer? Try again later"; fi
  if ((status)); then fail "apt-get $* failed"; fi
}

python_is_new_enough() { python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))'; }

make_venv() {
  rm -rf .venv "$cache/stamps"
  mkdir -p "$cache/stamps"
  python3 -m venv .venv
  .venv/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r tools/uv.lock
}

install_python_packages() {
  # torch first and by its exact version: where a directory of wheels offers a CPU build, no CUDA packages are fetched.
  UV_FIND_LINKS=${PIP_FIND_LINKS:-} .venv/bin/uv pip install -q -c training/requirements.lock torch==2.13.0
  .venv/bin/uv pip install -q -r requirements.lock
  # With the build backend of the lock, whose hash was checked, and not one that is fetched for each build.
  .venv/bin/uv pip install -q --no-deps --no-build-isolation -e . -e common -e constructs -e lifecycle_scripts -e rehearsal -e training
}

install_node() {
  rm -f .cache/bin/node .cache/bin/npm
  local majors='^v2[024]\.'
  if [[ ${PODWRIGHT_KIT:-} == cdktn ]]; then majors='^v2[24]\.'; fi # what cdktn-cli asks for
  if [[ $(node --version 2>/dev/null) =~ $majors ]] && npm --version >/dev/null 2>&1; then return; fi
  .venv/bin/uv pip install -q -r tools/node.lock
  ln -sf ../../.venv/bin/node .cache/bin/node
  ln -sf ../../.venv/bin/npm .cache/bin/npm
}

install_checkov() { # in an environment of its own: it pins a hundred packages, boto3 among them
  .venv/bin/uv venv -q --clear --python .venv/bin/python .cache/checkov
  .venv/bin/uv pip install -q --python .cache/checkov/bin/python --require-hashes -r tools/checkov.lock
}

install_docs() { # in an environment of its own: podwright does not need it
  .venv/bin/uv venv -q --clear --python .venv/bin/python .cache/docs
  .venv/bin/uv pip install -q --python .cache/docs/bin/python --require-hashes -r tools/docs.lock
}

install_kit() { PODWRIGHT_KIT=$1 .venv/bin/python -c 'from podwright.operations.deployment import setup; setup.install_kit()'; }

install_kits() {
  once "node${PODWRIGHT_KIT:+-$PODWRIGHT_KIT}" tools/node.lock -- install_node
  [[ -x node_modules/.bin/cdktf ]] || rm -f "$cache/stamps/cdktf-cli"
  once cdktf-cli package.json package-lock.json -- install_kit cdktf
  [[ ${PODWRIGHT_KIT:-} == cdktn ]] || return 0
  [[ -x tools/cdktn/node_modules/.bin/cdktn ]] || rm -f "$cache/stamps/cdktn-cli"
  once cdktn-cli tools/cdktn/package{,-lock}.json -- install_kit cdktn
}

case "$*" in
  '' | docs | rehearsal | 'rehearsal browser') ;;
  -h | --help)
    sed -n 's/^#   //p' tools/setup.sh
    exit
    ;;
  *) fail "unknown arguments '$*': use none, docs, rehearsal, or rehearsal browser" ;;
esac

# Each job's own interpreter decides whether the environment must be made anew.
need python3 python3 --version
python_is_new_enough || fail "python3 is $(python3 --version); 3.10 or later is needed"
need python3-venv python3 -c 'import ensurepip, venv'
if ! .venv/bin/python -c 'import uv' 2>/dev/null; then
  say "virtual environment"
  make_venv
fi
once python-packages requirements.lock training/requirements.lock pyproject.toml {common,constructs,lifecycle_scripts,rehearsal,training}/pyproject.toml \
  -- install_python_packages
if [[ ${1:-} == docs || ${2:-} == browser ]]; then once docs tools/docs.lock -- install_docs; fi
if [[ ${1:-} == rehearsal && $(id -u) == 0 ]]; then # else the hosts are plain processes
  need iproute2 ip -V
  need util-linux unshare --version
fi
is_offered() { apt-cache show "$1" >/dev/null 2>&1; }
if [[ ${2:-} == browser ]] && is_offered chromium-headless-shell; then # else tests of pages say why they skip
  need chromium-headless-shell chromium-headless-shell --version
fi
if [[ ${2:-} == browser && $(id -u) == 0 ]]; then # for the tests of completion and of pages, which skip without them
  for program in zsh fish jq; do
    if is_offered "$program"; then need "$program" "$program" --version; fi
  done
fi

trap 'trap - INT; kill 0' INT # bash keeps Ctrl-C from the jobs below
jobs=()
side_by_side() { # much of each is waiting for the network
  "$@" &
  jobs+=($!)
}
side_by_side install_kits
side_by_side once checkov tools/checkov.lock -- install_checkov
if [[ ${1:-} == rehearsal ]]; then side_by_side .venv/bin/python -m podwright_rehearsal.run.supplies; fi
failed=
for job in "${jobs[@]}"; do wait "$job" || failed=yes; done
[[ -z $failed ]] || exit 1
.venv/bin/podwright setup >/dev/null
