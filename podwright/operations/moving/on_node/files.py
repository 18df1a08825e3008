"""Record every file of a shared file system, or compare it with a record: size, owner, mode, time, and sample hashes.

    files.py record FOLDER ROOT…
    files.py compare FOLDER ROOT…

The record lies in FOLDER, which is on one of the file systems and travels with it.
"""

from __future__ import annotations

import errno
import fcntl
import gzip
import hashlib
import heapq
import json
import os
import stat
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LOCK = Path("/run/podwright-move.lock")
RECORD, SAMPLES = "files.jsonl.gz", "samples.json"
HASHED_FILES = 500
HASHED_BYTES = 16 << 20  # A large file's hash covers only its beginning.
EXAMPLES = 10
KINDS = {
    stat.S_IFDIR: "d",
    stat.S_IFLNK: "l",
    stat.S_IFREG: "f",
}  # Other kinds are "s": reading a pipe would never end.
GONE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO}  # deleted, or replaced by a link or a socket
PRINT_EVERY_S = 30  # Session Manager ends a session that says nothing for 20 minutes
BOOT_FOLDERS = ("podwright", ".cache")  # A boot writes environments, keys and downloads there, below a root.


def entry(path: str) -> tuple[str, int, int, int, int, int]:
    """Return kind, size, uid, gid, mode and time in seconds; a folder's size and time may differ in a copy."""
    status = os.lstat(path)
    kind = KINDS.get(stat.S_IFMT(status.st_mode), "s")
    is_folder = kind == "d"
    return (
        kind,
        0 if is_folder else status.st_size,
        status.st_uid,
        status.st_gid,
        stat.S_IMODE(status.st_mode),
        0 if is_folder else int(status.st_mtime),
    )


def walk(root: str, excluded_folder: str) -> Iterator[str]:
    """Yield every path below a root on its file system, without those in the excluded folder."""
    device = os.lstat(root).st_dev
    waiting = [root]
    while waiting:
        try:
            items = os.scandir(waiting.pop())
        except (FileNotFoundError, NotADirectoryError):
            continue  # deleted meanwhile: people may still be logged in
        with items:
            for item in items:
                if item.path == excluded_folder:
                    continue
                yield item.path
                if item.is_dir(follow_symlinks=False) and device_of(item.path) == device:
                    waiting.append(item.path)


def device_of(path: str) -> int:
    """Return the device that a path is on; 0 if it is gone."""
    try:
        return os.lstat(path).st_dev
    except (FileNotFoundError, NotADirectoryError):
        return 0


def sha256(path: str) -> str:
    """Return the hash of a file's beginning; empty if it is gone, or its owner has put a pipe or a link there."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in GONE:
            return ""
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return ""
    with os.fdopen(descriptor, "rb") as file:
        return hashlib.sha256(file.read(HASHED_BYTES)).hexdigest()


class Progress:
    """Prints the number of files from time to time, so that the session stays open."""

    def __init__(self) -> None:
        self.count = 0
        self._printed_at = time.monotonic()

    def step(self) -> None:
        """Count one file."""
        self.count += 1
        if time.monotonic() - self._printed_at > PRINT_EVERY_S:
            self._printed_at = time.monotonic()
            print(self.count, "files", flush=True)


def record(folder: Path, roots: list[str]) -> dict[str, Any]:
    """Write the record; return the number of files and bytes of each owner."""
    progress, owners, size = Progress(), Counter(), Counter()  # type: Progress, Counter[int], Counter[int]
    chosen: list[tuple[int, str]] = []  # Files whose names have the smallest checksums.
    with gzip.open(str(folder / f".{RECORD}"), "wt", compresslevel=1) as out:
        for root in roots:
            for path in walk(root, str(folder)):
                progress.step()
                try:
                    attributes = entry(path)
                except (FileNotFoundError, NotADirectoryError):
                    continue
                out.write(json.dumps([path, *attributes]) + "\n")
                owners[attributes[2]] += 1
                size[attributes[2]] += attributes[1]
                if attributes[0] == "f":
                    item = (-zlib.crc32(path.encode("utf-8", "surrogateescape")), path)
                    (heapq.heappush if len(chosen) < HASHED_FILES else heapq.heappushpop)(chosen, item)
    hashes = {path: content for path, content in ((path, sha256(path)) for _, path in chosen) if content}
    (folder / SAMPLES).write_text(json.dumps(hashes))
    (folder / f".{RECORD}").replace(folder / RECORD)
    by_owner = {str(uid): {"files": owners[uid], "bytes": size[uid]} for uid in sorted(owners)}
    return {"files": sum(owners.values()), "bytes": sum(size.values()), "owners": by_owner, "hashed": len(hashes)}


def compare(folder: Path, roots: list[str]) -> dict[str, Any]:
    """Compare every recorded file with the one on this node; added files do not count as differences."""
    progress, differences, changed_by_boots = Progress(), [], 0
    counts, same_count = Counter(), Counter()  # type: Counter[str], Counter[int]
    hashes = json.loads((folder / SAMPLES).read_text())
    boot_paths = tuple(f"{root.rstrip('/')}/{name}" for root in roots for name in BOOT_FOLDERS)
    with gzip.open(str(folder / RECORD), "rt") as recorded:
        for line in recorded:
            path, *before = json.loads(line)
            progress.step()
            reason = _difference(path, before)
            if not reason:
                same_count[before[2]] += 1
                continue
            hashes.pop(path, None)  # Its attributes differ already.
            if path.startswith(boot_paths):
                changed_by_boots += 1
            else:
                counts[reason] += 1
                differences.append(f"{path}: {reason}")
                del differences[EXAMPLES:]
    for path, expected in hashes.items():
        if Path(path).is_file() and sha256(path) != expected and not path.startswith(boot_paths):
            counts["content"] += 1
            differences.append(f"{path}: content")
    return {
        "files": progress.count,
        "same": {str(uid): same_count[uid] for uid in sorted(same_count)},
        "different": dict(counts),
        "examples": differences[:EXAMPLES],
        "of_boots": changed_by_boots,
        "hashed": len(hashes),
    }


def _difference(path: str, before: list[Any]) -> str:
    """Return the difference in one word; empty for equal files."""
    try:
        now = entry(path)
    except (FileNotFoundError, NotADirectoryError):
        return "missing"
    names = ("kind", "size", "owner", "group", "mode", "time")
    return next((name for number, name in enumerate(names) if before[number] != now[number]), "")


def main(arguments: list[str]) -> None:
    """Run one verb."""
    verb, folder, *roots = arguments
    Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    Path(folder).chmod(0o700)
    print(json.dumps({"record": record, "compare": compare}[verb](Path(folder), roots)))


if __name__ == "__main__":
    # Who can open a lock can hold it. A program whose caller was killed still runs.
    with os.fdopen(os.open(LOCK, os.O_RDWR | os.O_CREAT, 0o600), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        main(sys.argv[1:])
