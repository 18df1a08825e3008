"""Slurm's accounts: clusters, accounts and the users in them.

https://slurm.schedmd.com/sacctmgr.html
"""

from __future__ import annotations

from typing import Iterator, List, Sequence

from podwright_bootstrap import contract
from podwright_bootstrap.host import process

SACCTMGR = contract.SLURM_ROOT / "bin" / "sacctmgr"
ACCOUNT = "default"  # whoever has no other


def answers() -> bool:
    """Return whether slurmdbd answers."""
    return _show("cluster", check=False).exit_code == 0


def register(cluster: str) -> Iterator[str]:
    """The cluster and its default account are known."""
    if cluster not in _rows("cluster", "format=cluster"):
        change("add", "cluster", cluster)
        yield f"registered cluster {cluster}"
    if ACCOUNT not in _rows("assoc", f"cluster={cluster}", "format=account"):
        change("add", "account", ACCOUNT, f"cluster={cluster}", "description=everybody", "organization=podwright")
        yield f"added account {ACCOUNT}"


def table(*words: str, columns: Sequence[str]) -> List[List[str]]:
    """Return the rows of ``show``, cell by cell.

    Coordinators of accounts write names and descriptions, and sacctmgr escapes nothing: a row with more or fewer cells
    is left out, because a part of a text would pass for another cell.
    """
    lines = _show(*words, f"format={','.join(columns)}").output.splitlines()
    return [cells for cells in (line.split("|") for line in lines) if len(cells) == len(columns)]


def change(verb: str, *words: str) -> None:
    """Add, modify or remove; raises ``CommandError``, also where nothing was changed."""
    process.run(SACCTMGR, "--immediate", verb, *words, timeout_s=60)


def _rows(*words: str) -> list[str]:
    return _show(*words).output.split()


def _show(*words: str, check: bool = True) -> process.Outcome:
    options = ("--noheader", "--parsable2")
    return process.run(SACCTMGR, *options, "show", *words, timeout_s=60, check=check, quiet=True)
