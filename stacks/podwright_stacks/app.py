"""The cdktf app: both stacks of one settings file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from podwright.errors import PodwrightError
from podwright.settings.root import Settings
from podwright_constructs.kit import App
from podwright_stacks.backend import remember_here
from podwright_stacks.cluster import ClusterStack
from podwright_stacks.foundation import FoundationStack
from podwright_stacks.provider_lock import write_provider_lock

OUTDIR_VARIABLE = "CDKTF_OUTDIR"  # cdktf's own
DEFAULT_FOLDER = "cdktf.out"


class OutputFolderError(PodwrightError):
    """Making the folder for Terraform's JSON failed."""


AddOwn = Callable[[FoundationStack, ClusterStack], None]


def synthesize(settings: Settings, folder: Path | None = None, *, add_own: AddOwn | None = None) -> None:
    """Write both stacks as Terraform's JSON, each with a lock of the AWS provider.

    Args:
        settings: what to deploy.
        folder: where to write. Default: cdktf's own, ``cdktf.out`` or ``$CDKTF_OUTDIR``.
        add_own: adds resources of an app of the user's to the stacks.

    Raises:
        InvalidArgumentsError: a construct refuses its arguments.
        OutputFolderError: making the folder fails.
        WheelError: building the training program fails.
    """
    output = folder or Path(os.environ.get(OUTDIR_VARIABLE) or DEFAULT_FOLDER)
    _make(output)
    app = App(outdir=str(folder)) if folder else App()
    foundation = FoundationStack(app, settings=settings)
    cluster = ClusterStack(app, settings=settings, foundation=foundation)
    if add_own:
        add_own(foundation, cluster)
    for stack in (foundation, cluster):
        remember_here(stack, settings)
    app.synth()
    write_provider_lock(output)


def _make(folder: Path) -> None:
    """Make the output folder; cdktf itself would end in a traceback of Node.

    Raises:
        OutputFolderError: its parent is missing, or it is a file or not writable.
    """
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        problem = f"cannot write Terraform's JSON to {folder}: {error.strerror}"
        hint = f"set {OUTDIR_VARIABLE} to a folder that you can write"
        raise OutputFolderError(problem, hint) from error
