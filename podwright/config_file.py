"""The path of the settings file: the first fact that every command needs, so this module imports nothing heavy."""

from __future__ import annotations

import os
from pathlib import Path

CONFIG_VARIABLE = "PODWRIGHT_CONFIG"
DEFAULT_CONFIG = Path("cluster.yaml")


def config_path() -> Path:
    """Return the file that PODWRIGHT_CONFIG names, else cluster.yaml in the working directory."""
    return Path(os.environ.get(CONFIG_VARIABLE) or DEFAULT_CONFIG)
