"""``podwright submit``: send a run's folder to the cluster and submit its job."""

from __future__ import annotations

import argparse
import contextlib
import getpass
import hashlib
import io
import json
import re
import shlex
import socket
import subprocess
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO

from podwright.operations.access.drain import Drain
from podwright.operations.access.remote import Remote, add_remote_arguments, quoted, remote
from podwright.operations.errors import ArgumentError, OperationError
from podwright.operations.jobs import preflight, runs, slurm
from podwright.operations.jobs.runs import Runs
from podwright.operations.output import print_json
from podwright.operations.target import add_examples, add_target_arguments, target

RECORD = "submission.json"  # in the run's folder: what was sent, by whom, from which commit
RUN_SUFFIXES = {".yaml", ".yml"}
GIT_LIMIT_S = 60  # a repository may be on a file server that hangs
NODES = re.compile(r"[1-9]\d*(-[1-9]\d*)?")  # of sbatch and of podwright-train launch
# Each file gets its name when all of them have arrived, and when no other job or submission has the run.
UNPACK = """set -e
mkdir -p {folder}
if [ -L {folder} ] || [ ! -O {folder} ]; then
  echo {folder} "is $(stat --format=%U {folder})'s, who could change what your job runs: choose another --name" >&2
  exit 1
fi
new=$(mktemp -d {folder}/.incoming.XXXXXX)
trap 'rm -rf "$new"' EXIT
tar -x -f - -C "$new" --no-same-owner
export new
{claim} sh -c {placing}"""
PLACE = """set -e
for name in {names}; do
  [ ! -d "$new/$name" ] || rm -rf {folder}/"$name"
  mv -f -T "$new/$name" {folder}/"$name"
done
cd {folder}
{command}"""
# An environment that an older version made has no such command; then launch alone looks for other jobs.
CLAIM = """claim() {{
  if {trainer} claim --help > /dev/null 2>&1; then {trainer} claim --run-dir={folder} -- "$@"; else "$@"; fi
}}
claim"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take the job and its resources."""
    parser.add_argument(
        "file",
        type=Path,
        metavar="FILE",
        help="run.yaml of podwright-train, job.yaml of another trainer, or a batch script",
    )
    parser.add_argument("--name", help="name of the run's folder. Default: FILE's name without its suffix")
    parser.add_argument(
        "--nodes",
        metavar="N",
        help="number of nodes, required with run.yaml; a range such as 2-4 makes the run elastic. Default: the number "
        "in the job or script",
    )
    parser.add_argument("--partition", help="Slurm partition. Default: the script's, else the nodes' own")
    parser.add_argument("--time-limit", metavar="TIME", help="Slurm's --time. Default: the script's, else no limit")
    parser.add_argument(
        "--send",
        type=Path,
        action="append",
        default=[],
        metavar="PATH",
        help="also send this file or folder; repeatable",
    )
    parser.add_argument(
        "--arguments",
        type=shlex.split,
        default=[],
        metavar="'…'",
        help="arguments for podwright-train train, or the batch script",
    )
    parser.add_argument(
        "--launch-arguments",
        type=shlex.split,
        default=[],
        metavar="'…'",
        help="arguments for podwright-train launch",
    )
    runs.add_runs_argument(parser)
    add_remote_arguments(parser)
    add_target_arguments(parser)
    add_examples(
        parser,
        "podwright submit run.yaml --nodes 2",
        "podwright submit run.yaml --name wide --nodes 4 --arguments='--max-steps=2000'",
        "podwright submit job.yaml --send train.py",
        "podwright submit train.sbatch --send src --nodes 8",
    )


