"""Checksums are those of sha256sum."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from podwright_common.checksum import CHUNK_BYTES, sha256_of


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1])
def test_a_file_has_the_checksum_of_sha256sum(tmp_path: Path, size: int) -> None:
    """Empty files, and files of one and more chunks."""
    path = tmp_path / "file"
    path.write_bytes(bytes(index % 251 for index in range(size)))
    printed = subprocess.run(["sha256sum", path], capture_output=True, text=True, check=True).stdout
    assert sha256_of(path) == printed.split()[0]
