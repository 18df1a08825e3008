"""The network topology that HyperPod writes for Slurm: a tree, or an empty file where no instance type has a topology.

https://aws.amazon.com/about-aws/whats-new/2026/04/amazon-sagemaker-hyperpod-automatic-slurm-topology/
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from podwright_rehearsal.clusters.rehearsed import Node

TopologyFile = Literal["topology.conf", "topology.yaml"]
YAML_SINCE = (25, 5)  # Slurm before this version ignores topology.yaml.
PLUGIN = "TopologyPlugin=topology/tree"
# Families of instances whose network nodes EC2 describes. HyperPod may use topology/block for p6e-gb200; here it is a
# tree, too.
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-topology-prerequisites.html
_FAMILIES = frozenset(
    {
        *("g6e", "g7e", "p3dn", "p4d", "p4de", "p5", "p5e", "p5en", "p6-b200", "p6-b300", "p6e-gb200"),
        *("trn1", "trn1n", "trn2", "trn2u"),
    }
)
_LEAVES = 2


def has_topology(instance_type: str) -> bool:
    """Return whether EC2 describes the topology of an instance type."""
    return instance_type.removeprefix("ml.").split(".")[0] in _FAMILIES


def readable(file: TopologyFile, slurm: str) -> TopologyFile:
    """Return the file that this version of Slurm reads in place of ``file``."""
    year, month = map(int, slurm.split(".")[:2])
    return file if (year, month) >= YAML_SINCE else "topology.conf"


def files(file: TopologyFile, nodes: Sequence[Node]) -> Mapping[str, str]:
    """Return the content of the topology file by its name.

    Consecutive nodes are on different leaves, because on AWS the order of names says nothing about the network. Where
    the service puts nodes without a topology beside others is not public; here they have a leaf of their own.
    """
    leaves: dict[str, list[str]] = {}
    members = [node.hostname for node in nodes if has_topology(node.instance_type)]
    for index, hostname in enumerate(members):
        leaves.setdefault(f"leaf{index % _LEAVES + 1}", []).append(hostname)
    if leaves and (outside := [node.hostname for node in nodes if node.hostname not in members]):
        leaves[f"leaf{len(leaves) + 1}"] = outside
    return {file: _conf(leaves) if file == "topology.conf" else _yaml(leaves)}


def _conf(leaves: Mapping[str, Sequence[str]]) -> str:
    if not leaves:
        return ""
    lines = [f"SwitchName={name} Nodes={','.join(hostnames)}" for name, hostnames in leaves.items()]
    return "\n".join([*lines, f"SwitchName=spine Switches={','.join(leaves)}", ""])


def _yaml(leaves: Mapping[str, Sequence[str]]) -> str:
    if not leaves:
        return "[]\n"
    head = "- topology: default\n  cluster_default: true\n  tree:\n    switches:\n"
    switches = [f"      - switch: {name}\n        nodes: {','.join(hostnames)}\n" for name, hostnames in leaves.items()]
    return "".join([head, *switches, f"      - switch: spine\n        children: {','.join(leaves)}\n"])
