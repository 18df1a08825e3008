"""Convert a checkpoint of a run, with the states of its AdamW, to one that Megatron-Core loads."""

from __future__ import annotations

import json
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from podwright_common.atomic_file import new_file
from podwright_training.checkpoint import manifest, trainer_state
from podwright_training.checkpoint.collective_io import CheckpointError
from podwright_training.checkpoint.conversion import ADAMW_EPS, ConvertedCheckpoint, RunTensors
from podwright_training.checkpoint.megatron_common import COMMON_FILE, model_arguments
from podwright_training.checkpoint.megatron_import import MAIN_WEIGHTS, STATE, TRACKER, tracked_folder
from podwright_training.checkpoint.megatron_layout import LAYERS, MODULES, MegatronLayout
from podwright_training.checkpoint.tensor_reader import TensorReader
from podwright_training.checkpoint.tensor_stream import StackedTensor, StreamedTensor, unfinished_folder, write_stream
from podwright_training.config.architecture import ModelConfig
from podwright_training.config.train_config import TrainConfig
from podwright_training.run_folder import commit_folder, write_atomically

FORMAT = {"sharded_backend": "torch_dist", "sharded_backend_version": 1}
CONTENT = {
    "distrib_optim_sharding_type": "fully_reshardable",
    "distrib_optim_fully_reshardable_mem_efficient": False,
    "chained_optim_avoid_prefix": True,
    "singleton_local_shards": False,
}
DECAY_STYLES = {"wsd": "WSD"}  # Megatron's names of schedules, where they differ


def export_checkpoint(
    path: Path, target: Path, config: TrainConfig, *, sequences: Callable[[range], int]
) -> ConvertedCheckpoint:
    """Write a checkpoint of a run as ``target``/iter_N, which Megatron-Core loads.

    Args:
        path: The checkpoint.
        target: Folder in which iter_N is written.
        config: Configuration of the run.
        sequences: Returns the sequences of several steps.

    Raises:
        CheckpointError: The checkpoint is damaged or has no states of AdamW, or the model cannot move; nothing is left
            in ``target``.
    """
    state = trainer_state.read_state(path)
    layout = MegatronLayout(trainer_state.model_config(path))
    layout.check_model()
    if config.ema_decay:
        raise CheckpointError(
            "ema_decay: Megatron has no moving average of the weights; move the average as a Hugging Face model, by "
            "podwright-train consolidate --ema"
        )
    manifest.check_hashes(path)
    samples = sequences(range(1, state.step + 1)) if config.global_batch_size else state.sequences
    final = target / f"iter_{state.step:07}"  # Megatron looks for this name.
    partial_folder = final.with_name(f".{final.name}.partial")
    with unfinished_folder(final, partial_folder):
        conversion = _Conversion(TensorReader(path), path, layout)
        conversion.check()
        write_stream(partial_folder, conversion.tensors(), _extra_states(layout.model), flatten=False)
        common = _common(config, layout.model, step=state.step, samples=samples, adam_step=conversion.adam_step())
        with new_file(partial_folder / COMMON_FILE) as file:
            torch.save(common, file)
        write_atomically(partial_folder / "metadata.json", json.dumps(FORMAT))
        commit_folder(partial_folder, final)
    tracker = target / TRACKER
    if not tracker.exists():
        write_atomically(tracker, str(state.step))
    tracked = tracked_folder(tracker)
    differences = [] if tracked == final.name else [f"{TRACKER} names {tracked or 'no checkpoint'}, not {final.name}"]
    return ConvertedCheckpoint(final, state.step, samples * config.max_context_width, differences)


class _Conversion(RunTensors):
    """The tensors of Megatron's checkpoint, from those of a run."""

    def __init__(self, reader: TensorReader, path: Path, layout: MegatronLayout) -> None:
        super().__init__(reader, path)
        self._layout = layout

    def adam_step(self) -> float:
        """Return the steps of AdamW."""
        return self._reader.read_whole(f"optimizer.{self._names[0]}.step").item()

    def tensors(self) -> dict[str, StreamedTensor | StackedTensor]:
        """Return the tensors of Megatron's checkpoint by their keys; each is read when it is written."""
        names_by_key: defaultdict[str, defaultdict[int | None, list[str]]] = defaultdict(lambda: defaultdict(list))
        for name in sorted(self._names, key=_order):
            place = self._layout.place(name)
            names_by_key[place.key][place.layer].append(name)
        sources = {  # prefix of Megatron's key: (prefix, suffix) of this run's
            "": ("model.", ""),
            **{f"{STATE}.{state}.": ("model.", "") for state in MAIN_WEIGHTS},
            f"{STATE}.exp_avg.": ("optimizer.", ".exp_avg"),
            f"{STATE}.exp_avg_sq.": ("optimizer.", ".exp_avg_sq"),
        }
        return {
            prefix + key: self._tensor(names_by_layer, *source)
            for prefix, source in sources.items()
            for key, names_by_layer in names_by_key.items()
        }

    def _tensor(
        self, names_by_layer: Mapping[int | None, list[str]], prefix: str, suffix: str
    ) -> StreamedTensor | StackedTensor:
        keys_by_layer = {
            layer: [f"{prefix}{name}{suffix}" for name in names] for layer, names in names_by_layer.items()
        }
        name = next(iter(names_by_layer.values()))[0]  # All that are fused have one dtype.
        entry = self._reader.entries[f"{prefix}{name}{suffix}"]
        shape = self._layout.shape(name, tuple(entry.size))
        if None in keys_by_layer:
            return StreamedTensor(shape, entry.properties.dtype, partial(self._fused, keys_by_layer[None]))
        parts = [partial(self._fused, keys_by_layer[layer]) for layer in range(len(keys_by_layer))]
        return StackedTensor((len(parts), *shape), entry.properties.dtype, parts)

    def _fused(self, keys: list[str]) -> Tensor:
        return self._layout.fuse([self._reader.read_whole(key) for key in keys])


