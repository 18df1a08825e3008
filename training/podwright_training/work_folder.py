"""Hold an unfinished output in ``<output>.partial``, which belongs to the inputs and settings it was begun with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from podwright_training.data.bad_data import DataError
from podwright_training.private_folder import refuse_prepared
from podwright_training.run_folder import write_atomically

BEGUN = "begun.json"  # in the work folder: the inputs and settings of the output


def work_folder(output: Path) -> Path:
    """Return the folder of everything that an output needs until it is complete."""
    return output.with_name(f"{output.name}.partial")


def begin(folder: Path, identity: Mapping[str, Any]) -> None:
    """Make a work folder, or continue in one that was begun with the same inputs and settings.

    Args:
        folder: of the unfinished output.
        identity: everything that decides the output's content, as JSON values.

    Raises:
        DataError: The folder has files of other inputs or settings, or nothing says of which.
        UserError: Another user has made the folder.
    """
    refuse_prepared(folder)
    path = folder / BEGUN
    if path.exists():
        before = json.loads(path.read_text())
        if differing := [name for name, value in identity.items() if before.get(name) != value]:
            changes = "; ".join(f"{name} {before.get(name)} there, {identity[name]} here" for name in differing)
            raise DataError(f"{folder} was begun with other settings: {changes}. Remove it, or use its settings")
    elif folder.exists() and any(not file.name.startswith(".") for file in folder.iterdir()):
        raise DataError(
            f"{folder} has files, but no {BEGUN} that says which data and settings they are of: remove it, or choose "
            "another output"
        )
    else:
        write_atomically(path, json.dumps(identity, indent=1) + "\n")
