"""Write and read checkpoints: ``step-00000100/`` folders, complete or absent.

A folder is written under a hidden name, its manifest (size and SHA-256 of every file) last, and renamed when all of it
is on disk:

    .metadata, __<rank>_<n>.distcp   weights and optimizer state, PyTorch's distributed checkpoint format
    rng-<rank>.pt                    state of the rank's random number generators
    trainer.json                     step, data position, shape of the model
    manifest.json                    all files; a folder without it is not a checkpoint. Also the size of the weights
                                     and, if no run can go on from them (``weights_check.py``), why: ``bad``

``saver.py`` decides when to write one and what to do if that fails. Reading one runs no code from it: tensors are read
as weights only, and ``index.py`` reads the index of the tensors.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_loader import load as load_tensors
from torch.distributed.checkpoint.state_dict_saver import save as write_distributed
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from podwright_training import regular_file
from podwright_training.beats import Pulse
from podwright_training.checkpoint import weights_check
from podwright_training.checkpoint.collective_io import (
    PASSING,
    CheckpointError,
    CollectiveIO,
    DamagedCheckpointError,
    RuinedCheckpointError,
)
from podwright_training.checkpoint.index import IndexedReader
from podwright_training.checkpoint.weights_check import Measured
from podwright_training.config.architecture import ModelConfig
from podwright_training.optim import EMA, Optimizers
from podwright_training.regular_file import open_regular
from podwright_training.run_folder import commit_folder, delete_folder, place_of, recover_folders, write_atomically

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
TRAINER = "trainer.json"
TEXT_BYTES = 256 << 20  # read of a manifest, or of the trainer's state: many times those of the largest jobs
NAME = re.compile(r"step-\d+")
FILE_NAME = re.compile(r"[\w.-]+")  # in a manifest: no path
SHA256 = re.compile(r"[0-9a-f]{64}")
HASH_CHUNK_BYTES = 4 * 2**20
TEXT_BYTES = 1 << 28  # more than the manifest of a million files


@dataclass(frozen=True)
class TrainerState:
    """The contents of a checkpoint without its tensors."""

    step: int
    sequences: int  # drawn from the data so far, by all ranks
    data: dict[str, Any]  # position of the data, of all ranks
    model: dict[str, Any]  # ModelConfig
    world_size: int
    losses: list[float] = field(default_factory=list)  # of the last steps, for the guard
    loss_scale: dict[str, float] = field(default_factory=dict)  # LossScale; empty but in fp16


@dataclass(frozen=True)
class Snapshot:
    """One rank's part of a checkpoint: the state of its trainer at one step."""

    state: TrainerState
    tensors: dict[str, dict[str, Tensor]]
    rng: dict[str, Tensor]

    @classmethod
    def of(cls, state: TrainerState, *, weights: Mapping[str, Tensor], optimizers: Optimizers) -> Snapshot:
        """Take the current state; the tensors are the trainer's own, not copies."""
        rng = {"cpu": torch.get_rng_state()}
        if own := _device_with_random_numbers():
            rng[own] = torch.get_device_module(own).get_rng_state()
        return cls(state, _tensors(weights, optimizers), rng)


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
            lambda: (describe(_own_share(collective, partial)), weights_check.measure(snapshot.tensors))
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


def folders(directory: Path, step: int) -> tuple[Path, Path]:
    """Return the folder of a step, and its name while it is written: beside the folder that a link leads to."""
    final = directory / f"step-{step:08d}"
    return final, place_of(final).with_name(f".{final.name}.partial")


def step_of(path: Path) -> int:
    """Return the step of a checkpoint's folder."""
    return int(path.name.removeprefix("step-"))


def rng_file(path: Path) -> Path:
    """Return the file with this rank's random states."""
    return path / f"rng-{dist.get_rank():05d}.pt"


def retain(
    directory: Path, *, newest: int, every: int | None = None, group: dist.ProcessGroup | None = None
) -> list[Path]:
    """Delete all checkpoints but the ``newest`` intact ones and those of every ``every``-th step; return the rest.

    Raises:
        CheckpointError: One could not be deleted, the same error on every rank.
    """

    def delete() -> list[Path]:
        found = _complete_and_damaged(directory)
        kept = [path for path in found if _damage(path) is None][:newest]
        old = [path for path in found if kept and path < kept[-1] and not (every and step_of(path) % every == 0)]
        for path in old:
            delete_folder(path)
        return [path for path in found if path not in old]

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
    for path in _complete_and_damaged(directory):
        damage = _damage(path)
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


