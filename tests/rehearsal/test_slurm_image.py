"""The node image, and what this machine may lack for hosts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from podwright import cli
from podwright_rehearsal import command
from podwright_rehearsal.hosts import build, image, permission
from podwright_rehearsal.hosts.debian_root import RELEASES
from podwright_rehearsal.hosts.image import build_image
from podwright_rehearsal.hosts.kept_folder import build_once
from podwright_rehearsal.hosts.leftovers import leftovers
from podwright_rehearsal.hosts.permission import why_not
from podwright_rehearsal.run import supplies
from podwright_rehearsal.run.hosting import KINDS

DEBIAN_13 = RELEASES["debian-13"]


@pytest.mark.hosts
def test_an_image_is_built_once(debian_13: Path) -> None:
    """A second build of the same things does nothing."""
    before = debian_13.stat().st_mtime_ns
    assert build_image(debian_13, release=DEBIAN_13) is False
    assert debian_13.stat().st_mtime_ns == before


@pytest.mark.hosts
def test_an_image_of_other_packages_is_stale(debian_13: Path) -> None:
    """Another set of packages, another image."""
    assert image.is_current(debian_13, DEBIAN_13)
    assert not image.is_current(debian_13, replace(DEBIAN_13, packages=("systemd",)))


@pytest.mark.hosts
def test_without_packages_a_release_is_named_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Apt's words are the reason, neither a root nor half of one is left, and nothing is tried again."""
    if why := why_not():
        pytest.skip(why)
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setattr(supplies, "CACHE", tmp_path)
    why = supplies.why_no_image(DEBIAN_13) or ""
    assert why.startswith("Debian 13's systemd and Slurm 24.11 are not available here: E: ")
    assert "127.0.0.1" in why
    assert sorted(path.name for path in tmp_path.iterdir()) == ["debian-13-root.lock", "node-image-debian-13.failure"]
    assert leftovers(tmp_path) == []
    monkeypatch.setattr(supplies, "node_image", lambda _: pytest.fail("tried again"))
    assert supplies.why_no_image(DEBIAN_13) == why


def test_where_debian_13_cannot_be_had_hosts_are_debian_12(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next release takes its place, with the reason; without any, hosts are plain processes."""
    cannot = {"debian-13": "no Debian 13"}
    monkeypatch.setattr(supplies.permission, "why_not", lambda: None)
    monkeypatch.setattr(supplies, "why_no_image", lambda release: cannot.get(release.name))
    hosts, why = command.kind_of_hosts("debian-13")
    assert (hosts.kind, why) == ("debian-12", "no Debian 13")
    assert command.kind_of_hosts("debian-12")[1] is None
    cannot["debian-12"] = "no Debian 12"
    hosts, why = command.kind_of_hosts("debian-13")
    assert (hosts.kind, why) == ("flat", "no Debian 13; no Debian 12")


@pytest.mark.hosts
def test_an_image_has_no_secret_and_no_key(debian_13: Path) -> None:
    """Host keys and munge's key are made for each cluster; this machine's pip and apt configuration is not copied."""
    layer, root = debian_13 / "layer", debian_13 / "root"
    keys = [*root.glob("etc/ssh/ssh_host_*"), root / "etc/munge/munge.key"]
    hidden = [layer / key.relative_to(root) for key in keys if key.exists()]
    assert all(path.is_char_device() for path in hidden)  # a file that overlayfs hides
    assert [path for path in layer.glob("etc/ssh/ssh_host_*") if path not in hidden] == []
    assert not (layer / "etc/munge/munge.key").is_file()
    assert (layer / "etc/pip.conf").read_text().splitlines()[1] == "no-index = true"
    assert not (root / "etc/apt/apt.conf.d/99mmdebstrap").exists()


def test_only_what_the_build_needs_is_passed_on() -> None:
    """Proxies reach the build; what would lead to this machine's Python does not."""
    machine = {"https_proxy": "p", "HOME": "/root", "PYTHONPATH": "x", "PATH": "/pyenv", "TOKEN": "t"}
    passed = build.environment(machine)
    assert set(passed) == {"https_proxy", "HOME", "PATH"}
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


def test_a_machine_without_cgroup2_has_flat_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that cannot run systemd gets plain processes, and one line with the reason."""
    monkeypatch.setattr(permission, "_try_namespaces", lambda: None)
    monkeypatch.setattr(permission.cgroups, "hierarchy", lambda: None)
    monkeypatch.setattr(permission.os, "geteuid", lambda: 0)
    hosts, why = command.kind_of_hosts("debian-13")
    assert (hosts.kind, why) == ("flat", "systemd needs cgroup2, and no writable one is mounted here")


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
