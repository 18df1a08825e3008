"""The contract, where the service's agent, the jobs and people look for it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Iterator

from podwright_bootstrap import contract
from podwright_bootstrap.contract import ProvisioningParameters
from podwright_bootstrap.host import files
from podwright_bootstrap.host.errors import BootstrapError
from podwright_bootstrap.node import Node
from podwright_bootstrap.steps import Step

# on_create.sh names its folder, because it runs this package from an archive.
SCRIPTS = Path(os.environ.get("PODWRIGHT_SCRIPTS", Path(__file__).resolve().parents[2]))
NAMES = (contract.API_PARAMETERS_NAME, contract.PROVISIONING_PARAMETERS_NAME)  # the service itself may write the second


def source() -> Path:
    """Return the file that this boot reads: the scripts' own, else the one that an earlier boot installed."""
    for path in (folder / name for folder in (SCRIPTS, contract.RESOURCE_CONFIG.parent) for name in NAMES):
        if path.is_file():
            return path
    raise BootstrapError(
        f"no {NAMES[-1]} beside the scripts ({SCRIPTS}), and no {NAMES[0]}",
        hint="deploy the cluster stack again: it uploads the file with the scripts",
    )


class ParametersStep(Step):
    """The provisioning parameters lie in the service's configuration folder."""

    name = "parameters"
    required_because = "Slurm's programs and later boots go by the file that it installs"
    hint = f"look at {contract.PROVISIONING_PARAMETERS.parent} and the space left on its disk (df -h)"
    time_limit_s = 300

    def apply(self, node: Node) -> Iterator[str]:
        """Copy the file."""
        installed = _installed(node)
        if files.write_file(installed, source().read_bytes()):
            yield f"wrote {installed}"

    def verify(self, node: Node) -> None:
        """Check that the copy equals the file that this boot reads."""
        installed = _installed(node)
        if ProvisioningParameters.from_json(installed.read_text()) != node.parameters:
            raise BootstrapError(f"{installed} differs from {source()}")


def _installed(node: Node) -> Path:
    return contract.RESOURCE_CONFIG.parent / node.parameters.file_name
