"""Read options that name several datasets in a text: ``dataset=weight,…`` and ``name=dataset,…``; imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

YAML_SUFFIXES = (".yaml", ".yml")
EACH_SOURCE = "sources"  # validation_datasets accepts this word for all sources.


def weighted(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield name, dataset and weight of each part of ``dataset=weight,…``, or of ``name=/folder=weight,…``.

    A dataset without a name is named as it is written. Its name may contain ``=``, and only a folder's path follows
    one, from the root.
    """
    for part in text.split(","):
        dataset, _, weight = part.rpartition("=")
        name, separator, folder = dataset.partition("=/")
        if separator and name.strip():
            yield name.strip(), f"/{folder.strip()}", weight.strip()
        else:
            yield dataset.strip(), dataset.strip(), weight.strip()


def named(text: str) -> Iterator[tuple[str, str]]:
    """Yield name and dataset of each part of ``name=dataset,…``."""
    for part in text.split(","):
        name, _, dataset = part.partition("=")
        yield name.strip(), dataset.strip()


def absolute(name: str) -> str:
    """Return the absolute path if the file or folder exists; else ``name`` is an identifier."""
    return str(Path(name).absolute()) if name and "://" not in name and Path(name).exists() else name


def weighted_from_anywhere(text: str) -> str:
    """Return ``data_mixture`` with absolute paths; sources keep their names, by which checkpoints know them."""
    if text.endswith(YAML_SUFFIXES):
        return absolute(text)
    parts = []
    for name, dataset, weight in weighted(text):
        path = _without_comma(dataset)
        parts.append("=".join([name, *([path] if path != name else []), weight] if name else [weight]))
    return ",".join(parts)


def named_from_anywhere(text: str) -> str:
    """Return ``validation_datasets`` with absolute paths."""
    if text == EACH_SOURCE:
        return text
    if text.endswith(YAML_SUFFIXES):
        return absolute(text)
    return ",".join(f"{name}={_without_comma(dataset)}" if dataset else name for name, dataset in named(text))


def _without_comma(dataset: str) -> str:
    """Return the absolute path, unless it contains a separator of the option's text: use a YAML file then."""
    path = absolute(dataset)
    return dataset if "," in path else path
