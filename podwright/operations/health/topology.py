"""The network topology that slurmctld uses: the leaf of each node, and nodes that its file lacks or still names.

HyperPod writes the topology's file. After a node was replaced, the file may lack the new node or still name the old
one; slurmctld only logs that. Slurm starts no job on a node without a leaf, not even a job of this node alone.

https://slurm.schedmd.com/topology.html
https://slurm.schedmd.com/scontrol.html#OPT_topology
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from podwright.json_document import JsonObject
from podwright.operations.access.remote import quoted
from podwright.operations.jobs.slurm_jobs import Shell
from podwright_bootstrap.contract import LOGIN_NODE_REASON

# The second prints the nodes in the order in which Slurm numbers a job's nodes.
TOPOLOGY, NODES = quoted("scontrol", "show", "topology"), quoted("scontrol", "show", "nodes", "--oneliner")
# The lines of switches above the leaves, and of aggregated blocks, are left out.
_LEAF = re.compile(
    r"^\s*(?:SwitchName=(?P<switch>\S+) +Level=0|BlockName=(?P<block>\S+)) .*?\bNodes=(?P<nodes>\S+)", re.MULTILINE
)
_NO_NODES = "(null)"  # Slurm prints this for a leaf whose nodes are all gone.
_NODE = re.compile(r"^NodeName=(\S+)(?:.*? Reason=(.*))?", re.MULTILINE)


@dataclass(frozen=True)
class JobNode(JsonObject):
    """A node of a job."""

    rank: int
    """Its number within the job, as in SLURM_NODEID."""
    node: str
    leaf: str
    """Its leaf switch or block; empty if Slurm's topology does not name the node."""


@dataclass(frozen=True)
class Topology:
    """The leaf switch or block of each node that the topology names, and all nodes of slurm.conf in Slurm's order."""

    leaves: Mapping[str, str]
    nodes: tuple[str, ...]
    login_nodes: frozenset[str] = frozenset()
    """The nodes among them that podwright has drained because they are login nodes."""

    def errors(self) -> list[str]:
        """Return a sentence about the nodes that run no job, because the topology lacks them; login nodes run none."""
        if not self.leaves:
            return []
        missing = [node for node in self.nodes if node not in self.leaves and node not in self.login_nodes]
        return [f"Slurm's topology lacks {', '.join(missing)}, so they run no job"] if missing else []

    def warnings(self) -> list[str]:
        """Return a sentence about the nodes that only the topology names."""
        stale = sorted(self.leaves.keys() - set(self.nodes))
        return [f"Slurm's topology still names {', '.join(stale)}, which slurm.conf lacks"] if stale else []

    def problems(self) -> list[str]:
        """Return sentences about nodes that run no job because the topology lacks them, and nodes that Slurm lacks."""
        return [*self.errors(), *self.warnings()]


def topology(shell: Shell) -> Topology:
    """Return the topology that the running slurmctld uses; it has no leaves if Slurm's topology is flat.

    Raises:
        OperationError: the controller or Slurm does not answer.
    """
    leaves = {
        node: match["switch"] or match["block"]
        for match in _LEAF.finditer(shell.run(f"{TOPOLOGY} || true"))  # It fails if the topology is flat.
        for node in hostnames(match["nodes"])
        if match["nodes"] != _NO_NODES
    }
    reasons = dict(_NODE.findall(shell.run(NODES)))
    login_nodes = frozenset(node for node, reason in reasons.items() if reason.startswith(LOGIN_NODE_REASON))
    return Topology(leaves, tuple(reasons), login_nodes)


def job_nodes(shell: Shell, job_id: str, slurm_topology: Topology) -> list[JobNode]:
    """Return the nodes of a job in the order of its ranks; empty if it waits.

    Raises:
        OperationError: Slurm does not know the job, or as ``topology``.
    """
    listed = shell.run(quoted("squeue", "--noheader", f"--jobs={job_id}", "--format=%N"))
    names = {name for line in listed.split() for name in hostnames(line)}
    ordered = [node for node in slurm_topology.nodes if node in names]
    return [JobNode(rank, node, slurm_topology.leaves.get(node, "")) for rank, node in enumerate(ordered)]


def hostnames(hostlist: str) -> list[str]:
    """Return the names in a hostlist of Slurm, such as ``ip-10-0-16-[6-9,11],ip-10-0-17-4``."""
    names: list[str] = []
    for item in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", hostlist):
        pieces = re.split(r"\[([^\]]*)\]", item)
        choices = [list(_numbers(piece)) if index % 2 else [piece] for index, piece in enumerate(pieces)]
        names += map("".join, product(*choices))
    return names


def _numbers(ranges: str) -> Iterator[str]:
    """Yield the numbers of ``6-9,11``; they have the width of the first, as in ``001-128``."""
    for item in ranges.split(","):
        lowest, _, highest = item.partition("-")
        yield from (f"{number:0{len(lowest)}}" for number in range(int(lowest), int(highest or lowest) + 1))
