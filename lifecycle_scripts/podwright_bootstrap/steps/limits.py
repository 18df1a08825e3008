"""Kernel limits of users, daemons and the network.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start.html (memory locks)
https://slurm.schedmd.com/big_sys.html (backlog, open files)
https://docs.kernel.org/networking/ip-sysctl.html (neighbour table)
"""

from __future__ import annotations

from pathlib import Path
from typing import Dict, Iterator

from podwright_bootstrap import features
from podwright_bootstrap.contract import CONTROLLER
from podwright_bootstrap.host import files, process, units
from podwright_bootstrap.host.errors import BootstrapError
from podwright_bootstrap.node import Node
from podwright_bootstrap.steps import Step

USERS = Path("/etc/security/limits.d/99-podwright.conf")
KERNEL = Path("/etc/sysctl.d/99-podwright.conf")
DROP_IN = "podwright-limits"
# Slurm's guide for large clusters: all nodes may answer at once.
BACKLOG = {"net.core.somaxconn": 4096, "net.ipv4.tcp_max_syn_backlog": 4096}


class LimitsStep(Step):
    """Users and Slurm may lock memory and open files, and the ARP table has room for a large cluster."""

    name = "limits"
    audience = "clusters with nodes.limits"
    hint = f"sysctl --load {KERNEL} says which of its lines the kernel refuses"
    time_limit_s = 300

    def applies(self, node: Node) -> bool:
        """Run with nodes.limits."""
        return node.parameters.nodes.limits is not None

    def apply(self, node: Node) -> Iterator[str]:
        """Write the limits of PAM, systemd and the kernel."""
        limits = _limits(node)
        if files.write_file(USERS, _users(limits)):
            yield f"wrote {USERS}"
        daemon = "slurmctld" if node.role == CONTROLLER else "slurmd"
        text = f"[Service]\nLimitMEMLOCK=infinity\nLimitSTACK=infinity\nLimitNOFILE={limits.open_files}\n"
        yield from units.drop_in(f"{daemon}.service", DROP_IN, text)
        lines = "".join(f"{name} = {value}\n" for name, value in _kernel(limits).items())
        if files.write_file(KERNEL, lines) or _differing(limits):
            process.run("sysctl", "--load", KERNEL, timeout_s=30)
            yield f"loaded {KERNEL}"

    def remove(self, node: Node) -> Iterator[str]:
        """Remove the files; the kernel's values stay until a reboot."""
        removed = list(files.remove_files(USERS, KERNEL, *units.FOLDER.glob(f"*.service.d/{DROP_IN}.conf")))
        yield from removed
        if removed:
            process.run("systemctl", "daemon-reload", timeout_s=60)

    def verify(self, node: Node) -> None:
        """Check that the kernel has the values."""
        differing = _differing(_limits(node))
        if differing:
            values = ", ".join(f"{name} is {value}" for name, value in differing.items())
            raise BootstrapError(f"the kernel does not have the values of {KERNEL}: {values}")


def _limits(node: Node) -> features.Limits:
    return node.parameters.nodes.limits or features.Limits()


def _users(limits: features.Limits) -> str:
    """limits.conf(5): * means all users except root."""
    names = ("*", "root")
    values = (("memlock", "unlimited"), ("stack", "unlimited"), ("nofile", limits.open_files))
    return "".join(f"{name} - {item} {value}\n" for name in names for item, value in values)


def _kernel(limits: features.Limits) -> Dict[str, int]:
    """Above the second threshold entries are thrown away after 5 seconds, above the third new hosts are not reached."""
    table = "net.ipv4.neigh.default.gc_thresh"
    max_entries = limits.neigh_gc_thresh3
    return {**BACKLOG, f"{table}1": max_entries // 4, f"{table}2": max_entries // 2, f"{table}3": max_entries}


def _differing(limits: features.Limits) -> Dict[str, str]:
    """Return the kernel's values that differ from the wanted ones."""
    has = {
        name: process.run("sysctl", "-n", name, timeout_s=30, check=False, quiet=True).output.strip()
        for name in _kernel(limits)
    }
    return {name: has[name] for name, value in _kernel(limits).items() if has[name] != str(value)}