def _order(parameter: str) -> int:
    """Return the place of a parameter among those that are fused: queries, keys, values; gate, up."""
    module = parameter.removesuffix(".weight").split(".", maxsplit=3)[-1]
    return list(MODULES).index(module) if module in MODULES else 0


def _extra_states(model: ModelConfig) -> dict[str, Any]:
    """Return the empty states of Transformer Engine's layers, which Megatron loads for each layer."""
    layers = model.num_hidden_layers
    modules = ("core_attention", "linear_qkv", "linear_proj")
    names = [f"self_attention.{module}" for module in modules] + ["mlp.linear_fc1", "mlp.linear_fc2"]
    states = {
        f"{LAYERS}.{name}._extra_state/shard_{layer}_{layers}": [None] for name in names for layer in range(layers)
    }
    return states | {"decoder.final_layernorm._extra_state/shard_0_1": [None]}


def _common(config: TrainConfig, model: ModelConfig, *, step: int, samples: int, adam_step: float) -> dict[str, Any]:
    """Return what Megatron-LM loads besides tensors: its arguments, Adam's hyperparameters, the schedule."""
    arguments = model_arguments(model) | {
        "consumed_train_samples": samples,
        "consumed_valid_samples": 0,
        "seq_length": config.max_context_width,
        "max_position_embeddings": model.max_position_embeddings,
        "padded_vocab_size": model.vocab_size,
        "group_query_attention": True,
        "tensor_model_parallel_size": 1,
        "pipeline_model_parallel_size": 1,
    }
    adam = {
        "param_groups": [_group(config, decays=decays, adam_step=adam_step) for decays in (True, False)],
        "state": {"common_step": torch.tensor(adam_step)},
    }
    full_batch = config.global_batch_size or max(samples // max(step, 1), 1)
    return {
        "args": Namespace(**arguments),
        "checkpoint_version": 3.0,
        "iteration": step,
        "num_floating_point_operations_so_far": 0,
        # The optimizers of fp32, of bf16 and of distributed states each read another level.
        "optimizer": adam | {"optimizer": adam, "param_state_sharding_type": CONTENT["distrib_optim_sharding_type"]},
        "opt_param_scheduler": _schedule(config, samples=samples, full_batch=full_batch),
        "content_metadata": CONTENT,
    }


def _group(config: TrainConfig, *, decays: bool, adam_step: float) -> dict[str, Any]:
    """Return Adam's hyperparameters of the parameters that decay, or of the others."""
    return {
        "wd_mult": 1.0 if decays else 0.0,
        "lr_mult": 1.0,
        "is_expert_parallel": False,
        "is_decoupled_lr": False,
        "default_config": True,
        "max_lr": config.lr,
        "min_lr": config.min_lr,
        "lr": config.lr,
        "betas": (config.beta1, config.beta2),
        "eps": ADAMW_EPS,
        "weight_decay": config.weight_decay if decays else 0.0,
        "step": int(adam_step),
    }


def _schedule(config: TrainConfig, *, samples: int, full_batch: int) -> dict[str, Any]:
    """Return the state of Megatron's scheduler, which counts samples."""
    total = config.max_steps * full_batch
    return {
        "max_lr": config.lr,
        "min_lr": config.min_lr,
        "lr_warmup_steps": round(config.warmup * total),
        "lr_decay_steps": round((1 - config.plateau) * total),
        "lr_decay_style": DECAY_STYLES.get(config.lr_schedule, config.lr_schedule),
        "num_steps": samples,
        "start_wd": config.weight_decay,
        "end_wd": config.weight_decay,
        "wd_incr_style": "constant",
        "wd_incr_steps": total,
    }
