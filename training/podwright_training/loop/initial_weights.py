"""Start a new run from weights that exist: a Hugging Face model, or a checkpoint of another run.

``checkpoint/hugging_face.py`` reads the model's weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from podwright_training.checkpoint import checkpoint_reader, manifest, step_folder, trainer_state
from podwright_training.checkpoint.collective_io import CheckpointError, CollectiveIO
from podwright_training.checkpoint.hugging_face import HuggingFaceModel
from podwright_training.config.train_config import TrainConfig
from podwright_training.model import LlamaForCausalLM
from podwright_training.optim import Optimizers
from podwright_training.parallel import ParallelModel


def problems(source: Path, config: TrainConfig) -> Iterator[str]:
    """Yield why a run cannot start from ``source``, one line each."""
    if HuggingFaceModel.is_in(source):
        if config.init_state == "all":
            yield f"init_state all needs a checkpoint; init_from {source} is a Hugging Face model: use weights"
        yield from HuggingFaceModel(source).problems(config.model)
        return
    path = _checkpoint(source)
    if path is None:
        yield (
            f"init_from {source} has neither config.json nor a complete checkpoint; give a Hugging Face model, by its "
            "folder or as OWNER/NAME on the hub, or a folder of checkpoints"
        )
    elif differing := config.model.differences(trainer_state.model_config(path)):
        yield f"init_from {path} belongs to another model: {'; '.join(differing)}"


def load(
    source: Path, config: TrainConfig, *, model: ParallelModel, optimizers: Optimizers
) -> trainer_state.TrainerState | None:
    """Load the weights on all ranks; with ``init_state`` all also the optimizers' states, and return the rest.

    Raises:
        CheckpointError: They are not those of the model; raised on all ranks.
    """
    weights = dict(model.named_parameters())
    if HuggingFaceModel.is_in(source):
        HuggingFaceModel(source).load(weights, config.model)
    else:
        path = CollectiveIO(source).first_rank(lambda: _checkpoint(source)) or source  # preflight found one
        if config.init_state == "all":
            return checkpoint_reader.load(path, weights=weights, optimizers=optimizers)
        checkpoint_reader.load(path, weights=weights, optimizers=None)
    optimizers.restart_average()
    return None


def load_alone(source: Path, config: TrainConfig, model: LlamaForCausalLM) -> int:
    """Load the weights into a whole model, without a process group; return the step at which a run goes on from them.

    Raises:
        CheckpointError: They are gone, or are not those of the model.
    """
    if HuggingFaceModel.is_in(source):
        HuggingFaceModel(source).load(dict(model.named_parameters()), config.model)
        return 0
    path = _checkpoint(source)
    if path is None:
        raise CheckpointError(f"init_from {source}: the weights that the run started from are gone")
    checkpoint_reader.load_weights(model, path)
    return trainer_state.read_state(path).step if config.init_state == "all" else 0


def _checkpoint(source: Path) -> Path | None:
    """Return a checkpoint, or the newest of a folder of them."""
    return source if (source / manifest.MANIFEST).is_file() else step_folder.newest(source)
