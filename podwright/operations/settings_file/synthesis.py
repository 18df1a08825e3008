"""Synthesize a settings file with podwright's own app, ``main.py``, which runs as a program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from podwright import checkout
from podwright.config_file import CONFIG_VARIABLE
from podwright.errors import PodwrightError

APP = checkout.ROOT / "main.py"
OUTDIR_VARIABLE = "CDKTF_OUTDIR"


class SynthesisError(PodwrightError):
    """The app refused the settings, or it failed; the message is what it printed."""

    def render(self) -> str:
        """Return the app's message, which names the program already."""
        return str(self)


def synthesize(file: Path, folder: Path) -> None:
    """Write a settings file's stacks as Terraform's JSON, as ``cdktf synth`` does.

    The app is a process of its own: the kit starts Node, and the stacks import this package.

    Raises:
        SynthesisError: the app failed.
    """
    environment = {**os.environ, CONFIG_VARIABLE: str(file), OUTDIR_VARIABLE: str(folder)}
    result = subprocess.run(
        [sys.executable, str(APP)], env=environment, stderr=subprocess.PIPE, text=True, errors="replace", check=False
    )
    if result.returncode:
        raise SynthesisError(result.stderr.strip() or f"podwright: {APP} ended with status {result.returncode}")
