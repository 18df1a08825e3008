"""Compute masked causal attention on a CPU, in blocks of queries: PyTorch's fused kernel there needs a dense mask.

A block of queries is multiplied with only the keys that any of them attends to, all query heads of a group at once;
the probabilities are recomputed in backward, as in FlashAttention (arXiv:2205.14135).

Matrix products are PyTorch's own on every processor.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

ROWS = 32  # queries at a time: few, so that little is computed only to be masked; many, so that products are large
PAIRS = 16  # Pairs of a sequence and a key-value head at a time: their intermediate results fit the cache.


@dataclass(frozen=True)
class Rows:
    """Queries of the tokens ``begin`` … ``end - 1``, which attend to keys from ``first_key`` on.

    Attributes:
        hidden: True where a query must not attend to a key, ``[B or 1, 1, 1, rows, last keys]``: all attend to keys
            before the last ones.
    """

    begin: int
    end: int
    first_key: int
    hidden: Tensor

    def of(self, begin: int, sequences: int) -> Rows:
        """Return the same for some sequences."""
        return self if len(self.hidden) == 1 else replace(self, hidden=self.hidden[begin : begin + sequences])


def rows_of(length: int, *, starts_BT: Tensor | None, window: int | None, first_query: int = 0) -> list[Rows]:
    """Divide the queries of the tokens ``first_query`` … ``length - 1``.

    Each attends to at most ``window`` tokens, and none before its document's start.
    """
    if starts_BT is None and (window is None or window >= length):
        later = torch.ones(ROWS, ROWS, dtype=torch.bool).triu(1)
        return [
            Rows(begin, end, 0, later[None, None, None, : end - begin, : end - begin])
            for begin, end in _spans(first_query, length)
        ]
    return [_masked_rows(begin, end, starts_BT, window) for begin, end in _spans(first_query, length)]


def blockwise_attention(q_BTNH: Tensor, k_BTKH: Tensor, v_BTKH: Tensor, rows: list[Rows]) -> Tensor:
    """Softmax attention, ``[B, T, N, H]``; the queries are the last T of the keys' tokens."""
    sequences = max(1, PAIRS // k_BTKH.shape[2])
    begins = range(0, len(q_BTNH), sequences)
    parts = zip(*(torch.split(x, sequences) for x in (q_BTNH, k_BTKH, v_BTKH)), begins, strict=True)
    return torch.cat([_attention(q, k, v, [part.of(begin, sequences) for part in rows]) for q, k, v, begin in parts])


def _attention(q_BTNH: Tensor, k_BTKH: Tensor, v_BTKH: Tensor, rows: list[Rows]) -> Tensor:
    y_BTNH: Tensor = _BlockwiseAttention.apply(q_BTNH, k_BTKH, v_BTKH, rows)  # type: ignore[no-untyped-call]
    return y_BTNH


class _BlockwiseAttention(torch.autograd.Function):
    """In shapes, P = B · K pairs of a sequence and a key-value head, and R = N / K · (end - begin) queries of each."""

    @staticmethod
    def forward(ctx: Any, q_BTNH: Tensor, k_BTKH: Tensor, v_BTKH: Tensor, rows: list[Rows]) -> Tensor:
        heads = k_BTKH.shape[2]
        k_PTH, v_PTH = _by_pair(k_BTKH, heads), _by_pair(v_BTKH, heads)
        y_BTNH = torch.empty_like(q_BTNH, memory_format=torch.contiguous_format)
        skipped = k_BTKH.shape[1] - q_BTNH.shape[1]
        for part in rows:
            queries = slice(part.begin - skipped, part.end - skipped)
            q_PRH = _by_pair(q_BTNH[:, queries], heads)
            p_PRT = _probabilities(q_PRH, k_PTH, part, len(q_BTNH))
            y_PRH = torch.bmm(p_PRT, v_PTH[:, part.first_key : part.end])
            _put(y_BTNH[:, queries], y_PRH, heads)
        ctx.save_for_backward(q_BTNH, k_PTH, v_PTH)
        ctx.rows = rows
        return y_BTNH

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_BTNH: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q_BTNH, k_PTH, v_PTH = ctx.saved_tensors
        heads, scale = len(k_PTH) // len(q_BTNH), q_BTNH.shape[-1] ** -0.5
        dq_BTNH = torch.empty_like(q_BTNH, memory_format=torch.contiguous_format)
        dk_PTH, dv_PTH = (torch.zeros_like(x, dtype=torch.float32) for x in (k_PTH, v_PTH))
        skipped = k_PTH.shape[1] - q_BTNH.shape[1]
        for part in ctx.rows:
            queries, keys = slice(part.begin - skipped, part.end - skipped), slice(part.first_key, part.end)
            q_PRH, dy_PRH = _by_pair(q_BTNH[:, queries], heads), _by_pair(dy_BTNH[:, queries], heads)
            p_PRT = _probabilities(q_PRH, k_PTH, part, len(q_BTNH))
            dv_PTH[:, keys] += torch.bmm(p_PRT.mT, dy_PRH)
            dp_PRT = torch.bmm(dy_PRH, v_PTH[:, keys].mT)
            ds_PRT = torch._softmax_backward_data(dp_PRT, p_PRT, -1, p_PRT.dtype)  # noqa: SLF001 - public softmax has no backward
            _put(dq_BTNH[:, queries], torch.bmm(ds_PRT, k_PTH[:, keys]).mul_(scale), heads)
            dk_PTH[:, keys] += torch.bmm(ds_PRT.mT, q_PRH)
        dk_PTH.mul_(scale)
        dk, dv = (x.to(q_BTNH.dtype).view(-1, heads, *x.shape[1:]).transpose(1, 2) for x in (dk_PTH, dv_PTH))
        return dq_BTNH, dk, dv, None


def _spans(first_query: int, length: int) -> list[tuple[int, int]]:
    return [(begin, min(begin + ROWS, length)) for begin in range(first_query, length, ROWS)]


def _masked_rows(begin: int, end: int, starts_BT: Tensor | None, window: int | None) -> Rows:
    query_R1 = torch.arange(begin, end).unsqueeze(-1)
    sees_from = torch.zeros_like(query_R1) if window is None else (query_R1 - window + 1).clamp(min=0)
    if starts_BT is not None:
        sees_from = sees_from.maximum(starts_BT[:, begin:end].unsqueeze(-1))
    first_key = int(sees_from.min())
    key_T = torch.arange(first_key, end)
    hidden = (key_T > query_R1) | (key_T < sees_from)
    return Rows(begin, end, first_key, hidden.view(-1, 1, 1, *hidden.shape[-2:]))


def _by_pair(x_BTMH: Tensor, heads: int) -> Tensor:
    """``[B · heads, M / heads · T, H]``."""
    sequences, length, _, width = x_BTMH.shape
    grouped = x_BTMH.view(sequences, length, heads, -1, width).permute(0, 2, 3, 1, 4)
    return grouped.reshape(sequences * heads, -1, width)


def _put(target_BTMH: Tensor, x_PRH: Tensor, heads: int) -> None:
    """Write the inverse of ``_by_pair`` into ``target``."""
    sequences, length, _, width = target_BTMH.shape
    x = x_PRH.view(sequences, heads, -1, length, width).permute(0, 3, 1, 2, 4)
    target_BTMH.view(sequences, length, heads, -1, width).copy_(x)


def _probabilities(q_PRH: Tensor, k_PTH: Tensor, part: Rows, sequences: int) -> Tensor:
    keys_PTH = k_PTH[:, part.first_key : part.end]
    s_PRT = torch.bmm(q_PRH * q_PRH.shape[-1] ** -0.5, keys_PTH.mT)
    by_row = s_PRT.view(sequences, len(k_PTH) // sequences, -1, part.end - part.begin, keys_PTH.shape[1])
    by_row[..., -part.hidden.shape[-1] :].masked_fill_(part.hidden, float("-inf"))
    return torch.softmax(s_PRT, dim=-1)
