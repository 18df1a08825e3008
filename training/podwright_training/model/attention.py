"""Compute causal grouped-query attention, within documents and a sliding window."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.bias import causal_lower_right
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from podwright_training.config.architecture import ModelConfig
from podwright_training.config.train_config import TrainConfig
from podwright_training.hardware import GPUS
from podwright_training.model.blockwise import Rows, blockwise_attention, rows_of
from podwright_training.model.rotary import rotate

Mask = list[Rows] | BlockMask | Tensor | None  # None: every token attends to itself and all before it

MOST_PAIRS = 2**30  # in a mask: 1 GiB, and 2 more when a kernel adds it in bf16
MASK_BLOCK = 128  # tokens of a block of flex_attention

Attend = Callable[[Tensor, Tensor, Tensor, Any], Tensor]


class Attention(nn.Module):
    """Causal attention; groups of N / K query heads share a key-value head (arXiv:2305.13245)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        query_width = config.num_attention_heads * config.head_dim
        key_value_width = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, query_width, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, key_value_width, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, key_value_width, bias=False)
        self.o_proj = nn.Linear(query_width, config.hidden_size, bias=False)
        self.q_norm = nn.RMSNorm(config.head_dim, eps=config.rms_norm_eps) if config.qk_norm else nn.Identity()
        self.k_norm = nn.RMSNorm(config.head_dim, eps=config.rms_norm_eps) if config.qk_norm else nn.Identity()
        self.attend: Attend = attend  # context parallelism wraps it

    def forward(self, x_BTD: Tensor, cos_T1H: Tensor, sin_T1H: Tensor, mask: Mask) -> Tensor:
        """Return the attention output of each token, ``[B, T, D]``."""
        q_BTNH = rotate(self.q_norm(self._heads(self.q_proj(x_BTD))), cos_T1H, sin_T1H)
        k_BTKH = rotate(self.k_norm(self._heads(self.k_proj(x_BTD))), cos_T1H, sin_T1H)
        v_BTKH = self._heads(self.v_proj(x_BTD))
        y_BTD: Tensor = self.o_proj(self.attend(q_BTNH, k_BTKH, v_BTKH, mask).flatten(2))
        return y_BTD

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], -1, self.head_dim)


def make_mask(
    tokens_BT: Tensor, *, positions_BT: Tensor | None, window: int | None, how: str, first_query: int = 0
) -> Mask:
    """Make the mask of tokens that ``attend`` hides in addition to later ones: once per batch, for every block.

    Args:
        tokens_BT: the batch; its shape and device count.
        positions_BT: position of each token in its document; tokens do not attend to other documents.
        window: tokens each token attends to, itself included.
        how: ``TrainConfig.attention``; a CPU has its own kernel for masks, unless this is ``sdpa``.
        first_query: the tokens from this one on are the queries, all are keys.
    """
    length, device = tokens_BT.shape[1], tokens_BT.device
    starts_BT = None
    if positions_BT is not None:
        starts_BT = (torch.arange(length, device=device) - positions_BT).clamp(min=0)
    own_kernel = device.type == "cpu" and how != "sdpa"
    if starts_BT is None and (window is None or window >= length) and not (own_kernel and first_query):
        return None
    if own_kernel:
        return rows_of(length, starts_BT=starts_BT, window=window, first_query=first_query)
    if uses_flex(how, device):
        return block_mask(length, starts_BT=starts_BT, window=window, device=device, first_query=first_query)
    return pair_mask(length, starts_BT=starts_BT, window=window, device=device, first_query=first_query)


def mask_problem(config: TrainConfig, device: torch.device) -> str | None:
    """Return the reason why a mask of all pairs of tokens is too large on a device, or ``None``."""
    length = config.max_context_width
    own_kernel = device.type == "cpu" and config.attention != "sdpa"
    if not has_mask(config) or own_kernel or uses_flex(config.attention, device):
        return None
    sequences = config.train_batch_size if config.document_mask else 1
    pairs = sequences * length**2
    if pairs <= MOST_PAIRS:
        return None
    return (
        f"attention {config.attention} needs a mask of {sequences} x {length} x {length} pairs of tokens here, more "
        f"than {MOST_PAIRS:,}: use --attention flex on a GPU, a shorter max_context_width, or no document_mask and no "
        "sliding_window"
    )


def has_mask(config: TrainConfig) -> bool:
    """Return whether tokens attend to less than all tokens before them."""
    window = config.sliding_window
    return config.document_mask or (window is not None and window < config.max_context_width)


def uses_flex(how: str, device: torch.device) -> bool:
    """Return whether masks on a device are for ``flex_attention``; ``how`` is ``TrainConfig.attention``."""
    return how == "flex" or (how == "auto" and device.type in GPUS)


