"""Build the part of a model that one rank computes: all of it, unless a pipeline divides the blocks."""

from __future__ import annotations

from torch import Tensor, nn

from podwright_training.model import LlamaForCausalLM, Mask, make_mask
from podwright_training.parallel.sequence import SequenceShare


class Stage(nn.Module):
    """Consecutive blocks, with the embedding before the first block and the loss after the last.

    Attributes:
        model: the whole model's module tree without other stages' modules, so that parameters keep their names.
    """

    def __init__(self, model: LlamaForCausalLM, *, number: int, count: int, share: SequenceShare) -> None:
        super().__init__()
        self.model = model
        self.is_first, self.is_last = number == 0, number == count - 1
        self._share = share
        layers = model.model.layers
        self._own = range(number * len(layers) // count, (number + 1) * len(layers) // count)
        self._drop_others()

    def forward(self, x: Tensor, labels_BS: Tensor, positions_BS: Tensor | None = None) -> Tensor:
        """Return the residual stream of this rank's own tokens ``[B, T, D]``; on the last stage, their summed loss.

        Args:
            x: Result of the previous stage; for the first stage, tokens ``[B, S]`` of whole sequences.
            labels_BS: Labels of whole sequences.
            positions_BS: Positions in documents, of whole sequences; ``None``: a sequence is one document.
        """
        parts, length = self.model.model, labels_BS.shape[1]
        own = self._share.own(length, labels_BS.device)
        if self.is_first:
            x = parts.embed_tokens(x[:, own])
        cos, sin = self._angles(length, positions_BS, x)
        mask = self._mask(labels_BS, positions_BS)
        for number in self._own:
            x = parts.layers[number](x, cos, sin, mask)
        return self.model.summed_loss(parts.norm(x), labels_BS[:, own]) if self.is_last else x

    def _angles(self, length: int, positions_BS: Tensor | None, x: Tensor) -> tuple[Tensor, Tensor]:
        queries = self._share.queries(length, x.device)
        positions = queries if positions_BS is None else positions_BS[:, queries]
        cos, sin = self.model.model.rotary_emb(positions, x.dtype)
        return cos, sin

    def _mask(self, tokens_BS: Tensor, positions_BS: Tensor | None) -> Mask | tuple[Mask, ...]:
        """Make the mask of each run of this rank's queries over the tokens up to its end."""
        parts = self.model.model
        masks = [
            make_mask(
                tokens_BS[:, : run.stop],
                positions_BT=None if positions_BS is None else positions_BS[:, : run.stop],
                window=parts.config.sliding_window,
                how=parts.attention,
                first=run.start,
            )
            for run in self._share.runs(tokens_BS.shape[1])
        ]
        return masks[0] if len(masks) == 1 else tuple(masks)

    def _drop_others(self) -> None:
        parts = self.model.model
        for number in range(len(parts.layers)):
            if number not in self._own:
                parts.layers[number] = nn.Identity()
        if not self.is_first:
            del parts.embed_tokens
        if not self.is_last:
            del parts.norm, self.model.lm_head
