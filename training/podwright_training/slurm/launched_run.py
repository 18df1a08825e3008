"""The jobs that ``podwright-train launch`` submitted, as it prints them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from podwright_training.json_values import SPREAD


@dataclass(frozen=True, kw_only=True)
class SubmittedJobs:
    """Jobs of a run.

    Attributes:
        job: Slurm's id of the last job.
        jobs: Ids by the step of the run.
        run_dir: Folder of the run.
        log: Output of the last job.
    """

    job: int
    jobs: dict[str, int]
    run_dir: Path
    log: str


@dataclass(frozen=True)
class LaunchedRun:
    """The document of `podwright-train launch --json`; `commands` follow, stop and report the run."""

    submitted: SubmittedJobs = field(metadata=SPREAD)
    commands: dict[str, str]


@dataclass(frozen=True)
class LaunchedNxdtRun:
    """The document of `podwright-train launch --backend nxdt --json`; `cache` has the compiled graphs."""

    submitted: SubmittedJobs = field(metadata=SPREAD)
    cache: str
    commands: dict[str, str]