def attend(q_BTNH: Tensor, k_BTKH: Tensor, v_BTKH: Tensor, mask: Mask) -> Tensor:
    """Softmax attention, ``[B, T, N, H]``, with queries and keys scaled by ``H ** -0.5``.

    The queries are the last T of the tokens whose keys and values are given.
    """
    if isinstance(mask, list):
        return blockwise_attention(q_BTNH, k_BTKH, v_BTKH, mask)
    grouped = k_BTKH.shape[2] < q_BTNH.shape[2]
    q, k, v = (x.transpose(1, 2) for x in (q_BTNH, k_BTKH, v_BTKH))
    if isinstance(mask, BlockMask):
        y_BNTH: Any = _flex_attention(q, k, v, block_mask=mask, enable_gqa=grouped)
    else:
        if mask is None and q.shape[2] < k.shape[2]:
            mask = causal_lower_right(q.shape[2], k.shape[2])
        y_BNTH = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=grouped)
    y_BTNH: Tensor = y_BNTH.transpose(1, 2)
    return y_BTNH


def pair_mask(
    length: int, *, starts_BT: Tensor | None, window: int | None, device: torch.device, first_query: int = 0
) -> Tensor:
    """Return True where a token from ``first_query`` on attends to another, ``[B or 1, 1, T - first_query, T]``."""
    token_T = torch.arange(length, device=device)
    starts = None if starts_BT is None else starts_BT[:, first_query:].unsqueeze(-1)
    visible = _sees(token_T[first_query:].unsqueeze(-1), token_T, starts, window)
    return visible.expand(1, *visible.shape[-2:]).unsqueeze(1) if starts_BT is None else visible.unsqueeze(1)


def block_mask(
    length: int, *, starts_BT: Tensor | None, window: int | None, device: torch.device, first_query: int = 0
) -> BlockMask:
    """Return the mask for ``flex_attention``, from each block's ends: no pair of tokens is looked at.

    A token sees all tokens from ``lowest`` to itself, and ``lowest`` never falls from one token to the next.
    """

    def sees(sequence: Tensor, _head: Tensor, token: Tensor, key_token: Tensor) -> Tensor:
        return _sees(
            first_query + token,
            key_token,
            None if starts_BT is None else starts_BT[sequence, first_query + token],
            window,
        )

    lowest_BT = torch.zeros(1, length, dtype=torch.int64, device=device) if starts_BT is None else starts_BT
    if window is not None:
        lowest_BT = torch.maximum(lowest_BT, torch.arange(length, device=device) - window + 1)
    begins_Q = torch.arange(first_query, length, MASK_BLOCK, device=device)
    lasts_Q = (begins_Q + MASK_BLOCK - 1).clamp(max=length - 1)
    begins_K = torch.arange(0, length, MASK_BLOCK, device=device)
    lasts_K = begins_K + MASK_BLOCK - 1
    seen_BQK = (lasts_K >= lowest_BT[:, begins_Q].unsqueeze(-1)) & (begins_K <= lasts_Q.unsqueeze(-1))
    full_BQK = (begins_K >= lowest_BT[:, lasts_Q].unsqueeze(-1)) & (lasts_K <= begins_Q.unsqueeze(-1))
    full_BQK &= (begins_Q + MASK_BLOCK <= length).unsqueeze(-1)  # a last block that is shorter keeps its mask
    return BlockMask.from_kv_blocks(
        *_blocks(seen_BQK & ~full_BQK),
        *_blocks(full_BQK),
        BLOCK_SIZE=MASK_BLOCK,
        mask_mod=sees,
        seq_lengths=(length - first_query, length),
    )


def _blocks(chosen_BQK: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of chosen blocks of keys per block of queries, and all blocks, the chosen ones first."""
    chosen = chosen_BQK.unsqueeze(1).to(torch.int32)  # All heads share them.
    return chosen.sum(-1, dtype=torch.int32), chosen.argsort(dim=-1, descending=True, stable=True).to(torch.int32)


def _sees(token: Tensor, key_token: Tensor, start: Tensor | None, window: int | None) -> Tensor:
    """Return whether a token attends to another, without in-place operations: flex_attention cannot compile them."""
    visible = key_token <= token
    if window is not None:
        visible = visible & (key_token > token - window)
    return visible if start is None else visible & (key_token >= start)


def _flex_attention(q: Tensor, k: Tensor, v: Tensor, *, block_mask: BlockMask, enable_gqa: bool) -> Any:
    """Return ``flex_attention``, compiled on a GPU: only then it is a fused kernel."""
    compute = _compiled() if q.is_cuda and not torch.compiler.is_compiling() else flex_attention
    return compute(q, k, v, block_mask=block_mask, enable_gqa=enable_gqa)


@cache
def _compiled() -> Any:
    return torch.compile(flex_attention)
