"""Start programs, wait, and write files on a host.

Every wait is bounded, no file is ever half-written.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import random
import re
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import textwrap
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Callable, Iterator, List, Mapping, Tuple, Type, TypeVar

from podwright_bootstrap.host import regular_file

# How long to wait for others, as a factor on every such limit and pause: a rehearsal is less patient than a cloud.
PATIENCE = float(os.environ.get("PODWRIGHT_PATIENCE", "1"))
# The same for whole steps: a test of a wait is impatient, and its step may take as long as a busy machine makes it.
STEP_PATIENCE = float(os.environ.get("PODWRIGHT_STEP_PATIENCE", PATIENCE))
LOG_EVERY_S = 30
KILL_LIMIT_S = 10  # for a program to end that was killed; one that waits for a device or a server may not
# Of a program's output, what belongs into one line about its failure; pip names a version it lacks as "(constraint)".
FAULT = re.compile(r"error|fatal|cannot|denied|not found|\(constraint\)", re.IGNORECASE)

# What opening a name for writing says of links, pipes, folders, and files of other people.
NO_FILE_OF_OURS = {errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.EACCES, errno.EPERM}

# What a terminal obeys, or no log can have: administrators read logs on one. Tabs and line ends stay.
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
T = TypeVar("T")


class BootstrapError(RuntimeError):
    """The boot cannot continue; ``hint`` has the solution. A retry would not help."""

    def __init__(self, why: str, *, hint: str = "") -> None:
        super().__init__(why)
        self.hint = hint


class CommandError(BootstrapError):
    """A program failed, did not end in time or is missing. A retry may help."""


class SlowCommandError(CommandError):
    """A program did not end in time."""


class TimeLimitError(BaseException):
    """A step used up its time. Like ``KeyboardInterrupt``, it passes handlers of ordinary errors."""


def say(text: str) -> None:
    """Write a line to the log; control characters, as in a file's name, are written as in Python."""
    line = OBEYED.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
    print(f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ} {line}", flush=True)


@dataclass(frozen=True)
class Outcome:
    """A program's exit code, its stdout, which is its answer, and its stderr, where it may also warn."""

    exit_code: int
    output: str
    errors: str = ""

    @property
    def lines(self) -> List[str]:
        """All that it wrote."""
        return [*self.output.splitlines(), *self.errors.splitlines()]

    @property
    def summary(self) -> str:
        """Return the last lines that name a fault, else the last line."""
        lines = [line.strip() for line in self.lines if line.strip()]
        faults = [line for line in lines if FAULT.search(line)][-3:]
        return " / ".join(faults or lines[-1:] or ["it printed nothing"])


def run(
    *command: str | Path,
    timeout_s: float,
    check: bool = True,
    quiet: bool = False,
    stdin: str = "",
    variables: Mapping[str, str] | None = None,
) -> Outcome:
    """Run a program to its end and write its output to the log, unless ``quiet``.

    What it reads from ``stdin``, and the ``variables`` that are added to its environment, are never written there.

    Raises:
        CommandError: it does not exist, ran longer than ``timeout_s``, or (with ``check``) did not exit with 0.
    """
    words = [str(word) for word in command]
    if not quiet:
        say(f"$ {' '.join(words)}")
    with _in_memory() as output, _in_memory() as errors:
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=errors,
                start_new_session=True,
                env={**os.environ, **(variables or {})},
            )
        except FileNotFoundError as error:
            raise CommandError(f"{words[0]}: no such program on this host") from error
        try:
            process.communicate(stdin.encode(), timeout_s)
        except subprocess.TimeoutExpired as error:
            more = "" if _end(process) else ", nor when it was killed: it waits for a device or a server"
            raise SlowCommandError(f"{_short(words)} did not end within {timeout_s:.0f} s{more}") from error
        except BaseException:  # the step's time is up, or the boot's
            _end(process)
            raise
        outcome = Outcome(process.returncode, _text(output), _text(errors))
    for line in [] if quiet else outcome.lines:
        say(f"  | {line}")
    if check and outcome.exit_code:
        raise CommandError(f"{_short(words)} failed (exit {outcome.exit_code}): {outcome.summary}")
    return outcome


def _in_memory() -> IO[bytes]:
    """Open a file, not a pipe: a daemon that keeps it open does not keep us waiting; and users may have filled /tmp."""
    return os.fdopen(os.memfd_create("output"), "w+b")


def finds(program: str) -> bool:
    """Return whether this host has the program."""
    return shutil.which(program) is not None


def retry(action: Callable[[], T], *, attempts: int, pause_s: float, errors: Tuple[Type[Exception], ...]) -> T:
    """Call ``action`` until it ends without one of ``errors``, at most ``attempts`` times; the pauses are jittered."""
    for attempt in range(1, attempts):
        try:
            return action()
        except errors as error:
            say(f"attempt {attempt} of {attempts}: {error}")
            pause(pause_s)
    return action()


def wait_until(condition: Callable[[], bool], *, what: str, limit_s: float, every_s: float = 2, hint: str = "") -> None:
    """Wait until ``condition()`` holds, logging the wait every now and then.

    A program that the condition runs may be slow, as on a host that is busy: it is asked again.

    Raises:
        BootstrapError: it did not within ``limit_s`` (times ``PATIENCE``).
    """
    limit_s *= PATIENCE
    started, logged = time.monotonic(), time.monotonic()
    while not _holds(condition):
        waited_s = time.monotonic() - started
        if waited_s >= limit_s:
            raise BootstrapError(f"waited {limit_s:.0f} s for {what}", hint=hint)
        if time.monotonic() - logged >= LOG_EVERY_S:
            logged = time.monotonic()
            say(f"waiting for {what}: {waited_s:.0f} s of at most {limit_s:.0f} s")
        pause(every_s)


