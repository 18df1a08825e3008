"""Lustre's network over EFA, for file systems that have it.

https://docs.aws.amazon.com/fsx/latest/LustreGuide/configure-efa-clients.html: the steps of AWS's setup script, as a
unit, so that they are done again after every reboot, before the file system is mounted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Iterator, List

from podwright_bootstrap.host import network, process, units
from podwright_bootstrap.host.errors import CommandError
from podwright_bootstrap.node import Node

UNIT = "podwright-lnet.service"
DEVICES = Path("/sys/class/infiniband")
LNETCTL = "/usr/sbin/lnetctl"  # systemd wants the whole name
PEER_CREDITS = 32
# How many interfaces AWS's script takes.
INTERFACES = {
    "ml.p6-b300.48xlarge": 16,
    "ml.p6e-gb200.36xlarge": 8,
    "ml.p6-b200.48xlarge": 8,
    "ml.p5en.48xlarge": 8,
    "ml.p5e.48xlarge": 8,
    "ml.p5.48xlarge": 8,
}
# Families whose nodes AWS's script sets up, too. Types with EFA that are not listed here use TCP, such as ml.m7i and
# ml.g7e, which by AWS's rule (Nitro 4 or later, not Trainium 2) could use EFA.
FAMILIES = ("ml.p5.", "ml.g6.", "ml.g6e.", "ml.gr6.", "ml.trn1.", "ml.trn1n.")


def interfaces_of(instance_type: str, efa_interfaces: int) -> int:
    """Return how many of a node's EFA interfaces Lustre uses; 0 for types without support."""
    if instance_type in INTERFACES:
        return INTERFACES[instance_type]
    return min(2, efa_interfaces) if instance_type.startswith(FAMILIES) else 0


def applies(node: Node) -> bool:
    """Return whether node and file system both have EFA."""
    return node.parameters.lustre_efa and interfaces_of(node.instance_type, node.facts.efa_interfaces) > 0


def configure(node: Node) -> Iterator[str]:
    """Configure LNet with TCP and EFA; do nothing if LNet has EFA already, for example by the image's own unit.

    Raises:
        CommandError: there is no EFA device, or LNet does not take one.
    """
    if not units.exists(UNIT) and _has_efa():
        return
    yield from units.run_at_boot(UNIT, _unit(_interface(node.address), _chosen(node)))
    if not _has_efa():
        raise CommandError(f"{UNIT} ran, but lnetctl net show --net efa lists no interface")


def _unit(interface: str, devices: List[str]) -> str:
    """Return the unit. After a failure each look at the mount point starts it again, so it undoes the last start."""
    commands = [
        "/usr/sbin/modprobe lnet",
        f"/usr/sbin/modprobe kefalnd ipif_name={interface}",
        "/usr/sbin/modprobe ksocklnd",
        f"{LNETCTL} lnet configure",
        f"-{LNETCTL} net del --net tcp",
        f"-{LNETCTL} net del --net efa",  # A network that a failed start left would fail this one.
        f"{LNETCTL} net add --net tcp --if {interface}",
        *(f"{LNETCTL} net add --net efa --if {device} --peer-credits {PEER_CREDITS}" for device in devices),
        f"{LNETCTL} set discovery 1",
        f"-{LNETCTL} udsp del --idx 0",
        f"{LNETCTL} udsp add --src efa --priority 0",
    ]
    lines = "".join(f"ExecStart={command}\n" for command in commands)
    return (
        "[Unit]\nDescription=LNet of Lustre over EFA and TCP\n"
        "Wants=network-online.target\nAfter=network-online.target\nBefore=remote-fs-pre.target\n"
        "StartLimitIntervalSec=0\n\n"
        f"[Service]\nType=oneshot\nRemainAfterExit=yes\nTimeoutStartSec={units.START_LIMIT_S}\n{lines}\n"
        "[Install]\nWantedBy=multi-user.target\n"
    )


def _chosen(node: Node) -> List[str]:
    """As many devices as AWS's script takes, spread evenly over the network cards."""
    devices = sorted(path.name for path in DEVICES.glob("*") if (path / "device" / "driver").resolve().name == "efa")
    if not devices:
        raise CommandError(f"the file system has EFA, but {DEVICES} has no device of the driver efa")
    count = min(interfaces_of(node.instance_type, node.facts.efa_interfaces), len(devices))
    return [devices[index * len(devices) // count] for index in range(count)]


def _interface(address: str) -> str:
    """The network interface that has the node's address."""
    interface = network.interfaces().get(address)
    if interface:
        return interface
    raise CommandError(f"no network interface has the address {address}")


def _has_efa() -> bool:
    return "@efa" in process.run("lnetctl", "net", "show", "--net", "efa", timeout_s=30, check=False, quiet=True).output
