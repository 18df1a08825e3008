"""The source of the node's Slurm, to build plugins that the image lacks.

The checksums of releases are in ``downloads.json``, or a user gives that of another one.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Optional

from podwright_bootstrap import contract
from podwright_bootstrap.host import process
from podwright_bootstrap.host.errors import BootstrapError
from podwright_bootstrap.node import Node
from podwright_bootstrap.software import downloads
from podwright_bootstrap.software.downloads import Download

NAME = "slurm-{version}"  # in the manifest
URL = "https://github.com/SchedMD/slurm/archive/slurm-{tag}-1.tar.gz"
SETTING = "nodes.pam_slurm_adopt.slurm_source_sha256"


def fetch(node: Node, *, sha256: Optional[str]) -> Path:
    """Return the archive with the source of exactly this node's Slurm.

    Args:
        node: this node.
        sha256: the archive's checksum, which is used before the manifest's.

    Raises:
        BootstrapError: its checksum is not known, the download failed, or the checksum differs.
    """
    version = _version()
    url = URL.format(tag=version.replace(".", "-"))
    name = NAME.format(version=version)
    if sha256:
        return downloads.fetch_file(Download(name, url, sha256), node)
    if name not in downloads.manifest():
        raise BootstrapError(
            f"podwright has no checksum of the source of Slurm {version}, {url}",
            hint=f"give it in cluster.yaml as {SETTING}, after you have compared it with a second source",
        )
    return downloads.fetch(name, node)


def _version() -> str:
    """Return the release of slurmd, such as 24.11.6."""
    slurmd = contract.SLURM_ROOT / "sbin" / "slurmd"
    printed = process.run(slurmd, "-V", timeout_s=60, quiet=True).output
    version = re.search(r"\d+\.\d+\.\d+", printed)
    if not version:
        raise BootstrapError(f"cannot parse the version that `{slurmd} -V` printed: {printed.strip()}")
    return version[0]
