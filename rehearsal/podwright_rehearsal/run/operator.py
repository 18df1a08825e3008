"""The variables that lead commands of another terminal to a rehearsal that stays up."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

NAME = "operator.env"


def write(folder: Path, variables: Mapping[str, str]) -> Path:
    """Write them as a file for a shell's ``.``, which only its owner may read: it has the account's keys."""
    file = folder / NAME
    file.unlink(missing_ok=True)
    file.touch(mode=0o600)
    file.write_text("".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()))
    return file


def read(folder: Path) -> dict[str, str] | None:
    """Return the environment variables; None if no rehearsal stays up in the folder."""
    file = folder / NAME
    if not file.exists():
        return None
    assignments = (word.partition("=") for word in shlex.split(file.read_text()) if word != "export")
    return {name: value for name, _, value in assignments}
