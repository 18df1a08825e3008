"""A job on this node, from the variables that slurmd sets for prolog and epilog."""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from podwright_bootstrap.contract import ProvisioningParameters

JOBS_DIRECTORY = "jobs"  # root's, below the scratch folder, where everybody may write
PARENT_MODE = 0o711  # Everybody can enter their job's folder, and nobody can add or list folders.


@dataclass(frozen=True)
class Job:
    """A job and its user. https://slurm.schedmd.com/prolog_epilog.html, "Environment Variables"."""

    id: str
    uid: int
    node: str

    @classmethod
    def of_environment(cls) -> Job:
        """Read slurmd's environment variables; ``KeyError`` outside of a job."""
        return cls(
            id=str(int(os.environ["SLURM_JOB_ID"])),  # it becomes a folder's name
            uid=int(os.environ["SLURM_JOB_UID"]),
            node=os.environ["SLURMD_NODENAME"],
        )

    @property
    def gid(self) -> int:
        """Return the user's group; -1, which changes no group, while it is unknown."""
        gid = os.environ.get("SLURM_JOB_GID")
        try:
            return int(gid) if gid else pwd.getpwuid(self.uid).pw_gid
        except KeyError:
            return -1


def folder_of(job: Job, parameters: ProvisioningParameters) -> Optional[Path]:
    """Return the job's own folder on the node's disks, where cluster and node have them."""
    nodes = parameters.nodes
    if not nodes.scratch or not nodes.prolog or not nodes.prolog.job_folder:
        return None
    root = Path(nodes.scratch.mount_path)
    return root / JOBS_DIRECTORY / job.id if root.is_dir() else None
