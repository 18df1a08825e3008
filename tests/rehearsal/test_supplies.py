"""The rehearsal's wheels are the locked files, wherever pip found them."""

from __future__ import annotations

import hashlib
import json
import sys
import zipfile
from pathlib import Path

import pytest

from podwright_bootstrap.software import downloads
from podwright_rehearsal.run import supplies


def make_wheel(folder: Path, name: str, text: str) -> Path:
    """Write a wheel that pip can download; the text makes its checksum."""
    wheel = folder / f"{name}-1.0-py3-none-any.whl"
    about = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr(f"{name}.py", text)
        file.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0\n")
        file.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{about}/RECORD", "")
    return wheel


def sha256(path: Path) -> str:
    """Return a file's checksum."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that pip takes wheels from, with the two that the lock and the manifest name."""
    folder = tmp_path / "index"
    folder.mkdir()
    ours = make_wheel(folder, "needed_package", "honest = True\n")
    uv = make_wheel(folder, "uv", "")
    lock, manifest = tmp_path / "requirements.lock", tmp_path / "downloads.json"
    lock.write_text(f"needed-package==1.0 \\\n    --hash=sha256:{sha256(ours)}\n")
    manifest.write_text(json.dumps({"uv": {"version": "1.0", "wheels": {"any": {"sha256": sha256(uv)}}}}))
    monkeypatch.setattr(supplies, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(supplies, "_requirements", lambda: ["needed-package"])
    monkeypatch.setattr(supplies.checkout, "REQUIREMENTS_LOCK", lock)
    monkeypatch.setattr(downloads, "MANIFEST", manifest)
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(folder), "CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    (tmp_path / "cache").mkdir()
    return folder


def test_wheels_are_the_locked_ones(index):
    """Wheels that the lock names become the wheelhouse."""
    folder = supplies._wheelhouse(sys.executable)
    assert {path.name for path in folder.glob("*.whl")} == {path.name for path in index.glob("*.whl")}


def test_packages_that_a_cluster_adds_have_a_wheelhouse_of_their_own(index, tmp_path):
    """It has the wheels of the lock as well, and the one of other clusters stays."""
    plain = supplies._wheelhouse(sys.executable)
    added = make_wheel(index, "added_package", "")
    (tmp_path / "packages.lock").write_text(f"added-package==1.0 --hash=sha256:{sha256(added)}\n")
    folder = supplies._wheelhouse(sys.executable, added=tmp_path / "packages.lock")
    assert {path.name for path in folder.glob("*.whl")} == {path.name for path in index.glob("*.whl")}
    assert {path.name for path in plain.glob("*.whl")} == {path.name for path in index.glob("*.whl")} - {added.name}


@pytest.mark.parametrize("name", ["needed_package", "uv"])
def test_another_file_of_a_locked_version_is_refused(index, name):
    """A mirror that serves other bytes under a locked version gives no wheelhouse, and the message names the file."""
    wheel = make_wheel(index, name, "honest = False\n")
    with pytest.raises(supplies.SuppliesError, match=rf"not the files that .* locks: {wheel.name};"):
        supplies._wheelhouse(sys.executable)
    assert not list((index.parent / "cache").glob("wheelhouse-[0-9].[0-9]*[0-9]"))


def test_a_package_that_the_lock_does_not_name_is_refused(tmp_path):
    """A dependency that came with a wheel, and that nobody locked, is refused too."""
    make_wheel(tmp_path, "stranger", "")
    with pytest.raises(supplies.SuppliesError, match=r"stranger-1\.0"):
        supplies.check_wheels(tmp_path, {})
