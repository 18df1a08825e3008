"""The manifest of a checkpoint: size and SHA-256 of every file, and whether a run can go on from the weights."""

from __future__ import annotations

import errno
import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from podwright_common import regular_file
from podwright_common.checksum import sha256_of_stream
from podwright_common.regular_file import UnreadableFileError, open_regular
from podwright_training.checkpoint.collective_io import (
    PASSING,
    CheckpointError,
    CollectiveIO,
    DamagedCheckpointError,
)

MANIFEST = "manifest.json"
TRAINER = "trainer.json"
TEXT_BYTES = 256 << 20  # A larger manifest or trainer state is damage: a million files need less.
FILE_NAME = re.compile(r"[\w.-]+")  # in a manifest: no path
SHA256 = re.compile(r"[0-9a-f]{64}")
NOT_A_FILE = (FileNotFoundError, NotADirectoryError, IsADirectoryError, UnreadableFileError)


def check_hashes(path: Path, files: Iterable[Path] | None = None) -> None:
    """Raise ``DamagedCheckpointError`` if one of ``files``, all by default, has changed."""
    check_sizes(path)
    check_contents(path, sorted(path.iterdir()) if files is None else files)


def check_contents(path: Path, files: Iterable[Path]) -> None:
    """Raise ``DamagedCheckpointError`` if a file's hash is not that of the manifest."""
    written = manifest_of(path)
    for file in files:
        if file.name != MANIFEST and _sha256(file) != written[file.name]["sha256"]:
            raise DamagedCheckpointError(f"checkpoint {path} is damaged: the content of {file.name} has changed")


def share_of_files(collective: CollectiveIO, path: Path) -> list[Path]:
    """Return the checkpoint's files that this rank hashes."""
    return collective.share(sorted(path.iterdir()))


def describe(files: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Return size and hash of each file, by name."""
    return {file.name: {"bytes": file.stat().st_size, "sha256": _sha256(file)} for file in files}


def _sha256(path: Path) -> str:
    with open_regular(path, follow_links=True) as file:
        return sha256_of_stream(file)


def mark_of(path: Path) -> str:
    """Return why a checkpoint's manifest marks it as bad; empty if it does not."""
    return mark_in(_text_of_manifest(path))


def mark_in(manifest: str) -> str:
    """Return why the text of a manifest marks its checkpoint as bad; empty if it does not, or is damaged."""
    return str(_facts(manifest).get("bad") or "")


def weights_rms(path: Path) -> float | None:
    """Return the root mean square of a checkpoint's weights, if its manifest has it."""
    weights = _facts(_text_of_manifest(path)).get("weights")
    size = weights.get("rms") if isinstance(weights, dict) else None
    return float(size) if isinstance(size, int | float) and math.isfinite(size) else None


def _text_of_manifest(path: Path) -> str:
    try:
        return read_text(path / MANIFEST)
    except OSError:
        return ""


def _facts(manifest: str) -> dict[str, Any]:
    try:
        facts = json.loads(manifest)
    except (ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


def manifest_of(path: Path) -> dict[str, dict[str, Any]]:
    """Return size and hash of each file, by name.

    Raises:
        DamagedCheckpointError: The manifest is missing, or is none.
        CheckpointError: It cannot be read. A run that took that for damage would begin again and delete the checkpoint.
    """
    try:
        return parse_manifest(read_text(path / MANIFEST))
    except OSError as error:
        if isinstance(error, NOT_A_FILE) or error.errno == errno.ELOOP:
            raise DamagedCheckpointError(f"checkpoint {path} is damaged: {MANIFEST}: {error}") from error
        message = f"cannot read checkpoint {path}: {MANIFEST}: {error.strerror or error}"
        raise CheckpointError(message, passing=error.errno in PASSING) from error
    except ValueError as error:
        raise DamagedCheckpointError(f"checkpoint {path} is damaged: {MANIFEST}: {error}") from error


def read_text(path: Path) -> str:
    """Return the text of a checkpoint's file, which another user may have made; a pipe there is an ``OSError``."""
    return regular_file.read(path, limit_bytes=TEXT_BYTES, follow_links=True).decode(errors="replace")


def parse_manifest(text: str) -> dict[str, dict[str, Any]]:
    """Return size and hash of each file, by name, from the text of a manifest.

    Raises:
        ValueError: It is none.
    """
    try:
        files = json.loads(text)["files"]
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"it has no files: {error}") from error
    if not (isinstance(files, dict) and TRAINER in files and all(_is_entry(*item) for item in files.items())):
        raise ValueError("it is not a list of the checkpoint's files")
    return files


def _is_entry(name: str, entry: Any) -> bool:
    return (
        FILE_NAME.fullmatch(name) is not None
        and isinstance(entry, dict)
        and type(entry.get("bytes")) is int
        and SHA256.fullmatch(str(entry.get("sha256"))) is not None
    )


def check_sizes(path: Path) -> None:
    """Raise ``DamagedCheckpointError`` if the folder's files or their sizes are not those of the manifest."""
    written = manifest_of(path)
    sizes = {file.name: file.stat().st_size for file in path.iterdir() if file.name != MANIFEST}
    for name, entry in written.items():
        if sizes.get(name) != entry["bytes"]:
            damage = f"has {sizes[name]} bytes" if name in sizes else "is missing"
            raise DamagedCheckpointError(
                f"checkpoint {path} is damaged: {name} {damage}, {entry['bytes']} were written"
            )
    if more := sorted(sizes.keys() - written.keys()):
        raise DamagedCheckpointError(f"checkpoint {path} is damaged: {more[0]} is not in its {MANIFEST}; remove it")
