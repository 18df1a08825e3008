"""Paths of code, data, programs and caches: in the checkout, or in a wheel and the cache of its user.

No other module computes these paths, or distinguishes the two.
"""

from __future__ import annotations

import os
from pathlib import Path

BUNDLED = Path(__file__).resolve().parent / "bundled"  # tools/application.py puts it into the wheel
INSTALLED = BUNDLED.is_dir()
ROOT = BUNDLED if INSTALLED else Path(__file__).resolve().parents[1]
LIFECYCLE_SCRIPTS = ROOT / "lifecycle_scripts"
COMMON = ROOT / "common"
TRAINING = ROOT / "training"
REQUIREMENTS_LOCK = TRAINING / "requirements.lock"
USER_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "podwright"
CACHE = USER_CACHE if INSTALLED else ROOT / ".cache"
SUPPLIES = CACHE / ("rehearsals" if INSTALLED else "podwright")
BIN = CACHE / "bin"  # Set-up puts Terraform here, and Node where there is none.
KIT_PACKAGES = {"cdktf": Path(), "cdktn": Path("tools", "cdktn")}  # Below ROOT, by kit: package.json and its lock.
KIT_FOLDERS = {
    kit: (CACHE if INSTALLED else ROOT) / path for kit, path in KIT_PACKAGES.items()
}  # By kit: the folder of node_modules.
KIT_PROGRAMS = tuple(folder / "node_modules" / ".bin" for folder in KIT_FOLDERS.values())
