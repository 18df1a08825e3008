"""``podwright fetch``: copy a run's report, metrics, log and model to this machine."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Literal

from podwright.json_document import JsonObject
from podwright.operations.access.remote import Remote, add_remote_arguments, quoted, remote
from podwright.operations.errors import ArgumentError, OperationError
from podwright.operations.jobs import runs
from podwright.operations.jobs.runs import Runs
from podwright.operations.output import print_document
from podwright.operations.target import add_examples, add_target_arguments, target
from podwright.output_file import place_of
from podwright.planning.on_demand import on_demand
from podwright_bootstrap.contract import COMPUTE
from podwright_common.atomic_file import rename_durably

# Folders of podwright-train and NxD Training; only --checkpoints fetches them.
LARGE = ("checkpoints", "hf-steps", "traces", "nxdt/results/checkpoints")
SCRIPT_BYTES = 1 << 20
MODEL = "hf"
SCRIPTS = ("train.sbatch", "nxdt/train.sbatch")  # The newer one has the run's number of nodes.
REPORT = Path("report", "index.html")
JOB = "job.json"  # A run of another trainer has it; podwright cannot export its checkpoints.
UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_SBATCH_VALUES = re.compile(r"^#SBATCH --(nodes|partition|array)=(\S+)$", re.MULTILINE)
_LIST = "cd {folder} && find . -type f {without} -printf '%s %T@ %P\\0'"
# A log may grow while it is read: tar then pads or cuts it to the size it had, and ends with 1.
_PACK = "cd {folder} && tar -c -f - --no-recursion --hard-dereference --null -T - || [ $? = 1 ]"


@dataclass(frozen=True)
class Price:
    """The price of all nodes of a run, and its source."""

    usd_per_hour: float
    source: str


@dataclass(frozen=True)
class RemoteFile(JsonObject):
    """A file of a run's folder."""

    path: str
    size_bytes: int
    modified_s: float
    """Since 1970."""

    @property
    def is_inside(self) -> bool:
        """Return True if the path stays in the folder that it is relative to."""
        path = PurePosixPath(self.path)
        return not path.is_absolute() and ".." not in path.parts

    def is_at(self, folder: Path) -> bool:
        """Return True if a folder has this file with the same size and time."""
        try:
            status = (folder / self.path).stat()
        except OSError:
            return False
        return status.st_size == self.size_bytes and int(status.st_mtime) == int(self.modified_s)


@dataclass(frozen=True, kw_only=True)
class Fetch(JsonObject):
    """The document of `podwright fetch --json`."""

    schema: Literal["podwright.fetch/1"] = "podwright.fetch/1"
    cluster: str
    run: str
    folder: str
    """Here."""
    fetched: list[RemoteFile]
    usd_per_hour: float | None
    """The price in the report that `--export` wrote; null without one."""
    unchanged: int
    """Files that were here already."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags for the run and the folder to fetch it to."""
    parser.add_argument("run", metavar="RUN", help="name of the run's folder")
    parser.add_argument("--to", type=Path, metavar="DIR", help="folder on this machine. Default: runs/RUN")
    parser.add_argument(
        "--export",
        action="store_true",
        help="first write the report and, for podwright-train's runs, the Hugging Face model, on the node",
    )
    parser.add_argument(
        "--usd-per-hour",
        type=float,
        metavar="X",
        help="with --export: price of all nodes, for the report's cost. Default: EC2's on-demand price, if it is known",
    )
    parser.add_argument("--checkpoints", action="store_true", help=f"also fetch {', '.join(LARGE)}")
    runs.add_runs_argument(parser)
    add_remote_arguments(parser)
    add_target_arguments(parser)
    add_examples(parser, "podwright fetch llama3_2_1b", "podwright fetch llama3_2_1b --export --to /data/llama")


