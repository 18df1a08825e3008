"""Options of validation."""

from __future__ import annotations

import math
from dataclasses import dataclass

from podwright_training.config.option import option


@dataclass(frozen=True, kw_only=True)
class ValidationOptions:
    """Set how often to validate, on which data, and which texts the model continues then."""

    validation_freq: int | None = option(None, "Steps between validations. Default: only at the end.", at_least=1)
    validation_sequences: int = option(
        320, "Sequences per validation: the first of the validation split, the same on any number of ranks.", at_least=1
    )
    validation_batches: int | None = option(
        None,
        "Batches per rank and validation; more ranks then validate on more. Default: enough for validation_sequences.",
        at_least=1,
    )
    val_batch_size: int = option(4, "Largest number of sequences per rank and validation batch.", at_least=1)
    validation_datasets: str | None = option(
        None,
        "Datasets to validate on besides the validation split, each by itself: name=dataset,… or a YAML file of name: "
        "{dataset: …, dataset_config_name: …, text_column: …, token_dtype: …, token_end: …}, whose folders are "
        "relative to the file; sources: each source of data_mixture.",
    )
    sample_prompts: str | None = option(
        None, "File of texts, one per line, that the model continues at each validation. Default: no samples."
    )
    sample_tokens: int = option(32, "Tokens to generate for each prompt, greedily.", at_least=1)

    def validated_sequences(self, readers: int) -> int:
        """Return the sequences of a validation of all ranks, of which ``readers`` read different data."""
        if self.validation_batches is None:
            return self.validation_sequences
        return self.validation_batches * self.val_batch_size * readers

    def local_validation_batch_size(self, readers: int) -> int:
        """Return the sequences that each of ``readers`` ranks reads at a time: no more than its share."""
        return min(self.val_batch_size, math.ceil(self.validated_sequences(readers) / readers))
