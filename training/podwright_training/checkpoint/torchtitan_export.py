"""Convert a checkpoint of a run, with the states of its AdamW, to one that torchtitan continues from."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW

from podwright_training.checkpoint import manifest, trainer_state
from podwright_training.checkpoint.collective_io import CheckpointError
from podwright_training.checkpoint.conversion import MOMENTS, ConvertedCheckpoint, RunTensors
from podwright_training.checkpoint.fused_qkv import PROJECTIONS
from podwright_training.checkpoint.tensor_reader import TensorReader
from podwright_training.checkpoint.tensor_stream import StreamedTensor, unfinished_folder, write_stream
from podwright_training.checkpoint.torchtitan_layout import TorchtitanLayout
from podwright_training.config.train_config import TrainConfig
from podwright_training.run_folder import commit_folder


def export_checkpoint(
    path: Path, target: Path, config: TrainConfig, release: str, *, learning_rate: Callable[[int, TrainConfig], float]
) -> ConvertedCheckpoint:
    """Write a checkpoint of a run as ``target``/step-N, which torchtitan of this release loads.

    Args:
        path: The checkpoint.
        target: Folder in which step-N is written.
        config: Configuration of the run.
        release: Release of torchtitan, one of ``RELEASES``.
        learning_rate: Returns the learning rate of a step.

    Raises:
        CheckpointError: The checkpoint is damaged or has no states of AdamW, or torchtitan lacks such a model; nothing
            is left in ``target``.
    """
    state = trainer_state.read_state(path)
    layout = TorchtitanLayout(trainer_state.model_config(path), release, fuses_qkv=release != "0.2")
    layout.check_model()
    if config.ema_decay:
        raise CheckpointError(
            "ema_decay: torchtitan has no moving average of the weights; move the average as a Hugging Face model, by "
            "podwright-train consolidate --ema"
        )
    manifest.check_hashes(path)
    tokens_seen = state.sequences * config.max_context_width
    final = target / f"step-{state.step}"  # torchtitan looks for this name.
    partial_folder = final.with_name(f".{final.name}.partial")
    with unfinished_folder(final, partial_folder):
        conversion = _Conversion(TensorReader(path), path, layout)
        conversion.check()
        next_rate = learning_rate(min(state.step + 1, config.max_steps), config)
        values = {
            "train_state": {"step": state.step, "ntokens_seen": tokens_seen},
            "lr_scheduler": _schedule(config, state.step, release, next_rate),
            "optimizer": conversion.hyperparameters(config, next_rate),
        }
        write_stream(partial_folder, conversion.tensors(), values)
        commit_folder(partial_folder, final)
    return ConvertedCheckpoint(final, state.step, tokens_seen, _differences(config))


class _Conversion(RunTensors):
    """The tensors of torchtitan's checkpoint, from those of a run."""

    def __init__(self, reader: TensorReader, path: Path, layout: TorchtitanLayout) -> None:
        super().__init__(reader, path)
        self._layout = layout

    def tensors(self) -> dict[str, StreamedTensor]:
        """Return the tensors of torchtitan's checkpoint by their keys; each is read when it is written."""
        tensors = {}
        for name in self._names:
            tensors[self._layout.name(name)] = self._streamed(f"model.{name}", partial(self._weight, name))
            if self._layout.is_fused(name):
                continue
            for key in MOMENTS:
                titan_key = f"optimizer.state.{self._layout.optimized_name(name)}.{key}"
                tensors[titan_key] = self._streamed(f"optimizer.{name}.{key}", partial(self._state, name, key))
        if self._layout.model.tie_word_embeddings:
            tensors[self._layout.head] = tensors["tok_embeddings.weight"]
        return tensors | self._fused_tensors()

    def hyperparameters(self, config: TrainConfig, next_rate: float) -> dict[str, Any]:
        """Return AdamW's hyperparameters for each parameter; torchtitan uses those of its checkpoint."""
        optimizer = AdamW([torch.zeros(1)], lr=config.lr, betas=(config.beta1, config.beta2), fused=True, foreach=False)
        group = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
        group |= {"lr": next_rate, "initial_lr": config.lr}
        values: dict[str, Any] = {}
        for name in self._names:
            decays = self._layout.release == "0.2" or len(self._reader.entries[f"model.{name}"].size) > 1
            prefix = f"param_groups.{self._layout.optimized_name(name)}"
            group["weight_decay"] = config.weight_decay if decays else 0.0  # release 0.2 has one for all parameters
            values |= {f"{prefix}.{key}": value for key, value in group.items()}
        return values

    def _fused_tensors(self) -> dict[str, StreamedTensor]:
        """Return the moments of the matrices that hold queries, keys and values."""
        tensors = {}
        for query in (name for name in self._names if self._layout.is_fused(name) and "q_proj" in name):
            projections = [query.replace(PROJECTIONS[0], projection) for projection in PROJECTIONS]
            rows = sum(self._reader.entries[f"model.{name}"].size[0] for name in projections)
            prefix = f"optimizer.state.{self._layout.optimized_name(query)}"
            tensors[f"{prefix}.step"] = self._streamed(f"optimizer.{query}.step", partial(self._state, query, "step"))
            for key in ("exp_avg", "exp_avg_sq"):
                entry = self._reader.entries[f"optimizer.{query}.{key}"]
                shape = (rows, *entry.size[1:])
                read = partial(self._fused_state, projections, key)
                tensors[f"{prefix}.{key}"] = StreamedTensor(shape, entry.properties.dtype, read)
        return tensors

    def _streamed(self, key: str, read: partial[Tensor]) -> StreamedTensor:
        entry = self._reader.entries[key]
        return StreamedTensor(tuple(entry.size), entry.properties.dtype, read)

    def _weight(self, name: str) -> Tensor:
        return self._layout.to_torchtitan(name, self._reader.read_whole(f"model.{name}"))

    def _state(self, name: str, key: str) -> Tensor:
        state = self._reader.read_whole(f"optimizer.{name}.{key}")
        return state if key == "step" else self._layout.to_torchtitan(name, state)

    def _fused_state(self, projections: list[str], key: str) -> Tensor:
        return self._layout.fuse([self._state(name, key) for name in projections])


def _differences(config: TrainConfig) -> list[str]:
    """Return how torchtitan's optimizer and that of the run differ, one phrase each."""
    if not config.weight_decay:
        return []
    return [
        f"weight_decay of norms is 0 here, {config.weight_decay} in torchtitan unless its param_groups set norms apart"
    ]


def _schedule(config: TrainConfig, step: int, release: str, next_rate: float) -> dict[str, Any]:
    """Return the position in the schedule; release 0.2 loads the whole state of PyTorch's ``LambdaLR``."""
    if release != "0.2":
        return {"last_epoch": step}
    return {
        "base_lrs": [config.lr],
        "last_epoch": step,
        "_step_count": step + 1,
        "_is_initial": False,
        "_get_lr_called_within_step": False,
        "_last_lr": [next_rate],
    }
