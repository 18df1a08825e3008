"""Measure a model's loss on the validation data while it trains."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, nan

import torch
import torch.distributed as dist
from torch import Tensor

from podwright_training.beats import Activity
from podwright_training.data.stream import PackedStream
from podwright_training.device_rules import rules_of
from podwright_training.events import ValidationEvent
from podwright_training.loop.callback import Callback, RuinedWeightsError
from podwright_training.loop.preflight import Data
from podwright_training.loop.run_context import RunContext
from podwright_training.parallel import ParallelModel
from podwright_training.perplexity import perplexity


@dataclass(frozen=True)
class ValidationLoss:
    """Mean loss per token on a validation split, and on each of ``validation_datasets`` by its name."""

    loss: float
    tokens: int
    losses: dict[str, float]

    @property
    def problem(self) -> str:
        """Return which losses are no numbers; empty if all are."""
        losses = {"": self.loss, **{f" on {name}": loss for name, loss in self.losses.items()}}
        broken = [name for name, loss in losses.items() if not isfinite(loss)]
        return f"the validation loss{', '.join(broken)} is no number" if broken else ""

    def event(self, step: int) -> ValidationEvent:
        """Return the event of a validation after a step."""
        event = ValidationEvent(step=step, loss=self.loss, perplexity=perplexity(self.loss), tokens=self.tokens)
        return event.with_values(losses=self.losses) if self.losses else event


class Validation(Callback):
    """Log the loss on the validation split and on each validation dataset every ``validation_freq`` steps.

    A request to stop ends it at its next batch, because the checkpoint comes first; then no loss is logged.
    """

    def __init__(self, run: RunContext, model: ParallelModel, data: Data) -> None:
        self._run = run
        self._model = model
        self._data = data
        self._rules = rules_of(run.config.device_rules)

    def needs_loss(self) -> bool:
        """Return whether a validation is due: weights of a bad step are not validated."""
        return self._run.progress.is_due(self._run.config.validation_freq)

    def after_step(self) -> None:
        """Validate if it is due, and log the losses.

        Raises:
            RuinedWeightsError: A loss is no number.
        """
        run = self._run
        if run.stop_requests.are_agreed or not run.progress.is_due(run.config.validation_freq):
            return
        with run.timer.besides("validating"):
            result = self.measure()
            if result:
                run.metrics.write(result.event(run.progress.step))
        if result and result.problem:
            raise RuinedWeightsError(result.problem)

    def measure(self) -> ValidationLoss | None:
        """Return the losses; ``None`` on a request to stop."""
        loss, tokens = self._evaluate(self._data.validation)
        losses = {name: self._evaluate(stream)[0] for name, stream in self._data.validation_sets.items()}
        return None if self._run.stop_requests.are_agreed else ValidationLoss(loss, tokens, losses)

    def _evaluate(self, stream: PackedStream) -> tuple[float, int]:
        """Return the mean loss over a stream's first sequences, the same ones each time, and the number of tokens.

        Between batches the ranks look for a request to stop; then the numbers are of no use.
        """
        run, model = self._run, self._model
        start, sequences = stream.state_dict(), run.config.validated_sequences(model.data_size)
        losses: list[Tensor] = []
        counted = torch.zeros((), dtype=torch.int64)
        while stream.coordinates().stop < sequences and not run.stop_requests.agree():
            run.activity.mark(Activity.VALIDATING)
            batch = stream.next_batch()
            batch = batch.counting_first(len(stream.own_sequences(before=sequences)))  # Ranks may not divide them.
            with self._rules("validation"):
                losses.append(model.evaluate(batch))
            counted += batch.counted_tokens if run.is_first_reader else 0
        model.finish_evaluation()
        stream.load_state_dict(start)  # The next validation begins with the same sequences.
        if run.stop_requests.are_agreed:
            return nan, 0
        dist.all_reduce(counted)
        tokens = int(counted)
        total = torch.stack(losses).cpu().double().sum()  # On the host, because not every accelerator has float64.
        return model.total(total).item() / tokens, tokens
