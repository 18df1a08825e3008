"""Name every file of a run folder; no other module knows these names."""

from __future__ import annotations

import errno
import logging
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from podwright_common.atomic_file import new_file, sync_folder
from podwright_common.file_lock import locked
from podwright_common.link_target import link_target
from podwright_common.regular_file import open_regular
from podwright_training.errors import UserError
from podwright_training.folder_listing import paths_in
from podwright_training.json_text import to_json
from podwright_training.private_folder import other_owner

if TYPE_CHECKING:
    from podwright_training.events import EventT, MetricsEvent

logger = logging.getLogger(__name__)

START = b'"event": "start"'  # The trainer writes it like this.
METRICS_LIMIT_BYTES = 1 << 30  # Only the end of larger metrics is read; it has the steps of two million lines.
PIECE_BYTES = 1 << 20  # The metrics are read in pieces of this size.
NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}  # errors of a file system without hard links
CARD = "README.md"  # in ``RunFolder.hf``: the model card, which the hub shows
ORIGIN = "podwright.json"  # in ``RunFolder.hf``: the step it was consolidated from
ASIDE = ".replaced"  # suffix of the hidden name of a folder that is being replaced
NXDT_STEPS = ("environment", "dataset", "compile", "train")  # jobs of a run of NxD Training, in order


