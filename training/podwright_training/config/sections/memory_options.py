"""Options that trade speed for memory."""

from __future__ import annotations

from dataclasses import dataclass

from podwright_training.config.option import Conflicts, option

SMALL_BYTES = 1 << 30  # Gathered weights of this size are little beside any device's memory.
QUICK_LOSS_CHUNK_TOKENS = {"cpu": 512, "accelerator": 4096}  # measured: on a CPU, more only costs memory


@dataclass(frozen=True, kw_only=True)
class MemoryOptions:
    """Set which tensors are kept in memory, recomputed or offloaded."""

    reshard_after_forward: str = option(
        "auto",
        "Free a block's gathered weights after forward and gather them again in backward; auto: unless all of them "
        "take at most 1 GiB, or a pipeline needs them again.",
        choices=("auto", "always", "never"),
    )
    accumulated_gradients: str = option(
        "sharded",
        "How gradients accumulate over micro-batches; sharded: reduce after each, keep a shard; whole: reduce once, "
        "after the last, and keep the whole gradient in fp32 on every rank, which communicates less; pipelines with a "
        "zero_bubble schedule always do this.",
        choices=("sharded", "whole"),
    )
    cpu_offload: bool = option(False, "Keep weights, gradients and optimizer state in host memory.")
    loss_chunk_tokens: int | None = option(
        None,
        "Tokens whose logits are in memory at once; 0: all. Default: "
        f"{QUICK_LOSS_CHUNK_TOKENS['cpu']} on a CPU, {QUICK_LOSS_CHUNK_TOKENS['accelerator']} on a GPU.",
        at_least=0,
    )
    activation_checkpointing: bool = option(
        True, "Keep only part of each block's activations and recompute the rest in backward."
    )
    activation_checkpointing_mode: str = option(
        "full",
        "full: keep each block's input; selective: also keep the outputs of matrix products and attention; budget: the "
        "compiler keeps the activations that are slowest to compute, within activation_memory_budget.",
        choices=("full", "selective", "budget"),
    )
    activation_memory_budget: float = option(
        0.5, "Share of a block's activations that mode budget keeps; 0 keeps its input.", at_least=0, at_most=1
    )
    offload_activations: bool = option(False, "Keep the activations that checkpointing saves in host memory.")


def conflicts(config: MemoryOptions) -> Conflicts:
    """Yield the conflicts among these options."""
    if config.offload_activations and not config.activation_checkpointing:
        yield (
            ("offload_activations", "activation_checkpointing"),
            "offload_activations needs activation_checkpointing 1: it moves the activations that checkpointing keeps",
        )
