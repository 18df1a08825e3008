"""Options of metrics and traces."""

from __future__ import annotations

from dataclasses import dataclass

from podwright_training.config.option import option


@dataclass(frozen=True, kw_only=True)
class LoggingOptions:
    """Set which metrics are measured, and where they are logged."""

    logging_freq: int = option(
        10, "Steps between log lines; each waits for the device, the steps between do not.", at_least=1
    )
    noise_scale_freq: int | None = option(
        None, "Steps between estimates of the gradient noise scale. Default: no estimates.", at_least=1
    )
    profile_steps: str | None = option(None, "Steps to record a trace of: first-last, as in 10-15. Default: no trace.")
    tensorboard: bool = option(False, "Also write the metrics for TensorBoard.")
    wandb: bool = option(False, "Also send the metrics to Weights & Biases; WANDB_PROJECT names the project.")

    @property
    def profiled(self) -> range:
        """Return the steps to trace; raise ``ValueError`` if ``profile_steps`` is not ``first-last``."""
        if self.profile_steps is None:
            return range(0)
        begin, _, end = self.profile_steps.partition("-")
        steps = range(int(begin), int(end) + 1)
        if not steps or steps[0] < 1:
            raise ValueError
        return steps
