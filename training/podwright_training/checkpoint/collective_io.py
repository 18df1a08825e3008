"""What the ranks of a group do to files, each knowing how the others fared."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from podwright_training.errors import UserError

PASSING = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ETIMEDOUT}  # another time it may work

Result = TypeVar("Result")


class CheckpointError(UserError):
    """A checkpoint cannot be written or used; the message names it and says why.

    Attributes:
        passing: The reason may pass by itself, as a full disk does: it is worth another try later.
    """

    def __init__(self, message: str, *, passing: bool = False) -> None:
        super().__init__(message)
        self.passing = passing


class CollectiveIO:
    """All ranks of a group at one place, a file or folder that they share."""

    def __init__(self, place: Path, group: dist.ProcessGroup | None = None) -> None:
        self._place = place
        self._group = group

    def first_rank(self, action: Callable[[], Result]) -> Result:
        """Do something on the first rank for all: everybody gets its result, or the same error."""
        return self.all_ranks(lambda: [action()] if dist.get_rank() == 0 else [])[0][0]

    def all_ranks(self, action: Callable[[], Result]) -> list[Result]:
        """Do something on all ranks: everybody gets everybody's results, or the same error."""
        outcome: Any = None
        try:
            outcome = action()
        except CheckpointError as problem:
            outcome = problem
        except OSError as failure:
            where, why = failure.filename or self._place, failure.strerror or failure
            outcome = CheckpointError(f"cannot use {where}: {why}", passing=failure.errno in PASSING)
        outcomes: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(outcomes, outcome, group=self._group)
        problems = [found for found in outcomes if isinstance(found, CheckpointError)]
        if problems:
            raise min(problems, key=lambda problem: problem.passing)
        return outcomes

    @staticmethod
    def share(items: Sequence[Result]) -> list[Result]:
        """Return this rank's items of a list; every item belongs to exactly one rank."""
        return list(items[dist.get_rank() :: dist.get_world_size()])
