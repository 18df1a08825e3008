"""React to bad steps and to weights of no use, as ``guard_policy`` says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from podwright_training.checkpoint.store import CheckpointStore
from podwright_training.checkpoint.trainer_state import TrainerState
from podwright_training.errors import DivergedError, UserError
from podwright_training.events import GuardEvent, OverflowEvent
from podwright_training.loop.guard import MOST_BAD, MOST_ROLLBACKS, Guard, Rollbacks
from podwright_training.loop.loss_scale import LossScale
from podwright_training.loop.run_context import RunContext
from podwright_training.parallel import ParallelModel

OVERFLOW = "the gradient overflowed"  # Only fp16 has numbers that small.


@dataclass(frozen=True)
class StepResult:
    """A step whose loss and gradient norm may still be on the device.

    Attributes:
        step: Its number.
        loss: This rank's share of the loss.
        grad_norm: Norm of the gradient before clipping.
        metrics: Further values for its event.
    """

    step: int
    loss: Tensor
    grad_norm: Tensor
    metrics: dict[str, Any]


@dataclass(frozen=True)
class CheckedStep:
    """A step with its loss, and the reason why it is bad, empty if it is good."""

    step: int
    loss: float
    grad_norm: float
    metrics: dict[str, Any]
    problem: str = ""


class StepChecker:
    """Steps that nobody has looked at, until their losses are fetched from the device and checked, all at once."""

    def __init__(self, model: ParallelModel, guard: Guard, loss_scale: LossScale) -> None:
        self._model = model
        self._guard = guard
        self._loss_scale = loss_scale
        self._unchecked: list[StepResult] = []

    def add(self, result: StepResult) -> None:
        """Add a step; nothing waits for the device."""
        self._unchecked.append(result)

    def check(self) -> CheckedStep:
        """Return the last step if all that were added are good, else the first bad one; the same on all ranks."""
        results, self._unchecked = self._unchecked, []
        losses = self._model.total(torch.stack([result.loss for result in results])).tolist()
        grad_norms = torch.stack([result.grad_norm for result in results]).tolist()
        for result, loss, grad_norm in zip(results, losses, grad_norms, strict=True):
            problem = self._problem(loss, grad_norm)
            checked = CheckedStep(result.step, loss, grad_norm, result.metrics, problem)
            if problem:
                break
        return checked

    def _problem(self, loss: float, grad_norm: float) -> str:
        if self._loss_scale.overflowed(loss=loss, grad_norm=grad_norm):
            return OVERFLOW
        return self._guard.check(loss=loss, grad_norm=grad_norm) or ""


class DivergenceHandler:
    """Skip, roll back or stop after a bad step; all ranks call it, with the same numbers.

    Args:
        run: The run.
        checkpoints: What to roll back to.
        guard: The judge of the steps.
        loss_scale: Scale of the loss in fp16.
        load_state: Takes a checkpoint's state over, except its position in the data.
    """

    def __init__(
        self,
        run: RunContext,
        checkpoints: CheckpointStore,
        guard: Guard,
        loss_scale: LossScale,
        *,
        load_state: Callable[[TrainerState], None],
    ) -> None:
        self._run = run
        self._checkpoints = checkpoints
        self._guard = guard
        self._loss_scale = loss_scale
        self._load_state = load_state
        self.rollbacks = Rollbacks()

    def handle_bad_step(self, bad: CheckedStep) -> None:
        """Apply ``guard_policy`` to a bad step.

        A step whose gradient overflowed was already skipped, and the next one has a smaller loss scale.

        Raises:
            UserError: The policy is to stop, or it did not help.
        """
        run, policy = self._run, self._run.config.guard_policy
        if bad.problem == OVERFLOW:
            batch = {name: bad.metrics[name] for name in ("sequences", "batch_sequences", "batch_digest")}
            run.metrics.write(OverflowEvent(step=bad.step, loss_scale=self._loss_scale.value, loss=bad.loss, **batch))
            return
        if run.config.lr_schedule == "range":
            run.progress.has_range_ended = True
            return
        path = self._roll_back() if policy == "rollback" else None
        values = {"step": bad.step, "loss": str(bad.loss), "grad_norm": str(bad.grad_norm), **bad.metrics}
        checkpoint = str(path) if path else None
        run.metrics.write(GuardEvent(policy=policy, checkpoint=checkpoint, **values, reason=bad.problem))
        message = f"step {bad.step}: {bad.problem}; show its batch with podwright-train replay --step {bad.step}"
        if policy == "stop":
            raise UserError(f"{message}; this step is not saved. Resume with a lower --lr or another --guard-policy")
        if policy == "skip" and self._guard.bad_in_a_row > MOST_BAD:
            raise UserError(f"{message}; {MOST_BAD} steps before it were skipped too: resume with a lower --lr")
        if policy == "rollback" and path is None:
            raise self._no_checkpoint_error(message)

    def handle_ruined_save(self) -> None:
        """Roll back from weights that a save has seen to be of no use, as ``handle_ruined_weights`` does."""
        self.handle_ruined_weights(str(self._checkpoints.wait()))

    def handle_ruined_weights(self, problem: str) -> None:
        """Roll back from weights of no use, if that is ``guard_policy``: there is no step to skip.

        Raises:
            DivergedError: The policy is another one, or there is no checkpoint to roll back to.
        """
        run, policy, step = self._run, self._run.config.guard_policy, self._run.progress.step
        if run.config.lr_schedule == "range":
            run.progress.has_range_ended = True
            return
        path = self._roll_back() if policy == "rollback" else None
        checkpoint = str(path) if path else None
        run.metrics.write(GuardEvent(step=step, policy=policy, reason=problem, checkpoint=checkpoint))
        message = f"step {step}: {problem}"
        if policy != "rollback":
            raise DivergedError(
                f"{message}; resume from the last good checkpoint with a lower --lr or --guard-policy rollback"
            )
        if path is None:
            raise self._no_checkpoint_error(message)

    def _roll_back(self) -> Path | None:
        """Return to the newest good checkpoint with everything but the data: data read since then is skipped.

        Checkpoints whose rollbacks do not help are left out.
        """
        bad_step = self._run.progress.step
        restored = self._checkpoints.roll_back(skips=self.rollbacks.do_not_help)
        if restored is None:
            return None
        self._load_state(restored.state)
        self.rollbacks.add(restored.path, bad_step=bad_step)
        return restored.path

    def _no_checkpoint_error(self, message: str) -> DivergedError:
        if not self.rollbacks.checkpoints:
            return DivergedError(f"{message}; there is no checkpoint to roll back to")
        tried = ", ".join(self.rollbacks.checkpoints)
        return DivergedError(
            f"{message}; no checkpoint helps, {MOST_ROLLBACKS} rollbacks each to {tried} did not: resume with a "
            "lower --lr, or start a new run"
        )
