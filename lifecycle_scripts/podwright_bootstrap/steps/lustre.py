"""The shared file system: FSx for Lustre.

https://docs.aws.amazon.com/fsx/latest/LustreGuide/mounting-ec2-instance.html
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Iterator, NamedTuple

from podwright_bootstrap import contract, shell
from podwright_bootstrap.node import Node
from podwright_bootstrap.shell import BootstrapError
from podwright_bootstrap.steps import Step

# flock: locks hold among all hosts. noatime: a read does not become a write on the metadata server.
OPTIONS = "noatime,flock"
FSTAB = Path("/etc/fstab")
FILE_SYSTEMS = Path("/proc/filesystems")


class Lustre(Step):
    """The shared file system is mounted, now and after every reboot, and can be written."""

    name = "lustre"
    whose = "clusters with FSx for Lustre"
    hint = (
        "is the file system AVAILABLE and in this node's VPC, and does its security group admit TCP 988 and 1018-1023 "
        "from the nodes?"
    )
    time_limit_s = 600
    attempts = 6

    def applies(self, node: Node) -> bool:
        """Where the contract names a file system."""
        return node.has_shared

    def apply(self, node: Node) -> Iterator[str]:
        """Mount it and remember it in fstab."""
        root, source = Path(node.parameters.lustre_mount_path), _source(node)
        mount = mounted_at(root)
        if not mount:
            _mount(source, root)
            yield f"mounted {source} on {root}"
        elif not mount.is_lustre(str(node.parameters.fsx_mountname)):
            raise BootstrapError(
                f"{root} already holds {mount}, not {source}",
                hint=f"unmount it, or choose another mount path in cluster.yaml ({FSTAB} may name it)",
            )
        if shell.write_file(FSTAB, _fstab_with(_fstab_line(node), root)):
            yield f"entered {root} in {FSTAB}"
        shared = node.shared(contract.SHARED_DIRECTORY)
        if not shared.is_dir():
            shared.mkdir(exist_ok=True)  # another host may be first
            yield f"made {shared}"

    def verify(self, node: Node) -> None:
        """Write a file of this node's own and read it back, by programs that can be ended if the servers are silent."""
        root = node.mount_path
        if not mounted_at(root):
            raise BootstrapError(f"nothing is mounted on {root}")
        with tempfile.NamedTemporaryFile() as local:
            local.write(os.urandom(4096))
            local.flush()
            remote = node.shared(contract.SHARED_DIRECTORY) / f".written-by-{node.hostname}-{os.getpid()}"
            shell.run("cp", local.name, remote, timeout_s=60, quiet=True)
            shell.run("cmp", local.name, remote, timeout_s=60, quiet=True)
            shell.run("rm", remote, timeout_s=60, quiet=True)


class Mount(NamedTuple):
    """What the kernel says is mounted somewhere."""

    source: str
    kind: str

    def is_lustre(self, mount_name: str) -> bool:
        """Whether it is the Lustre file system of this name; the kernel shows its server by address."""
        return self.kind == "lustre" and self.source.endswith(f":/{mount_name}")

    def __str__(self) -> str:
        return f"{self.source} ({self.kind})"


def mounted_at(path: Path) -> Mount | None:
    """The topmost file system mounted exactly at ``path``."""
    columns = ("--noheadings", "--raw", "--output", "SOURCE,FSTYPE")
    shown = shell.run("findmnt", *columns, "--mountpoint", path, timeout_s=30, check=False, quiet=True)
    return Mount(*shown.output.splitlines()[-1].split()) if shown.exit_code == 0 else None


def _mount(source: str, root: Path) -> None:
    if "lustre" not in FILE_SYSTEMS.read_text().split():
        shell.run("modprobe", "lustre", timeout_s=60)
    root.mkdir(parents=True, exist_ok=True)
    shell.run("mount", "-t", "lustre", "-o", OPTIONS, source, root, timeout_s=120)


def _source(node: Node) -> str:
    return f"{node.parameters.fsx_dns_name}@tcp:/{node.parameters.fsx_mountname}"


def _fstab_line(node: Node) -> str:
    return f"{_source(node)} {node.mount_path} lustre {OPTIONS},_netdev 0 0"


def _fstab_with(line: str, root: Path) -> str:
    """The text of fstab with ``line`` as the only one for its mount point."""
    text = FSTAB.read_text() if FSTAB.exists() else ""
    lines = text.splitlines()
    others = [other for other in lines if other.split()[1:2] != [str(root)]]
    if lines.count(line) == 1 and len(others) == len(lines) - 1:
        return text
    return "\n".join([*others, line]) + "\n"
