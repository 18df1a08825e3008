"""The scratch folder, on real disks that are files: nothing that holds something is ever written."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.hosts

# The real lsblk; of the disks named in /opt/disks it says what an EC2 instance's would.
LSBLK = """#!/bin/bash
/usr/bin/lsblk "$@" $(cat /opt/disks) | sed 's/"type":"loop"/"type":"disk"/; s/"type": "loop"/"type": "disk"/
s/"model": *null/"model": "Amazon EC2 NVMe Instance Storage"/'
"""
FEATURE = {"scratch": {"mount_path": "/scratch"}}
STEP = "./on_create.sh --only scratch"


def run(*command: object) -> str:
    return subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def make_disk(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Makes block devices of 64 MiB."""
    made: list[str] = []

    def make(*, holds: str = "") -> str:
        image = tmp_path / f"disk-{len(made)}.img"
        with image.open("wb") as file:
            file.truncate(64 << 20)
        if holds == "partition table":
            with image.open("r+b") as file:
                file.seek(446)  # one entry of a master boot record: Linux, from sector 2048
                file.write(struct.pack("<8B2I", 0, 0, 0, 0, 0x83, 0, 0, 0, 2048, 1024) + bytes(48) + b"\x55\xaa")
        elif holds:
            run(f"mkfs.{holds}", "-q", image)
        try:
            made.append(run("losetup", "--find", "--show", image))
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this kernel gives no loop devices: {error.stderr}")
        return made[-1]

    yield make
    for device in made:
        run("losetup", "--detach", device)


@pytest.fixture
def make_node(cloud, make_host):
    """Makes a compute node with some disks; its root is one where /scratch can be made."""

    def make(*disks: str, promised: int = 1):
        cloud.contract["podwright"]["nodes"].update(FEATURE)
        cloud.contract["podwright"]["instance_facts"]["workers"]["nvme_disks"] = promised
        cloud.contract["podwright"]["nodes"]["scratch"]["mount_path"] = "/mnt/scratch"
        host = make_host(patience=0.02)
        host.write("opt/disks", " ".join(disks))
        host.write("opt/shims/lsblk", LSBLK, 0o755)
        return host

    return make


def test_a_free_disk_becomes_scratch(make_node, make_disk):
    """A file system is made once; whoever comes writes there, and the machine's next boot mounts it by its label."""
    host = make_node(make_disk())
    check = "findmnt -no FSTYPE /mnt/scratch && stat -c %a /mnt/scratch && runuser -u ubuntu -- touch /mnt/scratch/mine"
    again = f"umount /mnt/scratch && mount /mnt/scratch && ls /mnt/scratch/mine && {STEP}"
    boot = host.boot(f"{STEP} && {STEP} && {check} && {again}; umount /mnt/scratch")
    assert boot.exit_code == 0, boot.output
    assert [summary.split(", ")[1] for summary in boot.summaries] == ["8 changes", "0 changes", "0 changes"], (
        boot.output
    )
    assert "\next4\n1777\n" in boot.output
    assert "LABEL=podwright-nvme /mnt/scratch ext4 noatime,nofail," in host.read("etc/fstab")


@pytest.mark.parametrize("holds", ["ext4", "partition table"])
def test_a_disk_that_holds_something_is_left_alone(make_node, make_disk, holds):
    """A disk with data is named, and not a byte of it is changed."""
    disk = make_disk(holds=holds)
    before = run("sha256sum", disk)
    boot = make_node(disk).boot(STEP)
    assert f"at step scratch: none of the 1 NVMe disks is free: {disk}: it holds" in boot.failures[0]
    assert run("sha256sum", disk) == before


def test_a_disk_in_use_is_left_alone(make_node, make_disk):
    """A disk that a program holds open for itself is in use, though nothing is written on it."""
    disk = make_disk()
    hold = f"import os, time; os.open('{disk}', os.O_RDONLY | os.O_EXCL); print('held', flush=True); time.sleep(60)"
    with subprocess.Popen(["python3", "-c", hold], stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        boot = make_node(disk).boot(STEP)
        holder.kill()
    assert f"{disk}: it is in use" in boot.failures[0], boot.output


def test_a_missing_disk_is_reported(make_node, make_disk):
    """Fewer disks than the type has fail the boot with both numbers."""
    boot = make_node(make_disk(), promised=2).boot(STEP)
    assert "at step scratch: ml.g5.12xlarge has 2 NVMe disks; lsblk lists /dev/loop" in boot.failures[0]


def test_several_disks_are_striped(make_node, make_disk):
    """Several free disks become one volume (LVM's programs are played: this machine's kernel lacks its driver)."""
    first, second, volume = make_disk(), make_disk(), make_disk()
    host = make_node(first, second, promised=2)
    link = f'echo "${{0##*/}} $*" >>/opt/calls.log; mkdir -p /dev/podwright; ln -sfn {volume} /dev/podwright/scratch'
    for program in ("vgcreate", "lvcreate"):
        host.write(f"opt/shims/{program}", f"#!/bin/bash\n{link}\n", 0o755)
    boot = host.boot(f"mount -t tmpfs dev /mnt && {STEP}; umount /mnt/scratch; rm -r /dev/podwright")
    assert boot.exit_code == 0, boot.output
    assert [call for call in host.calls if call.startswith(("vgcreate", "lvcreate"))] == [
        f"vgcreate podwright {first} {second}",
        "lvcreate --yes --type striped --stripes 2 --extents 100%FREE --name scratch podwright",
    ]


def test_what_the_image_has_mounted_is_used(make_node, make_disk):
    """On AWS's images, which mount the disks themselves, the folder leads there and nothing is formatted."""
    disk = make_disk()
    host = make_node(disk)
    mounted = "mkdir -p /opt/dlami/nvme && mount -t tmpfs dlami /opt/dlami/nvme"
    boot = host.boot(f"{mounted} && {STEP} && {STEP} && stat -Lc %a /mnt/scratch && readlink /mnt/scratch")
    assert boot.exit_code == 0, boot.output
    assert boot.output.endswith("1777\n/opt/dlami/nvme/scratch\n")
    assert [summary.split(", ")[1] for summary in boot.summaries] == ["6 changes", "0 changes"]
    assert run("wipefs", "--no-act", disk) == ""


def test_another_mount_is_not_covered(make_node, make_disk):
    """Something else at the mount point is refused."""
    boot = make_node(make_disk()).boot(f"mkdir /mnt/scratch && mount -t tmpfs other /mnt/scratch && {STEP}")
    assert "at step scratch: /mnt/scratch already holds other (tmpfs)" in boot.failures[0]


def test_a_node_without_disks_has_no_scratch(make_node):
    """A type without disks of its own is skipped."""
    boot = make_node(promised=0).boot(STEP)
    assert boot.results["scratch"]["outcome"] == "skipped"
