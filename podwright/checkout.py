"""The checkout, or what a wheel has of it: where cluster.yaml's neighbours are. Nothing else computes its root."""

from __future__ import annotations

import os
from pathlib import Path

BUNDLED = Path(__file__).resolve().parent / "bundled"  # tools/application.py puts it into the wheel
INSTALLED = BUNDLED.is_dir()
ROOT = BUNDLED if INSTALLED else Path(__file__).resolve().parents[1]
LIFECYCLE_SCRIPTS = ROOT / "lifecycle_scripts"
TRAINING = ROOT / "training"
REQUIREMENTS_LOCK = TRAINING / "requirements.lock"
USER_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "podwright"
CACHE = USER_CACHE if INSTALLED else ROOT / ".cache"
CDKTF_PROGRAMS = ROOT / "node_modules" / ".bin"
CDKTN_PROGRAMS = ROOT / "tools" / "cdktn" / "node_modules" / ".bin"
BIN = CACHE / "bin"  # what `make setup` downloads: Terraform, and Node where there is none
