"""Send files into a run's folder on a node and run the command that submits their job, in one session."""

from __future__ import annotations

import contextlib
import io
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from podwright.errors import OperationError
from podwright.operations.access.drain import Drain
from podwright.operations.access.remote import Remote, quoted
from podwright.operations.jobs.submission_record import FILE_NAME

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


def problems(paths: Sequence[Path]) -> Iterator[str]:
    """Yield the reasons why files and folders cannot be sent into one folder."""
    for path in paths:
        if not path.exists():
            yield f"{path}: no such file{_how_to_get(path)}"
        elif not path.resolve().name:
            yield f"--send {path}: cannot send a whole file system; name a file or folder"
        elif not (path.is_file() or path.is_dir()):
            yield f"{path}: neither a file nor a folder"
    names = [path.resolve().name for path in paths if path.exists()]
    for name in sorted(set(names) - {""}):
        if names.count(name) > 1:
            yield f"{name}: two files to send have this name; rename one of them"
    if FILE_NAME in names:
        yield f"{FILE_NAME}: submit writes a file of this name; rename yours"


def _how_to_get(path: Path) -> str:
    return "; `podwright init --model NAME` writes a first one" if path.name == "run.yaml" else ""


def by_name(paths: Iterable[Path]) -> dict[str, Path]:
    """Return files and folders by their names in the run's folder."""
    return {path.resolve().name: path for path in paths}


def send(node: Remote, folder: str, files: Mapping[str, Path | bytes], command: str, *, trainer: str = "") -> str:
    """Unpack the files in a folder of the node, then run a command there; return its output.

    Args:
        node: the node, which mounts the shared file system.
        folder: the run's folder on the node.
        files: the files, folders or contents to send, by their names in the run's folder.
        command: a line of shell.
        trainer: podwright-train on the node, which claims the run meanwhile; empty for a batch script.
    """
    with node.started(unpacking(folder, files, command, trainer=trainer)) as process:
        if process.stdin is None or process.stdout is None:
            raise OperationError("ssh was started without pipes")
        output = Drain(process.stdout)
        with contextlib.suppress(BrokenPipeError), process.stdin:  # The node's own message says why it stopped reading.
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
