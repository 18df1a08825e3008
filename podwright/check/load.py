"""The one way from a settings file to ``Settings``."""

from __future__ import annotations

import os
from pathlib import Path

from podwright.check.findings import ConfigError, has_errors
from podwright.check.report import check
from podwright.settings.root import Settings

CONFIG_VARIABLE = "PODWRIGHT_CONFIG"


DEFAULT_CONFIG = Path("cluster.yaml")


def config_path() -> Path:
    """The settings file of this run: what PODWRIGHT_CONFIG names, else cluster.yaml in the working directory."""
    return Path(os.environ.get(CONFIG_VARIABLE) or DEFAULT_CONFIG)


def load(path: Path) -> Settings:
    """Read a settings file.

    Raises:
        ConfigError: the file has errors; all of them are in it.
        UnreadableFileError: the file cannot be read at all.
    """
    report = check(path)
    if report.settings is None or has_errors(report.findings):
        raise ConfigError(file=path, text=report.document.text, findings=report.findings)
    return report.settings
