"""sshd's configuration, as sshd itself reads it.

Where ssh.socket starts sshd at the first connection, as on Ubuntu 24.04, its folder in /run is missing until then, and
``sshd -t`` and ``sshd -T`` fail without it.

https://man.openbsd.org/sshd
"""

from __future__ import annotations

from pathlib import Path
from typing import List

from podwright_bootstrap.host import process

RUN_FOLDER = Path("/run/sshd")


def check() -> None:
    """Raise ``CommandError`` if sshd would not start with its configuration."""
    _make_folder()
    process.run("sshd", "-t", timeout_s=30)


def settings(user: str = "") -> List[str]:
    """Return sshd's settings, a line each; of a user who connects from this host if one is named.

    Raises:
        CommandError: sshd does not read its configuration.
    """
    _make_folder()
    connection = ("-C", f"user={user},host=localhost,addr=127.0.0.1") if user else ()
    return process.run("sshd", "-T", *connection, timeout_s=30, quiet=True).output.splitlines()


def reload() -> None:
    """Let a running sshd take its configuration."""
    process.run("systemctl", "try-reload-or-restart", "ssh", timeout_s=60)


def _make_folder() -> None:
    RUN_FOLDER.mkdir(mode=0o755, exist_ok=True)
