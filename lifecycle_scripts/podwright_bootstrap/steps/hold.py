"""A hold on jobs, where HyperPod starts Slurm before these scripts run.

The same steps as elsewhere run as ``OnInitComplete`` then. This one drains a new compute node, because Slurm would
start jobs on it before it is set up; the step ``slurm`` lets jobs in.

https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-slurm-api-config.html
"""

from __future__ import annotations

from typing import Iterator

from podwright_bootstrap import boot_report
from podwright_bootstrap.contract import BEING_SET_UP, COMPUTE
from podwright_bootstrap.host import waits
from podwright_bootstrap.node import Node
from podwright_bootstrap.slurm import nodes
from podwright_bootstrap.steps import Step

KNOWN_LIMIT_S = 120


class HoldStep(Step):
    """No job starts on the node before it is set up; step slurm lets jobs in."""

    name = "hold"
    audience = "compute nodes of clusters whose Slurm HyperPod sets up"
    hint = "`scontrol show node` shows Slurm's record of it"
    time_limit_s = 300
    degraded_feature = "a hold on jobs: some may start before the node is set up"

    def applies(self, node: Node) -> bool:
        """Run on nodes where slurmd is installed already."""
        return node.parameters.slurm_by_api and node.role == COMPUTE

    def apply(self, node: Node) -> Iterator[str]:
        """Drain it at its first boot; later ones find it set up, with jobs, or held by one that failed."""
        if boot_report.load():
            return
        event = f"slurmctld to know {node.hostname}"
        waits.wait_until(
            lambda: bool(nodes.state(node.hostname)), event=event, limit_s=KNOWN_LIMIT_S, every_s=node.poll_s
        )
        if "DRAIN" not in nodes.state(node.hostname):
            nodes.drain(node.hostname, BEING_SET_UP)
            yield f"drained {node.hostname} until it is set up"

    def verify(self, node: Node) -> None:
        """Do nothing: from here on administrators may drain the node, or let jobs in."""
