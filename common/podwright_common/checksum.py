"""The checksum of a file."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import BinaryIO

CHUNK_BYTES = 4 << 20


def sha256_of(path: Path) -> str:
    """Return the file's SHA-256 in hexadecimal."""
    with path.open("rb") as file:
        return sha256_of_stream(file)


def sha256_of_stream(file: BinaryIO) -> str:
    """Return the SHA-256, in hexadecimal, of what a stream still has to its end."""
    digest = hashlib.sha256()
    for chunk in iter(lambda: file.read(CHUNK_BYTES), b""):
        digest.update(chunk)
    return digest.hexdigest()
