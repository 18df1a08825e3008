"""Hold the settings of a curation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from podwright_training.curation.thresholds import problems_of_thresholds
from podwright_training.data.held_out import HELD_OUT_SHARE

FILTERS = ("gopher_quality", "gopher_repetition", "c4", "fineweb")
DEFAULT_FILTERS = FILTERS[:2]
NGRAM_WORDS = 5  # A shingle has so many words.
HASHES_PER_BUCKET = 8
MOST_TASKS = 256
# Common evaluation sets have their texts in columns of these names.
EVALUATION_COLUMNS = ("text", "question", "query", "prompt", "ctx", "goal", "passage")
DECONTAMINATION_WORDS = 13  # https://arxiv.org/abs/2005.14165, appendix C


@dataclass(frozen=True, kw_only=True)
class CurationSettings:
    """Settings that decide the output: equal ones write the same bytes.

    Attributes:
        dataset: as the trainer's option.
        dataset_config_name: as the trainer's option.
        text_column: as the trainer's option.
        tokenizer: folder or name on the hub.
        add_bos: as the trainer's option.
        filters: names of ``FILTERS``, in the order in which they run.
        thresholds: of the filters and of the recognition of languages, by their names in ``THRESHOLDS``.
        languages: codes of ``language_codes`` to keep; empty: all.
        decontaminate: evaluation sets by name: file, folder, ``s3://`` prefix or name on the hub.
        evaluation_columns: columns of the evaluation sets that have texts.
        decontamination_words: words that a document may not share with an evaluation set.
        mask_personal: replace email and public IP addresses.
        exact: remove documents whose text occurred before.
        near: remove documents that almost equal another.
        buckets: MinHash buckets, of eight hashes each. More buckets find more pairs, also less similar ones.
        validation_fraction: fraction of the documents to hold out, by their text.
        tasks: into which the files are divided.
        max_bad_records: broken records that a task skips before it stops.
        max_bad_shards: damaged files whose rest a task skips before it stops.
    """

    dataset: str
    dataset_config_name: str | None = None
    text_column: str = "text"
    tokenizer: str
    add_bos: bool = False
    filters: tuple[str, ...] = DEFAULT_FILTERS
    thresholds: Mapping[str, float] = field(default_factory=dict)
    languages: tuple[str, ...] = ()
    decontaminate: Mapping[str, str] = field(default_factory=dict)
    evaluation_columns: tuple[str, ...] = EVALUATION_COLUMNS
    decontamination_words: int = DECONTAMINATION_WORDS
    mask_personal: bool = False
    exact: bool = True
    near: bool = True
    buckets: int = 20
    validation_fraction: float = HELD_OUT_SHARE
    tasks: int = 1
    max_bad_records: int = 100
    max_bad_shards: int = 0

    def problems(self) -> Iterator[str]:
        """Yield one line for each value that is out of range."""
        from podwright_training.curation.languages import language_problems  # patterns that --help does without

        for name in self.filters:
            if name not in FILTERS:
                yield f"filters: got {name}, need some of {', '.join(FILTERS)}"
        yield from problems_of_thresholds(self.thresholds, self.filters)
        yield from language_problems(self.languages)
        for name, dataset in self.decontaminate.items():
            if not name or not dataset:
                yield f"decontaminate: got {name}={dataset}, need NAME=DATASET"
        if not 0 <= self.validation_fraction < 1:
            yield f"validation_fraction: got {self.validation_fraction}, need a number from 0 to 1, below 1"
        for name, minimum in (
            ("buckets", 1),
            ("decontamination_words", 1),
            ("tasks", 1),
            ("max_bad_records", 0),
            ("max_bad_shards", 0),
        ):
            if getattr(self, name) < minimum:
                yield f"{name}: got {getattr(self, name)}, need at least {minimum}"
