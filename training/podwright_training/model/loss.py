"""Compute the cross-entropy of a linear head without holding the logits of all tokens.

The gradients of hidden states and head are computed in the forward pass, chunk by chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from podwright_training.batch import IGNORED
from podwright_training.config.sections.memory_options import QUICK_LOSS_CHUNK_TOKENS
from podwright_training.model.device_compiler import fused

ChunkLoss = Callable[
    [Tensor, Tensor, float], tuple[Tensor, Tensor]
]  # logits, labels, z_loss → loss, gradient of logits


def summed_loss(
    hidden_SD: Tensor,
    head_VD: Tensor,
    labels_S: Tensor,
    *,
    chunk_tokens: int | None = None,
    z_loss: float = 0.0,
    compiled: bool = False,
) -> Tensor:
    """Return the sum over labels that are not ``IGNORED`` of cross-entropy + ``z_loss`` · logsumexp(logits)², in fp32.

    Args:
        hidden_SD: the head's input, ``[S, D]``.
        head_VD: the head, ``[V, D]``, a whole tensor: FSDP has gathered it, nothing else divides it.
        labels_S: the next token of each, or ``IGNORED``.
        chunk_tokens: tokens whose logits are in memory at a time; their gradient is computed in the forward pass. 0:
            all at once, by operations that DTensor and ``torch.compile`` know. ``None``: the fastest number.
        z_loss: weight of PaLM's auxiliary loss (arXiv:2204.02311, section 5).
        compiled: let ``torch.compile`` fuse the passes over a chunk's logits.
    """
    chunk_tokens = chunk_tokens_of(chunk_tokens, hidden_SD.device)
    if chunk_tokens and torch.is_grad_enabled():
        loss: Tensor = _ChunkedLoss.apply(  # type: ignore[no-untyped-call]
            hidden_SD, head_VD, labels_S, chunk_tokens, z_loss, _chunk_loss_on(hidden_SD.device, compiled=compiled)
        )
        return loss
    if chunk_tokens:
        chunks = zip(torch.split(hidden_SD, chunk_tokens), torch.split(labels_S, chunk_tokens), strict=True)
        losses = [_softmax(torch.mm(x_CD, head_VD.t()), labels_C, z_loss).loss for x_CD, labels_C in chunks]
        return torch.stack(losses).sum()
    logits_SV = F.linear(hidden_SD, head_VD).float()
    loss = F.cross_entropy(logits_SV, labels_S, ignore_index=IGNORED, reduction="sum")
    if z_loss:
        loss = loss + z_loss * (logits_SV.logsumexp(dim=-1).square() * (labels_S != IGNORED)).sum()
    return loss


def chunk_tokens_of(wish: int | None, device: torch.device) -> int:
    """Return the tokens of a chunk; ``None``: the fastest number on a device."""
    return QUICK_LOSS_CHUNK_TOKENS["cpu" if device.type == "cpu" else "accelerator"] if wish is None else wish


class _ChunkedLoss(torch.autograd.Function):
    """Compute the gradients of hidden states and head with the logits, and keep them for backward."""

    @staticmethod
    def forward(  # noqa: PLR0917 - autograd gives no names
        ctx: Any,
        hidden_SD: Tensor,
        head_VD: Tensor,
        labels_S: Tensor,
        chunk_tokens: int,
        z_loss: float,
        chunk_loss: ChunkLoss,
    ) -> Tensor:
        total = torch.zeros((), dtype=torch.float32, device=hidden_SD.device)
        dhidden_SD = torch.empty_like(hidden_SD)
        dhead_VD = torch.zeros_like(head_VD, dtype=torch.float32)
        for begin in range(0, len(hidden_SD), chunk_tokens):
            chunk = slice(begin, begin + chunk_tokens)
            x_CD, labels_C = hidden_SD[chunk], labels_S[chunk]
            loss, dlogits_CV = chunk_loss(torch.mm(x_CD, head_VD.t()), labels_C, z_loss)
            dhidden_SD[chunk] = torch.mm(dlogits_CV, head_VD)
            if x_CD.dtype == dhead_VD.dtype:
                dhead_VD.addmm_(dlogits_CV.t(), x_CD)
            else:
                dhead_VD += torch.mm(dlogits_CV.t(), x_CD)
            total += loss
            del dlogits_CV  # or it would still be there beside the next chunk's
        ctx.save_for_backward(dhidden_SD, dhead_VD.to(head_VD.dtype))
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None, None, None]:
        dhidden_SD, dhead_VD = ctx.saved_tensors
        return dhidden_SD * gradient, dhead_VD * gradient, None, None, None, None


def _chunk_loss(logits_CV: Tensor, labels_C: Tensor, z_loss: float) -> tuple[Tensor, Tensor]:
    """Return the summed loss in fp32, and its gradient by the logits in their dtype."""
    result = _softmax(logits_CV, labels_C, z_loss)
    return result.loss, _gradient(result, labels_C, z_loss).to(logits_CV.dtype)


def _fusible_chunk_loss(logits_CV: Tensor, labels_C: Tensor, z_loss: float) -> tuple[Tensor, Tensor]:
    """Return the same for compilers: only the gradient has the size of the logits, without scatter operations."""
    x_CV, label_C1 = logits_CV.float(), labels_C.clamp(min=0).unsqueeze(-1)
    counts_C1 = (labels_C != IGNORED).unsqueeze(-1).float()
    lse_C1 = x_CV.logsumexp(-1, keepdim=True)
    loss_C1 = lse_C1 - x_CV.gather(-1, label_C1) + z_loss * lse_C1.square()
    is_label_CV = torch.arange(x_CV.shape[-1], device=x_CV.device) == label_C1
    dlogits_CV = ((x_CV - lse_C1).exp() * (1 + 2 * z_loss * lse_C1) - is_label_CV.float()) * counts_C1
    return (loss_C1 * counts_C1).sum(), dlogits_CV.to(logits_CV.dtype)


def _chunk_loss_on(device: torch.device, *, compiled: bool) -> ChunkLoss:
    return cast("ChunkLoss", fused(_fusible_chunk_loss, device.type)) if compiled else _chunk_loss


class _Softmax(NamedTuple):
    loss: Tensor
    p_CV: Tensor
    lse_C1: Tensor


def _softmax(logits_CV: Tensor, labels_C: Tensor, z_loss: float) -> _Softmax:
    """Return summed loss, probabilities and the log of their denominator, in fp32.

    That logarithm comes from the largest probability, which is at least 1 / V: as exact as from a pass of its own.
    """
    label_logit_C1 = logits_CV.gather(-1, labels_C.clamp(min=0).unsqueeze(-1)).float()
    largest_C1 = logits_CV.amax(-1, keepdim=True).float()
    p_CV = torch.softmax(logits_CV, dim=-1, dtype=torch.float32)
    lse_C1 = largest_C1 - p_CV.amax(-1, keepdim=True).log()
    loss_C1 = lse_C1 - label_logit_C1 + z_loss * lse_C1.square()
    return _Softmax((loss_C1 * (labels_C != IGNORED).unsqueeze(-1)).sum(), p_CV, lse_C1)


def _gradient(result: _Softmax, labels_C: Tensor, z_loss: float) -> Tensor:
    """Return the gradient of the logits, overwriting the probabilities."""
    counts_C1 = (labels_C != IGNORED).unsqueeze(-1).float()
    dlogits_CV = result.p_CV.mul_(counts_C1 * (1 + 2 * z_loss * result.lse_C1))
    return dlogits_CV.scatter_add_(-1, labels_C.clamp(min=0).unsqueeze(-1), -counts_C1)
