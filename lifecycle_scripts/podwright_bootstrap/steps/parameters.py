"""The contract, where the service's agent, the jobs and people look for it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Iterator

from podwright_bootstrap import contract
from podwright_bootstrap.contract import ProvisioningParameters
from podwright_bootstrap.host import shell
from podwright_bootstrap.host.shell import BootstrapError
from podwright_bootstrap.node import Node
from podwright_bootstrap.steps import Step

# on_create.sh names its folder, because it runs this package from an archive.
SCRIPTS = Path(os.environ.get("PODWRIGHT_SCRIPTS", Path(__file__).resolve().parents[2]))
BESIDE_THE_SCRIPTS = SCRIPTS / contract.PROVISIONING_PARAMETERS_NAME


def source() -> Path:
    """The file this boot goes by: the one that came with the scripts, else the one an earlier boot installed."""
    for path in (BESIDE_THE_SCRIPTS, contract.PROVISIONING_PARAMETERS):
        if path.is_file():
            return path
    raise BootstrapError(
        f"no {contract.PROVISIONING_PARAMETERS_NAME} beside the scripts ({BESIDE_THE_SCRIPTS.parent})",
        hint="deploy the cluster stack again: it uploads the file with the scripts",
    )


class Parameters(Step):
    """The provisioning parameters lie in the service's configuration folder."""

    name = "parameters"
    needed = "Slurm's programs and later boots go by the file that it installs"
    hint = f"look at {contract.PROVISIONING_PARAMETERS.parent} and the space left on its disk (df -h)"
    time_limit_s = 300

    def apply(self, node: Node) -> Iterator[str]:
        """Copy the file."""
        if shell.write_file(contract.PROVISIONING_PARAMETERS, source().read_bytes()):
            yield f"wrote {contract.PROVISIONING_PARAMETERS}"

    def verify(self, node: Node) -> None:
        """The copy says what this boot goes by."""
        if ProvisioningParameters.from_json(contract.PROVISIONING_PARAMETERS.read_text()) != node.parameters:
            raise BootstrapError(f"{contract.PROVISIONING_PARAMETERS} differs from {source()}")
