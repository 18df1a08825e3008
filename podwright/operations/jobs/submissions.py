"""The three kinds of file that can be submitted: a run.yaml, a job.yaml of another trainer, and a batch script."""

from __future__ import annotations

import argparse
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from podwright.errors import ArgumentError, OperationError
from podwright.operations.access.remote import Remote, quoted
from podwright.operations.account.hyperpod import InstanceGroup
from podwright.operations.jobs import preflight, runs, slurm_jobs

if TYPE_CHECKING:
    from podwright.planning.run_hours import Run
    from podwright_training.jobs.spec import JobSpec

YAML_SUFFIXES = {".yaml", ".yml"}
NODES = re.compile(r"[1-9]\d*(-[1-9]\d*)?")  # sbatch and podwright-train launch take no other numbers.


class Submission(ABC):
    """A file to submit with the command's arguments; its kind decides how the cluster starts it."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options

    @property
    def name(self) -> str:
        """Return the run's name."""
        return str(self.options.name or self.options.file.stem)

    def argument_problems(self) -> Iterator[str]:
        """Yield the arguments that do not fit this kind of file."""
        if self.options.file.is_dir():
            yield f"{self.options.file}: a folder; name its run.yaml or batch script, and --send the folder"
        nodes = self.options.nodes
        if nodes is not None and not NODES.fullmatch(nodes):
            yield f"--nodes: got {nodes}, need a number from 1, or a range such as 2-4"

    def preflight(self, _settings_file: Path | None, _groups: Sequence[InstanceGroup]) -> list[str]:
        """Check the file against the cluster; return the flags of launch that the cluster decides.

        Raises:
            ArgumentError: the cluster's nodes would refuse it; the message has every reason.
        """
        return []

    def training_run(self) -> Run | None:
        """Return what the planner predicts a time for; None if this kind of file does not say what it trains."""
        return None

    def trainer(self, _environment: str) -> str:
        """Return podwright-train on the node, which claims the run; empty if the kind does not use it."""
        return ""

    @abstractmethod
    def command(self, name: str, folder: str, environment: str, cluster_flags: Sequence[str]) -> str:
        """Return the line of shell that submits the file, once it is in the run's folder.

        Args:
            name: the run's name.
            folder: the run's folder on the node.
            environment: the virtual environment of podwright-train on the node; empty if there is none.
            cluster_flags: the flags that ``preflight`` returned.

        Raises:
            OperationError: the kind needs podwright-train, and the nodes have no environment for it.
        """

    @abstractmethod
    def job_ids(self, node: Remote, output: str) -> dict[str, str]:
        """Return the jobs that the command's output names, by their step in the run, the training job last.

        Raises:
            OperationError: it names none.
        """


class ScriptSubmission(Submission):
    """A batch script, which sbatch gets as it is."""

    def command(self, name: str, folder: str, environment: str, cluster_flags: Sequence[str]) -> str:  # noqa: ARG002
        """Return sbatch's command."""
        options = self.options
        values = {"nodes": options.nodes, "partition": options.partition, "time": options.time_limit, "job-name": name}
        flags = [f"--{flag}={value}" for flag, value in values.items() if value]
        return quoted("sbatch", "--parsable", *flags, f"./{options.file.resolve().name}", *options.arguments)

    def job_ids(self, node: Remote, output: str) -> dict[str, str]:
        """Return the job that sbatch printed."""
        return {"batch": slurm_jobs.number(node, output)}


class LaunchedSubmission(Submission):
    """A file that podwright-train launch turns into jobs."""

    def trainer(self, environment: str) -> str:
        """Return podwright-train on the node."""
        return f"{environment}/bin/podwright-train"

    def job_ids(self, node: Remote, output: str) -> dict[str, str]:
        """Return the jobs in the document that ``podwright-train launch --json`` printed."""
        try:
            document = json.loads(output[output.index("{") :])  # A shell's start file may print before the document.
            jobs = document.get("jobs") or {"train": document["job"]}  # Older versions of podwright-train list no jobs.
        except (ValueError, KeyError) as error:
            raise OperationError(f"{node.node.name} printed no job id: {output.strip() or 'no output'}") from error
        return {step: str(job_id) for step, job_id in jobs.items()}

    def _launch(self, folder: str, environment: str) -> list[str]:
        """Return the words of launch's command that all kinds of file share."""
        if not environment:
            raise OperationError(runs.NO_TRAINER, "submit a batch script, or deploy with podwright's scripts")
        options = self.options
        values = {"nodes": options.nodes, "partition": options.partition, "time-limit": options.time_limit}
        flags = [f"--{flag}={value}" for flag, value in values.items() if value]
        return [self.trainer(environment), "launch", "--json", f"--run-dir={folder}", *flags]


class RunSubmission(LaunchedSubmission):
    """A run.yaml of podwright-train."""

    def argument_problems(self) -> Iterator[str]:
        """Yield also a missing number of nodes."""
        yield from super().argument_problems()
        if self.options.file.exists() and self.options.nodes is None:
            yield "give --nodes N: a run.yaml does not say how many nodes it trains on"

    def preflight(self, _settings_file: Path | None, groups: Sequence[InstanceGroup]) -> list[str]:
        """Check a run of NxD Training against the planner."""
        return preflight.refuse_run(self.options, groups)

    def training_run(self) -> Run | None:
        """Return the run's options."""
        return preflight.run_with_arguments(self.options)

    def command(self, name: str, folder: str, environment: str, cluster_flags: Sequence[str]) -> str:  # noqa: ARG002
        """Return launch's command with the trainer's arguments."""
        launch = [*self._launch(folder, environment), *self.options.launch_arguments, *cluster_flags]
        config = f"--config={folder}/{self.options.file.resolve().name}"
        return quoted(*launch, "--", config, *self.options.arguments)


class JobSubmission(LaunchedSubmission):
    """A job.yaml of another trainer."""

    def __init__(self, options: argparse.Namespace, job: JobSpec) -> None:
        super().__init__(options)
        self.job = job

    @property
    def name(self) -> str:
        """Return the name in the arguments, the file, or else the file's own."""
        return str(self.options.name or self.job.name or self.options.file.stem)

    def argument_problems(self) -> Iterator[str]:
        """Yield also arguments of the program, which its command contains."""
        yield from super().argument_problems()
        if self.options.arguments:
            yield "--arguments: write them into the command of the job"

    def preflight(self, settings_file: Path | None, _groups: Sequence[InstanceGroup]) -> list[str]:
        """Check the job against the cluster's settings file."""
        preflight.refuse_job(self.options, self.job, settings_file)
        return []

    def training_run(self) -> Run | None:
        """Return the job."""
        return self.job

    def command(self, name: str, folder: str, environment: str, cluster_flags: Sequence[str]) -> str:  # noqa: ARG002
        """Return launch's command for a job.yaml."""
        job = f"--job={folder}/{self.options.file.resolve().name}"
        return quoted(*self._launch(folder, environment), job, *self.options.launch_arguments)


def submission_of(options: argparse.Namespace) -> Submission:
    """Return a submission of the kind that FILE is; only here is the file read to find that out.

    Raises:
        ArgumentError: it is a job.yaml with problems; the message has all of them.
    """
    if options.file.suffix not in YAML_SUFFIXES:
        return ScriptSubmission(options)
    from podwright_training.errors import ConfigError
    from podwright_training.jobs import spec

    if not spec.is_job(options.file):
        return RunSubmission(options)
    try:
        return JobSubmission(options, spec.load(options.file))
    except ConfigError as error:
        raise ArgumentError(str(error)) from error
