"""The machine as a whole, before it takes jobs."""

from __future__ import annotations

from typing import Dict, Iterator, List

from podwright_bootstrap import health_checks
from podwright_bootstrap.contract import COMPUTE
from podwright_bootstrap.host import log
from podwright_bootstrap.host.errors import BootstrapError
from podwright_bootstrap.node import Node
from podwright_bootstrap.steps import Step

FAIL, WARN, SKIP = "fail", "warn", "skip"


class HealthStep(Step):
    """Memory and links of the GPUs, EFA, clock, limits and memory of the node are as its type and a job need them."""

    name = "health"
    audience = "compute nodes of clusters with nodes.health"
    hint = (
        "replace the node: aws sagemaker batch-replace-cluster-nodes; a check that is wrong for your nodes can be "
        "`warn` or `skip` in cluster.yaml, nodes.health"
    )
    time_limit_s = 600

    def applies(self, node: Node) -> bool:
        """On compute nodes, if it is asked for."""
        return node.role == COMPUTE and node.parameters.nodes.health is not None

    def apply(self, node: Node) -> Iterator[str]:
        """Do nothing: this step only checks."""
        return iter(())

    def verify(self, node: Node) -> None:
        """Run all checks and log every finding; one error lists all that fail the boot."""
        findings_by_level: Dict[str, List[str]] = {FAIL: [], WARN: []}
        for name, check in health_checks.CHECKS.items():
            level = getattr(node.parameters.nodes.health, name)
            if level != SKIP:
                findings_by_level[level] += [
                    f"{name}: {finding}" for finding in health_checks.findings(check, node.facts)
                ]
        for finding in findings_by_level[WARN]:
            log.say(f"WARNING on {node.hostname}: {finding}")
        if findings_by_level[FAIL]:
            raise BootstrapError("; ".join(findings_by_level[FAIL]))