@dataclass(frozen=True)
class RunFolder:
    """One run: ``runs/<name>/`` on the shared file system; self-contained."""

    root: Path

    @property
    def config(self) -> Path:
        """Return the resolved configuration, which every start compares and rewrites."""
        return self.root / "config.yaml"

    @property
    def sbatch(self) -> Path:
        """Return the rendered batch script."""
        return self.root / "train.sbatch"

    @property
    def job(self) -> Path:
        """Return the job of another trainer (see ``jobs/spec.py``), as launch read it."""
        return self.root / "job.json"

    @property
    def start(self) -> Path:
        """Return the script that starts such a program on each node."""
        return self.root / "start.sh"

    @property
    def secret(self) -> Path:
        """Return the file by which processes of the run know each other (see ``run_secret.py``)."""
        return self.root / ".secret"

    @property
    def log(self) -> Path:
        """Return the job's output, over all restarts."""
        return self.root / "train.log"

    @property
    def nxdt(self) -> Path:
        """Return the folder of a run of NxD Training: configuration, scripts, logs and results."""
        return self.root / "nxdt"

    def step_log(self, step: str) -> Path:
        """Return the output of one of ``NXDT_STEPS``."""
        return self.nxdt / f"{step}.log"

    @property
    def metrics(self) -> Path:
        """Return the metrics, JSON lines (see ``events.py``), appended over all restarts."""
        return self.root / "metrics.jsonl"

    @property
    def traces(self) -> Path:
        """Return the folder of the traces of ``profile_steps``."""
        return self.root / "traces"

    def stacks(self, rank: int) -> Path:
        """Return the file of a rank's stacks, written when no step ended for half of ``step_timeout_s``."""
        return self.root / "stacks" / f"rank-{rank:05d}.txt"

    def memory_snapshot(self, rank: int) -> Path:
        """Return the file of a rank's allocations, written when its GPU was out of memory."""
        return self.root / "memory" / f"rank-{rank:05d}.pickle"

    @property
    def claims(self) -> Path:
        """Return the folder that says which job trains the run."""
        return self.root / "claims"

    @property
    def elastic(self) -> Path:
        """Return the folder through which the hosts of an elastic run meet; it also has their output."""
        return self.root / "elastic"

    def host_log(self, host: str) -> Path:
        """Return the output of an elastic run's host, by its number; or of several, by a pattern."""
        return self.elastic / f"host-{host}.log"

    @property
    def tensorboard(self) -> Path:
        """Return the folder of TensorBoard's event files."""
        return self.root / "tensorboard"

    @property
    def wandb_id(self) -> Path:
        """Return the file with the run's id at Weights & Biases."""
        return self.root / "wandb-id"

    @property
    def checkpoints(self) -> Path:
        """Return the folder of ``step-00000100/`` folders; only those with a manifest count."""
        return self.root / "checkpoints"

    @property
    def hf(self) -> Path:
        """Return the consolidated model in Hugging Face layout."""
        return self.root / "hf"

    @property
    def hf_steps(self) -> Path:
        """Return the folder of one exported model per checkpoint, by the checkpoint's name: ``step-00000100/``."""
        return self.root / "hf-steps"

    @property
    def samples(self) -> Path:
        """Return the text generated from the consolidated model."""
        return self.root / "samples.txt"

    @property
    def report(self) -> Path:
        """Return the folder of ``index.html`` and of every figure as SVG and PNG."""
        return self.root / "report"

    @property
    def evaluation(self) -> Path:
        """Return the result of ``evaluate``, JSON."""
        return self.root / "evaluation.json"

    def add_event(self, event: MetricsEvent) -> None:
        """Append an event to the metrics in one write, while no rank writes them or from the host that does."""
        self.append(event.with_values(time=round(time.time(), 3)))

    def append(self, event: MetricsEvent) -> None:
        """Append an event that has its time."""
        line = to_json(event.to_dict())
        try:
            with os.fdopen(open_for_append(self.metrics), "ab", buffering=0) as file:
                file.write(f"{line}\n".encode())
        except OSError as error:
            logger.warning("metrics: cannot write to %s: %s", self.metrics, error.strerror)

    def events_of(self, event_class: type[EventT], *, last_bytes: int | None = None) -> Iterator[EventT]:
        """Yield the metrics' events of one class in order; see ``events``."""
        return (event for event in self.events(last_bytes=last_bytes) if isinstance(event, event_class))

    def events(self, *, last_bytes: int | None = None) -> Iterator[MetricsEvent]:
        """Yield the metrics' events in order, or all starts and the events in the last bytes.

        A half-written last line is skipped, and so is a damaged line, with a warning.
        """
        from podwright_training.events import event_of  # Its classes take 13 ms, and most commands read no metrics.

        limit_bytes = min(last_bytes or METRICS_LIMIT_BYTES, METRICS_LIMIT_BYTES)
        try:
            file = open_regular(self.metrics, follow_links=True)
        except FileNotFoundError:
            return
        except OSError as error:
            raise UserError(f"cannot read {self.metrics}: {error.strerror}") from error
        with file:
            begin = max(0, file.seek(0, os.SEEK_END) - limit_bytes)
            starts = list(_starts(file, begin)) if begin else []
            file.seek(begin)
            lines = _whole_lines(file, limit_bytes)
            if begin:
                next(lines, None)  # the end of a line
            for number, line in enumerate(chain(starts, lines), start=1):
                if event := event_of(line):
                    yield event
                elif not begin:
                    logger.warning("%s:%d is damaged; skipped", self.metrics, number)


def _whole_lines(file: BinaryIO, limit_bytes: int) -> Iterator[bytes]:
    """Yield the lines that end within so many bytes; memory holds one piece of the file."""
    begun: list[bytes] = []  # pieces of a line whose end was not read yet
    while limit_bytes > 0 and (piece := file.read(min(PIECE_BYTES, limit_bytes))):
        limit_bytes -= len(piece)
        line_end, *following = piece.split(b"\n")
        begun.append(line_end)
        if following:
            yield b"".join(begun)
            yield from following[:-1]
            begun = following[-1:]


def _starts(file: BinaryIO, end: int) -> Iterator[bytes]:
    """Yield the lines of starts that begin before ``end``."""
    with mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        offset = content.find(START, 0, end)
        while offset >= 0:
            after = content.find(b"\n", offset)
            yield content[content.rfind(b"\n", 0, offset) + 1 : after]
            offset = content.find(START, after, end)


