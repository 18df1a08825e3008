"""systemctl for a host without systemd: real unit files and drop-ins, but no dependencies between units.

Services of Type=simple, exec, notify, forking and oneshot are run; units of other kinds are only remembered as started.
Every call is recorded in LOG/calls, a service writes to LOG/UNIT.log.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pwd
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CONFIGURATION = Path("/etc/systemd/system")
DIRECTORIES = (CONFIGURATION, Path("/run/systemd/system"), Path("/lib/systemd/system"))
WANTS = CONFIGURATION / "multi-user.target.wants"
MANAGER_ENVIRONMENT = Path("/etc/environment")
STATES = Path("/run/rehearsal/units")
PROCESSES = Path("/run/rehearsal/processes")  # by main process id, for init.py: the unit's name
LOG = Path("/opt/rehearsal/log")
START_TIMEOUT_S = 90.0  # DefaultTimeoutStartSec
STOP_TIMEOUT_S = 10.0
START_LIMIT, START_LIMIT_S = 5, 10.0  # DefaultStartLimitBurst, DefaultStartLimitIntervalSec
DIRECTORY_OPTIONS = {"RuntimeDirectory": "/run", "StateDirectory": "/var/lib", "LogsDirectory": "/var/log"}


class UnitError(Exception):
    """A verb failed or answered no: what systemctl prints, and its exit status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Unit:
    """A unit's file, its options and what is remembered of it."""

    def __init__(self, name: str) -> None:
        name = name if "." in name else f"{name}.service"
        found = next((folder / name for folder in DIRECTORIES if os.path.lexists(folder / name)), None)
        self.masked = found is not None and found.resolve() == Path(os.devnull)
        self.path = found.resolve() if found and not self.masked else None
        self.name = self.path.name if self.path else name  # sshd.service is a link to ssh.service
        self.options = read_options(self.path, self.name) if self.path else {}
        record = STATES / self.name
        self.memory: dict[str, Any] = json.loads(record.read_text()) if record.exists() else {}

    def option(self, key: str, default: str = "") -> str:
        """The value that counts where a key is given more than once."""
        return (self.options.get(key) or [default])[-1]

    def remember(self, state: str, pid: int = 0) -> None:
        """Keep the state for later calls, and record the main process's owner for init.py."""
        starts = self.memory.get("starts", []) + ([time.time()] if state == "active" else [])
        self.memory = {"state": state, "pid": pid, "starts": starts[-START_LIMIT:]}
        STATES.mkdir(exist_ok=True)
        (STATES / self.name).write_text(json.dumps(self.memory))
        if pid:
            (PROCESSES / str(pid)).write_text(self.name)

    @property
    def pid(self) -> int:
        """The main process; 0 if there is none."""
        pid = int(self.memory.get("pid", 0))
        return pid if is_alive(pid) else 0

    @property
    def active_state(self) -> str:
        """ActiveState, in systemd's words."""
        lost = self.memory.get("pid") and not self.pid
        return "failed" if lost else str(self.memory.get("state", "inactive"))

    @property
    def file_state(self) -> str:
        """UnitFileState, in systemd's words."""
        if self.masked or not self.path:
            return "masked" if self.masked else "not-found"
        if os.path.lexists(WANTS / self.name):
            return "enabled"
        return "disabled" if "WantedBy" in self.options else "static"

    def require(self, verb: str) -> None:
        """Raise what systemd says when there is nothing to act on."""
        if not self.path:
            raise UnitError(
                f"Failed to {verb} {self.name}: Unit {self.name} is {self.file_state}.", 1 if self.masked else 5
            )


def read_options(path: Path, name: str) -> dict[str, list[str]]:
    """All keys of the unit file and its drop-ins; an empty value clears a list, as in systemd."""
    drop_ins = [file for folder in reversed(DIRECTORIES) for file in sorted((folder / f"{name}.d").glob("*.conf"))]
    options: dict[str, list[str]] = {}
    for file in (path, *drop_ins):
        for line in file.read_text().replace("\\\n", " ").splitlines():
            key, equals, value = (part.strip() for part in line.partition("="))
            if equals and key[0] not in "#;":
                options[key] = [*options.get(key, []), value] if value else []
    return options


