"""The node image, and what this machine may lack for hosts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from podwright_rehearsal.hosts import image, permission
from podwright_rehearsal.hosts.image import ImageError, build_image
from podwright_rehearsal.hosts.leftovers import leftovers
from podwright_rehearsal.hosts.permission import why_not


@pytest.mark.hosts
def test_an_image_is_built_once(node_image: Path) -> None:
    """A second build of the same things does nothing."""
    before = node_image.stat().st_mtime_ns
    assert build_image(node_image) is False
    assert node_image.stat().st_mtime_ns == before


@pytest.mark.hosts
def test_an_image_of_other_packages_is_stale(node_image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The image belongs to the machine's packages: another set of them, another image."""
    assert image.is_current(node_image)
    (tmp_path / "status").write_text("Package: another\n")
    monkeypatch.setattr(image, "_INSTALLED", tmp_path / "status")
    assert not image.is_current(node_image)


@pytest.mark.hosts
def test_a_failed_build_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a package index the error has apt's words, and neither an image nor half of one is left."""
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with pytest.raises(ImageError, match=r"(?s)could not be built.*127\.0\.0\.1"):
        build_image(tmp_path / "image")
    assert [path.name for path in tmp_path.iterdir()] == ["image.lock"]
    assert leftovers(tmp_path) == []


@pytest.mark.hosts
def test_an_image_has_no_secret_and_no_key(node_image: Path) -> None:
    """Host keys and munge's key are made for each cluster; the caller's pip configuration is not copied."""
    layer = node_image / "layer"
    assert list(layer.glob("etc/ssh/ssh_host_*")) == []
    assert not (layer / "etc/munge/munge.key").exists()
    assert (layer / "etc/pip.conf").read_text().splitlines()[1] == "no-index = true"
    assert os.getxattr(layer / "root", "trusted.overlay.opaque") == b"y"


def test_only_what_the_build_needs_is_passed_on() -> None:
    """Both pip's and proxies' variables reach the build; what would lead to this machine's Python does not."""
    machine = {
        "PIP_INDEX_URL": "u",
        "https_proxy": "p",
        "HOME": "/root",
        "PYTHONPATH": "x",
        "PATH": "/pyenv",
        "TOKEN": "t",
    }
    passed = image._environment(machine, Path("/wheels"))
    assert set(passed) == {"PIP_INDEX_URL", "https_proxy", "HOME", "PATH", "PODWRIGHT_WHEELHOUSE"}
    assert "pyenv" not in passed["PATH"]


@pytest.mark.parametrize(
    ("lacking", "words"),
    [
        ("root", "sudo"),
        ("tool", "ip not found: apt-get install iproute2"),
        ("apt", "run this on Debian or Ubuntu"),
        ("linux", "run this on Linux"),
    ],
)
def test_what_a_machine_lacks_is_said_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, lacking: str, words: str
) -> None:
    """Each missing requirement is named with its remedy."""
    gone = {"tool": "ip", "apt": "apt-get"}.get(lacking)
    monkeypatch.setattr(permission.shutil, "which", lambda tool: None if tool == gone else f"/bin/{tool}")
    monkeypatch.setattr(permission.os, "geteuid", lambda: 1000 if lacking == "root" else 0)
    monkeypatch.setattr(permission.sys, "platform", "darwin" if lacking == "linux" else "linux")
    assert words in (why_not() or "")
