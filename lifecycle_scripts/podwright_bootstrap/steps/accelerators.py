"""The accelerators that the instance type promises."""

from __future__ import annotations

from typing import Iterator

from podwright_bootstrap import health_checks
from podwright_bootstrap.health_checks import accelerators
from podwright_bootstrap.host.errors import CommandError
from podwright_bootstrap.node import Node
from podwright_bootstrap.steps import Step


class AcceleratorsStep(Step):
    """The driver sees as many GPUs or Neuron devices as the instance type has."""

    name = "accelerators"
    audience = "nodes with accelerators"
    hint = "replace the node: aws sagemaker batch-replace-cluster-nodes (nvidia-smi or neuron-ls, and dmesg say more)"
    time_limit_s = 300
    attempts = 3  # the driver may still be loading

    def applies(self, node: Node) -> bool:
        """Run on instance types with accelerators."""
        return bool(node.facts.accelerator)

    def apply(self, node: Node) -> Iterator[str]:
        """Do nothing: the image has the driver."""
        return iter(())

    def verify(self, node: Node) -> None:
        """Count the accelerators."""
        for finding in health_checks.findings(accelerators.count, node.facts):
            raise CommandError(f"{finding} ({node.instance_type})")