def read_state(path: Path) -> TrainerState:
    """Return the contents of a checkpoint without its tensors.

    Raises:
        CheckpointError: A newer version wrote them.
        DamagedCheckpointError: They are not what a trainer writes.
    """
    try:
        content = json.loads(_read_text(path / TRAINER))
        model = content.get("model") or {}
        known = {item.name for kind in (TrainerState, ModelConfig) for item in fields(kind)}
        unknown = sorted({*content, *model} - known)
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


def agree_on_intact(directories: Sequence[Path]) -> list[Path]:
    """Return the first rank's ``intact`` of the first folder that has any, on all ranks."""
    return CollectiveIO(directories[0]).first_rank(lambda: next(filter(None, map(intact, directories)), []))


def restore(path: Path, *, weights: Mapping[str, Tensor], optimizers: Optimizers) -> TrainerState:
    """Load tensors and random states from a checkpoint, on all ranks; return the rest of its state.

    A rank that the saving job did not have keeps its random state. Raises as ``load`` does.
    """
    state = load(path, weights=weights, optimizers=optimizers)
    load_rng(path)
    return state


def load(path: Path, *, weights: Mapping[str, Tensor], optimizers: Optimizers | None) -> TrainerState:
    """Load weights from a checkpoint, and the optimizers' states unless ``None``, on all ranks; return its state.

    Mesh and number of ranks may differ from those at the save. The optimizers keep their own hyperparameters.

    Raises:
        DamagedCheckpointError: A file has changed, on any rank; raised on every rank before anything is loaded.
        CheckpointError: Its tensors are not those of the model and optimizer.
    """
    collective = CollectiveIO(path)
    collective.first_rank(lambda: _check_sizes(path))  # of the files of all ranks
    collective.all_ranks(lambda: _check_contents(path, _own_share(collective, path)))
    load_by(IndexedReader(path, manifest_of(path)), path, weights=weights, optimizers=optimizers)
    if _size_of_weights(path) is None:  # an older version wrote it, and did not look
        parts = collective.all_ranks(lambda: weights_check.measure({"model": _detached(weights)}))
        if bad := weights_check.complaint(parts, []):
            raise RuinedCheckpointError(f"checkpoint {path} is of no use: {bad}")
    return read_state(path)


def marked_bad(directory: Path) -> str:
    """Return why the newest checkpoint that is marked bad is; empty if none is."""
    return next(filter(None, map(_mark, _complete_and_damaged(directory))), "")


def load_by(reader: IndexedReader, path: Path, *, weights: Mapping[str, Tensor], optimizers: Optimizers | None) -> None:
    """Load the tensors of a checkpoint whose hashes were checked; see ``load``."""
    tensors = {"model": _detached(weights)}
    if optimizers:
        optimizers.allocate()
        tensors = _tensors(weights, optimizers)
    parts = CollectiveIO(path).all_ranks(lambda: _keys(tensors))  # a stage of a pipeline has its own parameters only
    _compare(set().union(*parts), path)
    try:
        load_tensors(tensors, storage_reader=reader)
    except CheckpointException as error:  # on all ranks
        reason = next(iter(error.failures.values()))[0]
        raise CheckpointError(
            f"checkpoint {path} has the hashes of its manifest, but is unreadable: {type(reason).__name__}: "
            f"{(str(reason).splitlines() or [''])[0][:200]}; remove it, or restore it from a copy"
        ) from error


def load_rng(path: Path) -> None:
    """Restore the random states of all ranks that the saving job had."""
    CollectiveIO(path).all_ranks(lambda: _load_rng(rng_file(path)))


def shapes(path: Path) -> dict[str, TensorStorageMetadata]:
    """Return shape and dtype of each tensor in a checkpoint: ``model.<parameter>``, ``optimizer.<parameter>.<key>``."""
    saved = index(path).state_dict_metadata
    return {name: entry for name, entry in saved.items() if isinstance(entry, TensorStorageMetadata)}


def index(path: Path) -> Metadata:
    """Return the places of all tensors in a checkpoint's files; raise ``DamagedCheckpointError`` as the reader does."""
    return IndexedReader(path, manifest_of(path)).read_metadata()


def read(path: Path, names: Iterable[str]) -> dict[str, Tensor]:
    """Return whole tensors by their names in ``shapes``, on the CPU, without process group or hash check."""
    entries = shapes(path)
    tensors: dict[str, Any] = {
        name: torch.empty(entries[name].size, dtype=entries[name].properties.dtype) for name in names
    }
    _load_alone(tensors, path)
    return tensors


