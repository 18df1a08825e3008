"""Convert a checkpoint of Megatron-Core, with the states of its Adam, to one that a run continues from."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from podwright_common.regular_file import UnreadableFileError, read_text
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
from podwright_training.checkpoint.megatron_common import MegatronCommon
from podwright_training.checkpoint.megatron_layout import EMBEDDING, HEAD, MegatronLayout, unflatten
from podwright_training.checkpoint.plain_value import plain, plain_text
from podwright_training.checkpoint.tensor_stream import StreamedTensor
from podwright_training.config.train_config import TrainConfig

STATE = "optimizer.state"
# The weights in fp32 that Adam updates where the model is in bf16 or fp16: without and with a distributed optimizer.
MAIN_WEIGHTS = ("fp32_param", "param")
TRACKER = "latest_checkpointed_iteration.txt"
LONGEST_TRACKER_BYTES = 100
RELEASE = "release"  # Megatron names converted weights so, such as those of a published model.
# Of the distributed optimizer: their tensors are buffers of many parameters, which depend on the number of ranks.
BUFFERS = "optimizer.distributed."
NO_WEIGHTS = ("optimizer", "chained_", "rng_state", "rerun_state_machine", "common_state")


def import_checkpoint(source: Path, target: Path, config: TrainConfig) -> ConvertedCheckpoint:
    """Write the checkpoint ``source`` of Megatron-Core as one of podwright-train into the folder ``target``.

    Raises:
        CheckpointError: It is no checkpoint of Megatron-Core with states of Adam, or it is one of another model;
            nothing is left in ``target``.
    """
    if (source / TRACKER).is_file():
        newest = tracked_folder(source / TRACKER)
        example = f", such as the newest, {source}/{newest}" if newest else ""
        raise CheckpointError(f"{source} is a folder of checkpoints: name one of them{example}")
    folder = DistributedFolder(source)
    conversion = _Conversion(folder, source, config)
    conversion.check()
    common = conversion.common
    differences = list(dict.fromkeys(conversion.differences()))  # Groups of parameters may differ alike.
    final = write_checkpoint(target, common.step(), config, conversion.tensors(), conversion.measurements)
    not_compared = None if common.has_arguments() else "the checkpoint has no arguments"
    return ConvertedCheckpoint(final, common.step(), common.tokens_seen(), differences, not_compared)


def tracked_folder(tracker: Path) -> str | None:
    """Return the name of the folder that Megatron loads; ``None`` if the tracker names none."""
    try:
        name = read_text(tracker, limit_bytes=LONGEST_TRACKER_BYTES, follow_links=True).strip()
    except UnreadableFileError:
        return None
    if name == RELEASE:
        return RELEASE
    return f"iter_{name:0>7}" if name.isascii() and name.isdigit() else None


class _Conversion:
    """The tensors of a run's checkpoint, from those of Megatron."""

    def __init__(self, folder: DistributedFolder, source: Path, config: TrainConfig) -> None:
        self._folder = folder
        self._source = source
        self._config = config
        self._layout = MegatronLayout.detect(folder.entries, config.model)
        self._layout.check_model()
        self._shapes = shapes_of(config)
        self.common = MegatronCommon(folder, source)
        self.measurements = Measurements(source)
        self._optimizer_step = self.common.optimizer_step()
        # Where the model is in fp32, the weights are their own main weights.
        prefixes = (self._prefix(state) for state in MAIN_WEIGHTS if self._has_states(state))
        self._weights_prefix = next(prefixes, "")

    def check(self) -> None:
        """Raise ``CheckpointError`` if the checkpoint is one of another model, or lacks the states of Adam."""
        check_config(self._config, "Megatron")
        if differing := list(self.common.differences(self._config.model)):
            raise CheckpointError(f"checkpoint {self._source} belongs to another model: {'; '.join(differing)}")
        weights = self._keys("")
        saved = {name for name in self._folder.entries if not name.startswith(NO_WEIGHTS)}
        if missing := weights - saved:
            raise CheckpointError(f"checkpoint {self._source} lacks weights of this model: {examples(missing)}")
        if more := saved - weights:
            raise CheckpointError(f"checkpoint {self._source} has weights that this model lacks: {examples(more)}")
        self._check_optimizer()
        for name, shape in self._shapes.items():
            self._check_shape(name, shape)

    def tensors(self) -> dict[str, StreamedTensor]:
        """Return the tensors of the run's checkpoint by their keys; each is read when it is written."""
        return tensors_of_run(self._shapes, self._streamed)

    def differences(self) -> Iterator[str]:
        """Yield how Megatron's Adam and that of the run differ, and which rows were left out."""
        config = self._config
        values = {
            "lr": config.lr,
            "betas": (config.beta1, config.beta2),
            "eps": ADAMW_EPS,
            "weight_decay": config.weight_decay,
        }
        for group in self.common.parameter_groups():
            decays = plain(group.get("wd_mult", 1.0)) != 0
            for name, value in values.items():
                saved = plain(group.get("max_lr", group.get("lr")) if name == "lr" else group.get(name))
                if saved is None or (name == "weight_decay" and not decays):
                    continue
                if saved != value:
                    yield f"{name} is {plain_text(saved)} there, {value} here"
        if self.common.parameter_groups() and self._optimizer_step != self.common.step():
            yield f"steps of Adam are {self._optimizer_step}, {self.common.step()} of the run: others overflowed"
        padded = self._folder.entries[self._layout.place(EMBEDDING).key].size[0]
        if padded != config.vocab_size:
            yield (
                f"vocabulary is padded to {padded} there, {config.vocab_size} here: rows {config.vocab_size} to "
                f"{padded - 1} were left out"
            )

    def _check_optimizer(self) -> None:
        """Raise ``CheckpointError`` if the states of Adam are missing, or in a format that depends on the ranks."""
        names = self._folder.entries.keys() | self._folder.names_of_values()
        if any(name.removeprefix("chained_0.").startswith(BUFFERS) for name in names):
            kind = self.common.optimizer_format() or "dp_reshardable"
            raise CheckpointError(
                f"checkpoint {self._source} has its optimizer in the format {kind}, which depends on Megatron's ranks: "
                "load it with Megatron-LM and save it with --dist-ckpt-optim-fully-reshardable"
            )
        weights = self._keys(self._weights_prefix)
        if missing := weights - self._folder.entries.keys():
            raise CheckpointError(
                f"checkpoint {self._source} is incomplete: it has some weights in fp32, and lacks {examples(missing)}"
            )
        states = set().union(*(self._keys(self._prefix(key)) for key in MOMENTS if key != "step"))
        if missing := states - self._folder.entries.keys():
            raise CheckpointError(
                f"checkpoint {self._source} lacks states of Adam: {examples(missing)}; weights alone move as a "
                "Hugging Face model, by Megatron-Bridge"
            )

    def _check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        key = self._layout.place(name).key
        saved = self._size(name, key)
        expected = self._layout.shape(name, shape)
        pads = name in (EMBEDDING, HEAD) and len(saved) > 1 and saved[0] > expected[0]
        if saved != expected and not (pads and saved[1:] == expected[1:]):
            label = "" if self._layout.place(name).layer is None else " in each layer"
            raise CheckpointError(
                f"checkpoint {self._source} belongs to another model: {key} is {list(saved)}{label}, need "
                f"{list(expected)}"
            )
        if pads and saved[0] - expected[0] >= (multiple := self.common.vocabulary_multiple()):
            raise CheckpointError(
                f"checkpoint {self._source} has more tokens than this model: {key} has {saved[0]} rows, vocab_size is "
                f"{expected[0]}, and padding to a multiple of {multiple} adds fewer: set --vocab-size to that of the "
                "checkpoint's tokenizer"
            )

    def _size(self, name: str, key: str) -> tuple[int, ...]:
        """Return the shape of a tensor of Megatron, without the axis of layers."""
        size = tuple(self._folder.entries[key].size)
        stacked = self._layout.place(name).layer is not None
        if stacked and size[:1] != (self._config.model.num_hidden_layers,):
            raise CheckpointError(
                f"checkpoint {self._source} belongs to another model: {key} is {list(size)}, need "
                f"{self._config.model.num_hidden_layers} layers"
            )
        return size[1:] if stacked else size

    def _keys(self, prefix: str) -> set[str]:
        return {prefix + self._layout.place(name).key for name in self._shapes}

    def _prefix(self, state: str) -> str:
        return f"{STATE}.{state}."

    def _has_states(self, state: str) -> bool:
        return not self._keys(self._prefix(state)).isdisjoint(self._folder.entries)

    def _streamed(self, name: str, key: str, shape: tuple[int, ...]) -> StreamedTensor:
        if key == "step":
            return StreamedTensor((), torch.float32, lambda: torch.tensor(float(self._optimizer_step)))
        prefix = self._weights_prefix if key == "model" else self._prefix(key)
        dtype = self._folder.entries[prefix + self._layout.place(name).key].properties.dtype
        return StreamedTensor(shape, dtype, partial(self._read, name, key, prefix))

    def _read(self, name: str, key: str, prefix: str) -> Tensor:
        place = self._layout.place(name)
        saved_size = self._folder.entries[prefix + place.key].size
        if place.layer is None:
            tensor = self._folder.read_whole(prefix + place.key)
        else:
            if saved_size[:1] != (self._config.model.num_hidden_layers,):
                raise CheckpointError(
                    f"checkpoint {self._source}: {prefix}{place.key} is {list(saved_size)}, which does not fit "
                    f"{place.key}"
                )
            begin = [place.layer, *(0 for _ in saved_size[1:])]
            tensor = self._folder.read(prefix + place.key, begin, [1, *saved_size[1:]])[0]
        size = self._size(name, place.key)
        if tuple(tensor.shape) != size:
            blocks = tensor.shape[:-1]
            is_divided = len(blocks) == len(size) and not any(map(operator.mod, size, blocks))
            if not is_divided or tensor.numel() != math.prod(size):
                raise CheckpointError(
                    f"checkpoint {self._source}: {prefix}{place.key} is {list(saved_size)}, which does not fit "
                    f"{place.key}"
                )
            tensor = unflatten(tensor, size)
        part = self._layout.split(name, tensor).contiguous()
        measured_as = ("model", name) if key == "model" else ("optimizer", f"{name}.{key}")
        return self.measurements.measured(*measured_as, part)
