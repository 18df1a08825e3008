"""The kernel's messages since the node started.

https://www.kernel.org/doc/Documentation/ABI/testing/dev-kmsg
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Iterator

KMSG = Path("/dev/kmsg")
RECORD_BYTES = 8192  # no record is longer


def messages() -> Iterator[str]:
    """Give each message from its first letter on; none in a container, which has no log.

    Raises ``OSError`` where the log may not be read.

    A user can put any text into the middle of one, as an option of mount(2) in a user namespace, and a line end: what
    dmesg(1) prints then looks like a message of its own. Here line ends are escaped.
    """
    try:
        descriptor = os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        while True:
            try:
                record = os.read(descriptor, RECORD_BYTES)
            except BlockingIOError:  # that was the last
                return
            except BrokenPipeError:  # the kernel has overwritten it; the next read gives the oldest that is left
                continue
            if not record:
                return
            for line in record.splitlines():
                if not line.startswith(b" "):  # a property of the message
                    yield line.partition(b";")[2].decode(errors="replace")
    finally:
        os.close(descriptor)
