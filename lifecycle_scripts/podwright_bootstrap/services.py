"""Services of systemd that are ours, and settings of ours for others: written, loaded, run now and at every boot."""

from __future__ import annotations

from pathlib import Path
from typing import Iterator

from podwright_bootstrap import shell

UNITS = Path("/etc/systemd/system")
START_LIMIT_S = 120


def drop_in(unit: str, name: str, text: str) -> Iterator[str]:
    """Settings of ours for somebody's unit; a daemon that runs has them after its next start."""
    yield from _write(UNITS / f"{unit}.d" / f"{name}.conf", text)


def exists(name: str) -> bool:
    """Whether the unit was written here."""
    return (UNITS / name).is_file()


def run_at_boot(name: str, text: str) -> Iterator[str]:
    """A service of Type=oneshot with RemainAfterExit=yes: run now unless it has, and after every reboot.

    Raises:
        CommandError: one of its commands failed.
    """
    changed = list(_write(UNITS / name, text))
    yield from changed
    if _is("is-enabled", name) != "enabled":
        shell.run("systemctl", "enable", name, timeout_s=60)
        yield f"enabled {name}"
    if changed or _is("is-active", name) != "active":
        shell.run("systemctl", "restart", name, timeout_s=START_LIMIT_S)
        yield f"ran {name}"


def _write(path: Path, text: str) -> Iterator[str]:
    if shell.write_file(path, text):
        shell.run("systemctl", "daemon-reload", timeout_s=60)
        yield f"wrote {path}"


def _is(question: str, unit: str) -> str:
    return shell.run("systemctl", question, unit, timeout_s=30, check=False, quiet=True).output.strip()
