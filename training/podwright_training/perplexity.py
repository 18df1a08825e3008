"""Perplexity, and the loss of a model of transformers on the validation split that options describe."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from podwright_training.config.train_config import TrainConfig
from podwright_training.errors import ForgedMessageError, UserError
from podwright_training.evaluation import Quality
from podwright_training.ranks import Ranks
from podwright_training.transformers_model import LoadedModel

if TYPE_CHECKING:
    from torch import Tensor

    from podwright_training.batch import Batch

LARGEST_LOSS = 700.0  # nats; e to a larger one soon exceeds what a float holds
LONGEST_TEXT = 1 << 20  # A rank's counts are shorter.
HEAD_TOKENS = 512  # The logits of this many tokens exist at a time.
PROBE_TOKENS = 8
PROBE_TOLERANCE = 1e-2  # Fraction of the largest logit; what a model does to its logits changes them more.


def perplexity(loss: float) -> float:
    """Return e to the loss, in nats per token; a loss above 700 counts as 700."""
    return math.exp(min(loss, LARGEST_LOSS))


@dataclass
class Sums:
    """Counts of a model on some text.

    Attributes:
        nats: Cross-entropy of all tokens.
        tokens: Their number.
        text_bytes: Bytes of the text that they are.
    """

    nats: float = 0.0
    tokens: int = 0
    text_bytes: int = 0

    def __add__(self, sums: Sums) -> Sums:
        """Return the counts on both texts."""
        return Sums(self.nats + sums.nats, self.tokens + sums.tokens, self.text_bytes + sums.text_bytes)

    def quality(self) -> Quality:
        """Return loss (nats per token), perplexity and bits per byte."""
        loss = self.nats / self.tokens
        bits_per_byte = self.nats / math.log(2) / max(self.text_bytes, 1)
        return Quality(loss=loss, perplexity=perplexity(loss), bits_per_byte=bits_per_byte)


def sums_by_source(loaded: LoadedModel, config: TrainConfig, *, tokens: int) -> dict[str, Sums]:
    """Return the counts on the first ``tokens`` of the validation split, or on all of a smaller one, by source.

    They are the same tokens for any number of ranks, each of which reads and judges its own. No text counts twice.

    Raises:
        UserError: The number of ranks does not divide the streams, or sequences are too long for the model.
    """
    import torch

    from podwright_training.batch import IGNORED
    from podwright_training.data.stream import open_stream
    from podwright_training.data.tokenizer import TextSize

    longest_context = getattr(loaded.model.config, "max_position_embeddings", None) or math.inf
    if config.max_context_width > longest_context:
        raise UserError(
            f"max_context_width is {config.max_context_width}, the model's max_position_embeddings {longest_context}: "
            f"use --max-context-width {longest_context}, or less"
        )
    ranks, device = Ranks.from_environment(), loaded.model.device
    sequences = tokens // config.max_context_width
    try:
        open_text = partial(
            open_stream,
            # A few batches: workers would only have to be started.
            replace(config, data_workers=0, add_bos=loaded.add_bos if loaded.is_own else config.add_bos),
            split="validation",
            tokenizer=loaded.tokenizer,
            rank=ranks.rank,
            world_size=ranks.world_size,
            local_batch_size=config.val_batch_size,
        )
        stream = open_text()
        # Each stream reads its own part: a source is small if whole rows of sequences have more than it.
        rows = math.ceil(sequences / config.data_streams) * config.data_streams
        are_small = [rows > source["epoch_sequences"] for source in stream.overview()]
        if any(are_small):
            stream = open_text(validation_epochs=1)  # The trainer repeats a split as small as this one.
        if all(are_small):
            sequences = sys.maxsize  # All of it: the streams end when they are spent.
    except ValueError as error:  # the number of ranks
        raise UserError(str(error)) from error
    text_size = TextSize.of(loaded.tokenizer)
    by_source: dict[str, Sums] = {}
    with torch.no_grad():
        by_parts = _ends_with_its_head(loaded.model)
        for _ in range(math.ceil(sequences / (ranks.world_size * config.val_batch_size))):
            batch = stream.next_batch()
            # The last batch may have more sequences than requested.
            count = len(stream.own_sequences(before=sequences))
            nats = _cross_entropy(loaded.model, batch.to(device), by_parts=by_parts)[:count]
            sequences_of_batch = zip(
                stream.sources()[:count], nats, batch.tokens_BT[:count], batch.labels_BT[:count], strict=True
            )
            for name, row, tokens_T, labels_T in sequences_of_batch:
                counted_T = labels_T != IGNORED
                if not counted_T.any():
                    continue  # a stream that has read all of its part
                text_bytes = text_size.count(tokens_T[counted_T].numpy(), labels_T[counted_T].numpy())
                by_source[name] = by_source.get(name, Sums()) + Sums(row, int(counted_T.sum()), text_bytes)
            if stream.is_wholly_spent:
                break
    return _of_all_ranks(by_source, ranks)


def _of_all_ranks(by_source: dict[str, Sums], ranks: Ranks) -> dict[str, Sums]:
    """Return the counts of all ranks, added up, by source."""
    if ranks.world_size == 1:
        return by_source
    own_counts = json.dumps({name: astuple(sums) for name, sums in by_source.items()})
    parts = [
        {name: Sums(float(nats), int(tokens), int(text_bytes)) for name, (nats, tokens, text_bytes) in part.items()}
        for part in map(json.loads, _gather_texts(own_counts, ranks))
    ]
    names = sorted({name for part in parts for name in part})
    return {name: sum((part.get(name, Sums()) for part in parts), Sums()) for name in names}


def _gather_texts(text: str, ranks: Ranks) -> list[str]:
    """Return the texts of all ranks; unlike PyTorch's objects, a stranger's text cannot run code.

    Raises:
        ForgedMessageError: One is longer than the counts of any run.
    """
    import torch
    import torch.distributed as dist

    content = torch.tensor(list(text.encode()), dtype=torch.uint8)
    sizes = [torch.zeros((), dtype=torch.int64) for _ in range(ranks.world_size)]
    dist.all_gather(sizes, torch.tensor(len(content)))
    longest = max(int(size) for size in sizes)
    if min(int(size) for size in sizes) < 0 or longest > LONGEST_TEXT:
        raise ForgedMessageError(f"a rank sends {longest} bytes of counts; they were not read")
    texts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(ranks.world_size)]
    dist.all_gather(texts, torch.nn.functional.pad(content, (0, longest - len(content))))
    return [bytes(item[:size].tolist()).decode() for item, size in zip(texts, map(int, sizes), strict=True)]


def _ends_with_its_head(model: Any) -> bool:
    """Return whether a model's logits are its head's output: Gemma 2 caps them, Cohere scales them."""
    import torch

    inputs = {"input_ids": torch.arange(PROBE_TOKENS, device=model.device)[None], "use_cache": False}
    logits, head_logits = model(**inputs).logits, torch.cat(list(_logits_by_parts(model, inputs)))
    return bool((logits[0] - head_logits).abs().max() <= PROBE_TOLERANCE * logits.abs().max())


def _cross_entropy(model: Any, batch: Batch, *, by_parts: bool) -> list[float]:
    """Return the sum over each sequence's tokens, from transformers' own layers and head.

    The head sees a few tokens at a time: the logits of a batch of 8 x 8192 tokens over 128,256 words take 34 GB. Where
    a model does more to them, they are those of one sequence at a time.
    """
    import torch
    from torch.nn.functional import cross_entropy

    # Without a cache, transformers attends within the documents that the positions show.
    inputs = {"input_ids": batch.tokens_BT, "use_cache": False}
    if batch.positions_BT is not None:
        inputs["position_ids"] = batch.positions_BT
    labels_BT = batch.labels_BT
    if by_parts:
        parts, logits = torch.split(labels_BT.flatten(), HEAD_TOKENS), _logits_by_parts(model, inputs)
    else:
        parts, logits = labels_BT.unbind(), _logits_by_sequence(model, inputs)
    nats = [cross_entropy(l_NV.double(), part_N, reduction="none") for l_NV, part_N in zip(logits, parts, strict=True)]
    sums: list[float] = torch.cat(nats).view_as(labels_BT).sum(dim=1).tolist()
    return sums


def _logits_by_parts(model: Any, inputs: dict[str, Any]) -> Iterator[Tensor]:
    hidden_BTD = model.base_model(**inputs).last_hidden_state
    return map(model.get_output_embeddings(), hidden_BTD.flatten(0, 1).split(HEAD_TOKENS))


def _logits_by_sequence(model: Any, inputs: dict[str, Any]) -> Iterator[Tensor]:
    for row in range(len(inputs["input_ids"])):
        sequence_inputs = {
            name: value if name == "use_cache" else value[row : row + 1] for name, value in inputs.items()
        }
        yield model(**sequence_inputs).logits[0]