def run(options: argparse.Namespace) -> int:
    """Fetch new and changed files; an interrupted fetch continues where it stopped."""
    name = runs.run_name(options.run)
    to: Path = options.to or Path("runs") / name
    if to.exists() and not to.is_dir():
        raise ArgumentError(f"--to {to}: is a file")
    if options.usd_per_hour is not None and not options.export:
        raise ArgumentError("--usd-per-hour needs --export, which writes the report with the cost")
    node = remote(target(options), options)
    run_folders = runs.find(node, options.runs)
    folder = run_folders.path(name)
    price = _export(node, run_folders, folder, options.usd_per_hour) if options.export else None
    existing = _list(node, folder, name, without=() if options.checkpoints else LARGE)
    outdated = [file for file in existing if not file.is_at(to)]
    _check_space(to, outdated)
    count = 0
    if outdated:
        for _ in _bring(node, folder, outdated, to):
            count += 1
    if count < len(outdated):
        raise OperationError(
            f"{count} of {len(outdated)} files arrived in {to}: the others no longer exist in {folder}",
            "run the command again, it continues where it stopped",
        )
    if options.json:
        print_document(
            Fetch(
                cluster=node.cluster.name,
                run=name,
                folder=str(to.absolute()),
                fetched=outdated,
                usd_per_hour=price.usd_per_hour if price else None,
                unchanged=len(existing) - len(outdated),
            )
        )
        return 0
    print(summary(outdated, to, unchanged=len(existing) - len(outdated)))
    _name_report(to / REPORT, price)
    if line := not_exported([file.path for file in existing], folder):
        print(line)
    return 0


def _name_report(report: Path, price: Price | None) -> None:
    """Print where the report is, and the price in it."""
    if not report.is_file():
        return
    print(f"report: {report}")
    if price:
        print(f"its cost: {price.usd_per_hour:.2f} $/h, {price.source}")


def summary(copied: list[RemoteFile], to: Path, *, unchanged: int) -> str:
    """Return one sentence on the copied and the unchanged files."""
    size = sum(file.size_bytes for file in copied)
    came = f"{_count(len(copied))}, {_size(size)}, copied to {to}" if copied else f"nothing new for {to}"
    return f"{came}; {_count(unchanged)} unchanged" if unchanged else came


def not_exported(paths: Collection[str], folder: str) -> str:
    """Return a line that names the model, or another trainer's report, if the run lacks it; else an empty string."""
    content, place = ("report", REPORT.parent.name) if JOB in paths else ("model", MODEL)
    if any(path.startswith(f"{place}/") for path in paths):
        return ""
    return f"no {content} in {folder}/{place}: --export writes it on the cluster first"


def _count(files: int) -> str:
    return "1 file" if files == 1 else f"{files:,} files"


def _size(size_bytes: int) -> str:
    """Return a size with the unit that suits it."""
    unit, name = next(((unit, name) for unit, name in UNITS if size_bytes >= unit), UNITS[-1])
    return f"{size_bytes / unit:,.1f} {name}"


def _price(node: Remote, folder: str) -> Price | None:
    """Return EC2's on-demand price of a run's nodes; None if they change, were paid in advance, or are not known."""
    newest = f"newest=$(ls -t {quoted(*SCRIPTS)} 2>/dev/null | head -n 1)"
    read = (
        f'[ -f "$newest" ] && head -c {SCRIPT_BYTES} "$newest"'  # A user may have put a pipe there, which never ends.
    )
    script = node.run(f"cd {quoted(folder)} 2>/dev/null && {{ {newest}; {read}; }}; true")
    sbatch_values = dict(_SBATCH_VALUES.findall(script))
    groups = [
        group
        for group in node.cluster.groups
        if group.role == COMPUTE and sbatch_values.get("partition") in {None, group.partition}
    ]
    types = {group.instance_type for group in groups}
    if "array" in sbatch_values or not sbatch_values.get("nodes", "").isdecimal() or len(types) != 1:
        return None
    (kind,), nodes = types, int(sbatch_values["nodes"])
    price = on_demand(kind, node.cluster.region)
    if price is None or any(group.training_plan_arn for group in groups):
        return None
    return Price(price.usd_per_hour * nodes, f"EC2's on-demand price of {nodes} {kind} in {price.region}")


