"""Vocabulary parallelism: ranks that share matrices hold different words of embedding and head.

Megatron's division (arXiv:1909.08053, section 3). A rank has the logits of all their tokens for its own words, and they
share each token's softmax. So the memory and work of logits are those of a whole head and a rank's own tokens, while
embedding and head, their gradients, and what FSDP sends of them are divided.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed._functional_collectives import all_reduce
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor

from podwright_training.batch import IGNORED
from podwright_training.local_tensor import local_tensor
from podwright_training.model import Embedding, Head
from podwright_training.model.device_compiler import fused
from podwright_training.model.loss import chunk_tokens_of
from podwright_training.parallel.tensor import TOKENS

try:
    from torch.distributed._functional_collectives import all_gather_single, reduce_scatter_single
except ImportError:  # before PyTorch 2.13, whose names warn from then on
    from torch.distributed._functional_collectives import all_gather_tensor as all_gather_single
    from torch.distributed._functional_collectives import reduce_scatter_tensor as reduce_scatter_single


def divide_embedding(embedding: Embedding, tensor: DeviceMesh) -> None:
    """Keep each rank's own words, on the meta device: from the tokens of all ranks it then returns a rank's own."""
    embedding.weight = nn.Parameter(distribute_tensor(embedding.weight, tensor, [Shard(0)]))
    embedding.look_up = VocabularyParallelLookUp(tensor)


def divide_head(head: Head, tensor: DeviceMesh) -> None:
    """Keep each rank's own rows of a head on the meta device, and compute its loss with the other ranks."""
    head.weight = nn.Parameter(distribute_tensor(head.weight, tensor, [Shard(0)]))
    head.summed_loss = VocabularyParallelLoss(tensor)
    head.likeliest = VocabularyParallelChoice(tensor)


class VocabularyParallelLookUp:
    """Embed the tokens of all ranks: each rank looks up the rows that it holds; add up and scatter the results.

    Local tensors, as the gradient of DTensor's embedding has all words on every rank.
    """

    def __init__(self, tensor: DeviceMesh) -> None:
        self._tensor = tensor

    def __call__(self, tokens_BT: Tensor, weight_VD: Tensor) -> Tensor:
        """Return this rank's own tokens, ``[B, T / ranks, D]``."""
        own_VD = local_tensor(weight_VD)
        words = len(own_VD)
        word_BT = tokens_BT - self._tensor.get_local_rank() * words
        is_own_BT = (word_BT >= 0) & (word_BT < words)
        x_BTD = F.embedding(word_BT.clamp(0, words - 1), own_VD) * is_own_BT.unsqueeze(-1)
        parts = DTensor.from_local(x_BTD, self._tensor, [Partial()], run_check=False)
        own_BTD: Tensor = parts.redistribute(placements=[TOKENS]).to_local()
        return own_BTD


class VocabularyParallelLoss:
    """Compute ``summed_loss`` of a rank's own tokens from its rows of the head and the other ranks' rows."""

    def __init__(self, tensor: DeviceMesh) -> None:
        self._group = tensor.get_group()
        self._rank, self._size = tensor.get_local_rank(), tensor.size()

    def __call__(
        self,
        hidden_SD: Tensor,
        head_VD: Tensor,
        labels_S: Tensor,
        /,
        *,
        chunk_tokens: int | None,
        z_loss: float,
        compiled: bool,
    ) -> Tensor:
        """Return the summed loss of this rank's own tokens; all ranks that share the head call it.

        Args:
            hidden_SD: the head's input for this rank's own tokens.
            head_VD: the head, divided among the ranks by rows.
            labels_S: of this rank's own tokens.
            chunk_tokens: as of ``summed_loss``, of every rank: a chunk has as many times more tokens as its logits have
                fewer words.
            z_loss: as of ``summed_loss``.
            compiled: as of ``summed_loss``.
        """
        own_VD = local_tensor(head_VD)
        chunk = (chunk_tokens_of(chunk_tokens, hidden_SD.device) or len(hidden_SD)) * self._size
        how = _How(self._group, self._rank, self._size, chunk, z_loss, compiled, torch.is_grad_enabled())
        loss: Tensor = _Loss.apply(hidden_SD, own_VD, labels_S, how)  # type: ignore[no-untyped-call]
        return loss


class VocabularyParallelChoice:
    """Choose each hidden state's likeliest token from all ranks' words."""

    def __init__(self, tensor: DeviceMesh) -> None:
        self._group, self._rank = tensor.get_group(), tensor.get_local_rank()

    def __call__(self, hidden_SD: Tensor, head_VD: Tensor, /) -> Tensor:
        """Return the tokens, ``[S]``, on all ranks that share the head; one passes each state, the others zeros."""
        own_VD = local_tensor(head_VD)
        x_SD = all_reduce(hidden_SD, "sum", self._group)
        largest_S, word_S = torch.mm(x_SD, own_VD.t()).float().max(dim=-1)
        best_S = all_reduce(largest_S, "max", self._group)
        chosen_S = (word_S + self._rank * len(own_VD)).where(largest_S == best_S, torch.iinfo(torch.int64).max)
        result: Tensor = all_reduce(chosen_S, "min", self._group)
        return result


