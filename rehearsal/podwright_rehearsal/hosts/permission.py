"""Check that this machine permits hosts in namespaces."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from podwright_rehearsal.hosts import cgroups

_TRIAL = """set -e
mount -t tmpfs tmpfs "$0" && mkdir "$0"/upper "$0"/work "$0"/root
mount -t overlay overlay -o "lowerdir=/,upperdir=$0/upper,workdir=$0/work" "$0"/root
mknod "$0"/null c 1 3
mount -t proc proc "$0"/root/proc
ip link add br0 type bridge
ip link add trial0 type veth peer name trial1
"""
_CGROUP_TRIAL = """set -e
mkdir "$0" && echo 0 > "$0/cgroup.procs"
unshare --cgroup --mount mount -t cgroup2 cgroup2 "$1"
"""


def why_not() -> str | None:
    """Return the problem and the remedy if this machine cannot run hosts in namespaces, else None."""
    if sys.platform != "linux":
        return "hosts need Linux namespaces: run this on Linux"
    tools = {
        "unshare": "util-linux",
        "nsenter": "util-linux",
        "mount": "mount",
        "ip": "iproute2",
        "apt-get": "apt",
        "bash": "bash",
    }
    missing = {package: tool for tool, package in tools.items() if not shutil.which(tool)}
    if "apt" in missing:
        return "hosts are made of Debian's packages and this machine has no apt-get: run this on Debian or Ubuntu"
    if missing:
        return f"{', '.join(missing.values())} not found: apt-get install {' '.join(missing)}"
    if os.geteuid() != 0:
        return "hosts need root, for namespaces and mounts: run this with sudo"
    root = Path("/").stat().st_dev
    separate = [path for path in ("/usr", "/etc", "/var/lib/dpkg") if Path(path).stat().st_dev != root]
    if separate:
        return f"hosts are made over this machine's root, and {', '.join(separate)} is on a file system of its own"
    return _try_root() or _try_namespaces() or _try_cgroups()


def _try_root() -> str | None:
    """Report a chroot: a process that enters a mount namespace there is at its real root, without our files."""
    command = ["nsenter", "--mount=/proc/self/ns/mnt", "stat", "--format=%d %i", "/"]
    trial = subprocess.run(command, capture_output=True, text=True, check=False)
    root_status = Path("/").stat()
    if trial.returncode or trial.stdout.split() == [str(root_status.st_dev), str(root_status.st_ino)]:
        return None  # a machine that permits no namespaces says so in the next trial
    return "hosts do not start in a chroot: run this on the machine itself or in a privileged container"


def _try_namespaces() -> str | None:
    with tempfile.TemporaryDirectory() as scratch:
        command = ["unshare", "--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "--propagation", "private"]
        trial = subprocess.run([*command, "bash", "-c", _TRIAL, scratch], capture_output=True, text=True, check=False)
    if trial.returncode == 0:
        return None
    return (
        f"this machine does not permit namespaces, overlays and virtual networks ({_reason(trial)}): "
        "in a container, start it with --privileged"
    )


def _try_cgroups() -> str | None:
    hierarchy = cgroups.hierarchy()
    if hierarchy is None:
        return "systemd needs cgroup2, and no writable one is mounted here"
    with tempfile.TemporaryDirectory() as scratch:
        group = hierarchy / Path(scratch).name
        trial = subprocess.run(
            ["bash", "-c", _CGROUP_TRIAL, str(group), scratch], capture_output=True, text=True, check=False
        )
    if group.exists():
        cgroups.remove(group)
    if trial.returncode == 0:
        return None
    return f"systemd needs a cgroup2 of its own, which this machine does not permit ({_reason(trial)})"


def _reason(trial: subprocess.CompletedProcess[str]) -> str:
    """Return the last line that a failed trial wrote."""
    return (trial.stderr.strip().splitlines() or ["no reason given"])[-1]
