"""The node image, and what this machine may lack for hosts."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from podwright import cli
from podwright_rehearsal import command
from podwright_rehearsal.hosts import build, image, permission
from podwright_rehearsal.hosts.image import ImageError, build_image
from podwright_rehearsal.hosts.kept_folder import build_once
from podwright_rehearsal.hosts.leftovers import leftovers
from podwright_rehearsal.hosts.permission import why_not
from podwright_rehearsal.run.hosting import KINDS


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
    passed = build.environment(machine, Path("/wheels"))
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


def test_hosts_without_cgroup2_are_of_the_next_simpler_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that cannot run systemd gets hosts over its own root, and one line with the reason."""
    monkeypatch.setattr(command.permission, "why_not", lambda: None)
    monkeypatch.setattr(permission.cgroups, "hierarchy", lambda: None)
    hosts, why = command.kind_of_hosts("debian-13")
    assert (hosts.kind, why) == ("machine", "systemd needs cgroup2, and no writable one is mounted here")
    assert command.kind_of_hosts("machine")[1] is None


def test_every_kind_of_hosts_can_be_named() -> None:
    """The command line offers all kinds, each with a folder of its own."""
    for kind in KINDS:
        assert cli._parser(arguments := ["rehearse", "--hosts", kind]).parse_args(arguments).hosts == kind
    assert len({hosts.folder for hosts in KINDS.values()}) == len(KINDS)


def test_two_builds_at_once_are_one(tmp_path: Path) -> None:
    """The second build waits for the first and finds its folder; remains of a killed build are gone."""
    (tmp_path / ".kept-killed").mkdir()
    built = []

    def fill(work: Path) -> None:
        built.append(work)
        (work / "content").write_text("whole")

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda _: build_once(tmp_path / "kept", "key", fill), range(2)))
    assert sorted(results) == [False, True]
    assert len(built) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "kept.lock"]
    assert build_once(tmp_path / "kept", "another key", fill)


def test_an_interrupted_build_leaves_the_old_folder(tmp_path: Path) -> None:
    """Ctrl-C during a build leaves the old folder, and no part of the new one."""
    build_once(tmp_path / "kept", "key", lambda work: (work / "content").write_text("old"))

    def interrupted(work: Path) -> None:
        (work / "content").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_once(tmp_path / "kept", "another key", interrupted)
    assert (tmp_path / "kept/content").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "kept.lock"]
