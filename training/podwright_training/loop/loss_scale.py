"""Scale the loss for gradients in fp16, whose numbers are between 6e-8 and 65504.

Dynamic loss scaling (arXiv:1710.03740, section 3.2), with the constants of ``torch.amp.GradScaler``. The loss itself is
computed in fp32 and divided by the scale again before it is reported.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from podwright_training.config.train_config import TrainConfig

INITIAL = 2.0**16
GROWTH_INTERVAL_STEPS = 2000  # good steps in a row that double the scale


class LossScale:
    """Dynamic loss scale: a power of two, so that scaling and unscaling do not round; 1 in other precisions.

    Attributes:
        value: the scale of the next step, at least 1.
    """

    def __init__(self, config: TrainConfig) -> None:
        self._dynamic = config.compute_precision == "fp16"
        self.value = INITIAL if self._dynamic else 1.0
        self._good_steps = 0  # since the scale changed

    def overflowed(self, *, loss: float, grad_norm: float) -> bool:
        """Return whether the step's gradient overflowed because of its scale; if so, halve the scale.

        Call it for every step, in order.

        If the loss is not finite either, or the scale is 1, the scale is not the cause.
        """
        if not self._dynamic or not math.isfinite(loss):
            return False
        if not math.isfinite(grad_norm):
            self._good_steps = 0
            overflowed, self.value = self.value > 1, max(1.0, self.value / 2)
            return overflowed
        self._good_steps += 1
        if self._good_steps == GROWTH_INTERVAL_STEPS:
            self._good_steps, self.value = 0, self.value * 2
        return False

    def state(self) -> dict[str, float]:
        """Return the state for a checkpoint; empty if the scale is always 1."""
        return {"value": self.value, "good_steps": self._good_steps} if self._dynamic else {}

    def load_state(self, state: Mapping[str, float]) -> None:
        """Restore the state from a checkpoint if both runs are in fp16."""
        if self._dynamic and state:
            self.value, self._good_steps = state["value"], int(state["good_steps"])
