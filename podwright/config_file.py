"""The settings file's path, and the argument that names it. It has no heavy imports: every command reads it."""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path

CONFIG_VARIABLE = "PODWRIGHT_CONFIG"
DEFAULT_CONFIG = Path("cluster.yaml")


def config_path() -> Path:
    """Return the file that PODWRIGHT_CONFIG names, else cluster.yaml in the working directory."""
    return Path(os.environ.get(CONFIG_VARIABLE) or DEFAULT_CONFIG)


def with_file(command: str, file: Path) -> str:
    """Return a command with its settings file, which is left out where it is the default."""
    return command if file == config_path() else f"{command} {shlex.quote(str(file))}"


def add_file(parser: argparse.ArgumentParser, meaning: str = "settings file. ") -> None:
    """Take the settings file as the first argument; its help is the meaning and the default."""
    help_ = f"{meaning}Default: ${CONFIG_VARIABLE}, else {DEFAULT_CONFIG}"
    parser.add_argument("file", nargs="?", type=Path, default=config_path(), metavar="FILE", help=help_)
