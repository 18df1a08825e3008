"""Options of an export; imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

DTYPES = ("fp32", "bf16")
SHARD_GB = 5.0


@dataclass(frozen=True)
class ExportOptions:
    """Choice of the weights to export, and of their form.

    Attributes:
        ema: The moving average of the weights.
        dtype: ``fp32`` or ``bf16``.
        average: Export the mean of this many checkpoints: the chosen one and those before it.
        max_shard_gb: Largest file, in 10⁹ bytes; larger weights are split into several files.
    """

    ema: bool = False
    dtype: str = "fp32"
    average: int = 1
    max_shard_gb: float = SHARD_GB
