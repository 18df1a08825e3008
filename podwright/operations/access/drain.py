"""Read a pipe of a running program while another of its pipes is read or written.

A program that has filled one pipe waits for its reader, who would wait for the program at another pipe.
"""

from __future__ import annotations

import os
from threading import Thread
from typing import IO

TAIL_BYTES = 1 << 20
CHUNK_BYTES = 1 << 16
CLOSE_LIMIT_S = 10  # A background program may have inherited the pipe and keep it open.


class Drain(Thread):
    """Read a stream to its end in a thread and keep its last MiB, however much comes."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__(daemon=True)
        self._descriptor = os.dup(stream.fileno())  # the stream may be closed while this thread reads
        self._tail = bytearray()
        self.start()

    def run(self) -> None:
        """Read until every program has closed the pipe."""
        while chunk := os.read(self._descriptor, CHUNK_BYTES):
            self._tail += chunk
            del self._tail[:-TAIL_BYTES]
        os.close(self._descriptor)

    def text(self) -> str:
        """Return the last MiB. Call this when the program has ended."""
        self.join(CLOSE_LIMIT_S)
        return bytes(self._tail).decode(errors="replace")
