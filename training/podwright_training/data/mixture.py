"""Choose the source of each sequence from a weighted mixture of datasets."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from podwright_common.yaml_document import YamlDocument, YamlFileError
from podwright_training.config import dataset_lists
from podwright_training.config.conversion import NONE_WORDS, in_words
from podwright_training.config.dataset_lists import EACH_SOURCE, YAML_SUFFIXES
from podwright_training.config.sections.data_options import TOKEN_DTYPES
from podwright_training.config.train_config import TrainConfig
from podwright_training.data.bad_data import DataError
from podwright_training.data.phases import PHASES, Phase, Problem, number, phases_of_entries, problems_of_phases
from podwright_training.errors import LONGEST_VALUE

Entries = Iterator[tuple[str, dict[str, Any]]]
NUMBERS: dict[str, Callable[[str], Any]] = {
    "weight": lambda text: int(text) if text.isdecimal() else float(text),
    "max_epochs": int,
    "token_end": int,
}
LEAST_WEIGHT, MOST_WEIGHT = 1e-100, 1e100  # Sums of weights between these are exact enough.
NULLABLE_KEYS = ("dataset_config_name", "max_epochs", "token_dtype", "token_end")
VALIDATION_KEYS = ("dataset", "dataset_config_name", "text_column", "token_dtype", "token_end")

# Multiples of badly approximable numbers spread most evenly over [0, 1): here in units of 2**-64.
GOLDEN = 0x9E3779B97F4A7C15  # the golden ratio - 1
SILVER = 0x6A09E667F3BCC909  # the square root of 2, - 1


@dataclass(frozen=True, kw_only=True)
class Source:
    """One dataset of a run.

    Attributes:
        name: Its name in a checkpoint's position; the dataset may move to another folder under the same name.
        dataset: Identifier on the Hugging Face hub, a local folder, or ``s3://bucket/folder``.
        dataset_config_name: Subfolder of its files, or a configuration of its card; ``None``: all files.
        text_column: Column that holds the text.
        weight: Share of the sequences, relative to the other sources; 0: not read before a phase that reads it.
        max_epochs: How often its documents are read before the run ends; ``None``: without end.
        token_dtype: Type of the numbers in token files that do not name it.
        token_end: Token that ends a document in token files of other programs; ``None``: the tokenizer's EOS token.
    """

    name: str
    dataset: str
    dataset_config_name: str | None = None
    text_column: str = "text"
    weight: float = 1.0
    max_epochs: int | None = None
    token_dtype: str | None = None
    token_end: int | None = None


KEYS = tuple(item.name for item in fields(Source) if item.name != "name")


@dataclass(frozen=True)
class DataMixture:
    """The sources of a run, and the phases in which other weights apply than the sources' own."""

    sources: list[Source]
    phases: list[Phase]


def data_mixture_of(config: TrainConfig) -> DataMixture:
    """Return the sources and phases of ``data_mixture``, or the single source ``dataset``.

    Raises:
        DataError: With every problem of the mixture, one per line.
    """
    if config.data_mixture is None:
        return DataMixture([_source(config, "dataset", {})], [])
    return _read(config, "data_mixture", _split_text, KEYS)


def sources_of(config: TrainConfig) -> list[Source]:
    """Return the sources of ``data_mixture_of``; raise as it does."""
    return data_mixture_of(config).sources


def validation_sources_of(config: TrainConfig) -> list[Source]:
    """Return the datasets of ``validation_datasets``, with the dataset's folder and column where they name no other.

    Raises:
        DataError: With every problem, one per line.
    """
    option_value = config.validation_datasets
    if option_value is None:
        return []
    if option_value == EACH_SOURCE:
        return sources_of(config)
    return _read(config, "validation_datasets", _split_names, VALIDATION_KEYS).sources


