"""Find checkpoints: ``step-00000100/`` folders, complete or absent.

``checkpoint_writer.py`` writes a folder under a hidden name, its manifest (size and SHA-256 of every file) last, and
renames it when all of it is on disk:

    .metadata, __<rank>_<n>.distcp   weights and optimizer state, PyTorch's distributed checkpoint format
    rng-<rank>.pt                    state of the rank's random number generators
    trainer.json                     step, data position, shape of the model
    manifest.json                    all files; a folder without it is not a checkpoint. Also the size of the weights
                                     and, if no run can go on from them (``weights_check.py``), why: ``bad``

``saver.py`` decides when to write one and what to do if that fails. ``checkpoint_reader.py`` reads them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch.distributed as dist

from podwright_training.checkpoint.collective_io import (
    CheckpointError,
    CollectiveIO,
    DamagedCheckpointError,
    RuinedCheckpointError,
)
from podwright_training.checkpoint.manifest import TRAINER, check_hashes, mark_of
from podwright_training.folder_listing import paths_in
from podwright_training.run_folder import delete_folder, place_of

logger = logging.getLogger(__name__)
NAME = re.compile(r"step-\d+")


def folders(directory: Path, step: int) -> tuple[Path, Path]:
    """Return the folder of a step, and its name while it is written: beside the folder that a link leads to."""
    final = directory / f"step-{step:08d}"
    return final, place_of(final).with_name(f".{final.name}.partial")


def step_of(path: Path) -> int:
    """Return the step of a checkpoint's folder."""
    return int(path.name.removeprefix("step-"))


def retain(
    directory: Path, *, newest: int, every: int | None = None, group: dist.ProcessGroup | None = None
) -> list[Path]:
    """Delete all checkpoints but the ``newest`` intact ones and those of every ``every``-th step; return those.

    Raises:
        CheckpointError: One could not be deleted, the same error on every rank.
    """

    def delete() -> list[Path]:
        checkpoints = all_checkpoints(directory)
        retained = [path for path in checkpoints if damage_of(path) is None][:newest]
        old = [
            path
            for path in checkpoints
            if retained and path < retained[-1] and not (every and step_of(path) % every == 0)
        ]
        for path in old:
            delete_folder(path)
        return [path for path in checkpoints if path not in old]

    return CollectiveIO(directory, group).first_rank(delete)


def newest(directory: Path) -> Path | None:
    """Return the newest intact checkpoint, as ``intact`` does."""
    return next(_intact(directory), None)


def intact(directory: Path) -> list[Path]:
    """Return all checkpoints that look intact, newest first; log and skip damaged ones, and those marked bad.

    Their files are those of the manifest, with their recorded sizes, and ``trainer.json`` has its hash. The hashes of
    the others are checked when they are read.
    """
    return list(_intact(directory))


def _intact(directory: Path) -> Iterator[Path]:
    for path in all_checkpoints(directory):
        damage = damage_of(path)
        if damage is None:
            yield path
        else:
            logger.warning("%s; skipped", damage)


def find(directory: Path, step: int | None = None) -> Path:
    """Return the checkpoint of a step, or the newest.

    Raises:
        CheckpointError: no checkpoint is intact, or that of the step is not; the message names those that are.
    """
    checkpoints = {step_of(path): path for path in intact(directory)}
    if not checkpoints:
        raise CheckpointError(f"{directory} has no complete checkpoint yet")
    if step is not None and step not in checkpoints:
        steps = ", ".join(map(str, sorted(checkpoints)))
        has = f"step{'s' if len(checkpoints) > 1 else ''} {steps}"
        raise CheckpointError(f"{directory} has no complete checkpoint of step {step}; it has {has}")
    return checkpoints[max(checkpoints) if step is None else step]


def agree_on_intact(directories: Sequence[Path]) -> list[Path]:
    """Return the first rank's ``intact`` of the first folder that has any, on all ranks."""
    return CollectiveIO(directories[0]).first_rank(lambda: next(filter(None, map(intact, directories)), []))


def marked_bad(directory: Path) -> str:
    """Return why the newest checkpoint that is marked bad is; empty if none is."""
    return next(filter(None, map(mark_of, all_checkpoints(directory))), "")


def all_checkpoints(directory: Path) -> list[Path]:
    """Return all checkpoints' folders, damaged ones too, newest first."""
    return sorted((path for path in paths_in(directory, "step-*") if NAME.fullmatch(path.name)), reverse=True)


def damage_of(path: Path) -> DamagedCheckpointError | None:
    """Return why a checkpoint cannot be resumed, as far as sizes, ``trainer.json`` and its mark show; else ``None``."""
    try:
        check_hashes(path, [path / TRAINER])
    except DamagedCheckpointError as damage:
        return damage
    if bad := mark_of(path):
        return RuinedCheckpointError(f"checkpoint {path} is marked bad: {bad}")
    return None
