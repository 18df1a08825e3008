"""Programs of this machine's Debian, which are not installed: unpacked once, below the checkout's cache."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from podwright_rehearsal.hosts import debian
from podwright_rehearsal.hosts.kept_folder import build_once

CACHE = Path(__file__).parents[3] / ".cache" / "podwright"


def unpacked(name: str, packages: Sequence[str]) -> Path:
    """Return the folder with the content of the packages; skip the test where there is no apt."""
    if missing := debian.missing_programs():
        pytest.skip(f"needs {', '.join(missing)}")
    build_once(CACHE / name, " ".join(packages), partial(debian.unpack, packages))
    return CACHE / name
