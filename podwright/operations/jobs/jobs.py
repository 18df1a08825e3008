"""``podwright jobs``: list Slurm's jobs."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Literal

from podwright.json_document import JsonObject
from podwright.operations.access.remote import add_remote_arguments, remote, user_name
from podwright.operations.jobs import slurm_jobs
from podwright.operations.jobs.slurm_jobs import Job
from podwright.operations.output import Column, print_document, print_table
from podwright.operations.target import add_examples, add_target_arguments, target
from podwright_common.command_line import positive_count
from podwright_common.exit_status import FAILED, OK

WITHOUT_LIMIT = ("UNLIMITED", "NOT_SET", "Partition_Limit")  # squeue's and sacct's words
COLUMNS = (
    Column("JOB"),
    Column("NAME"),
    Column("STATE"),
    Column("USER", rank=2),
    Column("PARTITION", rank=3),
    Column("TIME", rank=1, right=True),
    Column("LIMIT", rank=5, right=True),
    Column("NODES", right=True),
    Column("WHERE", rank=4),
)


@dataclass(frozen=True, kw_only=True)
class Jobs(JsonObject):
    """The document of `podwright jobs --json`."""

    schema: Literal["podwright.jobs/1"] = "podwright.jobs/1"
    cluster: str
    jobs: list[Job]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that select jobs."""
    parser.add_argument("--of", type=user_name, metavar="USER", help="list only this user's jobs")
    parser.add_argument(
        "--ended", type=positive_count, metavar="DAYS", help="list jobs that ended in the last DAYS instead"
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 if any job is listed, for scripts")
    add_remote_arguments(parser)
    add_target_arguments(parser)
    add_examples(
        parser,
        "podwright jobs",
        "podwright jobs --ended 7 --json | jq '.jobs[].state'",
        "podwright jobs --check && podwright scale workers 0 && podwright deploy --only cluster --yes",
    )


def run(options: argparse.Namespace) -> int:
    """Print the jobs."""
    node = remote(target(options), options)
    if options.ended:
        jobs = slurm_jobs.ended(node, days=options.ended, user=options.of)
    else:
        jobs = slurm_jobs.queue(node, user=options.of)
    if options.json:
        print_document(Jobs(cluster=node.cluster.name, jobs=jobs))
    elif jobs:
        print_table(COLUMNS, [row(job) for job in jobs])
    else:
        print(f"no jobs on {node.cluster.name}")
    return FAILED if options.check and jobs else OK


def row(job: Job) -> tuple[str, ...]:
    """Return a job as a row of ``COLUMNS``."""
    return (
        job.job_id,
        job.name,
        job.state,
        job.user,
        job.partition,
        job.elapsed,
        "" if job.time_limit in WITHOUT_LIMIT else job.time_limit,
        str(job.node_count),
        job.nodes_or_reason,
    )
