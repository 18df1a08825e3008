"""The Slurm job of a validation: choose nodes, send the program, follow the job, read its results."""

from __future__ import annotations

import io
import json
import re
import sys
import time
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.resources import files

import podwright_common
import podwright_training
from podwright.errors import ArgumentError, OperationError
from podwright.operations.access.remote import Remote, quoted
from podwright.operations.account.hyperpod import Node
from podwright.operations.jobs import slurm_jobs
from podwright.operations.jobs.runs import Runs
from podwright.operations.jobs.upload import send
from podwright_training.validation.measurements import FILE_NAME, Measurements

SHARED = (  # Modules of podwright_training that its package validation imports.
    "__init__.py",
    "errors.py",
    "folder_listing.py",
    "json_text.py",
    "json_values.py",
    "private_folder.py",
    "run_folder.py",
)
PROGRAM, SCRIPT, LOG = "validation.zip", "validate.sbatch", "job.log"
SEPARATOR = "|"  # No name of a node or partition contains it.
SINFO = quoted("sinfo", "--Node", "--noheader", f"--format={SEPARATOR.join(('%N', '%P', '%T', '%G'))}")
USABLE = {"idle", "mixed", "allocated", "completing"}  # Slurm starts jobs in these states, now or later.
WAITS_OR_RUNS = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED"}
POLL_S = 3.0
SILENCE_S = 300.0  # A controller that is busy or restarting does not answer for a while.
_RECORD_END = "\x1e"
_GPUS = re.compile(r"\bgpu(?::[^:(,]+)?:(\d+)")


@dataclass(frozen=True)
class SlurmNode:
    """A node in one of its partitions."""

    name: str
    partition: str
    is_default: bool  # Whether the partition is Slurm's default.
    state: str
    gpus: int  # The number in the node's GRES.

    @property
    def is_usable(self) -> bool:
        """Return True if Slurm starts jobs on it."""
        return self.state in USABLE


@dataclass(frozen=True)
class Selection:
    """The nodes to measure, in one partition."""

    partition: str
    gpus: int  # The number to request from Slurm on each node.
    names: tuple[str, ...]
    excluded_nodes: dict[str, str]  # Slurm's state of each, by name.


def select(nodes: Iterable[Node], listed: str, *, partition: str | None) -> Selection:
    """Choose the nodes that Slurm starts jobs on.

    Args:
        nodes: the nodes to measure, as SageMaker lists them.
        listed: the output of ``SINFO``.
        partition: Slurm partition. Default: the partition that has most of the nodes, Slurm's default before others.

    Raises:
        ArgumentError: the nodes have several types, or no partition has them.
        OperationError: Slurm starts jobs on none of them.
    """
    nodes_by_name = {node.slurm_name: node for node in nodes if node.slurm_name}
    types = sorted({node.instance_type for node in nodes_by_name.values()})
    if len(types) > 1:
        groups = ", ".join(sorted({node.group for node in nodes_by_name.values()}))
        got = " and ".join(types)
        raise ArgumentError(
            f"got nodes of {got}, need one instance type to compare", f"choose one with --group: {groups}"
        )
    rows = [row for row in map(_row, listed.splitlines()) if row.name in nodes_by_name]
    existing = sorted({row.partition for row in rows})
    if not rows or partition not in (None, *existing):
        raise ArgumentError(
            f"no partition {partition} has these nodes" if rows else "Slurm knows none of these nodes",
            f"partitions: {', '.join(existing) or 'none'}",
        )
    chosen = partition or max(existing, key=lambda name: _rank(name, rows))
    members = {row.name: row for row in rows if row.partition == chosen}
    usable = sorted(name for name, row in members.items() if row.is_usable)
    excluded_nodes = {
        name: members[name].state if name in members else "in another partition" for name in nodes_by_name
    }
    if not usable:
        shown = ", ".join(f"{name} ({state})" for name, state in excluded_nodes.items())
        raise OperationError(f"Slurm starts no jobs on {shown}")
    return Selection(
        chosen,
        min(members[name].gpus for name in usable),
        tuple(usable),
        {name: state for name, state in excluded_nodes.items() if name not in usable},
    )


def _rank(partition: str, rows: Sequence[SlurmNode]) -> tuple[int, bool]:
    members = [row for row in rows if row.partition == partition]
    return len(members), members[0].is_default


def _row(line: str) -> SlurmNode:
    name, partition, state, gres = line.split(SEPARATOR, 3)
    gpus = sum(map(int, _GPUS.findall(gres)))
    return SlurmNode(name, partition.rstrip("*"), partition.endswith("*"), state.rstrip("*~#!%$@^-").lower(), gpus)


def run_name() -> str:
    """Return a new run's name."""
    return f"validate-{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}"


