"""Supervise the processes of one flat host: ``python -m …flat_supervisor OWNER_PID '[["slurmd", …], …]'``.

On SIGTERM, and when its owner dies, it kills everything it started at once, daemons too.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from podwright_rehearsal import processes

PR_SET_PDEATHSIG = 1  # prctl(2)


def main() -> None:
    """Start the commands, then reap until SIGTERM."""
    processes.adopt_orphans()
    signal.signal(signal.SIGTERM, _end)
    owner = int(sys.argv[1])
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != owner:  # it died before prctl
        return
    for command in json.loads(sys.argv[2]):
        subprocess.Popen(command)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            time.sleep(0.2)


def _end(_signal: int, _frame: object) -> None:
    while running := list(processes.descendants(os.getpid())):
        for pid in running:
            if Path(f"/proc/{pid}").exists():
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            break
        time.sleep(0.01)
    os._exit(0)


if __name__ == "__main__":
    main()
