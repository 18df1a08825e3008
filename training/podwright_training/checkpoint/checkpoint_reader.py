"""Read a checkpoint's tensors into a model and its optimizers, or alone.

Reading runs no code from a checkpoint: tensors are read as weights only, and ``index.py`` reads their index.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as load_tensors

from podwright_training.checkpoint import weights_check
from podwright_training.checkpoint.collective_io import (
    CheckpointError,
    CollectiveIO,
    RuinedCheckpointError,
)
from podwright_training.checkpoint.index import IndexedReader
from podwright_training.checkpoint.manifest import (
    check_contents,
    check_sizes,
    manifest_of,
    share_of_files,
    weights_rms,
)
from podwright_training.checkpoint.random_state import load_rng
from podwright_training.checkpoint.snapshot import detached, tensors_of
from podwright_training.checkpoint.trainer_state import TrainerState, read_state
from podwright_training.optim import EMA, Optimizers


def restore(path: Path, *, weights: Mapping[str, Tensor], optimizers: Optimizers) -> TrainerState:
    """Load tensors and random states from a checkpoint, on all ranks; return its state without tensors.

    A rank that the saving job did not have keeps its random state. Raises as ``load`` does.
    """
    state = load(path, weights=weights, optimizers=optimizers)
    load_rng(path)
    return state


def load(path: Path, *, weights: Mapping[str, Tensor], optimizers: Optimizers | None) -> TrainerState:
    """Load weights from a checkpoint, and the optimizers' states unless ``None``, on all ranks; return its state.

    Mesh and number of ranks may differ from those at the save; a process without a group loads whole weights. The
    optimizers keep their own hyperparameters.

    Raises:
        DamagedCheckpointError: A file has changed, on any rank; raised on every rank before anything is loaded.
        CheckpointError: Its tensors are not those of the model and optimizer.
    """
    collective = CollectiveIO(path)
    collective.first_rank(lambda: check_sizes(path))  # One rank checks the sizes of all ranks' files.
    collective.all_ranks(lambda: check_contents(path, share_of_files(collective, path)))
    load_by(IndexedReader(path, manifest_of(path)), path, weights=weights, optimizers=optimizers)
    if weights_rms(path) is None:  # an older version wrote it, and did not look
        parts = collective.all_ranks(lambda: weights_check.measure({"model": detached(weights)}))
        if bad := weights_check.complaint(parts, []):
            raise RuinedCheckpointError(f"checkpoint {path} is of no use: {bad}")
    return read_state(path)


def load_by(reader: IndexedReader, path: Path, *, weights: Mapping[str, Tensor], optimizers: Optimizers | None) -> None:
    """Load the tensors of a checkpoint whose hashes were checked; see ``load``."""
    tensors = {"model": detached(weights)}
    if optimizers:
        optimizers.allocate()
        tensors = tensors_of(weights, optimizers)
    parts = CollectiveIO(path).all_ranks(lambda: _keys(tensors))  # a stage of a pipeline has its own parameters only
    _compare(set().union(*parts), path)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # A process may load alone.
            load_tensors(tensors, storage_reader=reader)
    except CheckpointException as error:  # on all ranks
        reason = next(iter(error.failures.values()))[0]
        raise CheckpointError(
            f"checkpoint {path} has the hashes of its manifest, but is unreadable: {type(reason).__name__}: "
            f"{(str(reason).splitlines() or [''])[0][:200]}; remove it, or restore it from a copy"
        ) from error


def shapes(path: Path) -> dict[str, TensorStorageMetadata]:
    """Return shape and dtype of each tensor in a checkpoint: ``model.<parameter>``, ``optimizer.<parameter>.<key>``."""
    saved = index(path).state_dict_metadata
    return {name: entry for name, entry in saved.items() if isinstance(entry, TensorStorageMetadata)}


def index(path: Path) -> Metadata:
    """Return the places of all tensors in a checkpoint's files; raise ``DamagedCheckpointError`` as the reader does."""
    return IndexedReader(path, manifest_of(path)).read_metadata()


def load_weights(model: nn.Module, path: Path) -> None:
    """Load only the weights into a model; raises as ``load`` does."""
    load(path, weights=dict(model.named_parameters()), optimizers=None)


def _keys(tensors: dict[str, dict[str, Tensor]]) -> set[str]:
    return {f"{part}.{name}" for part, content in tensors.items() for name in content}


def _compare(names: set[str], path: Path) -> None:
    """Raise ``CheckpointError`` for other names than the checkpoint's: loading would silently skip missing tensors."""
    parts = {key.split(".")[0] for key in names}
    saved = {key for key in shapes(path) if key.split(".")[0] in parts}
    if saved == names:
        return
    missing, more = names - saved, saved - names
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
