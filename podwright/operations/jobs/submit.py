"""``podwright submit``: send a run's folder to the cluster and submit its job."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from podwright.errors import ArgumentError, OperationError
from podwright.json_document import JsonObject
from podwright.operations.access.remote import add_remote_arguments, remote
from podwright.operations.jobs import preflight, runs, slurm_jobs, upload
from podwright.operations.jobs.submission_record import FILE_NAME, record
from podwright.operations.jobs.submissions import Submission, submission_of
from podwright.operations.output import print_document
from podwright.operations.target import add_examples, add_target_arguments, target


@dataclass(frozen=True, kw_only=True)
class Submit(JsonObject):
    """The document of `podwright submit --json`."""

    schema: Literal["podwright.submit/1"] = "podwright.submit/1"
    cluster: str
    run: str
    folder: str
    """On the cluster."""
    job_id: str
    """The last of the jobs."""
    jobs: dict[str, str]
    """Numbers by step: `train` for podwright-train, `batch` for a batch script."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add FILE, the run's name, the resources of the job, and further files and arguments."""
    parser.add_argument(
        "file",
        type=Path,
        metavar="FILE",
        help="run.yaml of podwright-train, job.yaml of another trainer, or a batch script",
    )
    parser.add_argument("--name", help="name of the run's folder. Default: FILE's name without its suffix")
    parser.add_argument(
        "--nodes",
        metavar="N",
        help="number of nodes, required with run.yaml; a range such as 2-4 makes the run elastic. Default: the number "
        "in the job or script",
    )
    parser.add_argument("--partition", help="Slurm partition. Default: the script's, else the nodes' own")
    parser.add_argument("--time-limit", metavar="TIME", help="Slurm's --time. Default: the script's, else no limit")
    parser.add_argument(
        "--send",
        type=Path,
        action="append",
        default=[],
        metavar="PATH",
        help="also send this file or folder; repeatable",
    )
    parser.add_argument(
        "--arguments",
        type=shlex.split,
        default=[],
        metavar="'…'",
        help="arguments for podwright-train train, or the batch script",
    )
    parser.add_argument(
        "--launch-arguments",
        type=shlex.split,
        default=[],
        metavar="'…'",
        help="arguments for podwright-train launch",
    )
    runs.add_runs_argument(parser)
    add_remote_arguments(parser)
    add_target_arguments(parser)
    add_examples(
        parser,
        "podwright submit run.yaml --nodes 2",
        "podwright submit run.yaml --name wide --nodes 4 --arguments='--max-steps=2000'",
        "podwright submit job.yaml --send train.py",
        "podwright submit train.sbatch --send src --nodes 8",
    )


def run(options: argparse.Namespace) -> int:
    """Send the files and submit the job."""
    submission = submission_of(options)
    files = _files(submission, options)
    name = runs.run_name(submission.name)
    cluster_target = target(options)
    node = remote(cluster_target, options)
    cluster_flags = submission.preflight(cluster_target.file, node.cluster.groups)
    session = cluster_target.session
    for line in preflight.plan_shortfalls(options, submission.training_run, node.cluster.groups, session):
        print(f"warning: {line}", file=sys.stderr)
    run_folders = runs.find(node, options.runs, extra_command=slurm_jobs.of_run(name))
    _refuse_second_job(name, run_folders.extra_output.split())
    folder = run_folders.path(name)
    command = submission.command(name, folder, run_folders.environment, cluster_flags)
    trainer = submission.trainer(run_folders.environment)
    output = upload.send(node, folder, {**files, FILE_NAME: record(files, command)}, command, trainer=trainer)
    jobs = submission.job_ids(node, output)
    if options.json:
        last_id = [*jobs.values()][-1]
        print_document(Submit(cluster=node.cluster.name, run=name, folder=folder, job_id=last_id, jobs=jobs))
    else:
        _print(name, folder, jobs)
    return 0


def _files(submission: Submission, options: argparse.Namespace) -> dict[str, Path]:
    """Return the files to send, by their names in the run's folder.

    Raises:
        ArgumentError: a file is missing, two have one name, or an argument is wrong; all problems are named.
    """
    paths = [options.file, *options.send]
    if problems := [*upload.problems(paths), *submission.argument_problems()]:
        raise ArgumentError("; ".join(problems))
    return upload.by_name(paths)


def _refuse_second_job(name: str, job_ids: list[str]) -> None:
    """Raise ``OperationError`` if the run has jobs in the queue."""
    if not job_ids:
        return
    job_ids = sorted(job_ids, key=lambda job_id: [int(part) for part in re.findall(r"\d+", job_id)])
    raise OperationError(
        f"run {name} already has {'jobs' if len(job_ids) > 1 else 'job'} {', '.join(job_ids)}",
        f"`podwright cancel {name}`, or give this one another --name",
    )


def _print(name: str, folder: str, jobs: dict[str, str]) -> None:
    """Print the jobs and the commands to continue with; a chain of jobs is named by its run."""
    job_id = [*jobs.values()][-1]
    is_chain = len(jobs) > 1
    listed = ", ".join(f"{number} ({step})" for step, number in jobs.items()) if is_chain else job_id
    job_or_run = name if is_chain else job_id
    print(f"{'jobs' if is_chain else 'job'} {listed}, run {name} in {folder}")
    print(f"  podwright logs {job_or_run} --follow\n  podwright cancel {job_or_run}\n  podwright fetch {name}")
