"""Gather the sources of the wheel `podwright`: the application, and what it needs of the rest of the checkout.

An installed podwright synthesizes and plans without a checkout: lifecycle scripts, the training program's sources, the
app and the examples are in the wheel, under ``podwright/bundled``.
"""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
APPLICATION = ("pyproject.toml", "README.md", "LICENSE", "podwright", "stacks")
BUNDLED = (
    *("cdktf.json", "main.py", "cluster.yaml", "examples", "common", "lifecycle_scripts", "training"),
    *("package.json", "package-lock.json", "tools/cdktn/package.json", "tools/cdktn/package-lock.json"),
)
NOT_SOURCES = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist")


def gather(folder: Path) -> Path:
    """Copy the sources into ``podwright`` below a folder and return it."""
    sources = folder / "podwright"
    _copy(APPLICATION, sources)
    _copy(BUNDLED, sources / "podwright" / "bundled")
    return sources


def _copy(names: tuple[str, ...], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=NOT_SOURCES)
        else:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
