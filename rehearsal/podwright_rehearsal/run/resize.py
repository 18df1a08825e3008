"""Change only the number of compute nodes in a settings file."""

from __future__ import annotations

from pathlib import Path

from podwright.check.document import Document
from podwright.check.load import load
from podwright.settings.root import Settings


def resized(config: Path, compute_nodes: int, *, folder: Path) -> tuple[Path, Settings]:
    """Write a copy of the file with this number of nodes in its first compute group into ``folder``.

    Returns:
        The path of the copy, and its settings.

    Raises:
        ConfigError: the file is wrong, as it is or with this number; the message has the place in the file that is.
        ArgumentError: an alias gives the number to other keys too.
    """
    groups = load(config).cluster.instance_groups
    index = next(number for number, group in enumerate(groups) if group.role == "compute")
    document = Document.read(config)
    text = document.text_with(("cluster", "instance_groups", index, "count"), str(compute_nodes))
    folder.mkdir(parents=True, exist_ok=True)
    written = folder / config.name
    written.write_text(text)
    return written, load(written)
