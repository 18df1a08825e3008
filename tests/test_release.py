"""A release is one version everywhere, with a dated changelog and a signed-off tag."""

from __future__ import annotations

import hashlib
import os
import re
import runpy
import shutil
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

import pytest

from podwright.checkout import ROOT


def run(folder: Path, *command: str) -> str:
    """Run a program in a folder, and return what it prints."""
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


def release(folder: Path, call: str) -> str:
    """Run a function of the clone's tools/release.py."""
    code = f"import sys; sys.path.insert(0, 'tools'); import release; {call}"
    return run(folder, sys.executable, "-B", "-c", code)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a repository of its own with what a release reads and writes."""
    for name in run(ROOT, "git", "ls-files", "*pyproject.toml", "tools", "README.md", "CHANGELOG.md").splitlines():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
    text = (tmp_path / "CHANGELOG.md").read_text(encoding="utf-8")
    text = text.replace("## Unreleased\n", "## Unreleased\n- Something.\n", 1)
    (tmp_path / "CHANGELOG.md").write_text(text, encoding="utf-8")
    run(tmp_path, "git", "init", "--quiet", "--initial-branch=main")
    run(tmp_path, "git", "config", "user.name", "Ada")
    run(tmp_path, "git", "config", "user.email", "ada@podwright.example")
    run(tmp_path, "git", "add", ".")
    run(tmp_path, "git", "commit", "--quiet", "--message", "Begin")
    return tmp_path


def test_version_and_address_are_the_same_everywhere() -> None:
    """Every distribution and the README's clone command repeat what pyproject.toml has."""
    copies = runpy.run_path(str(ROOT / "tools" / "metadata.py"))["copies"]()
    assert [path for path, text in copies.items() if path.read_text(encoding="utf-8") != text] == []


def test_a_release_dates_the_changelog_and_tags(clone: Path) -> None:
    """Commit and annotated tag are signed off; a second release of the same version is refused."""
    ready = "print(*release._not_ready('v0.1.0'), sep='\\n')"
    assert release(clone, ready).strip() == ""
    release(clone, "release._tag('v0.1.0')")
    today = f"## 0.1.0 ({datetime.now(timezone.utc):%Y-%m-%d})"
    assert today in run(clone, "git", "show", "v0.1.0:CHANGELOG.md")
    assert run(clone, "git", "cat-file", "-t", "v0.1.0").strip() == "tag"
    shown = run(clone, "git", "show", "--no-patch", "--format=%s%n%b", "v0.1.0")
    assert shown.count("Signed-off-by: Ada <ada@podwright.example>") == 2
    again = release(clone, ready)
    assert "v0.1.0 is tagged already" in again
    assert "CHANGELOG.md: has no entries" in again


CHANGELOG = """# Changelog

## Unreleased
{entries}
{prepared}## 0.0.9 (2026-01-01)
- Older.
"""


@pytest.mark.parametrize("entries", ["", "- New.\n"])
@pytest.mark.parametrize("prepared", ["", "## 0.1.0 (not released yet)\nThe first.\n\n### Added\n- Much.\n\n"])
def test_a_prepared_section_is_dated(clone: Path, entries: str, prepared: str) -> None:
    """A prepared section and what came later, under a heading of its own, get one date, below an empty `Unreleased`."""
    (clone / "CHANGELOG.md").write_text(CHANGELOG.format(entries=entries, prepared=prepared), encoding="utf-8")
    run(clone, "git", "commit", "--quiet", "--all", "--message", "Describe")
    said = release(clone, "print(*release._not_ready('v0.1.0'), sep='\\n')").strip()
    assert said == ("" if entries or prepared else "CHANGELOG.md: has no entries below '## Unreleased'")
    if said:
        return
    release(clone, "release._tag('v0.1.0')")
    today = f"## 0.1.0 ({datetime.now(timezone.utc):%Y-%m-%d})\n"
    later = f"### Also\n{entries.strip()}" if prepared and entries else entries.strip()
    body = "\n\n".join(filter(None, ["The first.\n\n### Added\n- Much." if prepared else "", later]))
    assert (clone / "CHANGELOG.md").read_text(encoding="utf-8") == (
        f"# Changelog\n\n## Unreleased\n\n{today}{body}\n\n## 0.0.9 (2026-01-01)\n- Older.\n"
    )


@pytest.mark.slow
def test_wheels_are_alike_wherever_they_are_built(tmp_path: Path) -> None:
    """A copy of the sources at another place, with other times and rights, gives the wheels of this one, each twice."""
    copy = tmp_path / "a copy"
    for name in run(ROOT, "git", "ls-files", "--cached", "--others", "--exclude-standard").splitlines():
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
            (copy / name).chmod(0o600)
            os.utime(copy / name, (0, 0))
        elif (ROOT / name).is_symlink():
            (copy / name).symlink_to((ROOT / name).readlink())
    call = "print(*(release._built_twice(name, pathlib.Path({!r})) for name in release.PROJECTS), sep='\\n')"
    roots = ["tools", "stacks", ".", "common", "constructs", "lifecycle_scripts"]
    code = f"import pathlib, sys; sys.path[:0] = {roots}; import release; "
    built = []
    for sources in (ROOT, copy):
        folder = tmp_path / f"built-{len(built)}"
        wheels = run(sources, sys.executable, "-B", "-c", code + call.format(str(folder))).splitlines()
        built.append({Path(wheel).name: hashlib.sha256(Path(wheel).read_bytes()).hexdigest() for wheel in wheels})
    assert len(built[0]) == 6
    assert built[0] == built[1]


def test_what_is_not_ready_is_said(clone: Path) -> None:
    """Another version in one distribution, and what is not committed, stand in the way."""
    path = clone / "training" / "pyproject.toml"
    text = path.read_text(encoding="utf-8")
    path.write_text(re.sub('^version = ".*"', 'version = "0.3.0"', text, flags=re.MULTILINE), encoding="utf-8")
    said = release(clone, "print(*release._not_ready('v0.1'), sep='\\n')")
    for words in ("need MAJOR.MINOR.PATCH", "training/pyproject.toml: run python tools/metadata.py", "uncommitted"):
        assert words in said
