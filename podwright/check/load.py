"""Load ``Settings`` from a file: every command and ``main.py`` come through here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from podwright.check.findings import has_errors
from podwright.check.input_errors import InvalidRunError, InvalidSettingsError

if TYPE_CHECKING:
    from podwright.check.rules.run import Run
    from podwright.settings.root import Settings
    from podwright_training.config.train_config import TrainConfig


def load(path: Path) -> Settings:
    """Read a settings file.

    Raises:
        InvalidSettingsError: the file has errors; all of them are in it.
        UnreadableFileError: reading the file fails.
    """
    from podwright.check.checked_settings import check  # noqa: PLC0415 — --help need not wait for pydantic

    report = check(path)
    if report.settings is None or has_errors(report.findings):
        raise InvalidSettingsError(file=path, text=report.document.shown, findings=report.findings)
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


def load_run_or_job(path: Path) -> Run:
    """Read the options of a training run, or a job.yaml of another trainer.

    Raises:
        InvalidRunError: one is unknown or wrong; the message lists all of them.
    """
    from podwright_training.errors import UserError  # noqa: PLC0415 — only `--run` needs the trainer
    from podwright_training.jobs import spec  # noqa: PLC0415 — as above

    if not spec.is_job(path):
        return load_run(path)
    try:
        return spec.load(path)
    except UserError as error:
        raise InvalidRunError(error) from error
