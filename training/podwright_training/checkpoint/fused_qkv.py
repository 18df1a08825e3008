"""Fuse the rows of queries, keys and values into one matrix, each group of heads together, as other trainers do."""

from __future__ import annotations

import torch
from torch import Tensor

from podwright_training.config.architecture import ModelConfig

PROJECTIONS = ("q_proj", "k_proj", "v_proj")


def fuse(model: ModelConfig, projections: list[Tensor]) -> Tensor:
    """Return the matrix of queries, keys and values: the rows of each key-value head and its queries together."""
    parts = [tensor.reshape(model.num_key_value_heads, -1, *tensor.shape[1:]) for tensor in projections]
    return torch.cat(parts, dim=1).flatten(0, 1)


def split(model: ModelConfig, projection: str, fused: Tensor) -> Tensor:
    """Return queries, keys or values from their common matrix."""
    width = model.head_dim
    queries = width * (model.num_attention_heads // model.num_key_value_heads)
    heads = fused.reshape(model.num_key_value_heads, -1, *fused.shape[1:])
    parts = torch.split(heads, [queries, width, width], dim=1)
    return parts[PROJECTIONS.index(projection)].flatten(0, 1)
