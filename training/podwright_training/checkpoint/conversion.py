"""Convert checkpoints from and to another trainer's: the steps that all trainers share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from podwright_training.checkpoint import weights_check
from podwright_training.checkpoint.checkpoint_writer import commit
from podwright_training.checkpoint.collective_io import CheckpointError, RuinedCheckpointError
from podwright_training.checkpoint.manifest import describe
from podwright_training.checkpoint.plain_value import escaped
from podwright_training.checkpoint.step_folder import folders
from podwright_training.checkpoint.tensor_reader import TensorReader
from podwright_training.checkpoint.tensor_stream import StreamedTensor, unfinished_folder, write_stream
from podwright_training.checkpoint.trainer_state import TrainerState, write_state
from podwright_training.checkpoint.weights_check import Measured
from podwright_training.config.train_config import TrainConfig
from podwright_training.model import LlamaForCausalLM

MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # states of AdamW
ADAMW_EPS = 1e-8  # PyTorch's default, which this trainer uses
EXAMPLES = 3  # names in a message


@dataclass(frozen=True)
class ConvertedCheckpoint:
    """The conversion of a checkpoint from or to another trainer's.

    Attributes:
        path: Folder of the converted checkpoint.
        step: Steps that the trainer has taken.
        tokens_seen: Tokens that the trainer has trained on, if it has counted them.
        differences: How its optimizer and that of the run differ, one phrase each.
        not_compared: Why the model's options were not compared with the trainer's, if they were not.
    """

    path: Path
    step: int
    tokens_seen: int | None
    differences: list[str]
    not_compared: str | None = None


class RunTensors:
    """The tensors of a run's checkpoint, to be converted to another trainer's."""

    def __init__(self, reader: TensorReader, path: Path) -> None:
        self._reader = reader
        self._path = path
        prefix = "model."
        self._names = [key.removeprefix(prefix) for key in reader.entries if key.startswith(prefix)]

    def check(self) -> None:
        """Raise ``CheckpointError`` if a parameter has no states of AdamW."""
        for name in self._names:
            if f"optimizer.{name}.exp_avg_sq" not in self._reader.entries:
                raise CheckpointError(
                    f"checkpoint {self._path} has no states of AdamW for {name}: only those of optimizer adamw move"
                )


class Measurements:
    """Sizes of the tensors that a conversion has read from a checkpoint."""

    def __init__(self, source: Path) -> None:
        self._source = source
        self._measured: list[Measured] = []

    def measured(self, part: str, name: str, tensor: Tensor) -> Tensor:
        """Measure a tensor of ``model`` or ``optimizer``, and return it."""
        self._measured.append(weights_check.measure({part: {name: tensor}}))
        return tensor

    def checked_rms(self) -> float:
        """Return the root mean square of the weights that were read.

        Raises:
            RuinedCheckpointError: No run can go on from the tensors.
        """
        if bad := weights_check.complaint(self._measured, []):
            raise RuinedCheckpointError(f"checkpoint {self._source} is of no use: {bad}")
        return weights_check.rms(self._measured)


def write_checkpoint(
    target: Path, step: int, config: TrainConfig, tensors: Mapping[str, StreamedTensor], measurements: Measurements
) -> Path:
    """Write a run's checkpoint into the folder ``target``; return its folder."""
    for key, tensor in tensors.items():
        if not tensor.dtype.is_floating_point:
            raise CheckpointError(f"{key} is {tensor.dtype} in the checkpoint that is converted, need floating point")
    data = {"add_bos": True} if config.add_bos else {}  # Its export begins texts so.
    final, partial_folder = folders(target, step)
    with unfinished_folder(final, partial_folder):
        write_stream(partial_folder, tensors)
        rms = measurements.checked_rms()
        state = TrainerState(step=step, sequences=0, data=data, model=asdict(config.model), world_size=1)
        write_state(partial_folder, state)
        commit(partial_folder, final, describe(partial_folder.iterdir()), weights={"rms": rms})
    return final


def tensors_of_run(
    shapes: Mapping[str, tuple[int, ...]], stream: Callable[[str, str, tuple[int, ...]], StreamedTensor]
) -> dict[str, StreamedTensor]:
    """Return the tensors of a run's checkpoint by their keys.

    Args:
        shapes: Shapes of the parameters.
        stream: Returns the tensor of a parameter and of a key of ``MOMENTS`` or, for the weights, ``model``.
    """
    tensors = {}
    for name, shape in shapes.items():
        tensors[f"model.{name}"] = stream(name, "model", shape)
        for key in MOMENTS:
            tensors[f"optimizer.{name}.{key}"] = stream(name, key, () if key == "step" else shape)
    return tensors


def check_config(config: TrainConfig, trainer: str) -> None:
    """Raise ``CheckpointError`` for a run whose optimizer has states that the trainer has not."""
    if config.optimizer != "adamw":
        raise CheckpointError(f"optimizer {config.optimizer}: only the states of adamw move from {trainer}")
    if config.ema_decay:
        raise CheckpointError(f"ema_decay: {trainer} has no moving average of the weights; start without it")


def shapes_of(config: TrainConfig) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parameters of a run's model, by their names."""
    with torch.device("meta"):
        model = LlamaForCausalLM(config.model)
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def examples(names: set[str]) -> str:
    """Return a few of the names, and the number of further ones."""
    more = f" and {len(names) - EXAMPLES} more" if len(names) > EXAMPLES else ""
    return ", ".join(map(escaped, sorted(names)[:EXAMPLES])) + more