class _How(NamedTuple):
    group: dist.ProcessGroup
    rank: int
    size: int
    chunk_tokens: int
    z_loss: float
    compiled: bool
    with_gradient: bool


class _Loss(torch.autograd.Function):
    """Compute the gradients of hidden states and head with the logits, and keep them for backward.

    ``S`` are the tokens of all ranks, ``V`` this rank's words.
    """

    @staticmethod
    def forward(ctx: Any, own_SD: Tensor, head_VD: Tensor, own_labels_S: Tensor, how: _How) -> Tensor:
        x_SD, labels_S = (all_gather_single(item, 0, how.group) for item in (own_SD, own_labels_S))
        dx_SD = torch.empty_like(x_SD) if how.with_gradient else None
        dhead_VD = torch.zeros_like(head_VD, dtype=torch.float32) if how.with_gradient else None
        losses = []
        for begin in range(0, len(x_SD), how.chunk_tokens):
            part = slice(begin, begin + how.chunk_tokens)
            chunk = _Chunk(torch.mm(x_SD[part], head_VD.t()), labels_S[part], how)
            losses.append(chunk.loss_C)
            if dx_SD is not None and dhead_VD is not None:
                dlogits_CV = chunk.gradient()
                dx_SD[part] = torch.mm(dlogits_CV, head_VD)
                dhead_VD += torch.mm(dlogits_CV.t(), x_SD[part])
                del dlogits_CV
            del chunk  # or its logits would still be there beside the next one's
        if dx_SD is not None and dhead_VD is not None:
            ctx.save_for_backward(reduce_scatter_single(dx_SD, "sum", 0, how.group), dhead_VD.to(head_VD.dtype))
        return torch.cat(losses).chunk(how.size)[how.rank].sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        dx_SD, dhead_VD = ctx.saved_tensors
        return dx_SD * gradient, dhead_VD * gradient, None, None


class _Chunk:
    """Softmax of some tokens over all ranks' words.

    Attributes:
        loss_C: of each token, in fp32.
    """

    def __init__(self, logits_CV: Tensor, labels_C: Tensor, how: _How) -> None:
        words = logits_CV.shape[1]
        self._logits_CV, self._how = logits_CV, how
        self._label_C1 = (labels_C - how.rank * words).unsqueeze(-1)
        self._counts_C1 = (labels_C != IGNORED).unsqueeze(-1).float()
        own_C1 = (self._label_C1 >= 0) & (self._label_C1 < words)
        self._label_C1 = self._label_C1.where(own_C1, -1)
        label_logit_C1 = logits_CV.gather(-1, self._label_C1.clamp(min=0)).float() * own_C1
        largest_C1 = all_reduce(logits_CV.amax(-1, keepdim=True).float(), "max", how.group)
        sums = fused(_exponential_sums, logits_CV.device.type) if how.compiled else _exponential_sums
        sums_C1 = sums(logits_CV, largest_C1)
        sums_C1, label_logit_C1 = all_reduce(torch.stack((sums_C1, label_logit_C1)), "sum", how.group).unbind()
        self._lse_C1 = largest_C1 + sums_C1.log()
        loss_C1 = self._lse_C1 - label_logit_C1 + how.z_loss * self._lse_C1.square()
        self.loss_C = (loss_C1 * self._counts_C1).squeeze(-1)

    def gradient(self) -> Tensor:
        """Return the gradient of this rank's logits, in their dtype."""
        factor_C1 = self._counts_C1 * (1 + 2 * self._how.z_loss * self._lse_C1)
        compute = fused(_fusible_gradient, self._logits_CV.device.type) if self._how.compiled else _gradient
        gradient_CV: Tensor = compute(self._logits_CV, self._lse_C1, factor_C1, self._label_C1, self._counts_C1)
        return gradient_CV


def _exponential_sums(logits_CV: Tensor, largest_C1: Tensor) -> Tensor:
    return torch.sub(logits_CV, largest_C1).exp_().sum(-1, keepdim=True)


def _gradient(logits_CV: Tensor, lse_C1: Tensor, factor_C1: Tensor, label_C1: Tensor, counts_C1: Tensor) -> Tensor:
    """Return ``factor`` · softmax, minus ``counts`` at a token's label, which is -1 if the rank lacks it."""
    dlogits_CV = torch.sub(logits_CV, lse_C1).exp_().mul_(factor_C1)
    at_label_C1 = -counts_C1 * (label_C1 >= 0)
    return dlogits_CV.scatter_add_(-1, label_C1.clamp(min=0), at_label_C1).to(logits_CV.dtype)


def _fusible_gradient(
    logits_CV: Tensor, lse_C1: Tensor, factor_C1: Tensor, label_C1: Tensor, counts_C1: Tensor
) -> Tensor:
    """Return the gradient as ``_gradient`` does, without scatter operations, for compilers."""
    is_label_CV = torch.arange(logits_CV.shape[-1], device=logits_CV.device) == label_C1
    dlogits_CV = (logits_CV.float() - lse_C1).exp() * factor_C1 - is_label_CV * counts_C1
    return dlogits_CV.to(logits_CV.dtype)
