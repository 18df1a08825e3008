"""Read the outputs of the deployed stacks from Terraform's state: names, ids and next commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from podwright.deploy.deployed import DeployedStack, stacks

OF_ANOTHER_STACK = "cross-stack-output-"  # what cdktf adds for itself

Outputs = dict[str, dict[str, Any]]


def outputs(name: str, *, folder: Path) -> Outputs:
    """Return the outputs of a cluster's stacks by ``foundation`` and ``cluster``; empty for one that is not deployed.

    Args:
        name: of the cluster.
        folder: where it was deployed from, which has cdktf.out.

    Raises:
        NotDeployedError: it was not deployed from there.
        TerraformError: there is no usable Terraform, or it cannot read its state.
    """
    return {part: _of_stack(stack) for part, stack in stacks(name, folder=folder).items()}


def in_lines(found: Outputs) -> str:
    """Format the outputs for a terminal."""
    width = max((len(key) for values in found.values() for key in values), default=0)
    lines = []
    for part, values in found.items():
        lines += [part, *(f"  {key:<{width}}  {value}" for key, value in sorted(values.items()))]
        lines += [] if values else ["  not deployed"]
    return "\n".join(lines)


def _of_stack(stack: DeployedStack) -> dict[str, Any]:
    stack.check()
    found = json.loads(stack.terraform("output", "-json", "-no-color"))
    return {key: item["value"] for key, item in found.items() if not key.startswith(OF_ANOTHER_STACK)}
