"""The shared file system: FSx for Lustre.

https://docs.aws.amazon.com/fsx/latest/LustreGuide/mounting-ec2-instance.html
https://docs.aws.amazon.com/fsx/latest/LustreGuide/mount-fs-auto-mount-onreboot.html
"""

from __future__ import annotations

from pathlib import Path
from typing import Iterator

from podwright_bootstrap import contract
from podwright_bootstrap.host import process, units, waits
from podwright_bootstrap.node import Node
from podwright_bootstrap.steps import Step
from podwright_bootstrap.storage import lnet, lustre_client, mounts, own_folder

# flock: locks hold among all hosts. noatime: a read does not become a write on the metadata server.
OPTIONS = "noatime,flock,nosuid,nodev"
# A reboot does not wait for silent servers: who looks first waits, and mounting is tried again each time.
AT_BOOT = "_netdev,x-systemd.automount,x-systemd.mount-timeout=120s"
FILE_SYSTEMS = Path("/proc/filesystems")


class LustreStep(Step):
    """The shared file system is mounted, now and after every reboot, and can be written."""

    name = "lustre"
    audience = "clusters with FSx for Lustre"
    required_because = "runs, keys and the training environment are on the file system that it mounts"
    hint = (
        "is the file system AVAILABLE and in this node's VPC, and does its security group admit TCP 988 and 1018-1023 "
        "from the nodes?"
    )
    time_limit_s = 600
    attempts = 6

    def applies(self, node: Node) -> bool:
        """Run in clusters with FSx for Lustre."""
        return node.has_shared

    def apply(self, node: Node) -> Iterator[str]:
        """Mount it and remember it for the next boot of the machine."""
        root, source = node.mount_path, _source(node)
        mount = mounts.wait_for(root) if node.parameters.slurm_by_api else mounts.mounted_at(root)
        if not mount:
            waits.spread(node.turn_s)  # mounts of 400 hosts at once are known to fail: awsome-distributed-ai #782
            yield from _prepare(node)
            _mount(source, root)
            yield f"mounted {source} on {root}"
        # The kernel shows the server by its address.
        elif not (mount.kind == "lustre" and mount.source.endswith(f":/{node.parameters.fsx_mountname}")):
            mounts.refuse_other(mount, expected=source, path=root)
        if not node.parameters.slurm_by_api:
            yield from _mount_at_boot(node)
        if _is_tuned(node):
            yield from lustre_client.parameters(node.facts, root)
        else:
            yield from lustre_client.forget()
        own_folder.refuse_writable(root)
        shared = node.shared(contract.SHARED_DIRECTORY)
        if not shared.is_dir():
            shared.mkdir(exist_ok=True)  # another host may be first
            yield f"made {shared}"
        own_folder.refuse_writable(shared)

    def verify(self, node: Node) -> None:
        """A file of this node's own can be written and read."""
        mounts.prove_writable(node.mount_path, node.shared(contract.SHARED_DIRECTORY), hostname=node.hostname)


def _prepare(node: Node) -> Iterator[str]:
    """Write the options that the modules read when they are loaded."""
    if _is_tuned(node):
        yield from lustre_client.module_options(node.facts)
    if lnet.applies(node):
        yield from lnet.configure(node)


def _mount(source: str, root: Path) -> None:
    if "lustre" not in FILE_SYSTEMS.read_text().split():
        process.run("modprobe", "lustre", timeout_s=60)
    root.mkdir(parents=True, exist_ok=True)
    process.run("mount", "-t", "lustre", "-o", OPTIONS, source, root, timeout_s=120)


def _mount_at_boot(node: Node) -> Iterator[str]:
    if mounts.enter_in_fstab(_fstab_line(node), node.mount_path):
        yield f"entered {node.mount_path} in {mounts.FSTAB}"
    if node.role != contract.CONTROLLER:
        yield from units.drop_in("slurmd.service", "podwright-lustre", _before_slurmd(node.mount_path))


def _before_slurmd(root: Path) -> str:
    """After a reboot slurmd takes jobs when they find the file system: it looks, which mounts, and is started again."""
    look = f"ls {root} >/dev/null && findmnt --types lustre --mountpoint {root}"
    return f"[Service]\nExecStartPre=/usr/bin/timeout 80 /bin/sh -c '{look}'\n"


def _is_tuned(node: Node) -> bool:
    client = node.parameters.nodes.lustre_client
    return client is not None and client.tuned


def _source(node: Node) -> str:
    return f"{node.parameters.fsx_dns_name}@tcp:/{node.parameters.fsx_mountname}"


def _fstab_line(node: Node) -> str:
    after = f",x-systemd.requires={lnet.UNIT}" if units.exists(lnet.UNIT) else ""
    return f"{_source(node)} {node.mount_path} lustre {OPTIONS},{AT_BOOT}{after} 0 0"
