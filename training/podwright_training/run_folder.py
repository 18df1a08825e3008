"""The run folder: every file a training run writes or a later command reads, and nothing else knows their names."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ORIGIN = "podwright.json"  # in ``RunFolder.hf``: the step it was consolidated from


@dataclass(frozen=True)
class RunFolder:
    """One run: ``runs/<name>/`` on the shared file system. A run folder explains itself."""

    root: Path

    @property
    def config(self) -> Path:
        """The resolved configuration, written by the first start and compared by every later one."""
        return self.root / "config.yaml"

    @property
    def sbatch(self) -> Path:
        """The rendered batch script."""
        return self.root / "train.sbatch"

    @property
    def log(self) -> Path:
        """What the job printed, over all of its restarts."""
        return self.root / "train.log"

    @property
    def metrics(self) -> Path:
        """JSON lines, see ``metrics.py``; appended to over all restarts."""
        return self.root / "metrics.jsonl"

    @property
    def traces(self) -> Path:
        """Holds the traces that ``profile_steps`` asks for."""
        return self.root / "traces"

    @property
    def tensorboard(self) -> Path:
        """Holds TensorBoard's event files."""
        return self.root / "tensorboard"

    @property
    def checkpoints(self) -> Path:
        """Holds ``step-00000100/`` folders; only those with a commit marker count."""
        return self.root / "checkpoints"

    @property
    def hf(self) -> Path:
        """The consolidated model in Hugging Face layout."""
        return self.root / "hf"

    @property
    def samples(self) -> Path:
        """Text generated from the consolidated model."""
        return self.root / "samples.txt"

    @property
    def report(self) -> Path:
        """Holds ``report.md`` and ``loss.svg``."""
        return self.root / "report"

    def events(self, kind: str | None = None) -> Iterator[dict[str, Any]]:
        """The metrics' events in the order written; ``kind`` picks one sort. A half-written last line is left out."""
        if not self.metrics.exists():
            return
        for line in self.metrics.read_text().splitlines(keepends=True):
            if not line.endswith("\n"):
                return
            event = json.loads(line)
            if kind is None or event["event"] == kind:
                yield event


def write_atomically(path: Path, text: str) -> None:
    """Replace ``path`` by a file holding ``text``: readers see the old or the new content, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def commit_folder(partial: Path, final: Path) -> None:
    """Give a folder whose files are on disk its name, for good; readers see all of it or what was there before."""
    _sync_folder(partial)
    if final.exists():
        delete_folder(final)
    partial.rename(final)
    _sync_folder(final.parent)


def delete_folder(path: Path) -> None:
    """Delete a folder; one that is half deleted no longer has its name."""
    hidden = path.with_name(f".{path.name}.deleted")
    path.rename(hidden)
    shutil.rmtree(hidden)


def _sync_folder(path: Path) -> None:
    """Put a folder's names on disk: what was renamed in it stays renamed."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
