"""The jobs of each GPU in files, from which dcgm-exporter takes the label ``hpc_job``.

https://github.com/NVIDIA/dcgm-exporter#how-to-include-hpc-jobs-in-metric-labels
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import List, Set

from podwright_bootstrap.host import files
from podwright_bootstrap.slurm.job import Job
from podwright_bootstrap.storage.lock import locked

FOLDER = Path("/run/podwright-gpu-jobs")  # empty after a reboot
LOCK_LIMIT_S = 10


def add(job: Job) -> None:
    """Note the job at each of its GPUs."""
    _change(gpus(), add={job.id}, remove=set())


def remove(job: Job) -> None:
    """Take the job from every GPU, whatever Slurm says now that they were."""
    noted = [int(path.name) for path in FOLDER.glob("[0-9]*")]
    _change(noted, add=set(), remove={job.id})


def gpus() -> List[int]:
    """Return the indices of the job's GPUs on this node, as slurmd gives them: ``0,1`` or ``0-3``."""
    ranges = re.findall(r"(\d+)(?:-(\d+))?", os.environ.get("SLURM_JOB_GPUS", ""))
    return [number for first, last in ranges for number in range(int(first), int(last or first) + 1)]


def _change(indices: List[int], *, add: Set[str], remove: Set[str]) -> None:
    """A GPU without jobs has no file: of one with an empty file dcgm-exporter gives no metrics."""
    if not indices:
        return
    with locked(FOLDER / ".lock", limit_s=LOCK_LIMIT_S, every_s=0.1):
        for index in indices:
            path = FOLDER / str(index)
            before = set(path.read_text().split()) if path.exists() else set()
            jobs = sorted((before | add) - remove, key=int)
            if jobs:
                files.write_file(path, "".join(f"{job}\n" for job in jobs))
            else:
                path.unlink(missing_ok=True)