class Mixture:
    """Assign every global sequence to a source, by its number alone.

    After any n sequences of the run, or of any stream, a source with share w has provided about n·w of them: one
    number spreads the sequences of a row, one from each stream, and another the rows. Multiples of a single number
    would not do, as those of every k-th number are uneven for some k.

    Args:
        weights: share of each source, relative to the others.
        streams: of the run; sequence ``g`` belongs to stream ``g % streams``.

    Attributes:
        shares: Share of each source in the sequences.
    """

    def __init__(self, weights: Sequence[float], *, streams: int) -> None:
        total = sum(weights)
        self._streams = streams
        self.shares = [weight / total for weight in weights]
        self._bounds = [min(int(bound / total * 2**64), 2**64 - 1) for bound in accumulate(weights)][:-1]

    def source(self, sequence: int) -> int:
        """Return the index of the source of a global sequence."""
        row, stream = divmod(sequence, self._streams)
        return bisect_right(self._bounds, (row * SILVER + stream * GOLDEN) % 2**64)

    def counts(self, sequences: range) -> list[int]:
        """Return how many of some global sequences in a row each source provides."""
        rows, streams = np.divmod(np.arange(sequences.start, sequences.stop, dtype=np.uint64), np.uint64(self._streams))
        points = rows * np.uint64(SILVER) + streams * np.uint64(GOLDEN)  # wraps around at 2**64
        sources = np.searchsorted(np.array(self._bounds, dtype=np.uint64), points, side="right")
        counted: list[int] = np.bincount(sources, minlength=len(self._bounds) + 1).tolist()
        return counted


def _read(
    config: TrainConfig, option: str, split: Callable[[str], Entries], allowed_keys: Sequence[str]
) -> DataMixture:
    """Return what an option says, in a YAML file or in a text that ``split`` parses."""
    text: str = getattr(config, option)
    document = _read_yaml(Path(text), option) if text.endswith(YAML_SUFFIXES) else None
    values_by_name: dict[str, Any] = _with_numbers(document.data) if document else dict(split(text))
    values_by_name = {name: _with_nulls(values) for name, values in values_by_name.items()}
    # A mapping of this name is a source, as it was before mixtures had phases.
    has_phases = "weight" in allowed_keys and isinstance(values_by_name.get(PHASES), list)
    entries: list[Any] = values_by_name.pop(PHASES) if has_phases else []
    problems = [problem for name, values in values_by_name.items() for problem in _problems(name, values, allowed_keys)]
    if document and not problems:
        values_by_name = {
            name: {**values, "dataset": _beside(document.file, values["dataset"])}
            for name, values in values_by_name.items()
        }
        problems += [
            item for name, values in values_by_name.items() for item in _not_beside(document.file, name, values)
        ]
    if not problems and values_by_name and all(values.get("weight") == 0 for values in values_by_name.values()):
        problems.append(Problem((next(iter(values_by_name)), "weight"), "the weight of each source is 0"))
    problems += problems_of_phases(entries, list(values_by_name))
    if problems or not values_by_name:
        raise DataError("\n".join(_lines(problems, option if problems and document else f"{option} {text}", document)))
    sources = [_source(config, str(name), values) for name, values in values_by_name.items()]
    phases = [_scaled(phase, config) for phase in phases_of_entries(entries, list(values_by_name))]
    return DataMixture(sources, phases)


def _with_nulls(values: object) -> object:
    """Return a source's values, in which ``none`` means what it means in the option of the key's name."""
    if not isinstance(values, dict):
        return values
    return {
        key: None if key in NULLABLE_KEYS and str(value).lower() in NONE_WORDS else value
        for key, value in values.items()
    }


def _lines(problems: Sequence[Problem], option: str, document: YamlDocument | None) -> Iterator[str]:
    """Yield each problem with its option and, in a file, its line and column."""
    if not problems:
        yield f"{option}: no dataset given"
    for problem in problems:
        yield f"{option} {_place(document, problem)}: {problem.message}" if document else f"{option}: {problem.message}"


def _place(document: YamlDocument, problem: Problem) -> str:
    """Return file, line and column of a value, or of its key if the value has lines of its own."""
    if isinstance(problem.path[-1], int):  # An item of a list has no key.
        return document.place(problem.path)
    position = document.position(problem.path, key=problem.at_key)
    return f"{document.file}:{position.line}:{position.column}"


def _beside(file: Path, dataset: str) -> str:
    """Return a dataset that a YAML file names: relative paths start at the file's folder."""
    path = file.absolute().parent / dataset
    return str(path) if "://" not in dataset and path.exists() else dataset


