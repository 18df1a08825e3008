"""Tensor parallelism with sequence parallelism: ranks share each matrix of a block and, between matrices, its tokens.

Megatron's division (arXiv:1909.08053, arXiv:2205.05198) with DTensor: the first matrices by output (heads, hidden
units), the last by input. Tokens are gathered before the first and summed and scattered after the last, so norms and
residuals see a rank's own tokens alone. ``vocabulary.py`` divides embedding and head. If the ranks do not divide the
vocabulary evenly, each applies them whole to its own tokens, which divides the work as well.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn
from torch.distributed._symmetric_memory import enable_symm_mem_for_group
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from podwright_training.model import Block, FeedForward

TOKENS = Shard(1)  # Dimension T of ``[B, T, D]``.
HEADS = Shard(2)  # Dimension N of ``[B, T, N, H]``.


def divide_block(block: Block, tensor: DeviceMesh) -> None:
    """Divide a block's matrices; a mixture of experts stays whole and gets its rank's own tokens."""
    plan: dict[str, ParallelStyle] = {
        "input_layernorm": _OwnNorm(TOKENS),
        "self_attn": _GatherTokens(),
        "self_attn.q_proj": ColwiseParallel(),
        "self_attn.k_proj": ColwiseParallel(),
        "self_attn.v_proj": ColwiseParallel(),
        "self_attn.o_proj": RowwiseParallel(output_layouts=TOKENS),
        "post_attention_layernorm": _OwnNorm(TOKENS),
    }
    if isinstance(block.mlp, FeedForward):
        plan |= {
            "mlp": _GatherTokens(),
            "mlp.gate_proj": ColwiseParallel(),
            "mlp.up_proj": ColwiseParallel(),
            "mlp.down_proj": RowwiseParallel(output_layouts=TOKENS),
        }
    if isinstance(block.self_attn.q_norm, nn.RMSNorm):
        plan |= {"self_attn.q_norm": _OwnNorm(HEADS), "self_attn.k_norm": _OwnNorm(HEADS)}
    parallelize_module(block, tensor, plan)


def overlap(tensor: DeviceMesh) -> None:
    """Let the compiler split products next to a gathering or scattering, and compute a piece while another is sent.

    It sends through memory that the GPUs of a host map into each other: "async tensor parallelism" of
    https://arxiv.org/abs/2105.05720 and https://docs.pytorch.org/docs/stable/symmetric_memory.html
    """
    from torch._inductor import config as inductor  # a second, for this alone

    inductor._micro_pipeline_tp = True  # noqa: SLF001 - its only name
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # deprecated, but the compiler asks for it
        enable_symm_mem_for_group(tensor.get_group().group_name)


def overlap_problem(device: torch.device) -> str | None:
    """Return the reason why matrix products and communication cannot overlap here, or ``None``."""
    if device.type == "cuda" and torch.version.cuda:
        return None
    return f"async_tensor_parallel needs NVIDIA GPUs; device is {device.type}"


class _OwnNorm(SequenceParallel):
    """Apply a norm with replicated weight to a rank's own tokens or heads; sum the weight's gradient."""

    def __init__(self, divided: Shard) -> None:
        super().__init__(sequence_dim=divided.dim, use_local_output=True)


class _GatherTokens(ParallelStyle):
    """Gather a module's first argument from the ranks' own tokens to all tokens."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def gather(_: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
            local = DTensor.from_local(arguments[0], device_mesh, [TOKENS], run_check=False)
            return (local.redistribute(placements=[Replicate()]), *arguments[1:])

        module.register_forward_pre_hook(gather)
        return module
