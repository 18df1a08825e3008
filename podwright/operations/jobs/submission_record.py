"""The record of a submission in its run's folder: what was sent, by whom, from which commit."""

from __future__ import annotations

import contextlib
import getpass
import json
import socket
import subprocess
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from podwright_common.checksum import sha256_of

FILE_NAME = "submission.json"
GIT_LIMIT_S = 60  # A repository may be on a file server that hangs.


def record(files: Mapping[str, Path], command: str) -> bytes:
    """Return the content of the record of a submission."""
    folder = next(iter(files.values())).resolve().parent
    try:
        podwright_version = version("podwright")
    except PackageNotFoundError:
        podwright_version = ""
    values = {
        "submitted_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "submitted_by": f"{getpass.getuser()}@{socket.gethostname()}",
        "podwright": podwright_version,
        "sha256": {str(name): sha256_of(path) for top, source in files.items() for name, path in _tree(top, source)},
        "git_commit": _git(folder, "rev-parse", "HEAD"),
        "git_changes": _git(folder, "status", "--porcelain").splitlines(),
        "command": command,
    }
    return (json.dumps(values, indent=2) + "\n").encode()


def _tree(name: str, source: Path) -> Iterator[tuple[Path, Path]]:
    """Yield each file of a file or folder, after its name in the run's folder."""
    if source.is_file():
        yield Path(name), source
        return
    for path in sorted(source.rglob("*")):
        if path.is_file():
            yield Path(name) / path.relative_to(source), path


def _git(folder: Path, *arguments: str) -> str:
    """Return the output of a git command in a folder; empty outside of a repository."""
    # A file system monitor that git starts would keep the pipes open.
    command = ["git", "-c", "core.fsmonitor=false", "-C", str(folder), *arguments]
    with contextlib.suppress(FileNotFoundError, subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=GIT_LIMIT_S)
        return done.stdout.strip() if done.returncode == 0 else ""
    return ""
