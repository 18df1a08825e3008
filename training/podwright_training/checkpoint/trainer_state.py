"""The contents of a checkpoint without its tensors: ``trainer.json``."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from podwright_training.checkpoint.collective_io import (
    CheckpointError,
    DamagedCheckpointError,
)
from podwright_training.checkpoint.manifest import TRAINER, read_text
from podwright_training.config.architecture import ModelConfig
from podwright_training.run_folder import write_atomically


@dataclass(frozen=True)
class TrainerState:
    """The contents of a checkpoint without its tensors."""

    step: int
    sequences: int  # drawn from the data so far, by all ranks
    data: dict[str, Any]  # position of the data, of all ranks
    model: dict[str, Any]  # ModelConfig
    world_size: int
    losses: list[float] = field(default_factory=list)  # The guard continues from the last steps' losses.
    loss_scale: dict[str, float] = field(default_factory=dict)  # LossScale; empty but in fp16


def read_state(path: Path) -> TrainerState:
    """Return the contents of a checkpoint without its tensors.

    Raises:
        CheckpointError: A newer version wrote them.
        DamagedCheckpointError: They are not what a trainer writes.
    """
    try:
        content = json.loads(read_text(path / TRAINER))
        model = content.get("model") or {}
        known_fields = {item.name for kind in (TrainerState, ModelConfig) for item in fields(kind)}
        unknown = sorted({*content, *model} - known_fields)
        if unknown:
            raise CheckpointError(
                f"checkpoint {path} was written by a newer version of podwright-training: {TRAINER} has "
                f"{', '.join(unknown)}, which this version does not know; update podwright-training"
            )
        return TrainerState(**content)
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedCheckpointError(f"checkpoint {path} is damaged: {TRAINER}: {error}") from error


def model_config(path: Path) -> ModelConfig:
    """Return the model's architecture from a checkpoint."""
    return ModelConfig.from_dict(read_state(path).model)


def tokenizer_digest(path: Path) -> str | None:
    """Return the digest of the tokenizer that a checkpoint was trained with (``Encoder.digest``), if it has one."""
    digest: str | None = read_state(path).data.get("tokenizer")
    return digest


def adds_bos(path: Path) -> bool:
    """Return whether each document began with BOS in the training of a checkpoint; earlier versions added none."""
    return bool(read_state(path).data.get("add_bos", False))


def write_state(partial: Path, state: TrainerState) -> None:
    """Write the contents without tensors."""
    write_atomically(partial / TRAINER, json.dumps(asdict(state)))