def _export(node: Remote, run_folders: Runs, folder: str, usd_per_hour: float | None) -> Price | None:
    """Write the model, unless another trainer's, and the report into the run's folder; return the report's price.

    Raises:
        OperationError: the node has no podwright-train, or the run no checkpoint.
    """
    if not run_folders.environment:
        raise OperationError(runs.NO_TRAINER, "export there with the run's own program, then fetch without --export")
    price = _price(node, folder) if usd_per_hour is None else Price(usd_per_hour, "as you say")
    trainer, run_dir = f"{run_folders.environment}/bin/podwright-train", f"--run-dir={folder}"
    is_other_trainer = f"[ -e {quoted(f'{folder}/{JOB}')} ]"
    report = quoted(trainer, "report", run_dir, *([f"--usd-per-hour={price.usd_per_hour:g}"] if price else []))
    node.run(f"{{ {is_other_trainer} || {quoted(trainer, 'consolidate', run_dir)}; }} && {report}")
    return price


def _list(node: Remote, folder: str, name: str, *, without: tuple[str, ...]) -> list[RemoteFile]:
    """Return the files of a run.

    Raises:
        ArgumentError: there is no such run.
    """
    excluded = " ".join(f"-not -path {quoted(f'./{part}/*')}" for part in without)
    hidden = r"-not -path '*/.*'"  # Hidden files are half-written ones.
    listing = _LIST.format(folder=quoted(folder), without=f"{excluded} {hidden}")
    output = node.output(f"[ -d {quoted(folder)} ] && {listing} || echo none").decode(errors="surrogateescape")
    if output == "none\n":
        parent = quoted(str(PurePosixPath(folder).parent))
        run_names = ", ".join(node.run(f"ls {parent} 2>/dev/null | head -n 20; true").split())
        raise ArgumentError(f"no run {name!r} in {PurePosixPath(folder).parent}", f"runs there: {run_names or 'none'}")
    files = [_file(entry) for entry in output.split("\0") if entry]
    if outside := [file.path for file in files if not file.is_inside]:  # a cluster must not write outside the folder
        raise OperationError(f"{node.node.name} names files outside of {folder}: {', '.join(outside[:3])}")
    return files


def _file(entry: str) -> RemoteFile:
    size, modified, path = entry.split(" ", 2)
    return RemoteFile(path, int(size), float(modified))


def _check_space(to: Path, outdated: list[RemoteFile]) -> None:
    """Raise ``OperationError`` if the disk has no room for the files."""
    disk = next(folder for folder in (to.absolute(), *to.absolute().parents) if folder.exists())
    needed, free = sum(file.size_bytes for file in outdated), shutil.disk_usage(disk).free
    if needed > free:
        raise OperationError(f"{to} needs {needed / 1e9:.1f} GB, {disk} has {free / 1e9:.1f} GB free", "choose --to")


def _bring(node: Remote, folder: str, outdated: list[RemoteFile], to: Path) -> Iterator[str]:
    """Unpack the files one by one, each under its name when it is whole; yield their paths."""
    with tempfile.TemporaryFile() as names, _started(node, folder, outdated, names) as process:
        if process.stdout is None:
            raise OperationError("ssh was started without pipes")
        cut_short = False
        try:
            yield from _unpack(process.stdout, {file.path for file in outdated}, to)
        except (tarfile.TarError, EOFError):
            cut_short = True
    if cut_short:
        raise OperationError(f"{node.node.name}: the connection ended early", "run the command again: it continues")


def _started(
    node: Remote, folder: str, outdated: list[RemoteFile], names: IO[bytes]
) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """Start tar with the names in a file: a pipe of them could wait for tar, and tar for us."""
    names.write("".join(f"{file.path}\0" for file in outdated).encode(errors="surrogateescape"))
    names.seek(0)
    return node.started(_PACK.format(folder=quoted(folder)), stdin=names.fileno())


def _unpack(stream: IO[bytes], expected: set[str], to: Path) -> Iterator[str]:
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for item in archive:
            source = archive.extractfile(item) if item.isreg() else None
            if source is None or item.name not in expected:
                continue  # A cluster must not write other files here, nor links and pipes.
            path = place_of(to / item.name)
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f".{path.name}.partial")
            with partial.open("wb") as file:
                shutil.copyfileobj(source, file, 1 << 20)
            os.utime(partial, (item.mtime, item.mtime))
            rename_durably(partial, path)
            yield item.name
