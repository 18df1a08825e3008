"""Find the hosts that fail again and again, and report them to the cluster's health loop.

A report is the comment of this host's Slurm job. Where cluster.yaml has ``nodes.remediation.jobs``, the controller
reads it and lets HyperPod reboot the host, at most once a day, if no other user has a job there. Every user can write
a comment, so it never has a host replaced.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import time
from pathlib import Path

from podwright_training.run_folder import write_atomically

logger = logging.getLogger(__name__)

MOST_FAILURES = 3
WITHIN_S = 24 * 3600
REPORT = "podwright:reboot:{at}:run@{host}"  # read by podwright_bootstrap.remediation.decision
SLURM_S = 30


class Offenders:
    """The failures of a run's hosts within a day, in a file that every leader reads and writes."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def add(self, host: str) -> int:
        """Count a failure; return how many the host has had, once there are too many, else 0."""
        now = time.time()  # hosts' clocks may differ: what one that is a year ahead wrote does not count for a year
        failures = [(at, name) for at, name in self._read() if abs(now - at) < WITHIN_S] + [(now, host)]
        write_atomically(self._file, json.dumps(failures))
        times = sum(name == host for _, name in failures)
        return times if times >= MOST_FAILURES else 0

    def _read(self) -> list[tuple[float, str]]:
        try:
            return [(float(at), str(name)) for at, name in json.loads(self._file.read_text())]
        except (OSError, ValueError, TypeError):  # none yet, or a damaged file: count anew
            return []


def report(host: str, times: int) -> None:
    """Report the failing host as the comment of this host's Slurm job; always log it, too."""
    logger.warning(
        "elastic: %s failed %d times within a day; reported to nodes.remediation (jobs: true), or as administrator: "
        "scontrol update NodeName=%s State=FAIL Reason=Action:Reboot; Action:Replace if that does not help",
        *(host, times, host),
    )
    if array := os.environ.get("SLURM_ARRAY_JOB_ID"):
        job, comment = f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}", REPORT.format(at=int(time.time()), host=host)
        command = ["scontrol", "update", f"JobId={job}", f"Comment={comment}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SLURM_S, check=False)
        except (OSError, subprocess.SubprocessError) as error:
            logger.warning("elastic: cannot report %s: %s", host, error)
            return
        if done.returncode:
            logger.warning("elastic: cannot report %s: %s", host, done.stderr.strip())