def load_weights(model: nn.Module, path: Path) -> None:
    """Load only the weights, into a whole model, without a process group.

    Raises:
        DamagedCheckpointError: A file has changed.
        CheckpointError: Its weights are not those of the model.
    """
    check_hashes(path)
    tensors = {"model": _detached(dict(model.named_parameters()))}
    _compare(_keys(tensors), path)
    _load_alone(tensors, path)


def check_hashes(path: Path, files: Iterable[Path] | None = None) -> None:
    """Raise ``DamagedCheckpointError`` if one of ``files``, all by default, has changed."""
    _check_sizes(path)
    _check_contents(path, sorted(path.iterdir()) if files is None else files)


def _check_contents(path: Path, files: Iterable[Path]) -> None:
    written = manifest_of(path)
    for file in files:
        if file.name != MANIFEST and _sha256(file) != written[file.name]["sha256"]:
            raise DamagedCheckpointError(f"checkpoint {path} is damaged: the content of {file.name} has changed")


def _load_alone(tensors: dict[str, Any], path: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # on purpose
        load_tensors(tensors, storage_reader=IndexedReader(path, manifest_of(path)), no_dist=True)


def _clear(directory: Path, partial: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    recover_folders(directory)
    for left_over in directory.glob(".step-*"):
        if left_over.is_symlink():
            left_over.unlink()
        else:
            shutil.rmtree(left_over)
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed, where a link leads
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
        raise CheckpointError(
            f"cannot write {partial}: {'; '.join(sorted({str(failure) for failure in failures}))}",
            passing=all(isinstance(failure, OSError) and failure.errno in PASSING for failure in failures),
        ) from error


def _tensors(weights: Mapping[str, Tensor], optimizers: Optimizers) -> dict[str, dict[str, Tensor]]:
    return {"model": _detached(weights), "optimizer": optimizers.memory()}


def _detached(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: weight.detach() for name, weight in weights.items()}


def write_state(partial: Path, state: TrainerState) -> None:
    """Write the contents without tensors."""
    write_atomically(partial / TRAINER, json.dumps(asdict(state)))


def save_rng(path: Path, state: dict[str, Tensor]) -> None:
    """Write a rank's random states."""
    with path.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def _load_rng(path: Path) -> None:
    if not path.exists():
        return
    state = torch.load(path, weights_only=True)
    torch.set_rng_state(state["cpu"])
    if (own := _device_with_random_numbers()) and own in state:
        torch.get_device_module(own).set_rng_state(state[own])


def _device_with_random_numbers() -> str | None:
    """Return the type of this machine's accelerators if they draw random numbers of their own, ``cuda`` for example."""
    found = torch.accelerator.current_accelerator(check_available=True)
    has = found and hasattr(torch.get_device_module(found), "get_rng_state")
    return found.type if found and has else None


def _own_share(collective: CollectiveIO, path: Path) -> list[Path]:
    """Return the files that this rank hashes."""
    return collective.share(sorted(path.iterdir()))


def describe(files: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Return size and hash of each file, by name."""
    return {file.name: {"bytes": file.stat().st_size, "sha256": _sha256(file)} for file in files}


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open_regular(path, follow_links=True) as file:
        while chunk := file.read(HASH_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def commit_checked(partial: Path, final: Path, files: dict[str, Any], parts: Sequence[Measured]) -> str:
    """Commit a checkpoint; return why its manifest marks it as bad, empty if it is good.

    After a rollback, a bad one does not replace a good one of the same step.
    """
    before = [path for path in _complete_and_damaged(final.parent) if path < final and not _mark(path)]
    history = filter(None, map(_size_of_weights, before[: weights_check.HISTORY]))
    bad = weights_check.complaint(parts, history)
    if bad and final.is_dir() and _damage(final) is None:
        shutil.rmtree(partial)
        return bad
    commit(partial, final, files, weights={"rms": weights_check.rms(parts)}, **({"bad": bad} if bad else {}))
    return bad


def commit(partial: Path, final: Path, files: dict[str, Any], **facts: Any) -> None:
    """Write the manifest and give the folder its name."""
    write_atomically(partial / MANIFEST, json.dumps({"files": files, **facts}, indent=1, allow_nan=False))
    commit_folder(partial, final)


def _complete_and_damaged(directory: Path) -> list[Path]:
    return sorted((path for path in directory.glob("step-*") if NAME.fullmatch(path.name)), reverse=True)


def _damage(path: Path) -> DamagedCheckpointError | None:
    try:
        check_hashes(path, [path / TRAINER])
    except DamagedCheckpointError as damage:
        return damage
    if bad := _mark(path):
        return RuinedCheckpointError(f"checkpoint {path} is marked bad: {bad}")
    return None


def _mark(path: Path) -> str:
    """Return why a checkpoint's manifest marks it as bad; empty if it does not."""
    return mark_in(_text_of_manifest(path))


def mark_in(manifest: str) -> str:
    """Return why the text of a manifest marks its checkpoint as bad; empty if it does not, or is damaged."""
    return str(_facts(manifest).get("bad") or "")


def _size_of_weights(path: Path) -> float | None:
    """Return the root mean square of a checkpoint's weights, if its manifest has it."""
    weights = _facts(_text_of_manifest(path)).get("weights")
    size = weights.get("rms") if isinstance(weights, dict) else None
    return float(size) if isinstance(size, int | float) and math.isfinite(size) else None


def _text_of_manifest(path: Path) -> str:
    try:
        return _read_text(path / MANIFEST)
    except OSError:
        return ""


def _facts(manifest: str) -> dict[str, Any]:
    try:
        facts = json.loads(manifest)
    except (ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


def manifest_of(path: Path) -> dict[str, dict[str, Any]]:
    """Return size and hash of each file, by name."""
    try:
        return parse_manifest(_read_text(path / MANIFEST))
    except (OSError, ValueError) as error:
        raise DamagedCheckpointError(f"checkpoint {path} is damaged: {MANIFEST}: {error}") from error


def _read_text(path: Path) -> str:
    """Return the text of a checkpoint's file, which another user may have made; a pipe there is an ``OSError``."""
    return regular_file.read(path, limit_bytes=TEXT_BYTES, follow_links=True).decode(errors="replace")


def parse_manifest(text: str) -> dict[str, dict[str, Any]]:
    """Return size and hash of each file, by name, from the text of a manifest.

    Raises:
        ValueError: It is none.
    """
    try:
        files = json.loads(text)["files"]
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"it has no files: {error}") from error
    if not (isinstance(files, dict) and TRAINER in files and all(_is_entry(*item) for item in files.items())):
        raise ValueError("it is not a list of the checkpoint's files")
    return files


def _is_entry(name: str, entry: Any) -> bool:
    return (
        FILE_NAME.fullmatch(name) is not None
        and isinstance(entry, dict)
        and type(entry.get("bytes")) is int
        and SHA256.fullmatch(str(entry.get("sha256"))) is not None
    )


def _check_sizes(path: Path) -> None:
    written = manifest_of(path)
    there = {file.name: file.stat().st_size for file in path.iterdir() if file.name != MANIFEST}
    for name, entry in written.items():
        if there.get(name) != entry["bytes"]:
            found = f"has {there[name]} bytes" if name in there else "is missing"
            raise DamagedCheckpointError(f"checkpoint {path} is damaged: {name} {found}, {entry['bytes']} were written")
    if more := sorted(there.keys() - written.keys()):
        raise DamagedCheckpointError(f"checkpoint {path} is damaged: {more[0]} is not in its {MANIFEST}; remove it")


def _keys(tensors: dict[str, dict[str, Tensor]]) -> set[str]:
    return {f"{part}.{name}" for part, content in tensors.items() for name in content}


def _compare(wanted: set[str], path: Path) -> None:
    """Compare the names first: loading silently skips tensors that it does not find."""
    parts = {key.split(".")[0] for key in wanted}
    saved = {key for key in shapes(path) if key.split(".")[0] in parts}
    if saved == wanted:
        return
    missing, more = wanted - saved, saved - wanted
    differing = missing | more
    if all(key.endswith(f".{EMA}") for key in differing):
        raise CheckpointError(
            f"checkpoint {path} has a moving average of the weights: resume with --ema-decay"
            if more
            else f"checkpoint {path} has no moving average of the weights: resume without ema_decay"
        )
    if all(key.startswith("optimizer.") for key in differing):
        raise CheckpointError(
            f"checkpoint {path} belongs to another optimizer: resume with the --optimizer it was saved with, or start "
            "a new run"
        )
    examples = ", ".join(sorted(differing)[:3])
    raise CheckpointError(
        f"checkpoint {path} belongs to another model: {len(missing)} tensors are missing in it, "
        f"{len(more)} are not in this model ({examples} …)"
    )