def open_for_append(path: Path) -> int:
    """Open a regular file to append to it, and make it if need be; return its descriptor.

    Raises:
        OSError: It is something else, such as a pipe, for whose reader the process would wait.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o644)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        raise OSError(errno.EINVAL, "is no regular file", str(path)) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is no regular file", str(path))
    return descriptor


@contextmanager
def writable(root: Path, *, flag: str = "--run-dir") -> Iterator[None]:
    """Write a run's folder within the context; an error of the system becomes one line.

    Raises:
        UserError: The folder is another user's, whose links would lead to any file of this user; or with the file that
            cannot be written, and the reason.
    """
    try:
        require_own(root, flag=flag)
        yield
    except OSError as error:
        raise UserError(f"{flag}: cannot write {error.filename or root}: {error.strerror or error}") from error


def require_own(root: Path, *, flag: str = "--run-dir") -> None:
    """Refuse to write in another user's run folder, whose links would lead to any file of this user.

    Raises:
        UserError: The folder is neither this user's nor root's.
    """
    if owner := other_owner(root):
        raise UserError(
            f"{flag}: {root} belongs to {owner}, whose links could lead what you write to your own files: let "
            f"{owner} run this, or name a folder of your own"
        )


def place_of(path: Path) -> Path:
    """Return where a file or folder is written: behind the link that a user may have put there, as to another disk.

    Raises:
        UserError: The link leads into a folder that does not exist, or another user has made it.
    """
    return link_target(path, error_class=UserError)


def write_atomically(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` atomically: readers see the old or the new content, and a link stays a link."""
    with new_file(place_of(path)) as file:
        file.write(text.encode())


def write_once(path: Path, text: str) -> bool:
    """Write a file that can be made only once, on any host of a shared file system; return whether this call made it.

    Readers see no file or the whole one: a link gives a synced draft its name. A file system without hard links has
    the name first and the text an instant later, so readers there try again when a text is incomplete.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    _write_new(draft, text)
    try:
        os.link(draft, path)
    except FileExistsError:
        return draft.stat().st_nlink > 1  # the link was made, but NFS asked again because the answer was lost
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        try:
            _write_new(path, text)
        except FileExistsError:
            return False
    finally:
        draft.unlink()
    return True


def _write_new(path: Path, text: str) -> None:
    """Write a file that must not exist, durably."""
    with path.open("x") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold the lock of a shared path: of all processes that write it, one does at a time, and the others wait.

    The lock ends with its process, also if that is killed, and holds on all nodes of Lustre (mounted with ``flock``).
    """
    message = f"another process writes {path}: waiting for it"
    with locked(path.with_name(f"{path.name}.lock"), mode=0o644, before_waiting=lambda: print(message, flush=True)):
        yield


def commit_folder(partial: Path, final: Path) -> None:
    """Rename a synced folder to its final name, durably; a folder of that name is set aside first and deleted last.

    If the final name is a link, the folder that it leads to is replaced: ``partial`` has to be beside that.

    Readers see the old folder, for a moment no folder, then the whole new one. After a kill at that moment,
    ``recover_folders`` gives the old folder its name back.
    """
    final = place_of(final)
    aside = final.with_name(f".{final.name}{ASIDE}")
    sync_folder(partial)
    if final.exists():
        delete_folder(aside)  # A killed process may have left it.
        final.rename(aside)
    partial.rename(final)
    sync_folder(final.parent)
    delete_folder(aside)


def recover_folders(parent: Path) -> None:
    """Give each folder that was set aside its name back if the name is free: its process was killed."""
    for aside in paths_in(parent, f".*{ASIDE}"):
        final = parent / aside.name.removeprefix(".").removesuffix(ASIDE)
        if not final.exists():
            aside.rename(final)


def delete_folder(path: Path) -> None:
    """Delete a folder, if it is there; rename it first, so that a half-deleted one does not keep its name.

    Of a link to a folder only the link goes: what somebody put elsewhere is not ours to delete.
    """
    if path.is_symlink():
        path.unlink()
        return
    hidden = path.with_name(f".{path.name.removeprefix('.')}.deleted")
    shutil.rmtree(hidden, ignore_errors=True)  # A killed process may have left it.
    if path.exists():
        path.rename(hidden)
        shutil.rmtree(hidden)
