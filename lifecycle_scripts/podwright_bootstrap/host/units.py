"""systemd's units: on or off, now and after a reboot; ours, and settings of ours for others.

Settings that a reboot clears are units too. A boot runs such a unit itself, which proves that the unit works.
"""

from __future__ import annotations

from pathlib import Path
from typing import Iterator

from podwright_bootstrap.host import files, process
from podwright_bootstrap.host.errors import BootstrapError

FOLDER = Path("/etc/systemd/system")
START_LIMIT_S = 120
# The pause is the limit: a daemon whose database or disk is away for an hour is started again when it is back.
RESTARTS = "[Service]\nRestart=on-failure\nRestartSec=5\n"


def keep_on(unit: str, *, restart: bool = False) -> Iterator[str]:
    """Enabled and active; restarted where its configuration changed."""
    if restart:
        process.run("systemctl", "daemon-reload", timeout_s=60)
    if answer("is-enabled", unit) != "enabled":
        process.run("systemctl", "enable", unit, timeout_s=60)
        yield f"enabled {unit}"
    active = answer("is-active", unit) == "active"
    if restart or not active:
        process.run("systemctl", "restart", unit, timeout_s=START_LIMIT_S)
        yield f"{'restarted' if active else 'started'} {unit}"


def keep_off(unit: str) -> Iterator[str]:
    """Stopped and masked. HyperPod's image has its units where masks go: such a file is moved aside."""
    if answer("is-enabled", unit) == "masked":
        return
    process.run("systemctl", "disable", "--now", unit, timeout_s=60, check=False)
    file = FOLDER / f"{unit}.service"
    if file.exists():
        file.rename(file.with_name(f"{file.name}.masked-by-podwright"))
    process.run("systemctl", "mask", unit, timeout_s=60)
    yield f"masked {unit}"


def answer(question: str, unit: str) -> str:
    """Return systemctl's answer to is-active or is-enabled."""
    return process.run("systemctl", question, unit, timeout_s=30, check=False, quiet=True).output.strip()


def drop_in(unit: str, name: str, text: str) -> Iterator[str]:
    """Write our settings for another package's unit; a running daemon has them after its next start."""
    yield from _write(FOLDER / f"{unit}.d" / f"{name}.conf", text)


def restart_on_failure(*names: str) -> Iterator[str]:
    """Let systemd start daemons again that crash or are killed; those that somebody stops stay stopped."""
    for name in names:
        yield from drop_in(f"{name}.service", "podwright-restart", RESTARTS)


def restarts(unit: str) -> int:
    """Return how often systemd has started the unit again by itself since it was started."""
    shown = process.run("systemctl", "show", "--property=NRestarts", unit, timeout_s=30, check=False, quiet=True).output
    number = shown.strip().rpartition("NRestarts=")[2]
    return int(number) if number.isdecimal() else 0


def run_by_timer(name: str, *, service: str, timer: str, path: str = "") -> Iterator[str]:
    """A service that a timer starts, and changes of a file too where there is a path unit."""
    text_by_unit = {f"{name}.service": service, f"{name}.timer": timer, **({f"{name}.path": path} if path else {})}
    changed = [file for file, text in text_by_unit.items() if files.write_file(FOLDER / file, text)]
    for file in changed:
        yield f"wrote {FOLDER / file}"
    for unit in sorted(set(text_by_unit) - {f"{name}.service"}):
        yield from keep_on(unit, restart=bool(changed))


def remove(*names: str) -> Iterator[str]:
    """Stop, disable and delete the given units that the bootstrap wrote."""
    existing_units = [name for name in names if exists(name)]
    for name in existing_units:
        process.run("systemctl", "disable", "--now", name, timeout_s=60, check=False)
        yield from files.remove_files(FOLDER / name)
    if existing_units:
        process.run("systemctl", "daemon-reload", timeout_s=60)


def remove_timer(name: str) -> Iterator[str]:
    """Remove what ``run_by_timer`` made."""
    yield from remove(f"{name}.path", f"{name}.timer", f"{name}.service")


def require_active(unit: str) -> None:
    """Raise ``BootstrapError`` if the unit is not active."""
    if answer("is-active", unit) != "active":
        raise BootstrapError(f"{unit} is not active")


def exists(name: str) -> bool:
    """Return whether the bootstrap wrote the unit."""
    return (FOLDER / name).is_file()


def run_at_boot(name: str, text: str, *, rerun: bool = False) -> Iterator[str]:
    """A service of Type=oneshot with RemainAfterExit=yes: run after every reboot, and now unless it has.

    With ``rerun`` it runs now in any case.

    Raises:
        CommandError: one of its commands failed.
    """
    changed = list(_write(FOLDER / name, text))
    yield from changed
    if answer("is-enabled", name) != "enabled":
        process.run("systemctl", "enable", name, timeout_s=60)
        yield f"enabled {name}"
    if changed or rerun or answer("is-active", name) != "active":
        process.run("systemctl", "restart", name, timeout_s=START_LIMIT_S)
        yield f"ran {name}"


def _write(path: Path, text: str) -> Iterator[str]:
    if files.write_file(path, text):
        process.run("systemctl", "daemon-reload", timeout_s=60)
        yield f"wrote {path}"
