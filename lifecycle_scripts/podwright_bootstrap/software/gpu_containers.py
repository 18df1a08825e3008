"""NVIDIA's programs that show a node's GPUs to containers.

https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/arch-overview.html
"""

from __future__ import annotations

import shutil
from typing import Iterator

from podwright_bootstrap.host import log
from podwright_bootstrap.host.errors import BootstrapError, CommandError
from podwright_bootstrap.node import Node
from podwright_bootstrap.software import downloads, packages

CLI, RUNTIME = "nvidia-container-cli", "nvidia-container-runtime"
_CLI_PACKAGES = ("libnvidia-container1", "libnvidia-container-tools")
# Enroot calls the first, Docker the second; by program, all packages that it needs.
PACKAGES = {CLI: _CLI_PACKAGES, RUNTIME: (*_CLI_PACKAGES, "nvidia-container-toolkit-base", "nvidia-container-toolkit")}


def install(program: str, node: Node) -> Iterator[str]:
    """Install missing programs of a GPU node; a failure does not stop the node's other programs."""
    if node.facts.accelerator != "gpu" or shutil.which(program):
        return
    names = PACKAGES[program]
    try:
        packages.install(*(downloads.fetch(name, node) for name in names), node=node)
    except (BootstrapError, CommandError, OSError) as error:
        log.say(f"warning: {program} is missing: containers see no GPU: {error}")
    else:
        yield f"installed {', '.join(names)}"