def is_alive(pid: int) -> bool:
    """Return whether the process runs; a zombie does not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


# ---- a service's processes ----------------------------------------------------------------------------------------


def environment_of(unit: Unit) -> dict[str, str]:
    """The manager's environment, then Environment=, then EnvironmentFile=."""
    environment = read_environment(MANAGER_ENVIRONMENT) | {"HOME": account_of(unit).pw_dir}
    for value in unit.options.get("Environment", []):
        environment |= dict(word.split("=", 1) for word in shlex.split(value))
    for value in unit.options.get("EnvironmentFile", []):
        path = Path(value.lstrip("-"))
        if path.exists() or not value.startswith("-"):
            environment |= read_environment(path)
    return environment


def read_environment(path: Path) -> dict[str, str]:
    """NAME=value lines, values perhaps quoted."""
    pairs = (line.strip().split("=", 1) for line in path.read_text().splitlines() if "=" in line)
    return {
        name: " ".join(shlex.split(value)) if value[:1] in {'"', "'"} else value
        for name, value in pairs
        if name[0] not in "#;"
    }


def account_of(unit: Unit) -> pwd.struct_passwd:
    """User=, root without it."""
    return pwd.getpwnam(unit.option("User", "root"))


def spawn(unit: Unit, command: str, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start one Exec line in a session of its own. A prefix + or ! means: as root."""
    account = account_of(unit)
    prefix = command[: len(command) - len(command.lstrip("-+!@:"))]
    as_root = account.pw_uid == 0 or set(prefix) & set("+!")
    groups = os.getgrouplist(account.pw_name, account.pw_gid)
    identity: dict[str, Any] = (
        {} if as_root else {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": groups}
    )
    with (LOG / f"{unit.name}.log").open("ab") as log:
        return subprocess.Popen(
            expand(command[len(prefix) :], environment),
            env=environment,
            cwd=unit.option("WorkingDirectory", "/"),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            **identity,
        )


def expand(command: str, environment: dict[str, str]) -> list[str]:
    """A word $NAME is split at spaces, ${NAME} is not: systemd.service(5)."""
    words: list[str] = []
    for word in shlex.split(command):
        if alone := re.fullmatch(r"\$(\w+)", word):
            words += shlex.split(environment.get(alone[1], ""))
        else:
            words.append(re.sub(r"\$\{(\w+)\}", lambda match: environment.get(match[1], ""), word))
    return words


def run_all(unit: Unit, key: str, environment: dict[str, str]) -> None:
    """Every line of a key, one after the other; a line with the prefix - may fail."""
    for command in unit.options.get(key, []):
        status = spawn(unit, command, environment).wait(START_TIMEOUT_S)
        if status and not command.startswith("-"):
            raise subprocess.CalledProcessError(status, command)


def launch(unit: Unit) -> None:
    """Run the commands of a start, and wait for what its Type= calls started."""
    environment = environment_of(unit)
    for key, base in DIRECTORY_OPTIONS.items():
        for name in unit.option(key).split():
            folder = Path(base, name)
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(int(unit.option(f"{key}Mode", "755"), 8))
            os.chown(folder, account_of(unit).pw_uid, account_of(unit).pw_gid)
    run_all(unit, "ExecStartPre", environment)
    kind = unit.option("Type", "simple")
    if kind == "oneshot":
        run_all(unit, "ExecStart", environment)
        unit.remember("active" if unit.option("RemainAfterExit") in {"yes", "true", "1"} else "inactive")
    elif kind == "forking":
        run_all(unit, "ExecStart", environment)
        unit.remember("active", read_pid_file(Path(unit.option("PIDFile"))))
    else:
        with notify_socket(environment) if kind.startswith("notify") else contextlib.nullcontext() as ready:
            process = spawn(unit, unit.option("ExecStart"), environment)
            unit.remember("active", process.pid)
            if ready:
                wait_until_ready(process, ready)
            process.returncode = 0  # or its destructor would reap it if it has ended already, and init.py never know
    run_all(unit, "ExecStartPost", environment)


def read_pid_file(path: Path) -> int:
    """The main process of a daemon that forked."""
    end = time.monotonic() + STOP_TIMEOUT_S
    while time.monotonic() < end:
        with contextlib.suppress(OSError, ValueError):
            return int(path.read_text())
        time.sleep(0.01)
    raise FileNotFoundError(f"{path} did not appear")


@contextlib.contextmanager
def notify_socket(environment: dict[str, str]) -> Iterator[socket.socket]:
    """sd_notify(3)'s socket, named in the environment."""
    path = STATES.parent / f"notify.{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(str(path))
        path.chmod(0o666)
        notify.settimeout(0.1)
        environment["NOTIFY_SOCKET"] = str(path)
        yield notify
    path.unlink()


def wait_until_ready(process: subprocess.Popen[bytes], notify: socket.socket) -> None:
    """Return when READY=1 has arrived."""
    end = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end:
        with contextlib.suppress(TimeoutError):
            if b"READY=1" in notify.recv(4096):
                return
        if process.poll() is not None:
            raise subprocess.CalledProcessError(process.returncode, process.args)
    process.kill()
    raise subprocess.TimeoutExpired(process.args, START_TIMEOUT_S)


# ---- the verbs ----------------------------------------------------------------------------------------------------


def start(unit: Unit) -> None:
    """Nothing to do if it is active."""
    unit.require("start")
    if unit.active_state == "active":
        return
    try:
        launch(unit) if unit.name.endswith(".service") else unit.remember("active")
    except (OSError, subprocess.SubprocessError) as error:
        unit.remember("failed")
        raise UnitError(f"Job for {unit.name} failed: {error}\nSee {LOG / unit.name}.log.", 1) from error


def stop(unit: Unit) -> None:
    """End the process group, or with KillMode=process the main process only."""
    end = time.monotonic() + STOP_TIMEOUT_S
    if unit.pid:
        (PROCESSES / str(unit.pid)).unlink(missing_ok=True)  # or init.py takes it for a failure
        send(unit, signal.SIGTERM)
    while unit.pid and time.monotonic() < end:
        time.sleep(0.01)
    if unit.pid:
        send(unit, signal.SIGKILL)
    (STATES / unit.name).unlink(missing_ok=True)
    unit.memory = {}


def send(unit: Unit, number: signal.Signals) -> None:
    """One signal, as KillMode= says."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(unit.pid, number) if unit.option("KillMode") == "process" else os.killpg(os.getpgid(unit.pid), number)


def restart(unit: Unit) -> None:
    """Start it too where it was not active."""
    unit.require("restart")
    stop(unit)
    start(unit)


def enable(unit: Unit) -> None:
    """Link into multi-user.target, all that a host here ever reaches."""
    unit.require("enable")
    if unit.path and unit.file_state == "disabled":
        (WANTS / unit.name).symlink_to(unit.path)


def disable(unit: Unit) -> None:
    """Undo enable."""
    (WANTS / unit.name).unlink(missing_ok=True)


def mask(unit: Unit) -> None:
    """Link to /dev/null; like systemd's, not over a unit file of the administrator."""
    link = CONFIGURATION / unit.name
    if link.exists() and not unit.masked:
        raise UnitError(f"Failed to mask unit: File {link} already exists.", 1)
    if not unit.masked:
        link.symlink_to(os.devnull)


def unmask(unit: Unit) -> None:
    """Undo mask."""
    if unit.masked:
        (CONFIGURATION / unit.name).unlink()


def is_active(unit: Unit) -> None:
    """Print the state; anything but active is exit status 3."""
    print(unit.active_state)
    if unit.active_state != "active":
        raise UnitError("", 3)


def is_enabled(unit: Unit) -> None:
    """Print the state of the unit file; anything but enabled or static is exit status 1."""
    print(unit.file_state)
    if unit.file_state not in {"enabled", "static"}:
        raise UnitError("", 1)


def status(unit: Unit) -> None:
    """Print the state and the end of the log."""
    log = LOG / f"{unit.name}.log"
    said = log.read_text(errors="replace").splitlines()[-10:] if log.exists() else []
    print(f"{unit.name}\n     Loaded: {unit.path} ({unit.file_state})\n     Active: ", end="")
    try:
        is_active(unit)
    finally:
        print("", *said, sep="\n")


def show(unit: Unit, wanted: list[str], *, value_only: bool) -> None:
    """Print properties, all that are known or the wanted ones."""
    properties = {
        "Id": unit.name,
        "LoadState": "loaded" if unit.path else unit.file_state,
        "ActiveState": unit.active_state,
        "UnitFileState": unit.file_state,
        "MainPID": unit.pid,
    }
    for name in wanted or properties:
        if name in properties:
            print(properties[name] if value_only else f"{name}={properties[name]}")


def main_process_ended(pid: str, status: int) -> None:
    """init.py has reaped a main process: start the service again if Restart= says so."""
    unit = Unit((PROCESSES / pid).read_text())
    (PROCESSES / pid).unlink()
    policy = unit.option("Restart", "no")
    by_signal = status < 0 and policy in {"on-abnormal", "on-abort"}
    wanted = policy == "always" or (status != 0 and policy == "on-failure") or by_signal
    recent = [moment for moment in unit.memory["starts"] if time.time() - moment < START_LIMIT_S]
    unit.remember("failed" if status else "inactive")
    if wanted and len(recent) < START_LIMIT:
        time.sleep(float(unit.option("RestartSec", "0.1").rstrip("s")))
        start(unit)


VERBS: dict[str, Callable[[Unit], None]] = {
    "start": start,
    "stop": stop,
    "restart": restart,
    "enable": enable,
    "disable": disable,
    "mask": mask,
    "unmask": unmask,
    "is-active": is_active,
    "is-enabled": is_enabled,
    "status": status,
}
WITH_NOW = {"enable": start, "disable": stop, "mask": stop}


def main() -> int:
    """One verb on some units; the exit status is that of the last one that failed."""
    with (LOG / "calls").open("a") as calls:
        print("systemctl", shlex.join(sys.argv[1:]), file=calls)
    parser = argparse.ArgumentParser(prog="systemctl", allow_abbrev=False)
    parser.add_argument("verb", choices=[*VERBS, "show", "daemon-reload", "main-process-ended"])
    parser.add_argument("units", nargs="*")
    parser.add_argument("--now", action="store_true")
    parser.add_argument("-p", "--property", default="")
    parser.add_argument("--value", action="store_true")
    parser.add_argument("-q", "--quiet", action="store_true")
    parser.add_argument("--no-pager", action="store_true")
    given = parser.parse_intermixed_args()
    if given.verb == "main-process-ended":
        main_process_ended(given.units[0], int(given.units[1]))
        return 0
    result = 0
    with Path(os.devnull).open("w") as nothing, contextlib.redirect_stdout(nothing if given.quiet else sys.stdout):
        for name in given.units:
            result = act(given, Unit(name)) or result
    return result


def act(given: argparse.Namespace, unit: Unit) -> int:
    """The verb on one unit."""
    try:
        if given.verb == "show":
            show(unit, [name for name in given.property.split(",") if name], value_only=given.value)
        elif given.verb in VERBS:
            VERBS[given.verb](unit)
        if given.now and given.verb in WITH_NOW:
            WITH_NOW[given.verb](Unit(unit.name))
    except UnitError as error:
        print(error, file=sys.stderr)
        return error.status
    return 0


if __name__ == "__main__":
    sys.exit(main())
