#!/usr/bin/python3
"""Hold apt's locks as unattended-upgrades does at first boot, for some seconds. systemd runs it on a host."""

import contextlib
import fcntl
import os
import subprocess
import sys
import time

LOCKS = ("/var/lib/apt/lists/lock", "/var/lib/dpkg/lock-frontend", "/var/lib/dpkg/lock")


def main() -> None:
    """Take the locks, say so, sleep."""
    with contextlib.ExitStack() as stack:
        for path in LOCKS:
            os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120 (as small as can be)
            fcntl.lockf(stack.enter_context(open(path, "w")), fcntl.LOCK_EX)  # noqa: PTH123
        subprocess.run(["systemd-notify", "--ready"], check=True)
        time.sleep(float(sys.argv[1]))


if __name__ == "__main__":
    main()
