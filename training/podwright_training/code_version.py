"""Name the code that trains: a commit where it runs from a checkout, else the installed version."""

from __future__ import annotations

import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

DISTRIBUTION = "podwright-training"
SOURCE = Path(__file__).parents[1] / "pyproject.toml"  # in a checkout; an installed package has none there
TIMEOUT_S = 10


def code_version(file: Path = Path(__file__)) -> str:
    """Return ``git <commit>``, with ``-dirty`` if files differ from it, or ``podwright-training <version>``.

    A checkout that merely has an environment in it, whose files git does not track, is not the code's own.
    """
    tracked = _git(file.parent, "ls-files", "--error-unmatch", file.name)
    commit = _git(file.parent, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*") if tracked else ""
    return f"git {commit}" if commit else f"{DISTRIBUTION} {package_version()}"


def package_version() -> str:
    """Return the package's version; of a source folder that is on ``PYTHONPATH`` but not installed, its project's."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        lines = SOURCE.read_text(encoding="utf-8") if SOURCE.is_file() else ""
        match = re.search(r'^version = "(.+)"$', lines, re.MULTILINE)
        return match[1] if match else "of unknown version"


def _git(folder: Path, *arguments: str) -> str:
    """Return git's output; empty if git fails or is not installed."""
    try:
        done = subprocess.run(
            ("git", "-C", folder, *arguments), capture_output=True, text=True, timeout=TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
