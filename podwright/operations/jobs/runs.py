"""The folder of runs on the cluster's shared file system."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass

from podwright.operations.access.remote import Remote, quoted
from podwright.operations.errors import ArgumentError, OperationError
from podwright_bootstrap.contract import NODE_JSON, RUNS_DIRECTORY, ContractError, NodeRecord

DEFAULT_SHARED = "/fsx"  # where HyperPod's examples mount Lustre
NAME = re.compile(r"[A-Za-z0-9][\w.+=@-]*")  # what Slurm's log paths take, and one folder
NO_TRAINER = "the node has no environment of podwright-train"
_RECORD_END = "\x1e"


@dataclass(frozen=True)
class Runs:
    """The folder, and the virtual environment of podwright's bootstrap if the node has one."""

    folder: str
    environment: str
    rest: str  # what the command beside printed

    def path(self, run: str, *parts: str) -> str:
        """Return the path of a run or of something in it."""
        return "/".join((self.folder, run, *parts))


def add_runs_argument(parser: argparse.ArgumentParser) -> None:
    """Take the folder of runs."""
    parser.add_argument(
        "--runs", metavar="DIR", help=f"folder of runs, on the shared file system. Default: {RUNS_DIRECTORY} there"
    )


def find(node: Remote, given: str | None, *, beside: str = "true") -> Runs:
    """Ask a node where runs are; ``beside`` runs in the same session, and its failure is no error.

    Raises:
        OperationError: the node does not answer, or has no shared file system that is known.
    """
    record = f"cat {quoted(NODE_JSON)} 2>/dev/null; printf '\\036'; test -d {DEFAULT_SHARED} && echo yes; "
    output = node.run(f"{record} printf '\\036'; {beside}; true").split(_RECORD_END, 2)
    text, has_default, rest = (part.strip() for part in output)
    try:
        known = NodeRecord.from_json(text) if text else None
    except ContractError as error:
        raise OperationError(f"{node.node.name}: {error}", "boot the node again with this version's scripts") from error
    shared = (known.shared_root if known else "") or (DEFAULT_SHARED if has_default else "")
    if not given and not shared:
        raise ArgumentError(f"{node.cluster.name} has no {DEFAULT_SHARED}", "name the folder of runs with --runs")
    folder = given.rstrip("/") if given else f"{shared}/{RUNS_DIRECTORY}"
    return Runs(folder, (known.environment if known else None) or "", rest)


def run_name(text: str) -> str:
    """Return a run's name.

    Raises:
        ArgumentError: Slurm's log paths do not take such a folder name.
    """
    if not NAME.fullmatch(text):
        raise ArgumentError(f"run {text!r}: got other characters than letters, digits and . _ + = @ -")
    return text
