"""A job's user: name and ids, of which newuidmap(1) may give the programs of a user's containers more than one."""

from __future__ import annotations

import pwd
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, List, Tuple

from podwright_bootstrap.host import process
from podwright_bootstrap.host.errors import CommandError

SUBORDINATE = Path("/etc/subuid")  # lines of NAME_OR_ID:FIRST:COUNT, subuid(5)
NAME_LIMIT_S = 60  # A directory server may not answer.


@dataclass(frozen=True)
class NodeUser:
    """A user of this node."""

    uid: int
    name: str = ""  # while it is unknown
    subordinate: Tuple[range, ...] = ()

    @classmethod
    def of(cls, uid: int) -> NodeUser:
        """Ask for the name, and read which further ids it has."""
        name = _name(uid)
        return cls(uid, name, tuple(_subordinate({str(uid), name})))

    def owns(self, uid: int) -> bool:
        """Return whether a program or object with this id is the user's; ids of other accounts belong to them."""
        return uid == self.uid or (any(uid in ids for ids in self.subordinate) and not _has_account(uid))

    @property
    def find_words(self) -> List[str]:
        """Return find(1)'s expression for the user's files."""
        words = ["(", "-uid", str(self.uid)]
        for ids in self.subordinate:
            words += ["-o", "-nouser", "-uid", f"+{ids.start - 1}", "-uid", f"-{ids.stop}"]
        return [*words, ")"]


def _name(uid: int) -> str:
    try:
        return process.run("id", "--name", "--user", str(uid), timeout_s=NAME_LIMIT_S, quiet=True).output.strip()
    except CommandError:
        return ""


def _subordinate(owners: set[str]) -> Iterator[range]:
    lines = SUBORDINATE.read_text().splitlines() if SUBORDINATE.exists() else []
    for owner, _, ids in (line.partition(":") for line in lines):
        first_id, _, count = ids.partition(":")
        if owner in owners and first_id.isdigit() and count.isdigit():
            yield range(int(first_id), int(first_id) + int(count))


def _has_account(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True
