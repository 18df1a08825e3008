"""Slurm's jobs, listed by its own commands on a node of the cluster."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from podwright.errors import ArgumentError, OperationError
from podwright.json_document import JsonObject
from podwright.operations.access.remote import Remote, RemoteError, quoted
from podwright_bootstrap.slurm import listing
from podwright_bootstrap.slurm.listing import ListingError

# https://slurm.schedmd.com/squeue.html#OPT_Format, in the order of Job
COLUMNS = (
    *("jobarrayid", "name", "username", "partition", "state", "timeused", "timelimit", "numnodes", "comment"),
    *("reasonlist", "userid"),
)
# https://slurm.schedmd.com/sacct.html#SECTION_Job-Accounting-Fields, in the order of Job
SACCT = (
    "JobID",
    "JobName",
    "User",
    "Partition",
    "State",
    "Elapsed",
    "Timelimit",
    "NNodes",
    "Comment",
    "NodeList",
    "UID",
)
INVALID_JOB_ID = "Invalid job id"  # Slurm prints it for a job that never existed or that it has forgotten.
RUN_COMMENT_PREFIX = "podwright:"  # In the comment of podwright-train's jobs, the run's name follows it.
JOB_ID = re.compile(r"\d+(_\d+)?(\+\d+)?")  # A job, a task of an array, or a component of a heterogeneous job.
ME = "$(id -u)"  # The node's shell fills it in.


class Shell(Protocol):
    """Runs lines of shell on a node of the cluster."""

    def run(self, line: str) -> str:
        """Run a line and return its output, or raise ``OperationError``."""


@dataclass(frozen=True)
class Job(JsonObject):
    """A job of Slurm."""

    job_id: str
    name: str
    user: str
    partition: str
    state: str
    elapsed: str
    time_limit: str
    node_count: int
    run: str
    """Of podwright-train, empty for other jobs."""
    nodes_or_reason: str = field(metadata={"key": "where"})
    """Its nodes, or why it waits."""
    user_id: int

    def has_number(self, word: str) -> bool:
        """Return whether a word is the job's number or that of its array."""
        return word in {self.job_id, self.job_id.split("_")[0]}

    def has_name(self, word: str) -> bool:
        """Return whether a word is the name of the job or its run; other users' jobs may have the same name."""
        return word in {self.name, self.run}


def queue(node: Shell, *, user: str | None = None, job_ids: Sequence[str] = ()) -> list[Job]:
    """Return the jobs that wait, run or end, in squeue's order.

    Raises:
        OperationError: the node or Slurm does not answer.
    """
    only = [*([f"--user={user}"] if user else []), *([f"--jobs={','.join(job_ids)}"] if job_ids else [])]
    return [_job(*row.values()) for row in _listed(node, COLUMNS, quoted(*only))]


def ended(node: Remote, *, days: int, user: str | None = None) -> list[Job]:
    """Return the jobs that ended within some days, oldest first.

    Raises:
        OperationError: the cluster has no accounting, or as ``queue``.
    """
    mark = f"~{secrets.token_hex(16)}~"
    user_flags = [f"--user={user}"] if user else ["--allusers"]
    command = quoted(
        *("sacct", "--allocations", "--noheader", "--parsable", f"--delimiter={mark}", f"--format={','.join(SACCT)}"),
        *(f"--starttime=now-{days}days", "--endtime=now", "--state=BF,CA,CD,DL,F,NF,OOM,PR,TO", *user_flags),
    )
    try:
        output = node.run(command)
    except RemoteError as error:
        if "accounting storage is disabled" not in str(error):
            raise
        raise OperationError(
            f"{node.cluster.name} keeps no ended jobs: Slurm's accounting is off", "see `podwright explain accounting`"
        ) from error
    return [_job(*listing.printable(row).values()) for row in _rows(listing.rows, SACCT, mark, output)]


def job(node: Shell, job_id: str) -> Mapping[str, str]:
    """Return the state and reason of a job, also of one that has just ended.

    Raises:
        ArgumentError: Slurm does not know the job, or no longer.
        OperationError: the node or Slurm does not answer.
    """
    try:
        rows = _listed(node, ("state", "reason"), quoted("--states=all", f"--jobs={job_id}"))
    except RemoteError as error:
        if INVALID_JOB_ID not in str(error):
            raise
        rows = []
    if not rows:
        raise ArgumentError(
            f"Slurm knows no job {job_id}: it forgets a job minutes after its end",
            "`podwright jobs --ended 7` lists ended ones; `podwright logs RUN` reads a run's output",
        )
    return rows[0]


def output_of(node: Shell, job_id: str) -> str:
    """Return the path that a job writes to, which its user has chosen; empty if there is none.

    Only scontrol shows it for every release of Slurm with its patterns filled in, and only behind texts of the user.
    """
    text = node.run(quoted("scontrol", "show", "job", job_id))
    paths = re.findall(r"(?m)^ {3}StdOut=(.*)$", text)
    return paths[-1] if paths else ""


def of_run(name: str, user: str = ME) -> str:
    """Return the line of shell that prints the numbers of a run's jobs; it fails if Slurm does not answer.

    Every user may name a job after another's run: only jobs of one user count.

    Args:
        name: the run's name, without characters that have a meaning for awk or shell.
        user: the user's number, as a word of shell. Default: the user who runs the line.
    """
    listed = f"squeue --noheader --user={user} {quoted('--format=%i|%k|%j')}"
    chosen = quoted("awk", "-F|", f'$2 == "{RUN_COMMENT_PREFIX}{name}" || $3 == "{name}" {{ print $1 }}')
    return f"{{ jobs=$({listed}) && printf '%s\\n' \"$jobs\" | {chosen}; }}"


def number(node: Remote, output: str) -> str:
    """Return the job's number, which ``sbatch --parsable`` printed last, as ``12`` or ``12;cluster``.

    Raises:
        OperationError: it printed none.
    """
    job_id = output.strip().rpartition("\n")[2].split(";")[0]
    if not job_id.isdecimal():
        raise OperationError(f"{node.node.name} printed no job id: {output.strip() or 'no output'}")
    return job_id


def cancel(node: Remote, job_ids: Sequence[str]) -> None:
    """Cancel jobs.

    Raises:
        OperationError: Slurm does not cancel a job; the message has scancel's.
    """
    node.run(quoted("scancel", *job_ids))


def _listed(node: Shell, columns: Sequence[str], options: str) -> list[dict[str, str]]:
    """Return squeue's rows, without control characters."""
    output = node.run(listing.shell_line(columns, options))
    return [listing.printable(row) for row in _rows(listing.rows_of_shell, columns, output)]


def _rows(read: Callable[..., list[dict[str, str]]], *arguments: object) -> list[dict[str, str]]:
    try:
        return read(*arguments)
    except ListingError as error:
        raise OperationError(f"cannot parse Slurm's output: {error}", "run the command again") from error


def _job(*values: str) -> Job:
    job_id, name, user, partition, state, elapsed, limit, nodes, comment, nodes_or_reason, user_id = values
    run = comment.removeprefix(RUN_COMMENT_PREFIX) if comment.startswith(RUN_COMMENT_PREFIX) else ""
    return Job(job_id, name, user, partition, state, elapsed, limit, int(nodes), run, nodes_or_reason, int(user_id))
