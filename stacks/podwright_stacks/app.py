"""The cdktf app: both stacks of one settings file."""

from __future__ import annotations

from pathlib import Path

from cdktf import App

from podwright.settings.root import Settings
from podwright_stacks.cluster import ClusterStack
from podwright_stacks.foundation import FoundationStack


def synthesize(settings: Settings, folder: Path | None = None) -> None:
    """Write both stacks as Terraform's JSON.

    Args:
        settings: what to deploy.
        folder: where to write. Default: cdktf's own, ``cdktf.out`` or ``$CDKTF_OUTDIR``.

    Raises:
        InvalidArgumentsError: a construct refuses its arguments.
        WheelError: the training program cannot be built.
    """
    app = App(outdir=str(folder)) if folder else App()
    foundation = FoundationStack(app, settings=settings)
    ClusterStack(app, settings=settings, foundation=foundation)
    app.synth()
