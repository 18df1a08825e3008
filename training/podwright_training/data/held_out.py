"""Hold out a share of the documents for validation, by their content."""

from __future__ import annotations

import zlib

HELD_OUT_SHARE = 0.01  # A dataset without a validation split holds out this share of its documents.


def is_held_out(content: bytes, share: float = HELD_OUT_SHARE) -> bool:
    """Return whether a document is in the share: copies of a text are on one side, on every machine."""
    return zlib.crc32(content) < share * 2**32
