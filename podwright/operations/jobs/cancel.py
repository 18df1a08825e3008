"""``podwright cancel``: cancel Slurm's jobs."""

from __future__ import annotations

import argparse

from podwright.operations.access.remote import add_remote_arguments, remote
from podwright.operations.errors import ArgumentError
from podwright.operations.jobs import slurm
from podwright.operations.output import confirm, print_json
from podwright.operations.target import add_examples, add_target_arguments, target


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take the jobs."""
    parser.add_argument(
        "jobs", nargs="+", metavar="JOB", help="a job's number, or a run's name to cancel all jobs of the run"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")
    add_remote_arguments(parser)
    add_target_arguments(parser)
    add_examples(parser, "podwright cancel 12", "podwright cancel llama3_2_1b --yes")


def run(options: argparse.Namespace) -> int:
    """Cancel the jobs; a job that has a checkpoint to save gets Slurm's signal first."""
    node = remote(target(options), options)
    found = _found(slurm.queue(node), options.jobs, node.cluster.name)
    listed = ", ".join(f"{job.job_id} ({job.name}, {job.user}, {job.state})" for job in found)
    if not confirm(f"Cancel {listed}?", yes=options.yes):
        return 1
    slurm.cancel(node, [job.job_id for job in found])
    if options.json:
        print_json("podwright.cancel/1", {"cluster": node.cluster.name, "canceled": found})
    else:
        print(f"canceled {listed}")
    return 0


def _found(existing: list[slurm.Job], wanted: list[str], cluster: str) -> list[slurm.Job]:
    """Return the jobs that the words name, each once.

    Raises:
        ArgumentError: a word names none; the message has every such word.
    """
    found = {job.job_id: job for word in wanted for job in existing if job.is_named(word)}
    wrong = [word for word in wanted if not any(job.is_named(word) for job in existing)]
    if wrong:
        there = ", ".join(f"{job.job_id} ({job.name})" for job in existing) or "none"
        raise ArgumentError(f"{cluster} has no job {' and '.join(wrong)}", f"jobs that wait or run: {there}")
    return list(found.values())