def run(options: argparse.Namespace) -> int:
    """Send the files and submit the job."""
    files = _files(options)
    name = runs.run_name(options.name or _name_of_job(options.file) or options.file.stem)
    wanted = target(options)
    node = remote(wanted, options)
    if _is_run(options.file) and _is_job(options.file):
        preflight.refuse_job(options, wanted.file)
    elif _is_run(options.file):
        options.launch_arguments = [*options.launch_arguments, *preflight.refuse_run(options, node.cluster.groups)]
    found = runs.find(node, options.runs, beside=slurm.of_run(name))
    if found.rest:
        hint = f"`podwright cancel {name}`, or give this one another --name"
        numbers = sorted(found.rest.split(), key=lambda word: [int(part) for part in re.findall(r"\d+", word)])
        noun = "jobs" if len(numbers) > 1 else "job"
        raise OperationError(f"run {name} has {noun} {', '.join(numbers)} already", hint)
    folder = found.path(name)
    command = _trainer(options, found, folder) if _is_run(options.file) else _batch(options, name)
    record = _record(files, command)
    trainer = f"{found.environment}/bin/podwright-train" if _is_run(options.file) else ""
    output = send(node, folder, {**files, RECORD: record}, command, trainer=trainer)
    jobs = _launched(node, output) if _is_run(options.file) else {"batch": slurm.number(node, output)}
    job_id = [*jobs.values()][-1]
    if options.json:
        document = {"cluster": node.cluster.name, "run": name, "folder": folder, "job_id": job_id, "jobs": jobs}
        print_json("podwright.submit/1", document)
        return 0
    several = len(jobs) > 1
    listed = ", ".join(f"{number} ({step})" for step, number in jobs.items()) if several else job_id
    which = name if several else job_id
    print(f"{'jobs' if several else 'job'} {listed}, run {name} in {folder}")
    print(f"  podwright logs {which} --follow\n  podwright cancel {which}\n  podwright fetch {name}")
    return 0


def _launched(node: Remote, output: str) -> dict[str, str]:
    """Return the jobs in the document that ``podwright-train launch --json`` printed, by step, the last one last.

    Raises:
        OperationError: there is none.
    """
    try:
        document = json.loads(output[output.index("{") :])  # a shell's start file may print before it
        jobs = document.get("jobs") or {"train": document["job"]}  # an older podwright-train lists none
    except (ValueError, KeyError) as error:
        raise OperationError(f"{node.node.name} printed no job id: {output.strip() or 'no output'}") from error
    return {step: str(number) for step, number in jobs.items()}


def _is_run(file: Path) -> bool:
    return file.suffix in RUN_SUFFIXES


def _name_of_job(file: Path) -> str:
    """Return the name that a job.yaml gives its run, if it does."""
    from podwright_training.jobs.spec import load

    return load(file).name if _is_run(file) and _is_job(file) else ""


def _is_job(file: Path) -> bool:
    """Return whether a file is a sound job.yaml.

    Raises:
        ArgumentError: it is one, and not sound; every problem is named.
    """
    from podwright_training.errors import ConfigError
    from podwright_training.jobs.spec import is_job, load

    if not is_job(file):
        return False
    try:
        load(file)
    except ConfigError as error:
        raise ArgumentError(str(error)) from error
    return True


def _is_plain(path: Path) -> bool:
    return path.is_file() or path.is_dir()


def _how_to_get(path: Path) -> str:
    return "; `podwright init --model NAME` writes a first one" if path.name == "run.yaml" else ""


def _files(options: argparse.Namespace) -> dict[str, Path]:
    """Return the files to send, by their names in the run's folder.

    Raises:
        ArgumentError: a file is missing, two have one name, or an argument is; all problems are named.
    """
    paths = [options.file, *options.send]
    problems = [f"{path}: no such file{_how_to_get(path)}" for path in paths if not path.exists()]
    problems += [f"{path}: neither a file nor a folder" for path in paths if path.exists() and not _is_plain(path)]
    if options.file.is_dir():
        problems.append(f"{options.file}: a folder; name its run.yaml or batch script, and --send the folder")
    is_job = _is_run(options.file) and _is_job(options.file)
    if is_job and options.arguments:
        problems.append("--arguments: write them into the command of the job")
    if options.file.exists() and _is_run(options.file) and not is_job and options.nodes is None:
        problems.append("give --nodes N: a run.yaml does not say how many nodes it trains on")
    if options.nodes is not None and not NODES.fullmatch(options.nodes):
        problems.append(f"--nodes: got {options.nodes}, need a number from 1, or a range such as 2-4")
    paths = [path for path in paths if path.exists()]
    names = [path.resolve().name for path in paths]
    problems += [f"{name}: two files of this name" for name in sorted(set(names)) if names.count(name) > 1]
    problems += [
        f"--send {path}: a file system, not a file or folder of one" for path in paths if not path.resolve().name
    ]
    if RECORD in names:
        problems.append(f"{RECORD}: submit writes a file of this name")
    if problems:
        raise ArgumentError("; ".join(problems))
    return dict(zip(names, paths, strict=True))


