"""Estimate the gradient noise scale: the batch size beyond which larger batches hardly help (arXiv:1812.06162, A.1)."""

from __future__ import annotations

import math

SMOOTHING = 0.9  # Each estimate is far noisier than their ratio may be.


class NoiseScale:
    """Estimate from squared gradient norms of a small and a large batch, averaged over time."""

    def __init__(self) -> None:
        self._signal = 0.0
        self._noise = 0.0

    def update(self, *, small: float, large: float, small_tokens: int, large_tokens: int) -> float | None:
        """Return the noise scale in tokens; ``None`` while signal and noise are not separable, or for NaN or Inf.

        Args:
            small: Squared norm of the gradient per token of ``small_tokens``.
            large: That of ``large_tokens``, which include them.
            small_tokens: Fewer than ``large_tokens``.
            large_tokens: Tokens of the whole batch.
        """
        if not math.isfinite(small + large):
            return None
        signal = (large_tokens * large - small_tokens * small) / (large_tokens - small_tokens)
        noise = (small - large) / (1 / small_tokens - 1 / large_tokens)
        self._signal = SMOOTHING * self._signal + (1 - SMOOTHING) * signal
        self._noise = SMOOTHING * self._noise + (1 - SMOOTHING) * noise
        return self._noise / self._signal if self._signal > 0 and self._noise > 0 else None
