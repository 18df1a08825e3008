"""Resolve the configurations that a dataset's card (its README.md) defines.

https://huggingface.co/docs/hub/datasets-manual-configuration
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import yaml

from podwright_training.data.bad_data import DataError, first_line
from podwright_training.data.schemes import HUB, S3

CARD = "README.md"


def may_configure(dataset: str) -> bool:
    """Return whether the dataset may have configurations; ``configured_files`` takes seconds."""
    if not Path(dataset).is_dir():
        return not dataset.startswith(S3)
    card = Path(dataset) / CARD
    return card.is_file() and "\nconfigs:" in card.read_text(encoding="utf-8", errors="replace")


@cache
def configured_files(dataset: str, name: str) -> dict[str, dict[str, str]]:
    """Return the files of a configuration, by split: path in the dataset → path or URL to open.

    Raises:
        DataError: There is no such configuration, or the hub is unreachable.
    """
    import datasets  # takes seconds

    from podwright_training.data.hub_client import HubConnectionError  # loads HTTP clients, in each data worker too

    place = str(Path(dataset).resolve()) if Path(dataset).is_dir() else dataset
    try:
        data_files = datasets.load_dataset_builder(place, name).config.data_files or {}
    except (OSError, ValueError, RuntimeError, yaml.YAMLError, HubConnectionError) as error:  # RuntimeError: a script
        raise DataError(
            f"dataset {dataset!r}: {name!r} (dataset_config_name) is neither a folder in it nor a configuration in its "
            f"card ({first_line(error)})"
        ) from error
    return {str(split): {_path(place, file): file for file in files} for split, files in data_files.items()}


def _path(place: str, file: str) -> str:
    """URLs of the hub are ``hf://datasets/owner/name@revision/path``."""
    if file.startswith(HUB):
        return file.partition("@")[2].partition("/")[2]
    return Path(file).relative_to(place).as_posix()
