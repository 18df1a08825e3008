"""Checkpoints: ``step-00000100/`` folders that are whole or do not exist.

A folder is written under a hidden name, its manifest (size and SHA-256 of every file) last, and renamed when all of it
is on disk:

    .metadata, __<rank>_<n>.distcp   weights and optimizer state, PyTorch's distributed checkpoint format
    rng-<rank>.pt                    state of the rank's random number generators
    trainer.json                     step, data position, shape of the model
    manifest.json                    what must be here; without it, this is no checkpoint
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as load_tensors
from torch.distributed.checkpoint.state_dict_saver import save as save_tensors
from torch.optim import Optimizer

from podwright_training.config import ModelConfig, UserError
from podwright_training.run import write_atomically

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
TRAINER = "trainer.json"
HASH_CHUNK_BYTES = 4 * 2**20

Result = TypeVar("Result")


class CheckpointError(UserError):
    """A checkpoint cannot be written or used; the message names it and says why."""


class DamagedCheckpointError(CheckpointError):
    """Its files are not those that were written."""


@dataclass(frozen=True)
class TrainerState:
    """What a checkpoint holds besides tensors."""

    step: int
    sequences: int  # drawn from the data so far, by all ranks
    data: dict[str, Any]  # position of the data, of all ranks
    model: dict[str, Any]  # ModelConfig
    world_size: int


def save(directory: Path, state: TrainerState, *, model: nn.Module, optimizer: Optimizer, keep: int) -> Path:
    """Write a checkpoint, with all ranks, and delete all but the newest ``keep``.

    Raises:
        CheckpointError: It could not be written, the same error on every rank; older checkpoints are as they were.
    """
    final = directory / f"step-{state.step:08d}"
    partial = directory / f".{final.name}.partial"
    _first_rank(lambda: _clear(directory, partial))
    _save_tensors(partial, model, optimizer)
    _together(lambda: _save_rng(partial / f"rng-{dist.get_rank():05d}.pt"))
    _first_rank(lambda: write_atomically(partial / TRAINER, json.dumps(asdict(state))))
    files = {name: entry for part in _together(lambda: _describe(_own_share(partial))) for name, entry in part.items()}
    _first_rank(lambda: _commit(partial, final, files))
    _first_rank(lambda: _delete(_complete_and_damaged(directory)[keep:]))
    return final


def newest(directory: Path) -> Path | None:
    """The newest checkpoint whose files all have their size; damaged ones are named in a warning and passed over."""
    return next(iter(intact(directory)), None)


def intact(directory: Path) -> list[Path]:
    """All checkpoints whose files have their size, the newest first; damaged ones are named in a warning."""
    found = []
    for path in _complete_and_damaged(directory):
        try:
            _check_sizes(path)
            found.append(path)
        except DamagedCheckpointError as error:
            logger.warning("%s; passed over", error)
    return found


def read_state(path: Path) -> TrainerState:
    """What a checkpoint holds besides tensors."""
    return TrainerState(**json.loads((path / TRAINER).read_text()))


def model_config(path: Path) -> ModelConfig:
    """The shape of the model in a checkpoint."""
    return ModelConfig.from_dict(read_state(path).model)


def agree_on_intact(directories: Iterable[Path]) -> list[Path]:
    """What the first rank finds ``intact`` in the first folder that has any: the same list on all ranks."""
    return _first_rank(lambda: next(filter(None, map(intact, directories)), []))


def restore(path: Path, *, model: nn.Module, optimizer: Optimizer) -> TrainerState:
    """Continue from a checkpoint, with all ranks: tensors and random numbers are set, the rest is returned.

    The optimizer keeps its own hyperparameters. A rank that the saving job did not have keeps its random numbers.

    Raises:
        DamagedCheckpointError: On every rank, if any finds a file that is not the one written; nothing was loaded.
        CheckpointError: It holds other tensors than the model and optimizer need.
    """
    _together(lambda: _check_hashes(path, _own_share(path)))
    _allocate(optimizer)
    _load(_tensors(model, optimizer), path, alone=False)
    _together(lambda: _load_rng(path / f"rng-{dist.get_rank():05d}.pt"))
    return read_state(path)


def load_weights(model: nn.Module, path: Path) -> None:
    """Load the weights alone into a model that is not divided; needs no process group.

    Raises:
        DamagedCheckpointError: A file is not the one that was written.
        CheckpointError: It holds other weights than the model has.
    """
    _check_hashes(path, sorted(path.iterdir()))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # so it shall be
        _load({"model": _weights(model)}, path, alone=True)


def _clear(directory: Path, partial: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for left_over in directory.glob(".step-*"):
        shutil.rmtree(left_over)
    partial.mkdir()


def _save_tensors(partial: Path, model: nn.Module, optimizer: Optimizer) -> None:
    try:
        save_tensors(_tensors(model, optimizer), storage_writer=FileSystemWriter(partial, sync_files=True))
    except CheckpointException as error:
        causes = {str(failure[0]) for failure in error.failures.values()}
        raise CheckpointError(f"cannot write {partial}: {'; '.join(sorted(causes))}") from error


def _tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, dict[str, Tensor]]:
    """Weights, and the optimizer's memory by the parameters' names; hyperparameters are the configuration's."""
    named = model.named_parameters()
    memory = {f"{name}.{key}": value for name, item in named for key, value in optimizer.state[item].items()}
    return {"model": _weights(model), "optimizer": memory}


