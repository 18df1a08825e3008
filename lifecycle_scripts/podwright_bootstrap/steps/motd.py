"""The message at login: the node, the next commands, the logs.

Shown by pam_motd(8), which reads every file of the folder.
"""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Iterator

from podwright_bootstrap import contract
from podwright_bootstrap.contract import COMPUTE, CONTROLLER
from podwright_bootstrap.host import files
from podwright_bootstrap.host.errors import BootstrapError
from podwright_bootstrap.node import Node
from podwright_bootstrap.steps import Step

MOTD = Path("/etc/motd.d/podwright")
MODE = 0o644
DAEMONS = {CONTROLLER: "slurmctld"}


class MotdStep(Step):
    """A login shows the node, the next commands and the logs."""

    name = "motd"
    audience = "clusters that want it"
    hint = f"look at {MOTD.parent} and the space left on its disk (df -h)"
    time_limit_s = 60
    degraded_feature = "a message at login"

    def applies(self, node: Node) -> bool:
        """Run with nodes.motd."""
        return node.parameters.nodes.motd

    def apply(self, node: Node) -> Iterator[str]:
        """Write it, in a file that is ours alone."""
        if files.write_file(MOTD, greeting(node), mode=MODE):
            yield f"wrote {MOTD}"

    def remove(self, node: Node) -> Iterator[str]:
        """Remove the message."""
        yield from files.remove_files(MOTD)

    def verify(self, node: Node) -> None:
        """Check the message, and that all users can read it."""
        if stat.S_IMODE(MOTD.stat().st_mode) != MODE or MOTD.read_text() != greeting(node):
            raise BootstrapError(f"{MOTD} does not name this node")


def greeting(node: Node) -> str:
    """The whole text."""
    rows = [*(_compute(node) if node.role == COMPUTE else _front(node)), *_logs(node)]
    width = max(len(meaning) for meaning, _ in rows)
    title = f"{node.parameters.cluster_name}: {node.hostname}, {node.role} node of group {node.instance_group}"
    lines = [f"  {meaning:<{width}}  {command}" for meaning, command in rows]
    return "\n".join(["", f"{title}, {node.instance_type}", "", *lines, ""]) + "\n"


def _front(node: Node) -> Iterator[tuple[str, str]]:
    """Return the commands of controllers and login nodes: from the queue to a first run."""
    yield "nodes", "sinfo"
    yield "jobs", "squeue"
    if node.environment:
        yield "train", f"{node.environment}/bin/podwright-train launch --preset PRESET --nodes 2"
        yield "runs and their logs", f"ls {node.shared(contract.RUNS_DIRECTORY)}"


def _compute(node: Node) -> Iterator[tuple[str, str]]:
    """Return the commands of compute nodes: look after a job."""
    yield "jobs here", f"squeue --nodelist {node.hostname}"
    yield "this node in Slurm", f"scontrol show node {node.hostname}"
    command = {"gpu": "nvidia-smi", "neuron": "neuron-ls"}.get(node.facts.accelerator)
    if command:
        yield f"{node.facts.accelerators_per_node} {node.facts.accelerator_name}", command
    if node.facts.accelerator == "neuron":
        yield "their cores and memory", "neuron-top"


def _logs(node: Node) -> Iterator[tuple[str, str]]:
    yield "how it was set up", f"less {contract.PROVISIONING_LOG}"
    yield "Slurm's daemon", f"journalctl -u {DAEMONS.get(node.role, 'slurmd')}"
