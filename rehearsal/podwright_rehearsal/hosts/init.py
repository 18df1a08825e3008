"""PID 1 of a host, run by the host's own Python: starts what an AMI starts at boot, then reaps until it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

SYSTEMCTL = "/opt/rehearsal/shims/systemctl"
UNITS_AT_BOOT = Path("/etc/systemd/system/multi-user.target.wants")
HOST_KEY = "/etc/ssh/ssh_host_ed25519_key"
# systemctl.py keeps a file here per main process of a unit, by its id.
UNIT_PROCESSES = Path("/run/rehearsal/processes")
# Where a host lost all of its processes on purpose, nothing may bring them back.
HALTED = Path("/run/rehearsal/halted")


def main() -> None:
    """Boot, say "ready" on standard output, reap for ever."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    first = not Path(HOST_KEY).exists()
    if first:
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", HOST_KEY], check=True)
    # After a reboot: a host comes up with whatever mounts and units it can.
    subprocess.run(["mount", "--all"], check=first)
    subprocess.run([SYSTEMCTL, "start", *sorted(unit.name for unit in UNITS_AT_BOOT.iterdir())], check=first)
    print("ready", flush=True)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    while True:
        signal.sigwait({signal.SIGCHLD})
        for pid, status in iter(reap, (0, 0)):
            if (UNIT_PROCESSES / str(pid)).exists() and not HALTED.exists():
                subprocess.Popen([SYSTEMCTL, "main-process-ended", str(pid), str(os.waitstatus_to_exitcode(status))])


def reap() -> tuple[int, int]:
    """Id and status of one dead child; zeros if there is none."""
    try:
        return os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return 0, 0


if __name__ == "__main__":
    main()
