"""Slurm's list of jobs as rows of fields that no user can forge.

Job names, comments and paths are texts of users: they may contain spaces, line ends, bytes that are not UTF-8, and
whatever Slurm writes around another field. So each field ends with a random mark that is made for one question. The
mark travels in squeue's environment, because every user can read the arguments of a program that runs. ``--json`` does
not do: squeue writes it with bytes that are not UTF-8, and images may lack its plugin.

This module imports nothing of ours: ``podwright move`` sends it to controllers.
https://slurm.schedmd.com/squeue.html#OPT_Format
"""

from __future__ import annotations

import os
import secrets
import subprocess
from dataclasses import dataclass
from typing import Dict, List, Mapping, Sequence

FORMAT = "SQUEUE_FORMAT2"  # squeue reads it like --Format
NOTHING = "(null)"  # Slurm's word for a field without a value
TIME_LIMIT_S = 60
# In these states a job has nodes, also for programs of its that have not ended yet.
HAS_NODES = frozenset(
    ("RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING")
)


class ListingError(RuntimeError):
    """squeue failed, or its output has not the fields that it was asked for."""


def jobs(columns: Sequence[str], *options: str) -> List[Dict[str, str]]:
    """Return a row for each job that squeue lists with these options; the fields are named as in --Format.

    Raises:
        ListingError: Slurm does not answer.
    """
    mark = f"~{secrets.token_hex(16)}~"
    variables = {key: value for key, value in os.environ.items() if not key.startswith("SQUEUE_")}
    variables[FORMAT] = format_of(columns, mark)
    try:
        done = subprocess.run(
            ["squeue", "--noheader", *options], env=variables, capture_output=True, timeout=TIME_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ListingError(f"squeue: {error}") from error
    if done.returncode:
        raise ListingError(f"squeue: {done.stderr.decode(errors='replace').strip() or done.returncode}")
    return rows(columns, mark, done.stdout.decode(errors="surrogateescape"))


def shell_line(columns: Sequence[str], options: str) -> str:
    """Return a line of shell that prints the mark, then the jobs; ``rows_of_shell`` reads its output.

    The shell makes the mark, so that no argument of a program has it. ``options`` are words of shell.
    """
    return (
        "unset SQUEUE_FORMAT SQUEUE_STATES SQUEUE_USERS SQUEUE_NAMES SQUEUE_PARTITION SQUEUE_ACCOUNT; "
        "mark=~$(od -An -N16 -tx1 /dev/urandom | tr -d ' \\n')~; printf '%s\\n' \"$mark\"; "
        f'{FORMAT}="{format_of(columns, "$mark")}" squeue --noheader {options}'
    )


def rows_of_shell(columns: Sequence[str], output: str) -> List[Dict[str, str]]:
    """Return the rows that ``shell_line`` printed."""
    mark, _, text = output.partition("\n")
    return rows(columns, mark, text)


def format_of(columns: Sequence[str], mark: str) -> str:
    """Return the fields for --Format, each whole and followed by the mark."""
    return ",".join(f"{column}:{mark}" for column in columns)


def rows(columns: Sequence[str], mark: str, output: str) -> List[Dict[str, str]]:
    """Split squeue's output at the marks.

    Raises:
        ListingError: a row has another number of fields.
    """
    *cells, end = output.split(mark) if mark else [output]
    if end.strip() or len(cells) % len(columns):
        raise ListingError(f"squeue printed {len(cells)} fields, not a multiple of {len(columns)}: {end[-200:]!r}")
    records = [cells[start : start + len(columns)] for start in range(0, len(cells), len(columns))]
    return [_row(columns, record, is_first=not number) for number, record in enumerate(records)]


def _row(columns: Sequence[str], record: Sequence[str], *, is_first: bool) -> Dict[str, str]:
    first_cell = record[0] if is_first else record[0][1:]  # the line end of the row before
    return {name: "" if text == NOTHING else text for name, text in zip(columns, [first_cell, *record[1:]])}  # noqa: B905 (Python 3.8)


@dataclass(frozen=True)
class Occupant:
    """A job that has a node: who runs it, and the number that it shares with the other tasks of its array."""

    uid: int
    array: str


def occupants(node: str) -> List[Occupant]:
    """Return the jobs that have the node, by Slurm's numbers alone.

    Raises:
        ListingError: Slurm does not answer, or does not know the node.
    """
    rows = jobs(("userid", "arrayjobid", "state"), "--all", "--states=all", f"--nodelist={node}")
    return [Occupant(int(row["userid"]), row["arrayjobid"]) for row in rows if row["state"] in HAS_NODES]


def printable(row: Mapping[str, str]) -> Dict[str, str]:
    """Return the row without control characters, which a terminal would obey."""
    return {name: "".join(c if c.isprintable() else "?" for c in text) for name, text in row.items()}
