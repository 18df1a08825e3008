"""The checkout: where cluster.yaml's neighbours are. Nothing else computes its root."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIFECYCLE_SCRIPTS = ROOT / "lifecycle_scripts"
TRAINING = ROOT / "training"
REQUIREMENTS_LOCK = TRAINING / "requirements.lock"
CACHE = ROOT / ".cache"
CDKTF_PROGRAMS = ROOT / "node_modules" / ".bin"
CDKTN_PROGRAMS = ROOT / "tools" / "cdktn" / "node_modules" / ".bin"
BIN = CACHE / "bin"  # what `make setup` downloads: Terraform, and Node where there is none
