"""The folder of runs on the cluster's shared file system."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass

from podwright.errors import ArgumentError, OperationError
from podwright.operations.access.remote import Remote, quoted
from podwright_bootstrap.contract import NODE_JSON, RUNS_DIRECTORY, ContractError, NodeRecord

DEFAULT_SHARED = "/fsx"  # HyperPod's examples mount Lustre there.
NAME = re.compile(r"[A-Za-z0-9][\w.+=@-]*")  # Slurm replaces other characters in the paths of logs.
NO_TRAINER = "the node has no environment of podwright-train"
_RECORD_END = "\x1e"


@dataclass(frozen=True)
class Runs:
    """The folder of runs, and the virtual environment of podwright's bootstrap if the node has one."""

    folder: str
    environment: str
    extra_output: str  # Standard output of `extra_command`.

    def path(self, run: str, *parts: str) -> str:
        """Return the path of a run or of something in it."""
        return "/".join((self.folder, run, *parts))


def add_runs_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--runs``, the folder of runs."""
    parser.add_argument(
        "--runs", metavar="DIR", help=f"folder of runs, on the shared file system. Default: {RUNS_DIRECTORY} there"
    )


def find(node: Remote, runs_folder: str | None, *, extra_command: str = "true") -> Runs:
    """Return the folder of runs as the node knows it, and the output of another command in the same session.

    Args:
        node: the node to ask.
        runs_folder: the folder of runs, as an argument names it. Default: the one on the shared file system.
        extra_command: a line of shell; its failure is no error.

    Raises:
        OperationError: the node does not answer, or has no shared file system that is known.
    """
    record_lines = f"cat {quoted(NODE_JSON)} 2>/dev/null; printf '\\036'; test -d {DEFAULT_SHARED} && echo yes; "
    output = node.run(f"{record_lines} printf '\\036'; {extra_command}; true").split(_RECORD_END, 2)
    text, has_default, extra_output = (part.strip() for part in output)
    try:
        record = NodeRecord.from_json(text) if text else None
    except ContractError as error:
        raise OperationError(f"{node.node.name}: {error}", "boot the node again with this version's scripts") from error
    shared = (record.shared_root if record else "") or (DEFAULT_SHARED if has_default else "")
    if not runs_folder and not shared:
        raise ArgumentError(f"{node.cluster.name} has no {DEFAULT_SHARED}", "name the folder of runs with --runs")
    folder = runs_folder.rstrip("/") if runs_folder else f"{shared}/{RUNS_DIRECTORY}"
    return Runs(folder, (record.environment if record else None) or "", extra_output)


def run_name(text: str) -> str:
    """Return a run's name.

    Raises:
        ArgumentError: Slurm's log paths do not take such a folder name.
    """
    if not NAME.fullmatch(text):
        raise ArgumentError(
            f"invalid run name {text!r}: start with a letter or digit, and use only letters, digits and . _ + = @ -"
        )
    return text
