"""Compose the configuration of a run from its sections; imports no torch.

Names and defaults are those of AWS's FSDP test case (awsome-distributed-training, ``3.test_cases/pytorch/FSDP``)
wherever it has the option; dimensions of the model have Hugging Face's names.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from podwright_training.config import dataset_lists
from podwright_training.config.option import Conflicts
from podwright_training.config.sections import (
    checkpoint_options,
    compute_options,
    elastic_options,
    memory_options,
    model_options,
    run_options,
    schedule_options,
)
from podwright_training.config.sections.checkpoint_options import CheckpointOptions
from podwright_training.config.sections.compute_options import ComputeOptions
from podwright_training.config.sections.data_options import DataOptions
from podwright_training.config.sections.elastic_options import ElasticOptions
from podwright_training.config.sections.guard_options import GuardOptions
from podwright_training.config.sections.logging_options import LoggingOptions
from podwright_training.config.sections.memory_options import MemoryOptions
from podwright_training.config.sections.model_options import ModelOptions
from podwright_training.config.sections.optimizer_options import OptimizerOptions
from podwright_training.config.sections.parallelism_options import ParallelismOptions
from podwright_training.config.sections.run_options import RunOptions
from podwright_training.config.sections.schedule_options import ScheduleOptions
from podwright_training.config.sections.validation_options import ValidationOptions

if TYPE_CHECKING:
    from typing_extensions import Self  # Python 3.11 has it in typing.

PRESETS = Path(__file__).parent / "presets"

PATHS = ("run_dir", "checkpoint_dir", "resume_from_checkpoint", "sample_prompts")
PATHS_OR_NAMES = ("dataset", "tokenizer", "init_from")

SECTIONS: dict[str, type] = {  # in the order of --help and config.yaml
    "run": RunOptions,
    "model": ModelOptions,
    "data": DataOptions,
    "schedule": ScheduleOptions,
    "optimizer": OptimizerOptions,
    "guard": GuardOptions,
    "parallelism": ParallelismOptions,
    "compute": ComputeOptions,
    "memory": MemoryOptions,
    "validation": ValidationOptions,
    "checkpoint": CheckpointOptions,
    "elastic": ElasticOptions,
    "logging": LoggingOptions,
}


@dataclass(frozen=True, kw_only=True)
class TrainConfig(
    RunOptions,
    ModelOptions,
    DataOptions,
    ScheduleOptions,
    OptimizerOptions,
    GuardOptions,
    ParallelismOptions,
    ComputeOptions,
    MemoryOptions,
    ValidationOptions,
    CheckpointOptions,
    ElasticOptions,
    LoggingOptions,
):
    """One training run. Each field is a flag and a key of ``run.yaml`` of the same name."""

    @property
    def checkpoints(self) -> Path:
        """Return the local folder of checkpoints."""
        folder = None if self.remote_checkpoints else self.checkpoint_dir
        return Path(folder or Path(self.run_dir) / "checkpoints")

    def batch_sequences(self, data_ranks: int) -> int:
        """Return the sequences of a step after the ramp, for so many ranks that read different data."""
        return self.global_batch_size or self.train_batch_size * self.gradient_accumulation_steps * data_ranks

    def micro_batches(self, data_ranks: int) -> int:
        """Return the micro-batches per rank of a step after the ramp."""
        return math.ceil(self.batch_sequences(data_ranks) / (self.train_batch_size * data_ranks))

    def to_dict(self) -> dict[str, Any]:
        """Return every option with its value, in the order of ``SECTIONS``."""
        return {name: getattr(self, name) for name in option_names()}

    def with_absolute_paths(self) -> Self:
        """Return the same with absolute paths, to be read from any folder.

        A dataset, tokenizer or mixture is a path if that exists, as when it is opened; else it is an identifier.
        """
        values = {name: getattr(self, name) for name in PATHS}
        paths: dict[str, Any] = {
            name: str(Path(value).absolute()) for name, value in values.items() if value and "://" not in value
        }
        paths |= {name: dataset_lists.absolute(value) for name in PATHS_OR_NAMES if (value := getattr(self, name))}
        if self.data_mixture:
            paths["data_mixture"] = dataset_lists.weighted_from_anywhere(self.data_mixture)
        if self.validation_datasets:
            paths["validation_datasets"] = dataset_lists.named_from_anywhere(self.validation_datasets)
        return replace(self, **paths)

    def to_yaml(self) -> str:
        """Return every option with its value; ``--config`` reads it back to an equal configuration."""
        import yaml  # planning needs the configuration, not YAML

        return yaml.safe_dump(self.to_dict(), sort_keys=False)

    @property
    def digest(self) -> str:
        """Return twelve hexadecimal digits that differ when any option differs."""
        return hashlib.sha256(self.to_yaml().encode()).hexdigest()[:12]


@cache
def option_names() -> tuple[str, ...]:
    """Return the names of all options, in the order of ``SECTIONS``."""
    return tuple(item.name for section in SECTIONS.values() for item in fields(section))


def conflicts(config: TrainConfig) -> Conflicts:
    """Yield options that contradict each other: their names and a message."""
    for section in (
        run_options,
        model_options,
        schedule_options,
        checkpoint_options,
        elastic_options,
        memory_options,
        compute_options,
    ):
        yield from section.conflicts(config)
    every = config.noise_scale_freq
    if every and config.gradient_accumulation_steps == 1 and config.global_batch_size is None:
        yield (
            ("noise_scale_freq", "gradient_accumulation_steps"),
            f"noise_scale_freq {every} needs more than one micro-batch: set gradient_accumulation_steps",
        )
    if config.min_nodes is not None and config.global_batch_size is None:
        yield (
            ("min_nodes", "global_batch_size"),
            "an elastic run (min_nodes) needs global_batch_size, the sequences of a step on any number of nodes",
        )
    yield from _budget_conflicts(config)
    yield from _neuron_conflicts(config)
    yield from _profile_conflicts(config)


def _budget_conflicts(config: TrainConfig) -> Conflicts:
    """Yield the options that conflict with activation_checkpointing_mode budget."""
    if not config.activation_checkpointing or config.activation_checkpointing_mode != "budget":
        return
    condition = "activation_checkpointing_mode budget"
    if config.compile is False:
        yield ("activation_checkpointing_mode", "compile"), f"{condition} needs compile 1: the compiler chooses"
    for name in ("offload_activations", "num_local_experts"):  # Parts of a mixture are compiled separately.
        if getattr(config, name):
            yield (
                ("activation_checkpointing_mode", name),
                f"{condition} conflicts with {name}: choose full or selective",
            )


def _neuron_conflicts(config: TrainConfig) -> Conflicts:
    """Yield options that conflict with Trainium, whose shapes may not depend on values."""
    name = next((name for name in ("device", "device_rules") if getattr(config, name) == "neuron"), None)
    if name is None:
        return
    if config.num_local_experts:
        problem = f"{name} neuron: each step routes another number of rows to num_local_experts, and shapes are static"
        yield (name, "num_local_experts"), f"{problem}; train a dense model"
    if config.attention == "flex":
        yield (name, "attention"), f"{name} neuron has no flex_attention: set attention sdpa"
    if config.device_rules == "neuron" and config.compile:
        yield ("device_rules", "compile"), "device_rules neuron checks single operations: leave compile out"
    masked = config.document_mask or config.sliding_window is not None
    if config.device_rules == "neuron" and masked and config.attention == "auto" and config.device != "neuron":
        problem = "device_rules neuron with document_mask or sliding_window needs attention sdpa"
        yield ("device_rules", "attention"), f"{problem}: a CPU's own kernel reads values"


def _profile_conflicts(config: TrainConfig) -> Conflicts:
    try:
        steps = config.profiled
    except ValueError:
        yield ("profile_steps",), f"profile_steps {config.profile_steps}: write the first and last step, as in 10-15"
        return
    if steps and steps[-1] > config.max_steps:
        yield (
            ("profile_steps", "max_steps"),
            f"profile_steps {config.profile_steps} goes beyond max_steps {config.max_steps}",
        )
