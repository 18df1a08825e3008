"""Define the errors that are shown to the user without a traceback."""

from __future__ import annotations

import hashlib
import os
import socket
import sys
from collections.abc import Iterable
from pathlib import Path

from podwright_common.terminal import printable

LONGEST_VALUE = 60  # characters of a file's value in a message


class UserError(ValueError):
    """An error the user can fix: the message has the given value, the allowed ones and the solution. Exit status 2."""


class DivergedError(UserError):
    """The weights of a run cannot be trained further, or its validation loss is NaN. Exit status 65."""


class DeviceMemoryError(UserError):
    """This rank's device is out of memory. It is reported where it is raised, as other ranks may wait for this one."""


class ConfigError(UserError):
    """All problems of a configuration, one per line."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(self.problems))


class LaunchError(UserError):
    """Launching a job failed; the message lists every problem."""


class LostRanksError(RuntimeError):
    """Another rank of the job is gone or late, and has its own error. A new start may succeed. Exit status 1."""


def shortened(value: object) -> str:
    """Return a value from a file, shortened to one line for a message."""
    text = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


class ForgedMessageError(LostRanksError):
    """Something that is not part of the run wrote in place of a rank. A new start may succeed."""


def report(error: Exception, *, level: str = "error") -> None:
    """Print one line per problem; print problems that several ranks of a host share only once."""
    host = f"{socket.gethostname()}: " if "RANK" in os.environ else ""
    for line in str(error).splitlines():
        if _is_first(line):
            print(f"{host}{level}: {printable(line)}", file=sys.stderr, flush=True)


def _is_first(line: str) -> bool:
    """Return whether no other rank of this host has reported ``line``; ``True`` if torchrun did not start this one.

    torchrun gives each rank a file for its error, in a folder that all ranks of the host share.
    """
    error_file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if error_file is None:
        return True
    digest = hashlib.sha256(line.encode()).hexdigest()[:32]
    try:
        (Path(error_file).parents[1] / f"reported-{digest}").touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:
        return True  # twice is better than not at all
    return True
