"""Build the part of a model that one rank computes: all of it, unless a pipeline divides the blocks."""

from __future__ import annotations

from torch import Tensor, nn

from podwright_training.config.parallel_dims import blocks_of_stage
from podwright_training.model import LlamaForCausalLM, Mask, make_mask
from podwright_training.parallel.sequence import SequenceShare

NOT_HERE = -1  # instead of a token


class Stage(nn.Module):
    """Consecutive blocks, with the embedding before the first block and the loss after the last.

    Attributes:
        number: of the pipeline's stages.
        model: the whole model's module tree without other stages' modules, so that parameters keep their names.
        embeds_together: the embedding is divided: from the tokens of all ranks that share matrices, it returns a rank's
            own embedded.
    """

    embeds_together = False

    def __init__(self, model: LlamaForCausalLM, *, number: int, count: int, share: SequenceShare) -> None:
        super().__init__()
        self.model = model
        self.is_first, self.is_last = number == 0, number == count - 1
        self._share = share
        self.number = number
        self._own = blocks_of_stage(number, count, len(model.model.layers))
        self._drop_others()

    def forward(
        self, x: Tensor, labels_BS: Tensor, positions_BS: Tensor | None = None, *, last_B: Tensor | None = None
    ) -> Tensor:
        """Return the residual stream of this rank's own tokens ``[B, T, D]``; on the last stage, their summed loss.

        Args:
            x: Result of the previous stage; for the first stage, tokens ``[B, S]`` of whole sequences.
            labels_BS: Labels of whole sequences.
            positions_BS: Positions in documents, of whole sequences; ``None``: a sequence is one document.
            last_B: Index of each sequence's last token. With it, the last stage returns the likeliest token after
                each ``[B]``, or ``NOT_HERE`` where another rank has that last token.
        """
        parts, length = self.model.model, labels_BS.shape[1]
        token_indices = self._share.embedded_tokens(length, labels_BS.device)
        if self.is_first:
            x = parts.embed_tokens(
                x[:, self._share.queries(length, x.device) if self.embeds_together else token_indices]
            )
        cos, sin = self._angles(length, positions_BS, x)
        mask = self._mask(labels_BS, positions_BS)
        for number in self._own:
            x = parts.layers[number](x, cos, sin, mask)
        if not self.is_last:
            return x
        hidden_BTD = parts.norm(x)
        return (
            self.model.head(hidden_BTD, labels_BS[:, token_indices])
            if last_B is None
            else self._next(hidden_BTD, token_indices, last_B)
        )

    def _next(self, hidden_BTD: Tensor, own_T: Tensor, last_B: Tensor) -> Tensor:
        here_BT = own_T == last_B.unsqueeze(1)
        hidden_BD = (hidden_BTD * here_BT.unsqueeze(-1)).sum(dim=1)  # zeros where the last token is another rank's
        return self.model.next_tokens(hidden_BD).where(here_BT.any(dim=1), NOT_HERE)

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
                first_query=run.start,
            )
            for run in self._share.runs(tokens_BS.shape[1])
        ]
        return masks[0] if len(masks) == 1 else tuple(masks)

    def _drop_others(self) -> None:
        parts = self.model.model
        for number in range(len(parts.layers)):
            if number not in self._own:
                parts.layers[number] = nn.Identity()
        if not self.is_first and not (self.is_last and parts.config.tie_word_embeddings):  # it is the head, too
            del parts.embed_tokens
        if not self.is_last:
            del parts.norm, self.model.lm_head
