"""Options of validation."""

from __future__ import annotations

from dataclasses import dataclass

from podwright_training.config.option import option


@dataclass(frozen=True, kw_only=True)
class ValidationOptions:
    """Set how often and on how much data to validate."""

    validation_freq: int | None = option(None, "Steps between validations. Default: only at the end.", at_least=1)
    validation_batches: int = option(10, "Batches per validation.", at_least=1)
    val_batch_size: int = option(4, "Sequences per rank and validation batch.", at_least=1)
