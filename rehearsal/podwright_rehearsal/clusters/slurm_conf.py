"""Lines of slurm.conf that say which nodes and partitions a rehearsed cluster has."""

from __future__ import annotations

from collections.abc import Sequence

from podwright_rehearsal.clusters.rehearsed import Node

ALL_NODES_PARTITION = "dev"  # HyperPod puts every node but the controller into it


def node_line(node: Node) -> str:
    """``NodeName=… …``; the machine need not have these processors, memory and accelerators."""
    gres = f" Gres=gpu:{node.accelerators}" if node.accelerators else ""
    hardware = f"CPUs={node.vcpus} RealMemory={node.memory_mib}{gres}"
    return f"NodeName={node.hostname} NodeAddr={node.private_ip} {hardware} State=UNKNOWN"


def partition_lines(members: Sequence[Node]) -> list[str]:
    """``PartitionName=… …`` of each partition, and of the one with all nodes."""
    partitions: dict[str, list[str]] = {ALL_NODES_PARTITION: [node.hostname for node in members]}
    for node in members:
        if node.partition and node.partition != ALL_NODES_PARTITION:
            partitions.setdefault(node.partition, []).append(node.hostname)
    return [
        f"PartitionName={name} Nodes={','.join(hostnames)} MaxTime=INFINITE State=UP"
        + (" Default=YES" if name == ALL_NODES_PARTITION else "")
        for name, hostnames in partitions.items()
        if hostnames
    ]
