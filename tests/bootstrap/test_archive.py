"""Boots from the archive, as HyperPod downloads it: verified, unpacked once, and run."""

from __future__ import annotations

import shutil

import pytest

from podwright_constructs.lifecycle_archive import ARCHIVE, ENTRYPOINT, pack

pytestmark = pytest.mark.hosts
STEP = "./on_create.sh --only parameters"
UNPACKED = "ls -A /opt/podwright/bootstrap"


@pytest.fixture
def host(make_host, tmp_path):
    """A host whose scripts are the two packed files and the parameters."""
    host = make_host()
    packed = pack(host.scripts, into=tmp_path / "packed")
    shutil.rmtree(host.scripts / "podwright_bootstrap")
    for file in packed.iterdir():
        shutil.copyfile(file, host.scripts / file.name)
    (host.scripts / ENTRYPOINT).chmod(0o755)
    return host


def test_a_host_boots_from_the_archive(host):
    """Every step runs from the unpacked package, the second boot changes nothing, and one folder is left."""
    installed = "/opt/ml/config/provisioning_parameters.json"
    boot = host.boot(f"./on_create.sh && ./on_create.sh && {UNPACKED} && cat {installed}")
    assert boot.exit_code == 0, boot.output
    assert len(boot.summaries) == 2
    assert ", 0 changes" in boot.summaries[1]
    assert set(boot.output.splitlines()[-3:-1]) == {digest_of(host), "lock"}
    assert host.read("opt/scripts/provisioning_parameters.json") in boot.output


def test_boots_at_once_and_after_a_kill_unpack_once(host):
    """Runs that begin together, beside what a killed one left half-unpacked, all run the whole package."""
    half = f"opt/podwright/bootstrap/{digest_of(host)}.new/podwright_bootstrap"
    host.write(f"{half}/boot.py", "raise SystemExit('half a package')\n")
    run = "./on_create.sh --help"  # two boots on one host would write the same files
    boot = host.boot(f"{run} & one=$!; {run} & two=$!; wait $one && wait $two && {UNPACKED}")
    assert boot.exit_code == 0, boot.output
    assert boot.output.count("usage: ") == 2, boot.output
    assert set(boot.output.splitlines()[-2:]) == {digest_of(host), "lock"}


@pytest.mark.parametrize("damage", ["truncate -s -1", "cp /etc/hostname"])
def test_another_archive_does_not_run(host, damage):
    """One line names both SHA-256 and what to do; nothing of the archive has run or stays."""
    boot = host.boot(f"{damage} {ARCHIVE}; {STEP}; echo exit $?; {UNPACKED}")
    (failure,) = boot.failures
    assert f"/opt/scripts/{ARCHIVE} has SHA-256 " in failure
    assert f"expected {digest_of(host)}. What to do: deploy the cluster stack again" in failure
    assert boot.output.endswith("exit 1\nlock\n")


def test_a_missing_archive_is_one_line(host):
    """An on_create.sh that came alone says what is missing and what to do."""
    boot = host.boot(f"rm {ARCHIVE}; {STEP}")
    assert boot.exit_code == 1
    (failure,) = boot.failures
    assert f"/opt/scripts has no {ARCHIVE} beside on_create.sh. What to do: deploy the cluster stack again" in failure


def test_a_full_disk_is_one_line(host):
    """Without room for the package the boot says where to look, and the next boot unpacks it."""
    full = "mkdir -p /opt/podwright && mount -t tmpfs -o size=64k tmpfs /opt/podwright"
    boot = host.boot(f"{full}; {STEP}; umount /opt/podwright; {STEP}")
    assert boot.exit_code == 0, boot.output
    (failure,) = boot.failures
    assert "What to do: look at the space left there (df -h /opt)" in failure


def digest_of(host):
    """The SHA-256 that the host's entrypoint expects."""
    (digest,) = (
        line.partition("=")[2]
        for line in host.read(f"opt/scripts/{ENTRYPOINT}").splitlines()
        if line.startswith("archive_sha256=")
    )
    return digest
