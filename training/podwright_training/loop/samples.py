"""Let a model continue fixed texts while it trains: its likeliest tokens, the same for every layout of ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from podwright_common.regular_file import read_text
from podwright_training.config.train_config import TrainConfig
from podwright_training.data.tokenizer import begin_tokens
from podwright_training.events import SampleEvent
from podwright_training.loop.callback import Callback
from podwright_training.loop.run_context import RunContext
from podwright_training.parallel import ParallelModel

LIMIT_BYTES = 16 << 20  # People write this file, so it is small.
WIDTH_STEP = 128  # Widths are multiples of the side of a block of a block mask.


class Samples(Callback):
    """Log how the model continues each text of ``sample_prompts`` by ``sample_tokens``, after each validation.

    A request to stop ends it at the next token, because the checkpoint comes first; then no text is logged.
    """

    def __init__(self, run: RunContext, model: ParallelModel, tokenizer: PreTrainedTokenizerBase) -> None:
        config = run.config
        self._run = run
        self._model = model
        self._tokenizer = tokenizer
        self._prompts = _encoded(config, tokenizer)
        self._begin_length = len(begin_tokens(tokenizer, add_bos=config.add_bos))
        longest = max(map(len, self._prompts), default=0) + config.sample_tokens
        divisor = math.lcm(WIDTH_STEP, 2 * config.context_parallel * config.tensor_parallel)
        self._width = min(config.max_context_width, math.ceil(longest / divisor) * divisor)

    def after_step(self) -> None:
        """Continue the texts and log them, after a step that was validated."""
        run = self._run
        if run.stop_requests.are_agreed or not run.progress.is_due(run.config.validation_freq):
            return
        with run.timer.besides("validating"):
            texts = self.continued_texts()
            if not run.stop_requests.are_agreed:
                run.metrics.write(SampleEvent(step=run.progress.step, texts=texts))

    def continued_texts(self) -> list[str]:
        """Return each text with the model's continuation, up to its end-of-text token.

        Every new token is one forward pass over all texts, without a cache, because a divided model has none.
        """
        added, end = self._run.config.sample_tokens, self._tokenizer.eos_token_id
        tokens_BT = torch.full((len(self._prompts), self._width), end)
        for row_T, prompt in zip(tokens_BT, self._prompts, strict=True):
            row_T[: len(prompt)] = torch.tensor(prompt)
        lengths_B = torch.tensor([len(prompt) for prompt in self._prompts])
        rows_B = torch.arange(len(self._prompts))
        for place in range(added):
            if self._run.stop_requests.agree():
                break
            tokens_BT[rows_B, lengths_B + place] = self._model.next_tokens(tokens_BT, lengths_B + place - 1)
        self._model.finish_evaluation()
        texts = []
        for row_T, prompt in zip(tokens_BT.tolist(), self._prompts, strict=True):
            new = row_T[len(prompt) : len(prompt) + added]
            new = new[: new.index(end)] if end in new else new
            texts.append(self._tokenizer.decode([*prompt[self._begin_length :], *new]))
        return texts


def problems(config: TrainConfig, tokenizer: PreTrainedTokenizerBase) -> Iterator[str]:
    """Yield one line for each reason why the model does not continue the texts."""
    if config.sample_prompts is None:
        return
    try:
        prompts = _encoded(config, tokenizer)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        yield f"sample_prompts {config.sample_prompts}: {reason}"
        return
    if not prompts:
        yield f"sample_prompts {config.sample_prompts}: has no text; write one per line"
        return
    longest, room = max(map(len, prompts)), config.max_context_width - config.sample_tokens
    if longest > room:
        yield (
            f"sample_prompts {config.sample_prompts}: a text has {longest} tokens, need at most {room}: "
            f"max_context_width {config.max_context_width} less sample_tokens {config.sample_tokens}"
        )


def _encoded(config: TrainConfig, tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    if config.sample_prompts is None:
        return []
    text = read_text(Path(config.sample_prompts), limit_bytes=LIMIT_BYTES, follow_links=True)
    # A text may have the separators of Unicode, at which splitlines divides it.
    lines = [line.removesuffix("\r") for line in text.removeprefix("\ufeff").split("\n")]
    begin = begin_tokens(tokenizer, add_bos=config.add_bos)
    return [[*begin, *tokenizer.encode(line, add_special_tokens=False)] for line in lines if line.strip()]
