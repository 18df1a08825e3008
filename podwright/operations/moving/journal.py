"""The journal of a move: one JSON file beside the settings file, with the finished steps and their results."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from podwright.json_document import JsonObject, to_json
from podwright.operations.errors import ArgumentError, OperationError
from podwright.output_file import place_of
from podwright_common.atomic_file import write_file
from podwright_common.file_lock import try_lock
from podwright_common.regular_file import read_text

LIMIT_BYTES = 16 << 20  # A journal is far smaller; another file in its place may have no end.

SCHEMA = "podwright.move-journal/1"


@dataclass(frozen=True)
class Place(JsonObject):
    """One end of a move: a cluster, its region, and its settings file."""

    name: str
    region: str
    file: Path


@dataclass(frozen=True)
class JournalDocument(JsonObject):
    """Progress of a move; `done` has the time of each step."""

    schema: str
    id: str
    old: Place
    new: Place
    done: dict[str, str]
    facts: dict[str, Any]


@dataclass
class Journal:
    """The finished steps with their times, and facts that later steps need; every change is written at once."""

    path: Path
    old: Place
    new: Place
    id: str = field(
        default_factory=lambda: secrets.token_hex(6)
    )  # Names and tags of everything that the move creates in AWS contain it.
    done: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Journal | None:
        """Return the journal of a file; None if there is none.

        Raises:
            OperationError: it is not a journal of this version.
        """
        try:
            content = json.loads(read_text(path, limit_bytes=LIMIT_BYTES, follow_links=True))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise OperationError(f"cannot read {path}: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise OperationError(f"{path} is not the journal of a move: {error}", "restore it from a copy") from error
        if not isinstance(content, dict) or content.get("schema") != SCHEMA:
            raise OperationError(
                f"{path} is not a journal of this version, {SCHEMA}", "finish the move with the version that began it"
            )
        ends = {
            end: Place(content[end]["name"], content[end]["region"], Path(content[end]["file"]))
            for end in ("old", "new")
        }
        return cls(path, ends["old"], ends["new"], content["id"], content["done"], content["facts"])

    def finish(self, step: str, **facts: Any) -> None:
        """Record that a step is done, and its results."""
        self.facts |= facts
        self.done[step] = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self.write()

    def note(self, **facts: Any) -> None:
        """Record results of a step that is not finished."""
        self.facts |= facts
        self.write()

    def undo(self, *steps: str) -> None:
        """Record that steps are no longer done."""
        for step in steps:
            self.done.pop(step, None)
        self.write()

    def write(self) -> None:
        """Write the file atomically."""
        write_file(place_of(self.path), to_json(self.document()) + "\n")

    def document(self) -> JournalDocument:
        """Return the journal as it is written and printed."""
        return JournalDocument.of(self, schema=SCHEMA)


def journal_path(file: Path) -> Path:
    """Return the path of the journal of a settings file: ``cluster.move.json`` beside ``cluster.yaml``."""
    return file.with_name(f"{file.stem}.move.json")


@contextlib.contextmanager
def alone(file: Path) -> Iterator[None]:
    """Lock the settings file: one move of its cluster runs at a time.

    Raises:
        ArgumentError: there is no such file, or another process moves its cluster.
    """
    try:
        stream = file.open("rb")
    except OSError as error:
        raise ArgumentError(
            f"cannot read {file}: {error.strerror}", "name the settings file of the old cluster"
        ) from error
    with stream:
        if not try_lock(stream):
            raise ArgumentError(f"another process moves the cluster of {file}", "wait for its end")
        yield
