"""Translate a layout into options of podwright-train, and list unsupported parts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from math import lcm
from typing import Any

from podwright.planning.layout import Layout, Precision
from podwright.planning.model import Model, model_names
from podwright_training.config import parallel_dims
from podwright_training.config.families import FAMILIES, OPTIONAL_FEATURES
from podwright_training.config.sections.memory_options import QUICK_LOSS_CHUNK_TOKENS
from podwright_training.config.sources import preset_names
from podwright_training.config.train_config import TrainConfig, conflicts
from podwright_training.spelling import as_flag

OUR_SOFTWARE = "podwright"
OUR_CHUNK_TOKENS = QUICK_LOSS_CHUNK_TOKENS["accelerator"]
DEFAULTS = TrainConfig()
OFFLOADED_OPTIMIZER = "offloading the optimizer alone"
ALWAYS = ("train_batch_size", "max_context_width", "activation_checkpointing", "sharding_strategy")
PRECISIONS: dict[Precision, dict[str, Any]] = {"bf16": {}, "fp32": {"precision": "fp32"}, "fp8": {"float8": True}}
ARCHITECTURES = tuple(family.architecture for family in FAMILIES.values())  # published models are named after them


def options(layout: Layout) -> dict[str, Any]:
    """Return the trainer's options for a layout, without the ``unsupported`` parts.

    A pipeline takes all micro-batches of a step in one pass: for the trainer they are pieces of one.
    """
    pieces = layout.micro_batches if layout.pipeline > 1 else 1
    # a pipeline whose gradients are not sharded, as another trainer's, is planned with whole ones
    keeps_whole_gradients = layout.whole_gradients or (layout.pipeline > 1 and layout.sharding in ("none", "optimizer"))
    values: dict[str, Any] = {
        "train_batch_size": layout.micro_batch * pieces,
        "gradient_accumulation_steps": layout.micro_batches // pieces,
        "max_context_width": layout.sequence,
        "activation_checkpointing": layout.recompute != "none",
        "offload_activations": layout.offload_activations,
        "accumulated_gradients": "whole" if keeps_whole_gradients else "sharded",
        "reshard_after_forward": layout.reshard,
        "sharding_strategy": "hybrid" if layout.shards else "full",
        "tensor_parallel": layout.tensor,
        "context_parallel": layout.context,
        "pipeline_parallel": layout.pipeline,
        "expert_parallel": layout.expert,
        "data_streams": lcm(DEFAULTS.data_streams, layout.data),
        "optimizer": layout.optimizer,
        **PRECISIONS[layout.precision],
    }
    if layout.recompute != "none":
        values["activation_checkpointing_mode"] = "selective" if layout.recompute == "selective" else "full"
    if layout.shards:
        values["data_replicas"] = layout.data * layout.context // layout.shards
    if layout.pipeline > 1:
        values["pipeline_micro_batches"] = pieces
        plain = "1f1b" if layout.virtual_stages == 1 else "interleaved_1f1b"
        values["pipeline_schedule"] = schedule = plain if layout.schedule == "1f1b" else layout.schedule
        if layout.virtual_stages != parallel_dims.STAGES_PER_RANK[schedule]:
            values["pipeline_stages_per_rank"] = layout.virtual_stages
    if layout.splits_backward:  # Such a schedule keeps whole gradients, whatever the option says.
        del values["accumulated_gradients"]
    if layout.loss_chunk_tokens != OUR_CHUNK_TOKENS:
        values["loss_chunk_tokens"] = layout.loss_chunk_tokens
    return values


def flags(layout: Layout, base: TrainConfig = DEFAULTS) -> list[str]:
    """Return command-line flags for the differences from ``base``, the run or preset that the command names.

    From the defaults, batch, sequence, recomputation and sharding are always given.
    """
    return as_flags(options_from(layout, base), base, always=ALWAYS if base is DEFAULTS else ())


def options_from(layout: Layout, base: TrainConfig) -> dict[str, Any]:
    """Return the options that make ``base`` the run of a layout; some may be as they are."""
    values = options(layout)
    if base.global_batch_size is not None:
        del values["gradient_accumulation_steps"]
        values["global_batch_size"] = batch_sequences(layout, base)
    if base.data_streams % layout.data == 0:
        del values["data_streams"]
    planned = "bf16" if base.compute_precision == "fp16" else base.compute_precision  # fp16 has bf16's size and speed.
    if values.setdefault("precision", "bf16") == planned:
        del values["precision"]
    if base.activation_checkpointing_mode == "budget" and layout.recompute == "none":
        del values["activation_checkpointing"]  # a plan counts a budget as nothing recomputed: what it keeps at most
    return {**values, **_taken_back(layout, base)}


def _taken_back(layout: Layout, base: TrainConfig) -> dict[str, Any]:
    """Return options that a run sets, and that are others in a layout which was not planned from it."""
    layout_values: dict[str, Any] = {
        "float8": layout.precision == "fp8",
        "cpu_offload": layout.offload_optimizer and base.cpu_offload,
        "async_tensor_parallel": layout.tensor > 1 and base.async_tensor_parallel,
        "data_replicas": base.data_replicas if layout.shards else None,
        "pipeline_stages_per_rank": layout.virtual_stages if layout.pipeline > 1 else base.pipeline_stages_per_rank,
    }
    changed_values = {
        name: value for name, value in layout_values.items() if getattr(base, name) and value != getattr(base, name)
    }
    chunk = OUR_CHUNK_TOKENS if base.loss_chunk_tokens is None else base.loss_chunk_tokens
    return (
        changed_values
        if layout.loss_chunk_tokens == chunk
        else {**changed_values, "loss_chunk_tokens": layout.loss_chunk_tokens}
    )


def batch_sequences(layout: Layout, base: TrainConfig = DEFAULTS) -> int:
    """Return the sequences of a step: the run's own global batch where the layout's micro-batches are as many."""
    values = options(layout)
    rebatched = replace(base, train_batch_size=values["train_batch_size"])
    has_same_accumulation = rebatched.micro_batches(layout.data) == values["gradient_accumulation_steps"]
    return base.global_batch_size if base.global_batch_size and has_same_accumulation else layout.global_batch


def as_flags(values: Mapping[str, Any], base: TrainConfig, *, always: Collection[str] = ()) -> list[str]:
    """Return the flags of options that differ from ``base``, and those named in ``always``."""
    return [as_flag(name, value) for name, value in values.items() if name in always or value != getattr(base, name)]


def unsupported(layout: Layout, model: Model, run: TrainConfig | None = None) -> list[str]:
    """Return the parts of a layout that the trainer does not support, with the trainer's own messages.

    Args:
        layout: The layout.
        model: The model, which the trainer has if it is of a run.
        run: The run that the layout is for.
    """
    config = (
        replace(run, **options_from(layout, run)) if run else TrainConfig(**options(layout), **shape(model, layout))
    )
    problems = [message for _, message in conflicts(config)]
    # Replicas are given, not derived from nodes.
    problems += parallel_dims.problems(config, world_size=layout.gpus, nodes=1)
    return [*_unknown(layout, model, run), *problems]


def _unknown(layout: Layout, model: Model, run: TrainConfig | None) -> Iterator[str]:
    """Yield the parts of a layout that the trainer has no option for."""
    is_needed_by_part = {
        f"a model like {model.name}": run is None and _other_family(model),
        # a pipeline's weights stay gathered from one piece to the next: on the GPU that is like ZeRO-1
        f"{layout.sharding} sharding": layout.sharding != "full" and layout.pipeline == 1 and layout.data > 1,
        OFFLOADED_OPTIMIZER: layout.offload_optimizer and not (run and run.cpu_offload),
    }
    return (name for name, is_needed in is_needed_by_part.items() if is_needed)


def is_trained_dense(model: Model) -> bool:
    """Return whether a published model is dense and of a family that the trainer has."""
    return not model.experts and (model.name.startswith(ARCHITECTURES) or model.name in preset_names())


def trained_names() -> list[str]:
    """Return the names of published models that the trainer has, mixtures left out."""
    return [name for name in model_names() if is_trained_dense(Model.of(name))]


def _other_family(model: Model) -> bool:
    """Return whether a model has parts that no model family of the trainer has."""
    parts = (
        model.hybrid, model.kv_rank, model.shared_ffn, model.dense_layers, model.latent, model.learned_positions,
        model.extra_predictions, not model.gated, model.activation != "silu", model.bias != "none",
        model.windowed_layers not in (0, model.layers),
        _family(model) is None,
    )  # fmt: skip
    return any(parts)


def _family(model: Model) -> str | None:
    """Return the first ``model_type`` with the model's features, and without any that the model lacks."""
    features = {
        "sliding_window": bool(model.windowed_layers),
        "qk_norm": bool(model.qk_norm),
        "num_local_experts": bool(model.experts),
        "n_shared_experts": bool(model.shared_ffn),
    }
    matching = (
        name
        for name, family in FAMILIES.items()
        if all(family.supports(key) if features[key] else not family.requires(key) for key in OPTIONAL_FEATURES)
    )
    return next(matching, None)


def shape(model: Model, layout: Layout) -> dict[str, Any]:
    """Return the options of a model that layouts depend on."""
    window = model.window if model.windowed_layers else None
    return {
        "model_type": _family(model) or DEFAULTS.model_type,
        "vocab_size": model.vocab,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.expert_ffn if model.experts else model.ffn,
        "num_layers": model.layers,
        "num_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "qk_norm": model.qk_norm,
        "sliding_window": window,
        "max_position_embeddings": layout.sequence,
        "tie_word_embeddings": model.tied,
        "num_local_experts": model.experts or None,
        "num_experts_per_tok": model.experts_per_token or DEFAULTS.num_experts_per_tok,
    }
