"""Slurm's accounts: clusters, accounts and the users in them.

https://slurm.schedmd.com/sacctmgr.html
"""

from __future__ import annotations

from typing import Iterable, Iterator

from podwright_bootstrap import contract
from podwright_bootstrap.host import shell

SACCTMGR = contract.SLURM_ROOT / "bin" / "sacctmgr"
ACCOUNT = "default"  # whoever has no other


def answers() -> bool:
    """Return whether slurmdbd answers."""
    return _show("cluster", check=False).exit_code == 0


def register(cluster: str) -> Iterator[str]:
    """The cluster and its default account are known."""
    if cluster not in _rows("cluster", "format=cluster"):
        _add("cluster", cluster)
        yield f"registered cluster {cluster}"
    if ACCOUNT not in _rows("assoc", f"cluster={cluster}", "format=account"):
        _add("account", ACCOUNT, f"cluster={cluster}", "description=everybody", "organization=podwright")
        yield f"added account {ACCOUNT}"


def associate(users: Iterable[str], cluster: str) -> Iterator[str]:
    """Each user has an account on the cluster: the default one, unless somebody gave another."""
    known = _rows("assoc", f"cluster={cluster}", "format=user")
    for user in users:
        if user not in known:
            _add("user", user, f"account={ACCOUNT}", f"cluster={cluster}")
            yield f"added {user} to account {ACCOUNT}"


def _rows(*words: str) -> list[str]:
    return _show(*words).output.split()


def _show(*words: str, check: bool = True) -> shell.Outcome:
    options = ("--noheader", "--parsable2")
    return shell.run(SACCTMGR, *options, "show", *words, timeout_s=60, check=check, quiet=True)


def _add(kind: str, name: str, *words: str) -> None:
    shell.run(SACCTMGR, "--immediate", "add", kind, name, *words, timeout_s=60)
