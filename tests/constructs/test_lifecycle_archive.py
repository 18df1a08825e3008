"""The archive of lifecycle scripts: the same bytes of the same sources, and everything in it that a node runs."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
from pathlib import Path

import pytest

import podwright_common
from podwright_constructs import lifecycle_archive
from podwright_constructs.lifecycle_archive import ARCHIVE, ENTRYPOINT, pack

SCRIPTS = Path(__file__).parents[2] / "lifecycle_scripts"


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    """A copy of the repository's scripts, to be edited."""
    return Path(shutil.copytree(SCRIPTS, tmp_path / "scripts"))


def test_the_same_sources_give_the_same_bytes(scripts: Path, tmp_path: Path) -> None:
    """Dates, modes and caches of the sources change neither the archive nor the entrypoint nor their folder's name."""
    first = pack(SCRIPTS, into=tmp_path / "first")
    for source in scripts.rglob("*.py"):
        os.utime(source, (1, 1))
        source.chmod(0o600)
    cache = scripts / "podwright_bootstrap" / "__pycache__"
    cache.mkdir(exist_ok=True)
    (cache / "boot.cpython-310.pyc").write_bytes(b"cache")
    second = pack(scripts, into=tmp_path / "second")
    assert first.name == second.name
    for name in (ARCHIVE, ENTRYPOINT):
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_an_edit_changes_the_name(scripts: Path, tmp_path: Path) -> None:
    """A line more in a module or in the entrypoint gives another name; unpacking gives what was edited."""
    names = {pack(scripts, into=tmp_path).name}
    for file in (scripts / "podwright_bootstrap" / "node.py", scripts / ENTRYPOINT):
        file.write_text(f"{file.read_text(encoding='utf-8')}# edited\n", encoding="utf-8")
        names.add(pack(scripts, into=tmp_path).name)
    assert len(names) == 3


def test_the_archive_holds_the_two_packages_alone(tmp_path: Path) -> None:
    """Every module and data file is in it as root's, readable, of one date; the entrypoint carries its SHA-256."""
    folder = pack(SCRIPTS, into=tmp_path)
    assert {file.name for file in folder.iterdir()} == {ENTRYPOINT, ARCHIVE}
    with tarfile.open(folder / ARCHIVE) as archive:
        members = archive.getmembers()
    packages = (SCRIPTS / "podwright_bootstrap", Path(podwright_common.__file__).parent)
    files = [
        file.relative_to(package.parent).as_posix()
        for package in packages
        for file in sorted(package.rglob("*"))
        if file.suffix in {".py", ".json"}
    ]
    assert [member.name for member in members] == files
    assert {(member.uid, member.gid, member.mode, member.mtime) for member in members} == {(0, 0, 0o644, 0)}
    digest = hashlib.sha256((folder / ARCHIVE).read_bytes()).hexdigest()
    assert f"\narchive_sha256={digest}\n" in (folder / ENTRYPOINT).read_text(encoding="utf-8")


def test_packing_again_leaves_the_files(tmp_path: Path) -> None:
    """An archive that exists is not written again, and no half-written file is beside it."""
    folder = pack(SCRIPTS, into=tmp_path)
    written = (folder / ARCHIVE).stat().st_mtime_ns
    assert pack(SCRIPTS, into=tmp_path) == folder
    assert (folder / ARCHIVE).stat().st_mtime_ns == written
    assert list(tmp_path.iterdir()) == [folder]


def test_a_script_without_the_line_is_refused(scripts: Path) -> None:
    """An entrypoint that could not verify the archive is a problem that names the missing line."""
    assert list(lifecycle_archive.problems(scripts)) == []
    (scripts / ENTRYPOINT).write_text("#!/bin/bash\n", encoding="utf-8")
    (problem,) = lifecycle_archive.problems(scripts)
    assert "one line `archive_sha256=`" in str(problem)
