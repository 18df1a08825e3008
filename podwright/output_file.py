"""Write a file that the user asked for, whole or not at all."""

from __future__ import annotations

from pathlib import Path

from podwright.errors import PodwrightError
from podwright_common.atomic_file import write_file
from podwright_common.link_target import link_target


class OutputError(PodwrightError):
    """Writing the file failed."""


def place_of(path: Path) -> Path:
    """Return where a file is written: behind a link that the user put there, which stays a link.

    Raises:
        OutputError: another user made the link, as in a folder like /tmp, or it leads into a missing folder.
    """
    return link_target(path, error_class=OutputError)


def write_output(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write the file completely and with these permissions, or leave the old one.

    Raises:
        OutputError: writing fails; the message names the file and says why.
    """
    try:
        write_file(place_of(path), text, mode=mode)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}") from error
