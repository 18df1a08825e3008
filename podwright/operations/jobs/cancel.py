"""``podwright cancel``: cancel Slurm's jobs."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Literal

from podwright.errors import ArgumentError
from podwright.json_document import JsonObject
from podwright.operations.access.remote import add_remote_arguments, remote
from podwright.operations.jobs import slurm_jobs
from podwright.operations.jobs.slurm_jobs import Job
from podwright.operations.output import confirm, print_document
from podwright.operations.target import add_examples, add_target_arguments, target
from podwright_common.command_line import add_yes


@dataclass(frozen=True, kw_only=True)
class Cancel(JsonObject):
    """The document of `podwright cancel --json`."""

    schema: Literal["podwright.cancel/1"] = "podwright.cancel/1"
    cluster: str
    canceled: list[Job]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add JOB and --yes."""
    parser.add_argument(
        "jobs", nargs="+", metavar="JOB", help="a job's number, or a run's name to cancel all jobs of your run"
    )
    add_yes(parser)
    add_remote_arguments(parser)
    add_target_arguments(parser)
    add_examples(parser, "podwright cancel 12", "podwright cancel llama3_2_1b --yes")


def run(options: argparse.Namespace) -> int:
    """Cancel the jobs; a job that has a checkpoint to save gets Slurm's signal first."""
    node = remote(target(options), options)
    jobs = _named_jobs(slurm_jobs.queue(node), options.jobs, node.cluster.name, user_id=int(node.run("id -u")))
    listed = ", ".join(f"{job.job_id} ({job.name}, {job.user}, {job.state})" for job in jobs)
    if not confirm(f"Cancel {listed}?", yes=options.yes):
        return 1
    slurm_jobs.cancel(node, [job.job_id for job in jobs])
    if options.json:
        print_document(Cancel(cluster=node.cluster.name, canceled=jobs))
    else:
        print(f"canceled {listed}")
    return 0


def _named_jobs(existing: list[Job], words: list[str], cluster: str, *, user_id: int) -> list[Job]:
    """Return the jobs that the arguments name, each once: any job by its number, the user's by name or run.

    Raises:
        ArgumentError: an argument names no job; the message has every such argument.
    """
    named = {word: [job for job in existing if _is_named(job, word, user_id)] for word in words}
    wrong = [word for word, jobs in named.items() if not jobs]
    if wrong:
        listed = ", ".join(f"{job.job_id} ({job.name}, {job.user})" for job in existing) or "none"
        raise ArgumentError(
            f"{cluster} has no job {' and '.join(wrong)}",
            f"jobs that wait or run: {listed}; name jobs of other users by their numbers",
        )
    return list({job.job_id: job for jobs in named.values() for job in jobs}.values())


def _is_named(job: Job, word: str, user_id: int) -> bool:
    return job.has_number(word) or (job.user_id == user_id and job.has_name(word))
