"""Use files from all ranks of a group, with every rank learning of any rank's error."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from podwright_training.errors import UserError

PASSING = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ETIMEDOUT}  # may pass by itself

Result = TypeVar("Result")


class CheckpointError(UserError):
    """A checkpoint could not be written or used; the message names it and says why.

    Attributes:
        passing: The cause may pass by itself, like a full disk: try again later.
    """

    def __init__(self, message: str, *, passing: bool = False) -> None:
        super().__init__(message)
        self.passing = passing


class DamagedCheckpointError(CheckpointError):
    """A checkpoint's files have changed since they were written."""


class RuinedCheckpointError(DamagedCheckpointError):
    """No run can go on from a checkpoint's tensors, or its manifest says so."""


class CollectiveIO:
    """File operations of all ranks of a group on a shared file or folder; a process without a group is all ranks."""

    def __init__(self, path: Path, group: dist.ProcessGroup | None = None) -> None:
        self._path = path
        self._group = group

    def first_rank(self, action: Callable[[], Result]) -> Result:
        """Run ``action`` on the first rank; return its result, or raise its error, on all ranks."""
        return self.all_ranks(lambda: [action()] if _rank() == 0 else [])[0][0]

    def all_ranks(self, action: Callable[[], Result]) -> list[Result]:
        """Run ``action`` on all ranks; return all results, or raise the same error, on all ranks."""
        outcome: Any = None
        try:
            outcome = action()
        except CheckpointError as problem:
            outcome = problem
        except OSError as failure:
            path, why = failure.filename or self._path, failure.strerror or failure
            outcome = CheckpointError(f"cannot use {path}: {why}", passing=failure.errno in PASSING)
        outcomes: list[Any] = [outcome] * _ranks()
        if dist.is_initialized():
            dist.all_gather_object(outcomes, outcome, group=self._group)
        problems = [result for result in outcomes if isinstance(result, CheckpointError)]
        if problems:
            raise min(problems, key=lambda problem: problem.passing)
        return outcomes

    @staticmethod
    def share(items: Sequence[Result]) -> list[Result]:
        """Return this rank's items of a list; every item belongs to exactly one rank."""
        return list(items[_rank() :: _ranks()])


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _ranks() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1
