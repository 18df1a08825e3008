"""Slurm's jobs, listed by its own commands on a node of the cluster."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from podwright.operations.access.remote import Remote, RemoteError, quoted
from podwright.operations.errors import ArgumentError, OperationError
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
INVALID_JOB_ID = "Invalid job id"  # of a job that Slurm does not know, or no longer
OF_RUN = "podwright:"  # the comment of podwright-train's jobs, before the name of their run
JOB_ID = re.compile(r"\d+(_\d+)?(\+\d+)?")  # of a job, a task of an array, a part of a heterogeneous job
ME = "$(id -u)"  # on the node


class Shell(Protocol):
    """Runs lines of shell on a node of the cluster."""

    def run(self, line: str) -> str:
        """Run a line and return its output, or raise ``OperationError``."""


@dataclass(frozen=True)
class Job:
    """One job. ``run`` is the podwright-train run that it claims; ``where`` its nodes, or why it waits."""

    job_id: str
    name: str
    user: str
    partition: str
    state: str
    elapsed: str
    time_limit: str
    node_count: int
    run: str
    where: str
    user_id: int

    def has_number(self, word: str) -> bool:
        """Return whether a word is its number or its array's."""
        return word in {self.job_id, self.job_id.split("_")[0]}

    def has_name(self, word: str) -> bool:
        """Return whether a word is its name or its run's: every user may give a job the name of another's."""
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
    who = [f"--user={user}"] if user else ["--allusers"]
    command = quoted(
        *("sacct", "--allocations", "--noheader", "--parsable", f"--delimiter={mark}", f"--format={','.join(SACCT)}"),
        *(f"--starttime=now-{days}days", "--endtime=now", "--state=BF,CA,CD,DL,F,NF,OOM,PR,TO", *who),
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
        found = _listed(node, ("state", "reason"), quoted("--states=all", f"--jobs={job_id}"))
    except RemoteError as error:
        if INVALID_JOB_ID not in str(error):
            raise
        found = []
    if not found:
        raise ArgumentError(
            f"Slurm knows no job {job_id}: it forgets a job minutes after its end",
            "`podwright jobs --ended 7` lists ended ones; `podwright logs RUN` reads a run's output",
        )
    return found[0]


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
        name: the run's, without characters that have a meaning for awk or shell.
        user: number of the user, as words of shell. Default: who runs the line.
    """
    listed = f"squeue --noheader --user={user} {quoted('--format=%i|%k|%j')}"
    chosen = quoted("awk", "-F|", f'$2 == "{OF_RUN}{name}" || $3 == "{name}" {{ print $1 }}')
    return f"{{ jobs=$({listed}) && printf '%s\\n' \"$jobs\" | {chosen}; }}"


def number(node: Remote, output: str) -> str:
    """Return the job's number, which ``sbatch --parsable`` printed last, as ``12`` or ``12;cluster``.

    Raises:
        OperationError: it printed none.
    """
    found = output.strip().rpartition("\n")[2].split(";")[0]
    if not found.isdecimal():
        raise OperationError(f"{node.node.name} printed no job id: {output.strip() or 'no output'}")
    return found


def cancel(node: Remote, job_ids: Sequence[str]) -> None:
    """Cancel jobs.

    Raises:
        OperationError: Slurm does not cancel one; the message has its words.
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
        raise OperationError(f"Slurm's answer cannot be read: {error}", "run the command again") from error


def _job(*values: str) -> Job:
    job_id, name, user, partition, state, elapsed, limit, nodes, comment, where, user_id = values
    run = comment.removeprefix(OF_RUN) if comment.startswith(OF_RUN) else ""
    return Job(job_id, name, user, partition, state, elapsed, limit, int(nodes), run, where, int(user_id))
