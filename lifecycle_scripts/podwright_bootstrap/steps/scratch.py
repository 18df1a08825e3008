"""A folder on the instance's own NVMe disks, for files that are not needed after a job.

With ``nodes.prolog``, a job's own folder there is ``jobs/JOB``.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-store-lifetime.html
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Iterator, List

from podwright_bootstrap.contract import COMPUTE
from podwright_bootstrap.host import log, process
from podwright_bootstrap.host.errors import BootstrapError, CommandError
from podwright_bootstrap.node import Node
from podwright_bootstrap.slurm.job import JOBS_DIRECTORY, PARENT_MODE
from podwright_bootstrap.software import after_reboot
from podwright_bootstrap.steps import Step
from podwright_bootstrap.storage import disks, mounts, own_folder
from podwright_bootstrap.storage.local_disk import instance_store

LABEL = "podwright-nvme"  # A later boot finds the file system by this label, which may have 16 letters.
VOLUME_GROUP, VOLUME = "podwright", "scratch"
STRIPED = Path("/dev") / VOLUME_GROUP / VOLUME
# Without its disk the node boots all the same: nofail.
OPTIONS = "noatime,nofail,x-systemd.device-timeout=30s"
EVERYBODY = 0o1777


class ScratchStep(Step):
    """The instance's own NVMe disks are one folder that all users may write."""

    name = "scratch"
    audience = "compute nodes with NVMe disks of clusters with nodes.scratch"
    hint = "lsblk --fs and wipefs --no-act DISK show what the disks hold; disks with data are never formatted"
    time_limit_s = 900

    def applies(self, node: Node) -> bool:
        """Run on compute nodes whose type has NVMe disks, if cluster.yaml has nodes.scratch."""
        return node.role == COMPUTE and node.scratch is not None

    def apply(self, node: Node) -> Iterator[str]:
        """Use the disks that the image has mounted, else make a file system of the free disks."""
        root = _root(node)
        store = instance_store()
        if store:
            yield from _link(root, store / "scratch")
        else:
            yield from _mount(root, node)
        if root.stat().st_mode & 0o7777 != EVERYBODY:
            root.chmod(EVERYBODY)
            yield f"opened {root} to all users"
        yield from own_folder.make_own(root / JOBS_DIRECTORY, mode=PARENT_MODE)
        yield from after_reboot.repeat(self.name)

    def remove(self, node: Node) -> Iterator[str]:
        """Remove the unit; the folder stays, with its files."""
        yield from after_reboot.forget(self.name)

    def verify(self, node: Node) -> None:
        """Check that the folder can be written and is not on the root volume."""
        root = _root(node)
        if root.stat().st_dev == Path("/").stat().st_dev:
            raise BootstrapError(f"{root} is on the root volume")
        mounts.prove_readback(root / JOBS_DIRECTORY, hostname=node.hostname)


def _root(node: Node) -> Path:
    if node.scratch is None:
        raise BootstrapError("this node has no scratch folder")
    return node.scratch


def _link(root: Path, target: Path) -> Iterator[str]:
    yield from own_folder.make_own(target, mode=EVERYBODY)
    if root.is_symlink() and root.resolve() == target:
        return
    if root.exists():
        raise BootstrapError(
            f"{root} exists already; the boot makes a link to {target} there",
            hint="choose another mount_path, or remove it",
        )
    root.symlink_to(target)
    yield f"linked {root} to {target}"


def _mount(root: Path, node: Node) -> Iterator[str]:
    mount = mounts.mounted_at(root)
    device = disks.labelled(LABEL, [STRIPED, *disks.instance_storage()])
    if mount and not (device and os.path.realpath(mount.source) == os.path.realpath(device)):
        mounts.refuse_other(mount, expected=f"the file system {LABEL}", path=root)
    if not device:
        device = _volume(_free(node))
        process.run("mkfs.ext4", "-q", "-L", LABEL, "-m", "0", "-E", "nodiscard", device, timeout_s=600)
        yield f"made a file system on {device}"
    if not mount:
        root.mkdir(parents=True, exist_ok=True)
        process.run("mount", "-t", "ext4", "-o", OPTIONS, device, root, timeout_s=120)
        yield f"mounted {device} on {root}"
    if mounts.enter_in_fstab(f"LABEL={LABEL} {root} ext4 {OPTIONS} 0 0", root):
        yield f"entered {root} in {mounts.FSTAB}"


def _free(node: Node) -> List[Path]:
    """The disks that may be taken."""
    instance_disks = disks.instance_storage()
    if len(instance_disks) < node.facts.nvme_disks:
        names = ", ".join(map(str, instance_disks)) or "none"
        raise CommandError(f"{node.instance_type} has {node.facts.nvme_disks} NVMe disks; lsblk lists {names}")
    reason_by_disk = {disk: why for disk in instance_disks for why in [disks.why_taken(disk)] if why}
    for disk, why in reason_by_disk.items():
        log.say(f"{disk} is left alone: {why}")
    free = [disk for disk in instance_disks if disk not in reason_by_disk]
    if not free:
        reasons = "; ".join(f"{disk}: {why}" for disk, why in reason_by_disk.items())
        raise BootstrapError(f"none of the {len(instance_disks)} NVMe disks is free: {reasons}")
    return free


def _volume(free: List[Path]) -> Path:
    """One disk as it is, several striped, as AWS's images do it."""
    if len(free) == 1:
        return free[0]
    process.run("vgcreate", VOLUME_GROUP, *free, timeout_s=120)
    striped = ("--type", "striped", "--stripes", str(len(free)), "--extents", "100%FREE", "--name", VOLUME)
    process.run("lvcreate", "--yes", *striped, VOLUME_GROUP, timeout_s=120)
    return STRIPED
