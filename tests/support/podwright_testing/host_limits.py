"""Limit the network and the disk of a host in namespaces."""

from __future__ import annotations

import os
import subprocess

from podwright_rehearsal.hosts.fabric import Fabric

_TIMEOUT_S = 60.0


def limit_network(fabric: Fabric, hostname: str, *, mbit_s: int | None) -> None:
    """Limit a host's sending and receiving rates, in megabits per second each; None removes the limit.

    A token bucket (tc-tbf(8)) at both ends of the host's cable: a qdisc shapes what leaves an interface.
    """
    shape = f"replace dev {{}} root tbf rate {mbit_s}mbit burst 128kb latency 400ms" if mbit_s else "del dev {} root"
    for enter, device in (
        (fabric._enter_cluster("--net"), fabric._host(hostname).link),
        (["nsenter", "--target", str(fabric._host(hostname).pid), "--net", "--"], "eth0"),
    ):
        command = [*enter, "tc", "qdisc", *shape.format(device).split()]
        subprocess.run(command, check=True, timeout=_TIMEOUT_S)


def resize_disk(fabric: Fabric, hostname: str, size: str) -> None:
    """Set the size of a host's disk, as tmpfs takes it; /tmp and /run are not on the disk."""
    disk = str(fabric._disk(hostname))
    command = [*fabric._enter_cluster("--mount"), "mount", "-o", f"remount,size={size}", disk]
    subprocess.run(command, check=True, timeout=_TIMEOUT_S)


def disk_usage_bytes(fabric: Fabric, hostname: str) -> int:
    """Return the size of all files on a host's disk."""
    now = os.statvfs(f"/proc/{fabric._holder_pid}/root/{fabric._disk(hostname)}")
    return (now.f_blocks - now.f_bfree) * now.f_frsize
