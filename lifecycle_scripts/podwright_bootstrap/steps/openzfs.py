"""Homes on FSx for OpenZFS.

https://docs.aws.amazon.com/fsx/latest/OpenZFSGuide/attach-linux-client.html
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Iterator

from podwright_bootstrap import contract
from podwright_bootstrap.host import identity, process
from podwright_bootstrap.host.errors import BootstrapError
from podwright_bootstrap.node import Node
from podwright_bootstrap.steps import Step
from podwright_bootstrap.storage import mounts
from podwright_bootstrap.storage.copy_once import copy_once, make_home

# nconnect: several connections, for more throughput than one has. A server that is silent is waited for (hard, NFS's
# default): a program in its home must not see a failed write because a server was replaced.
OPTIONS = "nfsvers=4.1,noatime,nosuid,nodev,nconnect=16,rsize=1048576,wsize=1048576,timeo=600"
ROOT_VOLUME = "/fsx"


class OpenZfsStep(Step):
    """The file system for homes is mounted, now and after every reboot, with the job user's home on it."""

    name = "openzfs"
    audience = "clusters with FSx for OpenZFS"
    required_because = "homes are on the file system that it mounts"
    hint = (
        "is the file system AVAILABLE and in this node's VPC, and does its security group admit TCP 2049 from the "
        "nodes?"
    )
    time_limit_s = 600
    attempts = 6

    def applies(self, node: Node) -> bool:
        """Run in clusters with FSx for OpenZFS."""
        return node.parameters.fsx_openzfs_dns_name is not None

    def apply(self, node: Node) -> Iterator[str]:
        """Copy the job user's home, mount, and add the mount to fstab; if HyperPod mounts, only make the home."""
        if node.parameters.slurm_by_api:
            return _by_api(node)
        return _by_us(node)

    def verify(self, node: Node) -> None:
        """A file of this node's own can be written and read, and the job user has a home."""
        mounts.prove_writable(_root(node), _root(node), hostname=node.hostname)
        home = Path(identity.find_user(contract.JOB_USER).pw_dir)
        if not home.is_dir():
            raise BootstrapError(f"{contract.JOB_USER} has no home at {home}")


def _by_us(node: Node) -> Iterator[str]:
    root, source = _root(node), _source(node)
    mount = mounts.mounted_at(root)
    if not mount:
        yield from _bring_home(source, root)
        _mount(source, root)
        yield f"mounted {source} on {root}"
    elif not (mount.kind.startswith("nfs") and mount.source == source):
        mounts.refuse_other(mount, expected=source, path=root)
    if mounts.enter_in_fstab(f"{source} {root} nfs {OPTIONS},_netdev 0 0", root):
        yield f"entered {root} in {mounts.FSTAB}"


def _by_api(node: Node) -> Iterator[str]:
    """The image's home of the job user lies below the mount."""
    root = _root(node)
    mount = mounts.wait_for(root)
    name = node.parameters.fsx_openzfs_dns_name
    if not (mount.kind.startswith("nfs") and mount.source.startswith(f"{name}:")):
        mounts.refuse_other(mount, expected=_source(node), path=root)
    user = identity.find_user(contract.JOB_USER)
    home = Path(user.pw_dir)
    if root in home.parents and make_home(home, user.pw_uid):
        yield f"made {home}"


def _bring_home(source: str, root: Path) -> Iterator[str]:
    """Copy the image's home of the job user to the file system, unless another node has: the mount would hide it."""
    home = Path(identity.find_user(contract.JOB_USER).pw_dir)
    if root not in home.parents or not home.is_dir():
        return
    with tempfile.TemporaryDirectory(prefix="homes-") as folder:
        mount_path = Path(folder)
        _mount(source, mount_path)
        try:
            if copy_once(home, mount_path / home.relative_to(root)):
                yield f"copied {home} to {source}"
        finally:
            process.run("umount", mount_path, timeout_s=60)


def _mount(source: str, path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    process.run("mount", "-t", "nfs", "-o", OPTIONS, source, path, timeout_s=120)


def _root(node: Node) -> Path:
    return Path(node.parameters.openzfs_mount_path)


def _source(node: Node) -> str:
    return f"{node.parameters.fsx_openzfs_dns_name}:{ROOT_VOLUME}"
