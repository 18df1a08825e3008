"""Ask whether another process lives, and end this one with the process that owns it."""

from __future__ import annotations

import os
import threading
import time


def is_alive(pid: int) -> bool:
    """Return whether a process has this id on this host, of any user; a zombie has one too."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def exit_with_parent(parent_pid: int, *, poll_s: float) -> None:
    """Start a thread that exits this process when its parent has ended: a killed parent cannot end its children."""

    def watch() -> None:
        while os.getppid() == parent_pid:
            time.sleep(poll_s)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
