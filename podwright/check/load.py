"""Load ``Settings`` from a file: every command and ``main.py`` come through here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from podwright.check.errors import InvalidRunError, InvalidSettingsError
from podwright.check.findings import has_errors
from podwright.check.report import check
from podwright.settings.root import Settings

if TYPE_CHECKING:
    from podwright_training.config.train_config import TrainConfig

CONFIG_VARIABLE = "PODWRIGHT_CONFIG"
DEFAULT_CONFIG = Path("cluster.yaml")


def config_path() -> Path:
    """Return the file that PODWRIGHT_CONFIG names, else cluster.yaml in the working directory."""
    return Path(os.environ.get(CONFIG_VARIABLE) or DEFAULT_CONFIG)


def load(path: Path) -> Settings:
    """Read a settings file.

    Raises:
        InvalidSettingsError: the file has errors; all of them are in it.
        UnreadableFileError: the file cannot be read at all.
    """
    report = check(path)
    if report.settings is None or has_errors(report.findings):
        raise InvalidSettingsError(file=path, text=report.document.text, findings=report.findings)
    return report.settings


def load_run(path: Path) -> TrainConfig:
    """Read the options of a training run.

    Raises:
        InvalidRunError: an option is unknown or wrong; the message lists all of them.
    """
    from podwright_training.config.sources import load_file  # noqa: PLC0415 — only `--run` needs the trainer's options
    from podwright_training.errors import UserError  # noqa: PLC0415 — as above

    try:
        return load_file(path)
    except UserError as error:
        raise InvalidRunError(error) from error
