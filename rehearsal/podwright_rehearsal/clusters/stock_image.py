"""Differences between hosts and AWS's image for HyperPod: a cluster can have each of them separately.

Hosts never have python3-venv and pip, as AWS's image: https://github.com/aws-samples/awsome-distributed-training notes
that `python3 -m venv` is not preinstalled.

They are paths that the image lacks (``image_lacks``) and files that it adds (``image_has``), such as a metadata service
and a program that holds apt's locks at boot.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from podwright_rehearsal.hosts.description import File
from podwright_rehearsal.hosts.image import ROOT, SOURCES
from podwright_rehearsal.hosts.metadata_service import ADDRESS

# Patterns of paths, by what they belong to.
LACKS: Mapping[str, Sequence[str]] = {
    "pam_slurm_adopt": ("/usr/lib/*/security/pam_slurm_adopt.so",),
    "slurmd's package": ("/var/lib/dpkg/info/slurmd.list",),  # AWS's image has a Slurm of its own
}
STOCK = tuple(pattern for patterns in LACKS.values() for pattern in patterns)

KERNEL = "linux-image-aws"  # a package that nodes hold
UPDATER = "rehearsal-updates.service"  # stop it, and the update is over
WAITS_FOR_APT = re.compile(r"Z waiting for apt, which works for unattended-upgr \(process \d+\)")  # a boot's line

_PROGRAM = "/opt/rehearsal/metadata_service.py"
_METADATA_UNIT = f"""\
[Unit]
Description=Instance metadata

[Service]
ExecStartPre=/usr/sbin/ip address replace {ADDRESS}/32 dev lo
ExecStart=/usr/bin/python3 -I {_PROGRAM}
"""
_UPDATER = "/opt/rehearsal/unattended-upgr"  # the kernel cuts names of processes to 15 characters
_UPDATES_UNIT = f"""\
[Unit]
Description=The packages of an image that updates itself at boot

[Service]
Type=notify
NotifyAccess=all
ExecStart={_UPDATER} {{runtime_s}}
"""
_KERNEL_STATUS = f"""
Package: {KERNEL}
Status: install ok installed
Maintainer: nobody <nobody@example.com>
Architecture: all
Version: 6.8.0
Description: kernel that apt knows and this host need not boot

"""


def updates(image: Path, *, runtime_s: float = 86_400) -> Mapping[str, File]:
    """Return the files of an image that updates itself: from each boot until somebody stops it, it has apt's locks.

    Args:
        image: the node image, whose list of packages gets a kernel.
        runtime_s: the longest that an update takes. Default: a day.
    """
    status = "/var/lib/dpkg/status"
    return {
        status: File((image / ROOT / status[1:]).read_text().rstrip("\n") + "\n" + _KERNEL_STATUS),
        _UPDATER: File((SOURCES / "updates.py").read_text(), mode=0o755),
        **_at_boot("updates", _UPDATES_UNIT.format(runtime_s=runtime_s)),
    }


def metadata_service() -> Mapping[str, File]:
    """Return the files of an instance metadata service with the instance's id, its region and a role.

    Where a host has the file ``metadata_service.LISTS_NOTHING``, it answers and knows nothing.
    """
    return {_PROGRAM: File((SOURCES / "metadata_service.py").read_text()), **_at_boot("metadata", _METADATA_UNIT)}


def _at_boot(name: str, unit: str) -> dict[str, File]:
    """Return the files of a unit that starts at each boot."""
    folder = "/etc/systemd/system"
    dependency = f"[Unit]\nWants=rehearsal-{name}.service\n"
    return {
        f"{folder}/rehearsal-{name}.service": File(unit),
        f"{folder}/multi-user.target.d/{name}.conf": File(dependency),
    }
