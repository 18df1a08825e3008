"""Convert a checkpoint of torchtitan, with the states of its AdamW, to one that a run continues from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from podwright_training.checkpoint import weights_check
from podwright_training.checkpoint.checkpoint_writer import commit
from podwright_training.checkpoint.collective_io import CheckpointError, RuinedCheckpointError
from podwright_training.checkpoint.distributed_folder import DistributedFolder
from podwright_training.checkpoint.manifest import describe
from podwright_training.checkpoint.step_folder import folders
from podwright_training.checkpoint.tensor_stream import StreamedTensor, unfinished_folder, write_stream
from podwright_training.checkpoint.torchtitan_layout import TorchtitanLayout
from podwright_training.checkpoint.trainer_state import TrainerState, write_state
from podwright_training.checkpoint.weights_check import Measured
from podwright_training.config.train_config import TrainConfig
from podwright_training.model import LlamaForCausalLM

MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # states of AdamW
# torchtitan saves these sections beside the weights, whose keys have no section.
SECTIONS = ("optimizer", "lr_scheduler", "dataloader", "train_state")
ADAMW_EPS = 1e-8  # PyTorch's default, which this trainer uses
EXAMPLES = 3  # names in a message


@dataclass(frozen=True)
class TorchtitanCheckpoint:
    """The import of a checkpoint of torchtitan.

    Attributes:
        path: Folder of the converted checkpoint.
        step: Steps that torchtitan has taken.
        tokens_seen: Tokens that torchtitan has trained on, if it has counted them.
        differences: How its optimizer and that of the run differ, one phrase each.
    """

    path: Path
    step: int
    tokens_seen: int | None
    differences: list[str]


def import_checkpoint(source: Path, target: Path, config: TrainConfig) -> TorchtitanCheckpoint:
    """Write the checkpoint ``source`` of torchtitan as one of podwright-train into the folder ``target``.

    Raises:
        CheckpointError: It is no checkpoint of torchtitan with states of AdamW, or it is one of another model; nothing
            is left in ``target``.
    """
    folder = DistributedFolder(source)
    conversion = _Conversion(folder, source, config)
    conversion.check()
    step = conversion.step()
    final, partial_folder = folders(target, step)
    with unfinished_folder(final, partial_folder):
        write_stream(partial_folder, conversion.tensors())
        rms = conversion.checked_rms()
        state = TrainerState(step=step, sequences=0, data={}, model=asdict(config.model), world_size=1)
        write_state(partial_folder, state)
        commit(partial_folder, final, describe(partial_folder.iterdir()), weights={"rms": rms})
    tokens_seen = folder.value("train_state.ntokens_seen")
    differences = list(conversion.differences())
    return TorchtitanCheckpoint(final, step, None if tokens_seen is None else int(tokens_seen), differences)


class _Conversion:
    """The tensors of a run's checkpoint, from those of torchtitan."""

    def __init__(self, folder: DistributedFolder, source: Path, config: TrainConfig) -> None:
        self._folder = folder
        self._source = source
        self._config = config
        self._layout = TorchtitanLayout.detect(folder.entries, config.model)
        with torch.device("meta"):
            model = LlamaForCausalLM(config.model)
        self._shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
        self._measured: list[Measured] = []

    def check(self) -> None:
        """Raise ``CheckpointError`` if the checkpoint is one of another model, or lacks the states of AdamW."""
        self._layout.check_model()
        if self._config.optimizer != "adamw":
            raise CheckpointError(f"optimizer {self._config.optimizer}: only the states of adamw move from torchtitan")
        if self._config.ema_decay:
            raise CheckpointError("ema_decay: torchtitan has no moving average of the weights; start without it")
        weights = {self._layout.name(name) for name in self._shapes}
        saved = {name for name in self._folder.entries if name.partition(".")[0] not in SECTIONS}
        expected = weights | ({self._layout.head} if self._config.model.tie_word_embeddings else set())
        if missing := weights - saved:
            raise CheckpointError(f"checkpoint {self._source} lacks weights of this model: {_examples(missing)}")
        if more := saved - expected:
            raise CheckpointError(f"checkpoint {self._source} has weights that this model lacks: {_examples(more)}")
        states = {self._moment(name, key) for name in self._shapes for key in MOMENTS}
        if missing := states - self._folder.entries.keys():
            raise CheckpointError(
                f"checkpoint {self._source} lacks states of AdamW: {_examples(missing)}; weights alone move as a "
                "Hugging Face model, by torchtitan's scripts/checkpoint_conversion/convert_to_hf.py"
            )
        self._check_shapes()
        self._check_tied_head()

    def step(self) -> int:
        """Return the steps that torchtitan has taken."""
        step = self._folder.value("train_state.step")
        if step is None:
            raise CheckpointError(f"checkpoint {self._source} has no train_state.step, so its step is not known")
        try:
            number = int(step)
        except (TypeError, ValueError):
            number = -1
        if number < 0:
            raise CheckpointError(
                f"checkpoint {self._source} has train_state.step {step!r}, need a whole number of at least 0"
            )
        return number

    def tensors(self) -> dict[str, StreamedTensor]:
        """Return the tensors of the run's checkpoint by their keys; each is read when it is written."""
        tensors = {}
        for name, shape in self._shapes.items():
            dtype = self._folder.entries[self._layout.name(name)].properties.dtype
            tensors[f"model.{name}"] = StreamedTensor(shape, dtype, partial(self._weight, name))
            for key in MOMENTS:
                dtype = self._folder.entries[self._moment(name, key)].properties.dtype
                moment_shape = () if key == "step" else shape
                moment = StreamedTensor(moment_shape, dtype, partial(self._state, name, key))
                tensors[f"optimizer.{name}.{key}"] = moment
        return tensors

    def checked_rms(self) -> float:
        """Return the root mean square of the weights that were read.

        Raises:
            RuinedCheckpointError: No run can go on from the tensors.
        """
        if bad := weights_check.complaint(self._measured, []):
            raise RuinedCheckpointError(f"checkpoint {self._source} is of no use: {bad}")
        return weights_check.rms(self._measured)

    def differences(self) -> Iterator[str]:
        """Yield how torchtitan's AdamW and that of the run differ."""
        config = self._config
        matrices = {self._layout.optimized_name(name) for name, shape in self._shapes.items() if len(shape) > 1}
        norms = {self._layout.optimized_name(name) for name in self._shapes} - matrices
        yield from self._differences_of("lr", matrices | norms, config.lr)
        yield from self._differences_of("betas", matrices | norms, (config.beta1, config.beta2))
        yield from self._differences_of("weight_decay", matrices, config.weight_decay)
        yield from self._differences_of("eps", matrices | norms, ADAMW_EPS)
        yield from self._differences_of("weight_decay", norms, 0, label=" of norms")

    def _differences_of(
        self, key: str, parameters: set[str], run_value: float | tuple[float, float], label: str = ""
    ) -> Iterator[str]:
        """Yield the values of a hyperparameter that differ from the run's, with parameters that have them."""
        parameters_by_value = defaultdict(set)
        for parameter in parameters:
            value = self._hyperparameter(parameter, key)
            if value is not None and value != run_value:
                parameters_by_value[str(value)].add(parameter)
        for text, differing in sorted(parameters_by_value.items()):
            subject = key + (label if differing == parameters else f" of {_examples(differing)}")
            yield f"{subject} is {text} there, {run_value} here"

    def _hyperparameter(self, parameter: str, key: str) -> Any:
        """Return a value of AdamW for a parameter of torchtitan's optimizer; ``None`` if the checkpoint lacks it."""
        prefix = f"optimizer.param_groups.{parameter}"
        value = self._folder.value(f"{prefix}.initial_lr") if key == "lr" else None
        return self._folder.value(f"{prefix}.{key}") if value is None else value

    def _check_shapes(self) -> None:
        for name, shape in self._shapes.items():
            titan_name = self._layout.name(name)
            if (titan_shape := tuple(self._folder.entries[titan_name].size)) != shape:
                raise CheckpointError(
                    f"checkpoint {self._source} belongs to another model: {titan_name} is {list(titan_shape)}, "
                    f"need {list(shape)}"
                )

    def _check_tied_head(self) -> None:
        """Raise ``CheckpointError`` if this model ties its head to the embeddings, and torchtitan trained it apart."""
        head = self._layout.head
        if not self._config.model.tie_word_embeddings or head not in self._folder.entries:
            return
        has_states = any(name.startswith(f"optimizer.state.{head}.") for name in self._folder.entries)
        embeddings = self._layout.name("model.embed_tokens.weight")
        if has_states or not torch.equal(self._folder.read_whole(head), self._folder.read_whole(embeddings)):
            raise CheckpointError(
                f"checkpoint {self._source} has a trained head of its own ({head}), which tie_word_embeddings would "
                "drop: set tie_word_embeddings: false"
            )

    def _moment(self, name: str, key: str) -> str:
        return f"optimizer.state.{self._layout.optimized_name(name)}.{key}"

    def _weight(self, name: str) -> Tensor:
        weight = self._layout.from_torchtitan(name, self._folder.read_whole(self._layout.name(name)))
        self._measured.append(weights_check.measure({"model": {name: weight}}))
        return weight

    def _state(self, name: str, key: str) -> Tensor:
        moment = self._folder.read_whole(self._moment(name, key))
        if key != "step":
            moment = self._layout.split(name, moment) if self._layout.is_fused(name) else moment
            moment = self._layout.from_torchtitan(name, moment)
        self._measured.append(weights_check.measure({"optimizer": {f"{name}.{key}": moment}}))
        return moment


def _examples(names: set[str]) -> str:
    more = f" and {len(names) - EXAMPLES} more" if len(names) > EXAMPLES else ""
    return ", ".join(sorted(names)[:EXAMPLES]) + more
