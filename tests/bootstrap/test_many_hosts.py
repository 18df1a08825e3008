"""Hosts that boot at the same moment, die while they build, or are replaced."""

from __future__ import annotations

import time

import pytest

pytestmark = pytest.mark.hosts

ADDRESSES = ("10.1.0.5", "10.1.0.57", "10.1.0.6")


def _wait_for(condition, what, limit_s=600):
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.05)


def test_hosts_that_boot_together_make_one_environment_and_one_key_pair(make_host, cloud, finish):
    """Of three hosts one builds, the others find it built; all have the same key and know each other's."""
    hosts = [make_host(address=address, patience=1) for address in ADDRESSES]
    boots = [finish(process) for process in [host.start_boot() for host in hosts]]
    assert [boot.exit_code for boot in boots] == [0, 0, 0], "\n".join(boot.output for boot in boots)
    changes = [change for boot in boots for change in boot.results["environment"]["changes"]]
    (built,) = [change for change in changes if not change.startswith("linked ")]  # whoever comes first links
    assert built == f"built /mnt/fsx/podwright/environments/{cloud.environment.name}"
    assert len({host.read("home/ubuntu/.ssh/id_ed25519") for host in hosts}) == 1
    known = {path.name: path.read_text().split() for path in (cloud.shared / "podwright/ssh/hosts").iterdir()}
    assert sorted(known) == sorted(name for host in hosts for name in (host.name, host.address))
    assert all(line[0] == name for name, line in known.items())
    assert len({line[2] for line in known.values()}) == 3
    assert sorted(path.name for path in (cloud.shared / "podwright/ssh").iterdir()) == ["hosts", "id_ed25519"]


def test_a_dead_builder_is_succeeded(make_host, cloud, finish):
    """A builder killed in the middle of its download frees the lock, and the waiting host builds."""
    builder, heir = make_host(patience=1), make_host(address="10.1.0.6", patience=1)
    (builder.shims / "aws").write_text("#!/bin/bash\ntouch /opt/building; exec sleep 300\n")
    building = builder.start_boot()
    _wait_for((builder.disk / "opt/building").exists, "the first host to build")
    waiting = heir.start_boot()
    log = heir.disk / "var/log/provision/provisioning.log"
    _wait_for(lambda: log.exists() and '"step": "ssh"' in log.read_text(), "the second host to come to the environment")
    builder.switch_off(building)
    boot = finish(waiting)
    assert boot.exit_code == 0, boot.output
    assert "was left incomplete" in boot.output
    assert boot.results["environment"]["outcome"] == "changed"
    assert (cloud.environment / ".complete").exists()


def test_a_replaced_host_boots_alone_and_is_known_by_its_new_key(make_host, cloud, finish):
    """A new instance under the old name replaces its host key for everybody and builds nothing again."""
    first = make_host(patience=1)
    assert finish(first.start_boot()).exit_code == 0
    built = (cloud.environment / ".complete").stat().st_mtime_ns
    key = cloud.shared / "podwright/ssh/hosts" / first.name
    old = key.read_text()
    first.replace()
    boot = finish(first.start_boot())
    assert boot.exit_code == 0, boot.output
    assert len(key.read_text().splitlines()) == 1
    assert key.read_text() != old
    assert (cloud.environment / ".complete").stat().st_mtime_ns == built


def test_an_older_lock_is_no_obstacle(make_host, cloud):
    """The lock's file, left by a builder long gone, does not lock."""
    host = make_host(patience=1)
    lock = cloud.environment.with_name(f".{cloud.environment.name}.lock")
    lock.parent.mkdir(parents=True)
    lock.write_text("ip-10-9-9-9")
    assert host.boot().exit_code == 0


def test_hosts_that_boot_together_make_one_home(make_host, cloud, finish):
    """Of three hosts one makes a user's home and key pair; the others find them, and nothing half-made stays."""
    cloud.contract["podwright"]["nodes"] = {"users": [{"name": "ada", "uid": 2001}, {"name": "bob", "uid": 2002}]}
    hosts = [make_host(address=address, patience=1) for address in ADDRESSES]
    boots = [finish(process) for process in [host.start_boot() for host in hosts]]
    assert [boot.exit_code for boot in boots] == [0, 0, 0], "\n".join(boot.output for boot in boots)
    changes = sorted(change for boot in boots for change in boot.results["homes"]["changes"])
    assert [change for change in changes if "ada" in change and change.startswith("made")] == [
        "made /mnt/fsx/home/ada",
        "made ada's key pair",
    ]
    assert sorted(path.name for path in (cloud.shared / "home").iterdir()) == [".podwright.lock", "ada", "bob"]
