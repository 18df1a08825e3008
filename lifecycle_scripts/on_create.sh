#!/bin/bash
# HyperPod runs this as root on every new node: at creation, at replacement, at a software update. Run it again at any
# time. It runs the package podwright_bootstrap (see its boot.py) and ends with that program's exit code.
set -euo pipefail
umask 022

log=/var/log/provision/provisioning.log
mkdir -p "${log%/*}"

# Synthesis packs the package into podwright_bootstrap.tar and writes its SHA-256 here. Empty in the repository: the
# folder beside this script runs.
archive_sha256=
unpacked=/opt/podwright/bootstrap/$archive_sha256

fail() {
  echo "FAILED on $(hostname): $1. What to do: $2."
  exit 1
}

# Verify a copy that only root can change, and unpack that one. The folder appears by one rename.
unpack() {
  local copy=$unpacked.tar found
  cp podwright_bootstrap.tar "$copy" || return
  found=$(sha256sum "$copy") || return
  if [[ ${found%% *} != "$archive_sha256" ]]; then
    rm "$copy"
    fail "$PWD/podwright_bootstrap.tar has SHA-256 ${found%% *}, expected $archive_sha256" \
      "deploy the cluster stack again, which uploads on_create.sh and its archive together, then replace the node"
  fi
  if [[ ! -d $unpacked ]]; then
    rm -rf "$unpacked.new" # of a boot that was killed
    mkdir "$unpacked.new" && tar -xf "$copy" -C "$unpacked.new" --no-same-owner || return
    mv -T "$unpacked.new" "$unpacked" || return
  fi
  rm "$copy"
}

# The service ships stdout to CloudWatch, people look into the file: both get everything. The pipe, and not a process
# substitution, because then the shell stays until tee has written the last line.
{
  cd "$(dirname "${BASH_SOURCE[0]}")"
  if ! python3=$(command -v python3); then
    echo "FAILED on $(hostname): no python3 on PATH ($PATH). What to do: use an image with Python 3.8 or later."
    exit 127
  fi
  export PODWRIGHT_SCRIPTS=$PWD # with provisioning_parameters.json
  if [[ -n $archive_sha256 ]]; then
    [[ -f podwright_bootstrap.tar ]] || fail "$PWD has no podwright_bootstrap.tar beside on_create.sh" \
      "deploy the cluster stack again, which uploads both, then replace the node"
    mkdir -p "${unpacked%/*}"
    exec 9>"${unpacked%/*}/lock"
    flock 9 # two runs may unpack at once
    unpack || fail "cannot unpack podwright_bootstrap.tar into $unpacked" "look at the space left there (df -h /opt)"
    exec 9>&-
    cd "$unpacked"
  fi
  export PYTHONUNBUFFERED=1 # a line is seen when it happens
  exec "$python3" -m podwright_bootstrap "$@"
} 2>&1 | tee -a "$log"
