"""Agree on one leader through the run's folder on the shared file system.

A term is a file that can be made only once, so that of several hosts that want to lead one does. Its leader renews it;
hosts that cannot reach the leader and see a term that nobody renews may begin the next. Clocks of hosts are never
compared: a reader waits for a *change*, by its own clock.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

from podwright_training.errors import UserError
from podwright_training.folder_listing import paths_in
from podwright_training.run_folder import write_atomically, write_once

KEPT_TERMS = 10


@dataclass(frozen=True)
class Term:
    """One leader's term: its address, and the state that the next leader must know."""

    number: int
    leader: str  # the member's name
    address: str
    port: int
    job: str | None  # Slurm's number of the job array
    renewals: int = 0
    generation: int = 0  # the last one
    members: tuple[str, ...] = ()  # The members that loaded the state last, by rank.
    step: int = 0  # the last one that was taken
    ended: int | None = None  # exit status of the run
    open: bool = False  # its leader has lost the others: whoever reaches more of them may lead


_TYPES = {name: kind for name, kind in get_type_hints(Term).items() if name != "members"}


class Terms:
    """The terms of a run: ``00000001.json`` and so on, in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def newest(self) -> Term | None:
        """Return the newest term.

        Raises:
            UserError: Its file is damaged, or another version of podwright wrote it.
        """
        paths = (path for path in paths_in(self._folder, "[0-9]*.json") if path.stem.isdecimal())
        for path in sorted(paths, key=lambda path: int(path.stem), reverse=True):
            with suppress(FileNotFoundError):  # a later leader has removed it
                return _read(path)
        return None

    def claim(self, term: Term) -> bool:
        """Begin a term; return False if another host has begun it."""
        if not write_once(self._path(term.number), json.dumps(asdict(term))):
            return False
        for path in paths_in(self._folder, "[0-9]*.json")[:-KEPT_TERMS]:
            path.unlink(missing_ok=True)
        return True

    def renew(self, term: Term) -> Term | None:
        """Renew ``term`` with the changes; return the term, or None if a newer one began."""
        newest = self.newest()
        if newest and newest.number > term.number:
            return None
        renewed = replace(term, renewals=term.renewals + 1)
        write_atomically(self._path(term.number), json.dumps(asdict(renewed)))
        return renewed

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:08}.json"


def _read(path: Path) -> Term:
    try:
        return _term(json.loads(path.read_text()))
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{path} is damaged, or another version of podwright wrote it ({error}): end all hosts of the run, remove "
            "the file, and start again"
        ) from error


def _term(values: Any) -> Term:
    term = Term(**{**values, "members": tuple(values["members"])})
    wrong = [name for name, kind in _TYPES.items() if not isinstance(getattr(term, name), kind)]
    if wrong or not all(isinstance(name, str) for name in term.members):
        raise ValueError(f"wrong values of {', '.join(wrong) or 'members'}")
    return term


class Election:
    """Decide the next action of a host without a leader.

    Args:
        timeout_s: How long a term that nobody renews counts, where its leader does not answer.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._seen: tuple[int, int] | None = None
        self._since_s = 0.0
        self._refused: int | None = None
        self._open = False

    def look(self, term: Term | None, now: float) -> None:
        """Take note of the newest term, from the folder or from its leader."""
        number_and_renewals = (term.number, term.renewals) if term else None
        if number_and_renewals != self._seen:
            self._seen, self._since_s = number_and_renewals, now
            self._open = term is not None and term.open

    def refuse(self, number: int) -> None:
        """Take note that no process listens where the leader of a term was: it has ended."""
        self._refused = number

    def may_claim(self, now: float) -> bool:
        """Return whether the next term may begin."""
        if self._seen is None or self._open or self._seen[0] == self._refused:
            return True
        return now - self._since_s > self._timeout_s
