"""The accelerators that the instance type promises."""

from __future__ import annotations

from typing import Iterator

from podwright_bootstrap import shell
from podwright_bootstrap.node import Node
from podwright_bootstrap.shell import CommandError
from podwright_bootstrap.steps import Step


class Accelerators(Step):
    """The driver sees as many GPUs as the instance type has: a job on fewer would hang or fail hours later."""

    name = "accelerators"
    whose = "nodes with GPUs"
    hint = "replace the node: aws sagemaker batch-replace-cluster-nodes (nvidia-smi and dmesg on it say more)"
    time_limit_s = 300
    attempts = 3  # the driver may still be loading

    def applies(self, node: Node) -> bool:
        """Where the catalog says there are GPUs."""
        return node.facts.accelerator == "gpu"

    def apply(self, node: Node) -> Iterator[str]:  # noqa: ARG002
        """Nothing to change: the image brings the driver."""
        return iter(())

    def verify(self, node: Node) -> None:
        """Count the GPUs."""
        listing = shell.run("nvidia-smi", "-L", timeout_s=60).output
        count = sum(line.startswith("GPU ") for line in listing.splitlines())
        expected = node.facts.accelerators_per_node
        if count != expected:
            raise CommandError(
                f"nvidia-smi -L lists {count} GPUs; {node.instance_type} has {expected} {node.facts.accelerator_name}"
            )
