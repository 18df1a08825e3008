"""A lifecycle script run on a host: followed line by line, ended after its time."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from podwright_rehearsal.clusters.rehearsed import end_group
from podwright_rehearsal.hosts.host_errors import tail

TIMED_OUT = 124  # timeout(1)'s exit status


@dataclass(frozen=True, kw_only=True)
class BootResult:
    """The result of a lifecycle script on a host."""

    hostname: str
    exit_code: int  # 124: it ran out of time
    log: Path
    seconds: float

    @property
    def ok(self) -> bool:
        """True if the node would become Running."""
        return self.exit_code == 0

    def describe(self) -> str:
        """Return exit code, time, the end of the log and its path."""
        return f"{self.hostname}: exit {self.exit_code} after {self.seconds:.1f} s\n{tail(self.log)}"


def follow(process: subprocess.Popen[bytes], log: Path, timeout_s: float, on_line: Callable[[str], None]) -> int:
    """Wait for a script and pass its lines on. It writes to a file: a daemon that keeps it open does not delay us."""
    end = time.monotonic() + timeout_s
    with log.open(errors="replace") as lines:
        ended = False
        while not ended:
            try:
                process.wait(0.05)
                ended = True
            except subprocess.TimeoutExpired:
                if time.monotonic() > end:
                    end_group(process)
                    return TIMED_OUT
            for line in lines:
                on_line(line.rstrip("\n"))
    return process.returncode
