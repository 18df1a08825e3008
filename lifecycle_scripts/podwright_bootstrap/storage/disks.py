"""The instance's own disks, and which of them hold data."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Iterable, List, Optional

from podwright_bootstrap.host import process
from podwright_bootstrap.host.errors import CommandError

# EBS volumes say "Amazon Elastic Block Store".
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/nvme-ebs-volumes.html
INSTANCE_STORAGE = "Amazon EC2 NVMe Instance Storage"


def instance_storage() -> List[Path]:
    """The disks that come with the instance type, whatever is on them."""
    shown = process.run("lsblk", "--json", "--nodeps", "--output", "PATH,TYPE,MODEL", timeout_s=60, quiet=True)
    try:
        devices = json.loads(shown.output)["blockdevices"]
    except (ValueError, KeyError) as error:
        raise CommandError(f"cannot parse the output of lsblk: {shown.summary}") from error
    return sorted(
        Path(device["path"])
        for device in devices
        if device["type"] == "disk" and (device["model"] or "").strip() == INSTANCE_STORAGE
    )


def why_taken(disk: Path) -> str:
    """Return why the disk must not be written; "" if it is free.

    The disk itself is read for signatures of file systems, partition tables, LVM and RAID: udev's database, which lsblk
    goes by, may be late. The kernel refuses an exclusive opening of what is mounted or part of something.
    """
    signatures = _signatures("TYPE", disk)
    if signatures:
        return f"it holds {', '.join(signatures)}"
    try:
        os.close(os.open(disk, os.O_RDONLY | os.O_EXCL | os.O_CLOEXEC))
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return "it is in use"
    return ""


def labelled(label: str, candidates: Iterable[Path]) -> Optional[Path]:
    """Return the candidate whose file system has this label.

    ``blkid --label`` would go by /run/blkid/blkid.tab: what was written there within the last two seconds it does not
    look up again, and takes a disk in another's place for the other.
    """
    for device in candidates:
        if device.exists() and label in _signatures("LABEL", device):
            return device
    return None


def _signatures(column: str, device: Path) -> List[str]:
    """Return this column of ``wipefs``'s output for the device itself."""
    shown = process.run("wipefs", "--no-act", "--noheadings", "--output", column, device, timeout_s=60, quiet=True)
    return shown.output.split()
