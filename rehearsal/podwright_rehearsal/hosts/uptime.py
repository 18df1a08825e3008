"""The uptime of a host, which begins anew when the host starts: Slurm recognizes a reboot by it.

A time namespace gives it, which Linux has since 5.6. On an older kernel a host's uptime is the machine's, and Slurm
takes a host that has rebooted for one that was silent.
"""

from __future__ import annotations

import time
from pathlib import Path

_NAMESPACE = Path("/proc/self/ns/time")


def begin() -> list[str]:
    """Return the options of unshare(1) for a host whose clocks since boot start at zero."""
    if not _NAMESPACE.exists():
        return []
    clocks = {"boottime": time.CLOCK_BOOTTIME, "monotonic": time.CLOCK_MONOTONIC}
    return ["--time", *(f"--{name}=-{int(time.clock_gettime(clock))}" for name, clock in clocks.items())]


def join() -> list[str]:
    """Return the option of nsenter(1) for a program that has the host's uptime."""
    return ["--time"] if _NAMESPACE.exists() else []
