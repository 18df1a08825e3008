"""Plan a run of podwright-train from its ``run.yaml``, presets and defaults."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from podwright.planning.cluster_hardware import Hardware
from podwright.planning.layout import Recompute
from podwright.planning.model import Model, UnknownModelError
from podwright.planning.run_plan import Plan, make_plan
from podwright.planning.trainer_options import OUR_CHUNK_TOKENS
from podwright.planning.zero_bubble import Schedule
from podwright_training.config.compilation import DRY_RUN_DEVICE, is_compiled
from podwright_training.config.parallel_dims import accumulates_whole_gradients, splits_backward, stages_per_rank
from podwright_training.config.train_config import TrainConfig


def model_of(config: TrainConfig) -> Model:
    """Return the model that the trainer builds. Fields that only a preset implies come from the catalog."""
    shape = config.model
    same: dict[str, Any] = {
        "hidden_size": shape.hidden_size,
        "layers": shape.num_hidden_layers,
        "heads": shape.num_attention_heads,
        "kv_heads": shape.num_key_value_heads,
        "head_dim": shape.head_dim,
        "ffn": shape.intermediate_size,
        "vocab": shape.vocab_size,
        "tied": shape.tie_word_embeddings,
        "qk_norm": shape.qk_norm,
    }
    if shape.num_local_experts:
        same |= {
            "experts": shape.num_local_experts,
            "experts_per_token": shape.num_experts_per_tok,
            "expert_ffn": shape.intermediate_size,
            "shared_ffn": shape.n_shared_experts * shape.intermediate_size,
        }
    try:
        return replace(Model.of(config.preset or ""), **same)
    except UnknownModelError:
        return Model(name=config.preset or "model", **same)


def arguments(config: TrainConfig, hardware: Hardware) -> dict[str, Any]:
    """Return the arguments of ``make_plan`` for a run on these nodes."""
    pieces = (config.pipeline_micro_batches or config.train_batch_size) if config.pipeline_parallel > 1 else 1
    precision = "fp32" if config.compute_precision == "fp32" else "bf16"  # fp16 has the size and speed of bf16
    return {
        "sequence": config.max_context_width,
        "micro_batch": max(1, config.train_batch_size // pieces),
        "micro_batches": pieces * config.micro_batches(_data_ranks(config, hardware)),
        "recompute": _recompute(config),
        "offload_activations": config.offload_activations,
        "offload_optimizer": config.cpu_offload,
        "loss_chunk_tokens": OUR_CHUNK_TOKENS if config.loss_chunk_tokens is None else config.loss_chunk_tokens,
        "whole_gradients": accumulates_whole_gradients(config),
        "reshard": config.reshard_after_forward,
        "eager": not is_compiled(config, DRY_RUN_DEVICE),
        "hybrid": config.sharding_strategy == "hybrid",
        "replicas": config.data_replicas,
        "degrees": {
            "tensor": config.tensor_parallel,
            "context": config.context_parallel,
            "pipeline": config.pipeline_parallel,
            "virtual_stages": stages_per_rank(config),
            "schedule": _schedule(config),
            "expert": config.expert_parallel,
        },
        "precision": "fp8" if config.float8 else precision,
        "optimizer": config.optimizer,
    }


def _schedule(config: TrainConfig) -> Schedule:
    """Return the schedule; an interleaved one is 1f1b with several stages per rank."""
    if not splits_backward(config):
        return "1f1b"
    return "zero_bubble_v" if config.pipeline_schedule == "zero_bubble_v" else "zero_bubble"


def _recompute(config: TrainConfig) -> Recompute:
    """Return the recomputation; a budget, whose effect only the compiler knows, counts as no recomputation."""
    if not config.activation_checkpointing or config.activation_checkpointing_mode == "budget":
        return "none"
    return "full" if config.activation_checkpointing_mode == "full" else "selective"


def total_tokens(config: TrainConfig, hardware: Hardware) -> float:
    """Return the tokens of all steps of a run on these nodes."""
    sequences = config.batch_sequences(_data_ranks(config, hardware))
    return float(config.max_steps * sequences * config.max_context_width)


def _data_ranks(config: TrainConfig, hardware: Hardware) -> int:
    return max(1, hardware.gpus // (config.tensor_parallel * config.context_parallel * config.pipeline_parallel))


def plan_run(config: TrainConfig, hardware: Hardware) -> Plan:
    """Plan all steps of a run.

    Raises:
        LayoutError: the layout is impossible.
    """
    return make_plan(model_of(config), hardware, tokens=total_tokens(config, hardware), **arguments(config, hardware))
