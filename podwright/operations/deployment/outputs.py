"""``podwright outputs``: show names, ids and next commands of the deployed stacks, from Terraform's state."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from podwright.config_file import add_file
from podwright.operations.deployment.deployed_stacks import DeployedStack, stacks
from podwright_common.command_line import add_examples
from podwright_common.exit_status import OK

OF_ANOTHER_STACK = "cross-stack-output-"  # cdktf passes values between stacks by outputs of this prefix.

Outputs = Annotated[
    dict[Literal["foundation", "cluster"], dict[str, Any]],
    "The document of `podwright outputs --json`: the outputs of each stack; empty where it is not deployed.",
]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add FILE and --json."""
    add_file(parser)
    parser.add_argument("--json", action="store_true", help="print outputs as JSON")
    add_examples(parser, "podwright outputs", "podwright outputs --json | jq .")


def run(options: argparse.Namespace) -> int:
    """Print the outputs."""
    from podwright.check.load import load

    outputs_by_stack = outputs(load(options.file).name, folder=Path.cwd())
    if options.json:
        print(json.dumps(outputs_by_stack, indent=2, sort_keys=True))
    else:
        print(in_lines(outputs_by_stack))
    return OK


def outputs(name: str, *, folder: Path) -> Outputs:
    """Return the outputs of a cluster's stacks by ``foundation`` and ``cluster``; empty for one that is not deployed.

    Args:
        name: The cluster's name.
        folder: The folder that it was deployed from, which has cdktf.out.

    Raises:
        NotDeployedError: it was not deployed from there.
        TerraformError: there is no usable Terraform, or it cannot read its state.
    """
    deployed = stacks(name, folder=folder)
    return {"foundation": _of_stack(deployed["foundation"]), "cluster": _of_stack(deployed["cluster"])}


def in_lines(outputs_by_stack: Outputs) -> str:
    """Format the outputs for a terminal."""
    width = max((len(key) for values in outputs_by_stack.values() for key in values), default=0)
    lines = []
    for stack_name, values in outputs_by_stack.items():
        lines += [stack_name, *(f"  {key:<{width}}  {value}" for key, value in sorted(values.items()))]
        lines += [] if values else ["  not deployed"]
    return "\n".join(lines)


def _of_stack(stack: DeployedStack) -> dict[str, Any]:
    stack.check()
    outputs_by_name = json.loads(stack.terraform("output", "-json", "-no-color"))
    return {name: output["value"] for name, output in outputs_by_name.items() if not name.startswith(OF_ANOTHER_STACK)}