def _weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def _allocate(optimizer: Optimizer) -> None:
    """Make a new optimizer allocate its memory, by a step that changes nothing."""
    for group in optimizer.param_groups:
        group["lr"] = 0.0
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()


def _save_rng(path: Path) -> None:
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    with path.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def _load_rng(path: Path) -> None:
    if not path.exists():
        return
    state = torch.load(path, weights_only=True)
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def _own_share(path: Path) -> list[Path]:
    """The files this rank hashes: together the ranks read each file once."""
    return sorted(path.iterdir())[dist.get_rank() :: dist.get_world_size()]


def _describe(files: Iterable[Path]) -> dict[str, dict[str, Any]]:
    return {file.name: {"bytes": file.stat().st_size, "sha256": _sha256(file)} for file in files}


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(HASH_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _commit(partial: Path, final: Path, files: dict[str, Any]) -> None:
    write_atomically(partial / MANIFEST, json.dumps({"files": files}, indent=1))
    _sync_folder(partial)
    _delete([final] if final.exists() else [])
    partial.rename(final)
    _sync_folder(final.parent)


def _sync_folder(path: Path) -> None:
    """Put a folder's names on disk: what was renamed in it stays renamed."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _delete(paths: Iterable[Path]) -> None:
    """Delete folders; one that is half deleted no longer has a checkpoint's name."""
    for path in paths:
        hidden = path.with_name(f".{path.name}.deleted")
        path.rename(hidden)
        shutil.rmtree(hidden)


def _complete_and_damaged(directory: Path) -> list[Path]:
    return sorted(directory.glob("step-*"), reverse=True)


def _manifest(path: Path) -> dict[str, dict[str, Any]]:
    try:
        files: dict[str, dict[str, Any]] = json.loads((path / MANIFEST).read_text())["files"]
    except (OSError, ValueError, KeyError) as error:
        raise DamagedCheckpointError(f"checkpoint {path} is damaged: {MANIFEST}: {error}") from error
    return files


def _check_sizes(path: Path) -> None:
    for name, entry in _manifest(path).items():
        size = (path / name).stat().st_size if (path / name).exists() else None
        if size != entry["bytes"]:
            found = "is missing" if size is None else f"has {size} bytes"
            raise DamagedCheckpointError(f"checkpoint {path} is damaged: {name} {found}, {entry['bytes']} were written")


def _check_hashes(path: Path, files: Iterable[Path]) -> None:
    _check_sizes(path)
    written = _manifest(path)
    for file in files:
        if file.name in written and _sha256(file) != written[file.name]["sha256"]:
            raise DamagedCheckpointError(f"checkpoint {path} is damaged: the content of {file.name} has changed")


def _load(tensors: dict[str, Any], path: Path, *, alone: bool) -> None:
    """Fill ``tensors`` in place. The library leaves what it does not find in them alone, so keys are compared first."""
    reader = FileSystemReader(path)
    saved = {key for key in reader.read_metadata().state_dict_metadata if key.split(".")[0] in tensors}
    wanted = {f"{part}.{name}" for part, content in tensors.items() for name in content}
    if saved != wanted:
        examples = ", ".join(sorted(saved ^ wanted)[:3])
        raise CheckpointError(
            f"checkpoint {path} is of another model: {len(wanted - saved)} tensors are missing in it, "
            f"{len(saved - wanted)} are unknown here ({examples} …)"
        )
    load_tensors(tensors, storage_reader=reader, no_dist=alone)


def _first_rank(action: Callable[[], Result]) -> Result:
    """Do something on the first rank for all: everybody gets its result, or the same error."""
    results = _together(lambda: [action()] if dist.get_rank() == 0 else [])
    return results[0][0]


def _together(action: Callable[[], Result]) -> list[Result]:
    """Do something on all ranks: everybody gets everybody's results, or the same error."""
    outcome: Any = None
    try:
        outcome = action()
    except DamagedCheckpointError as damage:
        outcome = damage
    except OSError as failure:
        outcome = CheckpointError(f"cannot use {failure.filename}: {failure.strerror}")
    outcomes: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(outcomes, outcome)
    for problem in outcomes:
        if isinstance(problem, CheckpointError):
            raise problem
    return outcomes
