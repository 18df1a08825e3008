"""Write a checkpoint with all ranks: completely, or not at all.

Optimizer states are stored by parameter name, so that any number of ranks in any layout can resume.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_saver import save as write_distributed
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from podwright_training.beats import Pulse
from podwright_training.checkpoint import weights_check
from podwright_training.checkpoint.collective_io import (
    PASSING,
    CheckpointError,
    CollectiveIO,
    RuinedCheckpointError,
)
from podwright_training.checkpoint.manifest import MANIFEST, describe, mark_of, share_of_files, weights_rms
from podwright_training.checkpoint.random_state import rng_file, save_rng
from podwright_training.checkpoint.snapshot import Snapshot
from podwright_training.checkpoint.step_folder import all_checkpoints, damage_of, folders
from podwright_training.checkpoint.trainer_state import write_state
from podwright_training.checkpoint.weights_check import Measured
from podwright_training.folder_listing import paths_in
from podwright_training.run_folder import commit_folder, recover_folders, write_atomically


def write(directory: Path, snapshot: Snapshot, *, group: dist.ProcessGroup | None = None) -> Path:
    """Write a checkpoint, with all ranks of ``group``, and return its folder.

    Raises:
        CheckpointError: It could not be written, the same error on every rank; older checkpoints are unchanged, and
            this one's files are deleted.
        RuinedCheckpointError: No run can go on from its tensors; its manifest says so.
    """
    final, partial = folders(directory, snapshot.state.step)
    collective = CollectiveIO(partial, group)
    try:
        collective.first_rank(lambda: _clear(directory, partial))
        save_tensors(partial, snapshot.tensors, group)
        collective.all_ranks(lambda: save_rng(rng_file(partial), snapshot.rng))
        collective.first_rank(lambda: write_state(partial, snapshot.state))
        parts = collective.all_ranks(
            lambda: (describe(share_of_files(collective, partial)), weights_check.measure(snapshot.tensors))
        )
        files = {name: entry for described, _ in parts for name, entry in described.items()}
        Pulse.from_environment().check()  # it may have been frozen meanwhile
        bad = collective.first_rank(lambda: commit_checked(partial, final, files, [part for _, part in parts]))
    except CheckpointError:
        collective.first_rank(lambda: shutil.rmtree(partial, ignore_errors=True))  # others need its space
        raise
    if bad:
        raise RuinedCheckpointError(f"the weights of step {snapshot.state.step} are of no use: {bad}")
    return final


def _clear(directory: Path, partial: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    recover_folders(directory)
    for left_over in paths_in(directory, ".step-*"):
        if left_over.is_symlink():
            left_over.unlink()
        else:
            shutil.rmtree(left_over)
    shutil.rmtree(partial, ignore_errors=True)  # A killed process may have left it where a link leads.
    partial.mkdir()


class _Writer(FileSystemWriter):
    """Raise the file system's error: PyTorch hides a full disk behind "unexpected pos"."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        try:
            return super().write_data(plan, planner)
        except RuntimeError as error:
            if isinstance(error.__context__, OSError):
                raise error.__context__ from error
            raise


def save_tensors(
    partial: Path,
    tensors: dict[str, dict[str, Tensor]],
    group: dist.ProcessGroup | None,
    *,
    durable: bool = True,
    planner: SavePlanner | None = None,
) -> None:
    """Write the tensors of all ranks, and the index; ``durable`` files are on disk then.

    Raises:
        CheckpointError: A rank could not, the same error on every rank.
    """
    try:
        write_distributed(
            tensors, storage_writer=_Writer(partial, sync_files=durable), planner=planner, process_group=group
        )
    except CheckpointException as error:
        failures = [failure[0] for failure in error.failures.values()]
        for failure in failures:
            if isinstance(failure, CheckpointError):  # The checkpoint that is converted is unreadable.
                raise failure from error
        raise CheckpointError(
            f"cannot write {partial}: {'; '.join(sorted({str(failure) for failure in failures}))}",
            passing=all(isinstance(failure, OSError) and failure.errno in PASSING for failure in failures),
        ) from error


def commit_checked(partial: Path, final: Path, files: dict[str, Any], parts: Sequence[Measured]) -> str:
    """Commit a checkpoint; return why its manifest marks it as bad, empty if it is good.

    After a rollback, a bad one does not replace a good one of the same step.
    """
    before = [path for path in all_checkpoints(final.parent) if path < final and not mark_of(path)]
    history = filter(None, map(weights_rms, before[: weights_check.HISTORY]))
    bad = weights_check.complaint(parts, history)
    if bad and final.is_dir() and damage_of(final) is None:
        shutil.rmtree(partial)
        return bad
    commit(partial, final, files, weights={"rms": weights_check.rms(parts)}, **({"bad": bad} if bad else {}))
    return bad


def commit(partial: Path, final: Path, files: dict[str, Any], **facts: Any) -> None:
    """Write the manifest and rename the folder to its final name."""
    write_atomically(partial / MANIFEST, json.dumps({"files": files, **facts}, indent=1, allow_nan=False))
    commit_folder(partial, final)
