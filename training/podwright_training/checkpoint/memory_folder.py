"""A host's folder of checkpoints in memory: ``/dev/shm/podwright-<uid>-<run>/<host>/step-00000100/``.

Each is an ordinary checkpoint (``step_folder.py``) of which this host has some files: those of its own ranks, and
copies of those of the host before it. A folder whose name was not given yet may be complete all the same, if its
host died between two renames: what counts are the hashes of a manifest that any host has.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from podwright_training.checkpoint import step_folder
from podwright_training.checkpoint.collective_io import CheckpointError
from podwright_training.checkpoint.manifest import MANIFEST
from podwright_training.errors import UserError
from podwright_training.host_memory import free_bytes_in
from podwright_training.memory_place import give_back, host_folder
from podwright_training.private_folder import make_private, why_not_private
from podwright_training.run_folder import write_atomically


@dataclass(frozen=True)
class HostPart:
    """Part of one checkpoint that a host has."""

    step: int
    manifest: str | None  # its text
    sizes: dict[str, int]  # bytes by file name


class MemoryFolder:
    """One host's part of a run's checkpoints in memory.

    Args:
        parent: Folder of a file system in memory, which users share.
        run: The run's id.
        host: Name of the host: hosts of a rehearsal share ``parent``.
    """

    def __init__(self, parent: Path, *, run: str, host: str) -> None:
        self.root = host_folder(parent, run=run, host=host)

    def open(self) -> None:
        """Make the folder, which only its owner may enter.

        Raises:
            CheckpointError: Another user made a folder, a file or a link of this name.
        """
        try:
            make_private(self.root.parent)
            make_private(self.root)
        except UserError as error:
            raise CheckpointError(f"memory_checkpoint_dir: {error}, or name another memory_checkpoint_dir") from error

    def begin(self, step: int, *, size: int) -> Path:
        """Keep only the newest checkpoint, and make the folder of the next, which takes ``size`` bytes on this host.

        Raises:
            CheckpointError: The folder has no space left; no files were written.
        """
        self.open()
        complete = [part.step for part in self.parts() if part.manifest]
        self.keep(complete[:1])
        _, partial = step_folder.folders(self.root, step)
        room = free_bytes_in(self.root)
        if size > room:
            raise CheckpointError(
                f"{self.root} has room for {room / 1e9:.3g} GB, a checkpoint takes {size / 1e9:.3g} GB", passing=True
            )
        partial.mkdir()
        return partial

    def keep(self, steps: Iterable[int]) -> None:
        """Remove everything but the checkpoints of these steps."""
        retained_paths = {path for step in steps for path in step_folder.folders(self.root, step)}
        for path in self.root.iterdir() if self.root.is_dir() else ():
            if path not in retained_paths:
                shutil.rmtree(path)

    def path_of(self, step: int) -> Path:
        """Return where this host has a step's checkpoint, or would have it."""
        final, partial = step_folder.folders(self.root, step)
        return partial if partial.is_dir() else final

    def parts(self) -> list[HostPart]:
        """Return this host's checkpoints, the newest first."""
        parts: list[HostPart] = []
        if any(map(why_not_private, (self.root.parent, self.root))):
            return parts  # Another user put something there, which is no checkpoint of ours. Saving reports it.
        for path in self.root.iterdir():
            name = path.name.removeprefix(".").removesuffix(".partial")
            if step_folder.NAME.fullmatch(name) and path.is_dir():
                files = {file.name: file.stat().st_size for file in path.iterdir() if file.is_file()}
                manifest = path / MANIFEST
                text = manifest.read_text(errors="replace") if manifest.name in files else None
                parts.append(HostPart(step_folder.step_of(Path(name)), text, files))
        return sorted(parts, key=lambda part: part.step, reverse=True)

    def name(self, step: int, manifest: str) -> None:
        """Rename a step's folder, which may be empty, to its final name."""
        final, partial = step_folder.folders(self.root, step)
        if not final.is_dir():
            partial.mkdir(exist_ok=True)
            partial.rename(final)
        write_atomically(final / MANIFEST, manifest)

    def remove(self) -> None:
        """Delete the folder, which frees its memory."""
        give_back(self.root)
