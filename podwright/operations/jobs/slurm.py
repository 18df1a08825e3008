"""Slurm's jobs, listed by its own commands on a node of the cluster."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Protocol

from podwright.operations.access.remote import Remote, RemoteError, quoted
from podwright.operations.errors import ArgumentError, OperationError

SEPARATOR, END = "\x1f", "\x1e"  # of fields and jobs: a name may have spaces, bars and line breaks
# https://slurm.schedmd.com/squeue.html#OPT_format, in the order of Job
SQUEUE = SEPARATOR.join(("%i", "%j", "%u", "%P", "%T", "%M", "%l", "%D", "%k", f"%R{END}"))
# https://slurm.schedmd.com/sacct.html#SECTION_Job-Accounting-Fields, in the order of Job
SACCT = "JobID,JobName,User,Partition,State,Elapsed,Timelimit,NNodes,Comment,NodeList"
INVALID_JOB_ID = "Invalid job id"  # of a job that Slurm does not know, or no longer
OF_RUN = "podwright:"  # the comment of podwright-train's jobs, before the name of their run
JOB_ID = re.compile(r"\d+(_\d+)?(\+\d+)?")  # of a job, a task of an array, a part of a heterogeneous job
_FIELD = re.compile(r"(?:^|\s)(\w[\w/:]*)=(.*?)(?=\s\w[\w/:]*=|\s*$)")


class Shell(Protocol):
    """Runs lines of shell on a node of the cluster."""

    def run(self, line: str) -> str:
        """Run a line and return its output, or raise ``OperationError``."""


@dataclass(frozen=True)
class Job:
    """One job. ``run`` is the podwright-train run that it belongs to; ``where`` its nodes, or why it waits."""

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

    def is_named(self, word: str) -> bool:
        """Return whether a word is its number, its array's, its name or its run's."""
        return word in {self.job_id, self.job_id.split("_")[0], self.name, self.run}


FIELDS = len(fields(Job))


def queue(node: Shell, *, user: str | None = None, job_ids: Sequence[str] = ()) -> list[Job]:
    """Return the jobs that wait, run or end, in squeue's order.

    Raises:
        OperationError: the node or Slurm does not answer.
    """
    only = [*([f"--user={user}"] if user else []), *([f"--jobs={','.join(job_ids)}"] if job_ids else [])]
    return _jobs(node.run(quoted("squeue", "--noheader", f"--format={SQUEUE}", *only)).split(END))


def ended(node: Remote, *, days: int, user: str | None = None) -> list[Job]:
    """Return the jobs that ended within some days, oldest first.

    Raises:
        OperationError: the cluster has no accounting, or as ``queue``.
    """
    who = [f"--user={user}"] if user else ["--allusers"]
    command = quoted(
        *("sacct", "--allocations", "--noheader", "--parsable2", f"--delimiter={SEPARATOR}", f"--format={SACCT}"),
        *(f"--starttime=now-{days}days", "--endtime=now", "--state=BF,CA,CD,DL,F,NF,OOM,PR,TO", *who),
    )
    try:
        return _jobs(node.run(command).splitlines())
    except RemoteError as error:
        if "accounting storage is disabled" not in str(error):
            raise
        raise OperationError(
            f"{node.cluster.name} keeps no ended jobs: Slurm's accounting is off", "see `podwright explain accounting`"
        ) from error


def job(node: Remote, job_id: str) -> dict[str, str]:
    """Return the fields of ``scontrol show job``: JobState, StdOut, WorkDir and others.

    Raises:
        ArgumentError: Slurm does not know the job, or no longer.
        OperationError: the node or Slurm does not answer.
    """
    try:
        output = node.run(quoted("scontrol", "show", "job", "--oneliner", job_id))
    except RemoteError as error:
        if INVALID_JOB_ID not in str(error):
            raise
        raise ArgumentError(
            f"Slurm knows no job {job_id}: it forgets a job minutes after its end",
            "`podwright jobs --ended 7` lists ended ones; `podwright logs RUN` reads a run's output",
        ) from error
    return {key: value.strip() for key, value in _FIELD.findall(output.splitlines()[0])}


def of_run(name: str) -> str:
    """Return the line of shell that prints the numbers of a run's jobs; it fails if Slurm does not answer."""
    listed = quoted("squeue", "--noheader", "--format=%i|%k|%j")
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


def _jobs(records: Iterable[str]) -> list[Job]:
    """Return a job for each record that has all fields: users name jobs as they like."""
    values = (_printable(record.strip("\r\n")).split(SEPARATOR) for record in records)
    return [_job(*each) for each in values if len(each) == FIELDS]


def _job(*values: str) -> Job:
    job_id, name, user, partition, state, elapsed, limit, nodes, comment, where = values
    run = comment.removeprefix(OF_RUN) if comment.startswith(OF_RUN) else ""
    return Job(job_id, name, user, partition, state, elapsed, limit, int(nodes), run, where)


def _printable(record: str) -> str:
    """Replace control characters that a terminal would obey."""
    return "".join(letter if letter.isprintable() or letter == SEPARATOR else "?" for letter in record)