def _holds(condition: Callable[[], bool]) -> bool:
    try:
        return condition()
    except SlowCommandError as error:
        say(str(error))
        return False


def spread(over_s: float) -> None:
    """Sleep for any part of ``over_s``: hosts that started at once go on one after another."""
    time.sleep(random.uniform(0, over_s) * min(PATIENCE, 1))  # noqa: S311 (jitter is no secret)


def pause(seconds: float) -> None:
    """Sleep for about ``seconds``: hosts that started at once must not ask at once."""
    time.sleep(seconds * random.uniform(0.5, 1.5) * min(PATIENCE, 1))  # noqa: S311 (jitter is no secret)


@contextmanager
def time_limit(limit_s: float) -> Iterator[None]:
    """Interrupt the block, whatever it is doing, when it has run for ``limit_s``."""

    def ring(_signal: int, _frame: object) -> None:
        raise TimeLimitError(f"not done within its {limit_s:.0f} s")

    previous = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def write_file(path: Path, content: str | bytes, *, mode: int = 0o644, owner: str = "") -> bool:
    """Make ``path`` a file of this content, mode and owner; readers see the old or the new one, never a part.

    Args:
        path: its folder is made if need be.
        content: text is written as UTF-8.
        mode: permissions.
        owner: a user's name; whoever runs this, which is root on a node, if it is empty.

    Returns:
        Whether anything had to be changed.
    """
    data = content.encode() if isinstance(content, str) else content
    uid, gid = find_user(owner)[2:4] if owner else (os.geteuid(), os.getegid())
    if path.is_file() and path.stat().st_size == len(data) and _content(path, len(data)) == data:
        status = path.stat()
        if (status.st_mode & 0o7777, status.st_uid) == (mode, uid):
            return False
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary, descriptor = _create_beside(path)
    with os.fdopen(descriptor, "wb") as file:  # closed last: until then it is locked
        try:
            file.write(data)
            file.flush()
            os.fchmod(descriptor, mode)
            os.fchown(descriptor, uid, gid)
            os.fsync(descriptor)
            temporary.replace(path)
        except BaseException:  # a signal too: no half file stays
            temporary.unlink(missing_ok=True)
            raise
    _sync_folder(path.parent)
    return True


def _content(path: Path, limit_bytes: int) -> bytes:
    """Return a file's content; empty if it has just become something else."""
    try:
        return regular_file.read(path, limit_bytes=limit_bytes, follow_links=True)
    except OSError:
        return b""


def remove_files(*paths: Path) -> Iterator[str]:
    """Delete the existing ones of the files; yields a phrase for each."""
    for path in paths:
        if os.path.lexists(path):
            path.unlink()
            yield f"removed {path}"


def _create_beside(path: Path) -> Tuple[Path, int]:
    """Create an empty file with a unique name beside ``path``, and open it.

    Its name is this host's, so that what a killed boot left goes without a search. Whoever writes it holds its flock:
    a second writer, and a host where somebody else's file has that name, take a random one.
    """
    own = path.with_name(f".{path.name}.{socket.gethostname()}")
    try:
        descriptor = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno in NO_FILE_OF_OURS:
            return _create_random(path)
        raise
    with suppress(OSError):  # locked, renamed, not to be removed, or a file system without locks
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        status = os.fstat(descriptor)
        if os.path.samestat(status, os.lstat(own)):  # not one that its writer has renamed since
            if (status.st_size, status.st_mode, status.st_uid, status.st_nlink) == _fresh():
                return own, descriptor
            own.unlink()
    os.close(descriptor)
    return _create_random(path)


def _fresh() -> Tuple[int, int, int, int]:
    """Size, mode, owner and number of links of a file that we have just created."""
    return 0, stat.S_IFREG | 0o600, os.geteuid(), 1


def _create_random(path: Path) -> Tuple[Path, int]:
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    return Path(name), descriptor


def _sync_folder(folder: Path) -> None:
    """Make a rename in the folder outlive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def acting_as(user: pwd.struct_passwd) -> Iterator[None]:
    """Access files in the block with this user's rights: new files are the user's, and links give no further access."""
    groups, uid, gid = os.getgroups(), os.geteuid(), os.getegid()
    os.setgroups([])
    os.setegid(user.pw_gid)
    os.seteuid(user.pw_uid)
    try:
        yield
    finally:
        os.seteuid(uid)
        os.setegid(gid)
        os.setgroups(groups)


def find_user(name: str) -> pwd.struct_passwd:
    """The user's entry in passwd; ``BootstrapError`` if there is none."""
    try:
        return pwd.getpwnam(name)
    except KeyError as error:
        hint = "HyperPod's image has its own users; the step users adds the users of cluster.yaml"
        raise BootstrapError(f"this host has no user {name}", hint=hint) from error


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _short(words: list[str]) -> str:
    """The command as it is named in an error; the log has all of it."""
    text = " ".join([Path(words[0]).name, *words[1:]])
    return textwrap.shorten(text, 100, placeholder=" …")


def _end(process: subprocess.Popen[bytes]) -> bool:
    """Kill a program that still runs, with its children; return whether it ends."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(KILL_LIMIT_S)
    return process.poll() is not None
