"""Make a mounted file system slow on one host: delay each open of a file or folder.

    slow_files.py MOUNT_POINT DELAY_S CONTAINING

The kernel asks before each open (fanotify(7), FAN_OPEN_PERM) and is answered DELAY_S later, or at once where the path
does not contain CONTAINING. It says "ready" when it has begun, and ends with its input; then all waiting opens proceed.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import threading
from pathlib import Path

# linux/fanotify.h, linux/fcntl.h
CLASS_CONTENT, MARK_ADD, MARK_MOUNT = 0x4, 0x1, 0x10
OPEN_PERM, ON_FOLDERS = 0x00010000, 0x40000000
CURRENT_FOLDER = -100
EVENT = struct.Struct("=IBBHQii")  # event_len, vers, reserved, metadata_len, mask, fd, pid
RESPONSE = struct.Struct("=iI")
ALLOW = 1


def main(mount_point: str, delay_s: float, containing: str) -> None:
    """Mark the mount; answer until the input ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    group = libc.fanotify_init(CLASS_CONTENT, os.O_RDONLY)
    events = ctypes.c_uint64(OPEN_PERM | ON_FOLDERS)
    if group < 0 or libc.fanotify_mark(group, MARK_ADD | MARK_MOUNT, events, CURRENT_FOLDER, mount_point.encode()):
        sys.exit(f"fanotify for {mount_point}: {os.strerror(ctypes.get_errno())}")
    threading.Thread(target=end_with_input, daemon=True).start()
    print("ready", flush=True)
    while True:
        data = os.read(group, 1 << 16)
        for start in range(0, len(data), EVENT.size):
            file = EVENT.unpack_from(data, start)[5]
            waits = containing in str(Path(f"/proc/self/fd/{file}").readlink())
            timer = threading.Timer(delay_s if waits else 0.0, allow, (group, file))
            timer.daemon = True
            timer.start()


def end_with_input() -> None:
    """Exit when the input ends: the kernel then allows what waits."""
    sys.stdin.read()
    os._exit(0)


def allow(group: int, file: int) -> None:
    """Allow an open."""
    os.write(group, RESPONSE.pack(file, ALLOW))
    os.close(file)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3])