def _not_beside(file: Path, name: str, values: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield a problem for a dataset that is in the current folder, as the file's would be another from elsewhere."""
    path = Path(values["dataset"])
    if not path.is_absolute() and "://" not in values["dataset"] and path.exists():
        place = f"in the current folder, not beside {file.name}, to which paths are relative"
        yield Problem((name, "dataset"), f"{name}: dataset {path} is {place}; write {path.absolute()}")


def _source(config: TrainConfig, name: str, values: Mapping[str, Any]) -> Source:
    inherited = {
        "dataset": config.dataset,
        "dataset_config_name": config.dataset_config_name,
        "text_column": config.text_column,
        "max_epochs": config.max_epochs,
        "token_dtype": config.token_dtype,
        "token_end": config.token_end,
    }
    source = Source(**{"name": name, **inherited, **values})
    return replace(source, weight=_heated(name, source.weight, config))


def _scaled(phase: Phase, config: TrainConfig) -> Phase:
    return replace(phase, weights={name: _heated(name, weight, config) for name, weight in phase.weights.items()})


def _heated(name: str, weight: float, config: TrainConfig) -> float:
    """Return a weight at the run's ``mixture_temperature``; raise ``DataError`` if sums of such lose their digits."""
    try:
        heated: float = weight ** (1 / config.mixture_temperature)
    except OverflowError:
        heated = math.inf
    if weight and not LEAST_WEIGHT <= heated <= MOST_WEIGHT:
        text = str(weight) if len(str(weight)) <= LONGEST_VALUE else f"{str(weight)[:LONGEST_VALUE]}…"
        raise DataError(
            f"data_mixture: {name}: weight: got {text}, which "
            f"at mixture_temperature {config.mixture_temperature:g} is not between {LEAST_WEIGHT:g} and "
            f"{MOST_WEIGHT:g}: give smaller ratios of weights, or a higher mixture_temperature"
        )
    return heated


def _read_yaml(path: Path, option: str) -> YamlDocument:
    try:
        document = YamlDocument.read(path)
    except YamlFileError as error:
        raise DataError(f"{option}: {error}") from error
    if document.messages:
        raise DataError(f"{option}: {document.messages[0]}")
    if not isinstance(document.data, dict):
        raise DataError(f"{option} {path}: got {in_words(document.data)}, need `name: {{dataset: …, weight: …}}` lines")
    return document


def _with_numbers(data: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: {key: _number(key, value) for key, value in values.items()} if isinstance(values, dict) else values
        for name, values in data.items()
    }


def _number(key: str, value: Any) -> Any:
    """Return the number that a key needs; a text that is none stays, and ``_problems`` names it."""
    try:
        return NUMBERS[key](value) if key in NUMBERS else value
    except (TypeError, ValueError):
        return value


def _split_text(text: str) -> Entries:
    """Parse ``data_mixture``."""
    for name, dataset, weight in dataset_lists.weighted(text):
        try:
            yield name, {"dataset": dataset, "weight": float(weight)}
        except ValueError:
            yield name or weight, {"dataset": dataset, "weight": weight}


def _split_names(text: str) -> Entries:
    """Parse ``validation_datasets``."""
    for name, dataset in dataset_lists.named(text):
        yield name, {"dataset": dataset}


def _problems(name: str, values: object, allowed_keys: Sequence[str]) -> Iterator[Problem]:
    if not isinstance(values, dict):
        yield Problem((name,), f"{name}: got {values!r}, need a mapping with {', '.join(allowed_keys)}")
        return
    for key in values.keys() - set(allowed_keys):
        yield Problem((name, key), f"{name}: unknown key {key}; keys: {', '.join(allowed_keys)}", True)
    dataset = values.get("dataset")
    if not dataset:
        yield Problem((name,), f"{name or 'an entry'}: no dataset")
    elif not isinstance(dataset, str):
        yield Problem((name, "dataset"), f"{name}: dataset: got {dataset!r}, need a folder or a name")
    weight = values.get("weight", 1.0)
    if isinstance(weight, bool) or number(str(weight)) is None:
        yield Problem((name, "weight"), f"{name}: weight: got {weight!r}, need a number of at least 0")
    epochs = values.get("max_epochs")
    if epochs is not None and (type(epochs) is not int or epochs < 1):
        yield Problem((name, "max_epochs"), f"{name}: max_epochs: got {epochs!r}, need a whole number of at least 1")
    token_dtype = values.get("token_dtype")
    if token_dtype is not None and token_dtype not in TOKEN_DTYPES:
        need = f"need one of {', '.join(TOKEN_DTYPES)}"
        yield Problem((name, "token_dtype"), f"{name}: token_dtype: got {token_dtype!r}, {need}")
    token_end = values.get("token_end")
    if token_end is not None and (type(token_end) is not int or token_end < 0):
        need = "need a whole number of at least 0"
        yield Problem((name, "token_end"), f"{name}: token_end: got {token_end!r}, {need}")
