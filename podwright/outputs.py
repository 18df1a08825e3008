"""What the deployed stacks say of themselves: names, ids and the next commands, as Terraform's state has them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from podwright import names
from podwright.rehearsal.terraform import find_terraform

STACKS = Path("cdktf.out", "stacks")  # where cdktf runs Terraform, below the folder of cdktf.json
OF_ANOTHER_STACK = "cross-stack-output-"  # what cdktf adds for itself

Outputs = dict[str, dict[str, Any]]


class OutputsError(RuntimeError):
    """The outputs cannot be read; the message says why and what to do."""


def outputs(name: str, *, folder: Path) -> Outputs:
    """The outputs of a cluster's stacks by ``foundation`` and ``cluster``; empty for one that is not deployed.

    Args:
        name: of the cluster.
        folder: where it was deployed from, which has cdktf.out.

    Raises:
        OutputsError: it was not deployed from there, or Terraform cannot read its state.
        TerraformError: there is no usable Terraform.
    """
    stacks = {"foundation": names.foundation_stack(name), "cluster": names.cluster_stack(name)}
    return {part: _of_stack(folder / STACKS / stack) for part, stack in stacks.items()}


def in_lines(found: Outputs) -> str:
    """The outputs for people."""
    width = max((len(key) for values in found.values() for key in values), default=0)
    lines = []
    for part, values in found.items():
        lines += [part, *(f"  {key:<{width}}  {value}" for key, value in sorted(values.items()))]
        lines += [] if values else ["  not deployed"]
    return "\n".join(lines)


def _of_stack(folder: Path) -> dict[str, Any]:
    if not (folder / ".terraform").is_dir():
        raise OutputsError(f"{folder} is no stack that was deployed: go to where you ran `cdktf deploy`")
    command = [str(find_terraform()), "output", "-json", "-no-color"]
    answer = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise OutputsError(f"Terraform cannot read the state of {folder.name}: {answer.stderr.strip()}")
    found = json.loads(answer.stdout)
    return {key: item["value"] for key, item in found.items() if not key.startswith(OF_ANOTHER_STACK)}
