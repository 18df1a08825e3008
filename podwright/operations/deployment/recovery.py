"""Adopt what an interrupted deployment made and no state lists, before the next command plans.

An interrupt cancels the provider's calls on their way: AWS may still do them. A deployment that plans then makes a
second network, and one that destroys leaves the first behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from podwright.errors import AwsError
from podwright.operations.deployment.adopt import adopt
from podwright.operations.deployment.kit import OUTPUT

if TYPE_CHECKING:
    from podwright.settings.root import Settings


def note_file(settings: Settings, folder: Path) -> Path:
    """Return the file that is there from the beginning of a deployment until it succeeds."""
    return folder / OUTPUT / f"podwright.{settings.name}.{settings.region}.unfinished"


@contextmanager
def noted(settings: Settings, folder: Path) -> Iterator[None]:
    """Leave the note behind if the block does not end well."""
    note_file(settings, folder).touch()
    yield
    forget(settings, folder)


def forget(settings: Settings, folder: Path) -> None:
    """Remove the note: the states list all that there is."""
    note_file(settings, folder).unlink(missing_ok=True)


def recover(settings: Settings, folder: Path, say: Callable[[str], None], *, apply: bool = True) -> None:
    """After a deployment that did not end well, adopt its orphans; else do nothing.

    Args:
        settings: of the cluster, whose stacks are synthesized.
        folder: it is deployed from.
        say: prints one line.
        apply: whether to change Terraform's state.

    Raises:
        TerraformError: Terraform cannot plan or import.
    """
    if not note_file(settings, folder).exists():
        return
    say("the last deployment from here did not end: looking for resources that no state lists")
    try:
        for outcome in adopt(settings, folder=folder, apply=apply):
            say(outcome.text)
    except AwsError as error:  # a role that may deploy and not list
        say(f"not looked for: {error}; another role can: `podwright adopt --apply`")
