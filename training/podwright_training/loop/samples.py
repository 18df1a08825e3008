"""Let a model continue fixed texts while it trains: its likeliest tokens, the same for every layout of ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from podwright_training.config.train_config import TrainConfig
from podwright_training.parallel import ParallelModel
from podwright_training.regular_file import read_text

LIMIT_BYTES = 16 << 20  # of a text that people write

WIDTH_STEP = 128  # widths are multiples of it: block masks are made of such blocks


class Samples:
    """The texts of ``sample_prompts``, which the model continues by ``sample_tokens`` each."""

    def __init__(self, options: TrainConfig, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._prompts = _encoded(options, tokenizer)
        self._added = options.sample_tokens
        longest = max(map(len, self._prompts), default=0) + self._added
        divisor = math.lcm(WIDTH_STEP, 2 * options.context_parallel * options.tensor_parallel)
        self._width = min(options.max_context_width, math.ceil(longest / divisor) * divisor)

    def write(self, model: ParallelModel, *, stops: Callable[[], bool]) -> list[str]:
        """Return each text with the model's continuation, up to its end-of-text token; called by all ranks.

        Before each new token ``stops`` says whether to end, the same on all ranks.

        Every new token is one forward pass over all texts, without a cache, as a divided model has none.
        """
        end = self._tokenizer.eos_token_id
        tokens_BT = torch.full((len(self._prompts), self._width), end)
        for row_T, prompt in zip(tokens_BT, self._prompts, strict=True):
            row_T[: len(prompt)] = torch.tensor(prompt)
        lengths_B = torch.tensor([len(prompt) for prompt in self._prompts])
        rows_B = torch.arange(len(self._prompts))
        for added in range(self._added):
            if stops():
                break
            tokens_BT[rows_B, lengths_B + added] = model.next_tokens(tokens_BT, lengths_B + added - 1)
        model.finish_evaluation()
        texts = []
        for row_T, prompt in zip(tokens_BT.tolist(), self._prompts, strict=True):
            new = row_T[len(prompt) : len(prompt) + self._added]
            new = new[: new.index(end)] if end in new else new
            texts.append(self._tokenizer.decode([*prompt, *new]))
        return texts


def problems(options: TrainConfig, tokenizer: PreTrainedTokenizerBase) -> Iterator[str]:
    """Yield one line for each reason why the model does not continue the texts."""
    if options.sample_prompts is None:
        return
    try:
        prompts = _encoded(options, tokenizer)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        yield f"sample_prompts {options.sample_prompts}: {reason}"
        return
    if not prompts:
        yield f"sample_prompts {options.sample_prompts}: has no text; write one per line"
        return
    longest, room = max(map(len, prompts)), options.max_context_width - options.sample_tokens
    if longest > room:
        yield (
            f"sample_prompts {options.sample_prompts}: a text has {longest} tokens, need at most {room}: "
            f"max_context_width {options.max_context_width} less sample_tokens {options.sample_tokens}"
        )


def _encoded(options: TrainConfig, tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    if options.sample_prompts is None:
        return []
    lines = read_text(Path(options.sample_prompts), limit_bytes=LIMIT_BYTES, follow_links=True).splitlines()
    return [tokenizer.encode(line, add_special_tokens=False) for line in lines if line.strip()]