def submit(
    node: Remote,
    run_folders: Runs,
    name: str,
    selection: Selection,
    *,
    python: str | None,
    file_mib: int,
    rounds: int | None,
) -> str:
    """Send the program into the run's folder and submit the job; return its id.

    Raises:
        OperationError: the nodes have no Python with torch, or Slurm refuses the job.
    """
    interpreter = python or (f"{run_folders.environment}/bin/python" if run_folders.environment else "")
    if not interpreter:
        raise OperationError("the nodes have no environment of podwright-train", "name a Python with torch: --python")
    folder = run_folders.path(name)
    words = [interpreter, PROGRAM, "job", f"--folder={folder}", f"--file-mib={file_mib}"]
    script = f"#!/bin/bash\nexec {quoted(*words, *([f'--rounds={rounds}'] if rounds else []))}\n"
    command = quoted(
        *("sbatch", "--parsable", f"--job-name={name}", f"--output={LOG}", "--exclusive", "--mem=0", "--no-requeue"),
        *(f"--partition={selection.partition}", f"--nodes={len(selection.names)}"),
        f"--nodelist={','.join(selection.names)}",
        *([f"--gres=gpu:{selection.gpus}"] if selection.gpus else []),
        SCRIPT,
    )
    return slurm_jobs.number(node, send(node, folder, {PROGRAM: program(), SCRIPT: script.encode()}, command))


def program() -> bytes:
    """Return the measuring program as a zip file that Python runs."""
    package = files(podwright_training)
    modules = {f"podwright_training/{name}": package / name for name in SHARED}
    for folder, source in (
        ("podwright_training/validation", package / "validation"),
        ("podwright_common", files(podwright_common)),
    ):
        for item in sorted(source.iterdir(), key=lambda item: item.name):
            if item.name.endswith(".py"):
                modules[f"{folder}/{item.name}"] = item
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        main = "import sys\nfrom podwright_training.validation.__main__ import main\nsys.exit(main())\n"
        archive.writestr(zipfile.ZipInfo("__main__.py"), main)
        for name, module in modules.items():
            archive.writestr(zipfile.ZipInfo(name), module.read_bytes())  # A fixed time keeps the bytes the same.
    return content.getvalue()


def wait(node: Remote, folder: str, job_id: str) -> None:
    """Follow the job on stderr until it has ended; Ctrl-C cancels it.

    Raises:
        OperationError: the node does not answer, or Slurm for ``SILENCE_S``.
    """
    shown = ""
    answered = time.monotonic()
    try:
        while True:
            state, log_line, failure = _state(node, folder, job_id)
            now = time.monotonic()
            if failure and now - answered > SILENCE_S:
                raise OperationError(f"job {job_id}: {failure}", "`podwright status` shows the controller")
            answered = answered if failure else now
            word, _, reason = state.partition(" ")
            news = failure or log_line or (f"{word.lower()}: {reason}" if reason not in {"", "None"} else word.lower())
            if news and news != shown:
                print(f"job {job_id}: {news}", file=sys.stderr, flush=True)
                shown = news
            if not failure and word not in WAITS_OR_RUNS:
                return
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        slurm_jobs.cancel(node, [job_id])
        raise


def _state(node: Remote, folder: str, job_id: str) -> tuple[str, str, str]:
    """Return the job's state with its reason, the last line of its log, and why Slurm does not know its state."""
    queue = quoted("squeue", "--noheader", f"--jobs={job_id}", "--format=%T %r")
    line = (
        f"{{ failure=$({queue} 2>&1 >&3) && failure= || failure=${{failure:-squeue failed without a word}}; }} 3>&1; "
        "printf '\\036%s\\036' \"$failure\"; "
        f"tail -n 1 {quoted(f'{folder}/{LOG}')} 2>/dev/null; true"
    )
    state, failure, log_line = (part.strip() for part in node.run(line).split(_RECORD_END, 2))
    return state, log_line, "" if slurm_jobs.INVALID_JOB_ID in failure else failure.rpartition("\n")[2]


def measurements(node: Remote, folder: str, job_id: str = "") -> Measurements:
    """Return the measurements of a job.

    Raises:
        OperationError: the job wrote no measurements; the message has the last line of its log, or its end in Slurm.
    """
    result, log = quoted(f"{folder}/{FILE_NAME}"), quoted(f"{folder}/{LOG}")
    output = node.run(f"cat {result} 2>/dev/null; printf '\\036'; tail -n 1 {log} 2>/dev/null; true")
    text, log_line = (part.strip() for part in output.split(_RECORD_END, 1))
    if not text:
        why = log_line or (_end(node, job_id) if job_id else "and no log of a job")
        raise OperationError(f"no {folder}/{FILE_NAME}: {why}", f"see {folder}/{LOG}")
    try:
        return Measurements.from_dict(json.loads(text))
    except ValueError as error:
        raise OperationError(f"{folder}/{FILE_NAME}: {error}", "measure again with this version") from error


def _end(node: Remote, job_id: str) -> str:
    """Return the end of a job without a log, as Slurm reports it."""
    try:
        job_state = slurm_jobs.job(node, job_id)
    except OperationError as error:
        return str(error)
    return f"job {job_id} wrote no log; Slurm has {job_state['state']} ({job_state['reason']})"
