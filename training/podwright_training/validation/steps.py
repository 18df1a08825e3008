"""Slurm steps of the validation's job, and the files in which they leave their results.

Results are files on the shared file system: srun cuts and mixes lines of more than a kilobyte.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from podwright_training.json_text import to_json
from podwright_training.run_folder import write_atomically

JOB, NODE, READ, ALL_REDUCE = "job", "node", "read", "all_reduce"
RESULTS = "results"
FILES = "files"
ENDS_S = 30  # between SIGTERM and SIGKILL


def node_name() -> str:
    """Return Slurm's name of this node."""
    return os.environ["SLURMD_NODENAME"]


def hostnames(nodes: str) -> list[str]:
    """Return the names of Slurm's compressed list, in Slurm's order: rank 0 is on the first."""
    command = ["scontrol", "show", "hostnames", nodes]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def write_result(folder: Path, name: str, result: object) -> None:
    """Write a result under its name, completely or not at all."""
    write_atomically(result_path(folder, name), to_json(result))


def read_result(folder: Path, name: str) -> Any:
    """Return a result, or None if its step left no result."""
    try:
        return json.loads(result_path(folder, name).read_text())
    except FileNotFoundError:
        return None


def result_path(folder: Path, name: str) -> Path:
    """Return the file of a result."""
    return folder / RESULTS / f"{name}.json"


@dataclass(frozen=True)
class SrunStep:
    """One srun of this program on some nodes of the job.

    Args:
        nodes: Slurm's names.
        tasks_per_node: processes on each.
        limit_s: the step is ended after so long.
    """

    nodes: Sequence[str]
    tasks_per_node: int
    limit_s: float

    def run(self, *words: object) -> str:
        """Run a part on the nodes; return an empty text, or the last line of the failure."""
        command = [
            *("srun", "--overlap", "--unbuffered", "--kill-on-bad-exit=1", "--cpu-bind=none"),
            *(f"--nodes={len(self.nodes)}", f"--nodelist={','.join(self.nodes)}"),
            *(f"--ntasks={len(self.nodes) * self.tasks_per_node}", f"--ntasks-per-node={self.tasks_per_node}"),
            *(sys.executable, *_program(), *map(str, words)),
        ]
        environment = {name: value for name, value in os.environ.items() if name not in _SIZES}
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment) as process:
            try:
                output, _ = process.communicate(timeout=self.limit_s)
            except subprocess.TimeoutExpired:
                _end(process)
                return f"no answer within {self.limit_s:.0f} s"
        if not process.returncode:
            return ""
        lines = [line for line in output.decode(errors="replace").splitlines() if line.strip()]
        reason = next((line for line in lines if "Error" in line), lines[0] if lines else "no output")
        return f"{reason.strip()} (exit status {process.returncode})"


# Variables of the job's own request, which its steps must not inherit.
_SIZES = {"SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}


def _program() -> list[str]:
    """Return the arguments with which Python runs this program again: its zip file, or its module."""
    archive = Path(sys.path[0])
    return [str(archive.resolve())] if archive.is_file() else ["-m", "podwright_training.validation"]


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a step; srun passes SIGTERM on to its tasks."""
    process.terminate()
    try:
        process.wait(ENDS_S)
    except subprocess.TimeoutExpired:
        process.kill()
