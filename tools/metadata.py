"""Copy version and address from pyproject.toml, their one place, to the other distributions and the README.

python tools/metadata.py [--check]      --check: change nothing, and fail if something differs
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DISTRIBUTIONS = ("common", "constructs", "lifecycle_scripts", "training", "rehearsal")
PLACEHOLDER = ".example/"  # a name that nobody can register: https://www.rfc-editor.org/rfc/rfc2606
VERSION, ADDRESS = r'^version = "(.*)"$', r'^Repository = "(.*)"$'
CLONE = r"^\$ git clone --branch v(\S+) (\S+)$"


def version() -> str:
    """Return the version of all distributions."""
    return _only(VERSION, ROOT / "pyproject.toml")


def address() -> str:
    """Return the address that people clone."""
    return _only(ADDRESS, ROOT / "pyproject.toml")


def copies() -> dict[Path, str]:
    """Return the files that repeat them, with the content that they need."""
    found = {}
    for name in DISTRIBUTIONS:
        path = ROOT / name / "pyproject.toml"
        text = _with(VERSION, f'version = "{version()}"', path.read_text("utf-8"), path)
        found[path] = _with(ADDRESS, f'Repository = "{address()}"', text, path)
    readme = ROOT / "README.md"
    clone = f"$ git clone --branch v{version()} {address()}"
    return {**found, readme: _with(CLONE, clone, readme.read_text("utf-8"), readme)}


def _only(pattern: str, path: Path) -> str:
    (found,) = re.findall(pattern, path.read_text("utf-8"), re.MULTILINE)
    return str(found)


def _with(pattern: str, line: str, text: str, path: Path) -> str:
    changed, count = re.subn(pattern, line, text, flags=re.MULTILINE)
    if count != 1:
        raise SystemExit(f"{path}: found {count} lines like {line}, need one")
    return changed


def main() -> int:
    """Write the copies, or say which differ."""
    outdated = {path: text for path, text in copies().items() if path.read_text("utf-8") != text}
    for path, text in outdated.items():
        if "--check" not in sys.argv[1:]:
            path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))
    return 1 if outdated and "--check" in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
