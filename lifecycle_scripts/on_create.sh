#!/bin/bash
# HyperPod runs this as root on every new node: at creation, at replacement, at a software update. It may be run again at any time.
# What it does is in podwright_bootstrap/boot.py; it ends with that program's exit code.
set -euo pipefail
umask 022

log=/var/log/provision/provisioning.log
mkdir -p "${log%/*}"

# The service ships stdout to CloudWatch, people look into the file: both get everything. The pipe, and not a process
# substitution, because then the shell stays until tee has written the last line.
{
  cd "$(dirname "${BASH_SOURCE[0]}")"
  if ! python3=$(command -v python3); then
    echo "FAILED on $(hostname): no python3 on PATH ($PATH). What to do: use an image with Python 3.8 or later."
    exit 127
  fi
  export PYTHONUNBUFFERED=1 # a line is seen when it happens
  exec "$python3" -m podwright_bootstrap "$@"
} 2>&1 | tee -a "$log"
