"""Make environments for peers that need other packages than this checkout, below ``.cache/bench``."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from podwright.checkout import CACHE


def peer_environment(name: str, *installations: Sequence[str]) -> Path:
    """Return the Python of an environment; the first call makes it and installs its packages, in this order."""
    folder = CACHE / "bench" / name
    python = folder / "bin" / "python"
    if not python.exists():
        uv = Path(sys.executable).parent / "uv"
        links = [f"--find-links={link}" for link in os.environ.get("PIP_FIND_LINKS", "").split()]
        subprocess.run([uv, "venv", "-q", "-p", sys.executable, folder], check=True)
        for packages in installations:
            subprocess.run([uv, "pip", "install", "-q", "-p", python, *links, *packages], check=True)
    return python
