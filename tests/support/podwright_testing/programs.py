"""Programs that end with the test that starts them."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def started(words: Sequence[str | Path], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a program in a session of its own; what still runs of that at the end of the block is killed.

    ``Popen``'s own context waits for the program instead: a test that fails would never end.
    """
    with subprocess.Popen(words, text=True, start_new_session=True, **options) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
