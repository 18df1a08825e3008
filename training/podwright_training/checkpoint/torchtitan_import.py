"""Convert a checkpoint of torchtitan, with the states of its AdamW, to one that a run continues from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from podwright_training.checkpoint.collective_io import CheckpointError
from podwright_training.checkpoint.conversion import (
    ADAMW_EPS,
    MOMENTS,
    ConvertedCheckpoint,
    Measurements,
    check_config,
    examples,
    shapes_of,
    tensors_of_run,
    write_checkpoint,
)
from podwright_training.checkpoint.distributed_folder import DistributedFolder
from podwright_training.checkpoint.plain_value import plain, plain_text
from podwright_training.checkpoint.tensor_stream import StreamedTensor
from podwright_training.checkpoint.torchtitan_layout import TorchtitanLayout
from podwright_training.config.train_config import TrainConfig

# torchtitan saves these sections beside the weights, whose keys have no section.
SECTIONS = ("optimizer", "lr_scheduler", "dataloader", "train_state")


def import_checkpoint(source: Path, target: Path, config: TrainConfig) -> ConvertedCheckpoint:
    """Write the checkpoint ``source`` of torchtitan as one of podwright-train into the folder ``target``.

    Raises:
        CheckpointError: It is no checkpoint of torchtitan with states of AdamW, or it is one of another model; nothing
            is left in ``target``.
    """
    folder = DistributedFolder(source)
    conversion = _Conversion(folder, source, config)
    conversion.check()
    step = conversion.step()
    final = write_checkpoint(target, step, config, conversion.tensors(), conversion.measurements)
    tokens_seen = folder.value("train_state.ntokens_seen")
    differences = list(conversion.differences())
    return ConvertedCheckpoint(final, step, None if tokens_seen is None else int(tokens_seen), differences)


class _Conversion:
    """The tensors of a run's checkpoint, from those of torchtitan."""

    def __init__(self, folder: DistributedFolder, source: Path, config: TrainConfig) -> None:
        self._folder = folder
        self._source = source
        self._config = config
        self._layout = TorchtitanLayout.detect(folder.entries, config.model)
        self._shapes = shapes_of(config)
        self.measurements = Measurements(source)

    def check(self) -> None:
        """Raise ``CheckpointError`` if the checkpoint is one of another model, or lacks the states of AdamW."""
        self._layout.check_model()
        check_config(self._config, "torchtitan")
        weights = {self._layout.name(name) for name in self._shapes}
        saved = {name for name in self._folder.entries if name.partition(".")[0] not in SECTIONS}
        expected = weights | ({self._layout.head} if self._config.model.tie_word_embeddings else set())
        if missing := weights - saved:
            raise CheckpointError(f"checkpoint {self._source} lacks weights of this model: {examples(missing)}")
        if more := saved - expected:
            raise CheckpointError(f"checkpoint {self._source} has weights that this model lacks: {examples(more)}")
        states = {self._moment(name, key) for name in self._shapes for key in MOMENTS}
        if missing := states - self._folder.entries.keys():
            raise CheckpointError(
                f"checkpoint {self._source} lacks states of AdamW: {examples(missing)}; weights alone move as a "
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
        return tensors_of_run(self._shapes, self._streamed)

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
            if value is not None and plain(value) != run_value:
                parameters_by_value[plain_text(value)].add(parameter)
        for text, differing in sorted(parameters_by_value.items()):
            subject = key + (label if differing == parameters else f" of {examples(differing)}")
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

    def _streamed(self, name: str, key: str, shape: tuple[int, ...]) -> StreamedTensor:
        if key == "model":
            dtype = self._folder.entries[self._layout.name(name)].properties.dtype
            return StreamedTensor(shape, dtype, partial(self._weight, name))
        dtype = self._folder.entries[self._moment(name, key)].properties.dtype
        return StreamedTensor(shape, dtype, partial(self._state, name, key))

    def _weight(self, name: str) -> Tensor:
        weight = self._layout.from_torchtitan(name, self._folder.read_whole(self._layout.name(name)))
        return self.measurements.measured("model", name, weight)

    def _state(self, name: str, key: str) -> Tensor:
        moment = self._folder.read_whole(self._moment(name, key))
        if key != "step":
            moment = self._layout.split(name, moment) if self._layout.is_fused(name) else moment
            moment = self._layout.from_torchtitan(name, moment)
        return self.measurements.measured("optimizer", f"{name}.{key}", moment)
