"""Write a run's configuration into its folder, and name what differs from the start before."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from podwright_common.yaml_document import YamlFileError, load_values
from podwright_training.config.sources import canonical
from podwright_training.config.train_config import TrainConfig
from podwright_training.errors import UserError
from podwright_training.run_folder import RunFolder, write_atomically

logger = logging.getLogger(__name__)


def write_config(folder: RunFolder, config: TrainConfig) -> None:
    """Write the configuration into the run folder; log differences from the previous one."""
    config = config.with_absolute_paths()
    if folder.config.exists():
        values_before = _previous_values(folder.config)
        for name, value in config.to_dict().items():
            if values_before.get(name) != value:
                logger.warning("%s is %s in this start, was %s before", name, value, values_before.get(name))
    try:
        write_atomically(folder.config, config.to_yaml())
    except OSError as error:
        raise UserError(f"cannot write {folder.config}: {error.strerror}") from error


def _previous_values(path: Path) -> dict[str, Any]:
    """Return the options of the previous start, which an older or newer version may have written."""
    try:
        return canonical(load_values(path))
    except (YamlFileError, AttributeError) as error:
        reason = f"cannot read {path}: it has no options" if isinstance(error, AttributeError) else str(error)
        raise UserError(f"{reason}; remove it, this start writes it again") from error