def _trainer(options: argparse.Namespace, found: Runs, folder: str) -> str:
    """Return podwright-train's command.

    Raises:
        OperationError: the cluster's nodes have no environment for it.
    """
    if not found.environment:
        raise OperationError(
            runs.NO_TRAINER,
            "submit a batch script, or deploy with podwright's scripts",
        )
    launch = [
        f"{found.environment}/bin/podwright-train",
        "launch",
        "--json",
        f"--run-dir={folder}",
        *([f"--nodes={options.nodes}"] if options.nodes else []),
        *([f"--partition={options.partition}"] if options.partition else []),
        *([f"--time-limit={options.time_limit}"] if options.time_limit else []),
    ]
    sent = f"{folder}/{options.file.resolve().name}"
    if _is_job(options.file):
        return quoted(*launch, f"--job={sent}", *options.launch_arguments)
    config = f"--config={sent}"
    return quoted(*launch, *options.launch_arguments, "--", config, *options.arguments)


def _batch(options: argparse.Namespace, name: str) -> str:
    """Return sbatch's command."""
    flags = {"nodes": options.nodes, "partition": options.partition, "time": options.time_limit, "job-name": name}
    given = [f"--{flag}={value}" for flag, value in flags.items() if value]
    return quoted("sbatch", "--parsable", *given, f"./{options.file.resolve().name}", *options.arguments)


def _record(files: Mapping[str, Path], command: str) -> bytes:
    """Return the record of a submission: who, when, with which code."""
    folder = next(iter(files.values())).resolve().parent
    try:
        ours = version("podwright")
    except PackageNotFoundError:
        ours = ""
    record = {
        "submitted_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "submitted_by": f"{getpass.getuser()}@{socket.gethostname()}",
        "podwright": ours,
        "sha256": {str(name): _sha256(path) for top, at in files.items() for name, path in _tree(top, at)},
        "git_commit": _git(folder, "rev-parse", "HEAD"),
        "git_changes": _git(folder, "status", "--porcelain").splitlines(),
        "command": command,
    }
    return (json.dumps(record, indent=2) + "\n").encode()


def _tree(name: str, at: Path) -> Iterator[tuple[Path, Path]]:
    """Yield every file below a path with its name in the run's folder."""
    if at.is_file():
        yield Path(name), at
        return
    for path in sorted(at.rglob("*")):
        if path.is_file():
            yield Path(name) / path.relative_to(at), path


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _git(folder: Path, *arguments: str) -> str:
    """Return git's description of a folder, empty outside of a repository."""
    # A file system monitor that git starts would keep the pipes open.
    command = ["git", "-c", "core.fsmonitor=false", "-C", str(folder), *arguments]
    with contextlib.suppress(FileNotFoundError, subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=GIT_LIMIT_S)
        return done.stdout.strip() if done.returncode == 0 else ""
    return ""


def send(node: Remote, folder: str, files: Mapping[str, Path | bytes], command: str, *, trainer: str = "") -> str:
    """Unpack the files in a folder of the node, then run a command there; return its output.

    Args:
        node: Where.
        folder: The run's.
        files: Their contents by name.
        command: A line of shell.
        trainer: podwright-train on the node, which claims the run meanwhile; empty for a batch script.
    """
    with node.started(unpacking(folder, files, command, trainer=trainer)) as process:
        if process.stdin is None or process.stdout is None:
            raise OperationError("ssh was started without pipes")
        output = Drain(process.stdout)
        with contextlib.suppress(BrokenPipeError), process.stdin:  # the node's own message says why
            _pack(process.stdin, files)
        process.wait()
        return output.text()


def unpacking(folder: str, names: Iterable[str], command: str, *, trainer: str = "") -> str:
    """Return the lines of shell that unpack files into a folder and run a command there."""
    place = PLACE.format(folder=quoted(folder), names=quoted(*names), command=command)
    claim = CLAIM.format(trainer=quoted(trainer), folder=quoted(folder)) if trainer else ""
    return UNPACK.format(folder=quoted(folder), claim=claim, placing=quoted(place))


def _pack(stream: IO[bytes], files: Mapping[str, Path | bytes]) -> None:
    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for name, content in files.items():
            if isinstance(content, bytes):
                item = tarfile.TarInfo(name)
                item.size = len(content)
                archive.addfile(item, io.BytesIO(content))
            else:
                archive.add(content.resolve(), arcname=name)
