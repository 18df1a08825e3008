#!/usr/bin/python3 -I
"""systemctl for a host without systemd: real unit files and drop-ins, no dependencies between units.

Knows the verbs in VERBS and services of Type=simple, exec, notify, forking and oneshot. Other kinds of units (targets,
timers) are only remembered as started. Every call is recorded; a service's output is in LOG/UNIT.log.
"""

from __future__ import annotations

import argparse
import contextlib
import grp
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
STATES = Path("/run/rehearsal/units")  # by unit: {"state", "pid", "starts", "result"}
PROCESSES = Path("/run/rehearsal/processes")  # by main process id, for init.py: the unit's name
LOG = Path("/opt/rehearsal/log")
TIMEOUT_S = 90.0  # DefaultTimeoutStartSec
STOP_TIMEOUT_S = 10.0
START_LIMIT, START_LIMIT_S = 5, 10.0  # DefaultStartLimitBurst, DefaultStartLimitIntervalSec
PATH = "/opt/slurm/bin:/opt/slurm/sbin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class UnitError(Exception):
    """The verb failed; the message is systemd's, the number systemctl's exit status."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


class Unit:
    """A unit's files and what is remembered of it."""

    def __init__(self, name: str) -> None:
        name = name if "." in name else name + ".service"
        found = next((folder / name for folder in DIRECTORIES if os.path.lexists(folder / name)), None)
        self.masked = found is not None and os.path.realpath(found) == os.devnull
        self.path = found.resolve() if found and found.exists() and not self.masked else None
        self.name = self.path.name if self.path else name  # sshd.service is a link to ssh.service
        self.options = read_options(self.path, self.name) if self.path else {}

    def require(self, action: str) -> None:
        """Fail as systemd does if there is nothing to act on."""
        if self.masked:
            raise UnitError(f"Failed to {action} {self.name}: Unit {self.name} is masked.")
        if not self.path:
            raise UnitError(f"Failed to {action} {self.name}: Unit {self.name} not found.", status=5)

    def last(self, key: str, default: str = "") -> str:
        """The value that counts for a key that is given once."""
        return (self.options.get(key) or [default])[-1]

    def load(self) -> dict[str, Any]:
        """What is remembered; empty when it never started or was stopped."""
        with contextlib.suppress(FileNotFoundError):
            return dict(json.loads((STATES / self.name).read_text()))
        return {}

    def save(self, **changes: Any) -> None:
        """Remember, and tell init.py whose process the main process is."""
        state = self.load() | changes
        STATES.mkdir(parents=True, exist_ok=True)
        (STATES / self.name).write_text(json.dumps(state))
        if changes.get("pid"):
            (PROCESSES / str(changes["pid"])).write_text(self.name)

    @property
    def active_state(self) -> str:
        """Systemd's ActiveState."""
        state = self.load()
        if state.get("state") == "running":
            return "active" if is_alive(state["pid"]) else "failed"
        return str(state.get("state", "inactive"))

    @property
    def file_state(self) -> str:
        """Systemd's UnitFileState."""
        if self.masked:
            return "masked"
        if not self.path:
            return "not-found"
        if os.path.lexists(WANTS / self.name):
            return "enabled"
        return "disabled" if "WantedBy" in self.options else "static"


def read_options(path: Path, name: str) -> dict[str, list[str]]:
    """All keys of the unit and its drop-ins; an empty value clears a list, as in systemd."""
    drop_ins = [file for folder in reversed(DIRECTORIES) for file in sorted((folder / f"{name}.d").glob("*.conf"))]
    options: dict[str, list[str]] = {}
    for file in (path, *drop_ins):
        for line in file.read_text().replace("\\\n", " ").splitlines():
            key, equals, value = (part.strip() for part in line.partition("="))
            if not equals or key[:1] in "#;[":
                continue
            options[key] = [*options.get(key, []), value] if value else []
    return options


def is_alive(pid: int) -> bool:
    """Whether the process runs: a zombie does not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


# ---- starting and stopping --------------------------------------------------------------------------------------


def start(unit: Unit) -> None:
    """Run the service's commands and wait until systemd would call it started."""
    unit.require("start")
    if unit.active_state == "active":
        return
    if not unit.name.endswith(".service"):
        unit.save(state="active")
        return
    if missed := next((path for path in unit.options.get("ConditionPathExists", []) if not condition(path)), None):
        print(f"{unit.name} was skipped because of an unmet condition check (ConditionPathExists={missed}).")
        return
    unit.save(starts=[*unit.load().get("starts", []), time.time()][-START_LIMIT:])
    try:
        launch(unit)
    except (OSError, subprocess.SubprocessError) as error:
        unit.save(state="failed", pid=0, result=str(error))
        raise UnitError(f"Job for {unit.name} failed: {error}\nSee {LOG / unit.name}.log.") from error


def condition(path: str) -> bool:
    """ConditionPathExists=, where ! negates."""
    return not os.path.exists(path[1:]) if path.startswith("!") else os.path.exists(path)


def launch(unit: Unit) -> None:
    """Every Exec line of a start, by Type=."""
    service = Service(unit)
    service.make_directories()
    service.run_all("ExecStartPre")
    kind = unit.last("Type", "simple")
    if kind == "oneshot":
        service.run_all("ExecStart")
        stays = unit.last("RemainAfterExit") in {"yes", "true", "1"}
        unit.save(state="active" if stays else "inactive", pid=0)
    elif kind == "forking":
        service.run_all("ExecStart")
        unit.save(state="running", pid=service.read_pid_file())
    else:
        with service.readiness(kind) as wait:
            process = service.spawn(unit.last("ExecStart"))
            unit.save(state="running", pid=process.pid)
            wait(process)
    service.run_all("ExecStartPost")


class Service:
    """The processes of one start of a unit."""

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self.account = pwd.getpwnam(unit.last("User")) if unit.last("User") else pwd.getpwuid(0)
        group = unit.last("Group")
        self.group_id = grp.getgrnam(group).gr_gid if group else self.account.pw_gid
        self.environment = self._environment()

    def _environment(self) -> dict[str, str]:
        environment = {"PATH": PATH, "HOME": self.account.pw_dir, "USER": self.account.pw_name}
        environment |= read_environment(MANAGER_ENVIRONMENT)
        for value in self.unit.options.get("Environment", []):
            environment |= dict(word.split("=", 1) for word in shlex.split(value))
        for value in self.unit.options.get("EnvironmentFile", []):
            path = Path(value.lstrip("-"))
            if path.exists() or not value.startswith("-"):
                environment |= read_environment(path)
        return environment

    def make_directories(self) -> None:
        """RuntimeDirectory= and its like."""
        bases = {
            "RuntimeDirectory": "/run",
            "StateDirectory": "/var/lib",
            "LogsDirectory": "/var/log",
            "CacheDirectory": "/var/cache",
        }
        for key, base in bases.items():
            for name in self.unit.last(key).split():
                folder = Path(base) / name
                folder.mkdir(parents=True, exist_ok=True)
                folder.chmod(int(self.unit.last(key + "Mode", "755"), 8))
                os.chown(folder, self.account.pw_uid, self.group_id)

    def spawn(self, command: str) -> subprocess.Popen[bytes]:
        """Start one Exec line, in a session of its own; its prefixes are - + ! @ : as in systemd.service(5)."""
        prefix = re.match(r"[-+!@:]*", command)[0]  # type: ignore[index] # it matches the empty string
        as_root = not self.unit.last("User") or set(prefix) & set("+!")
        identity: dict[str, Any] = {}
        if not as_root:
            groups = os.getgrouplist(self.account.pw_name, self.group_id)
            identity = {"user": self.account.pw_uid, "group": self.group_id, "extra_groups": groups}
        with open(LOG / f"{self.unit.name}.log", "ab") as log:
            return subprocess.Popen(
                expand(command[len(prefix) :], self.environment | {"MAINPID": str(self.unit.load().get("pid", 0))}),
                env=self.environment,
                cwd=self.unit.last("WorkingDirectory", "/").lstrip("-"),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **identity,
            )

    def run_all(self, key: str) -> None:
        """Every line of a key, one after the other; a line with the prefix - may fail."""
        for command in self.unit.options.get(key, []):
            status = self.spawn(command).wait(TIMEOUT_S)
            if status and not command.startswith("-"):
                raise subprocess.CalledProcessError(status, command)

    def read_pid_file(self) -> int:
        """The main process of a daemon that forked."""
        path, end = Path(self.unit.last("PIDFile")), time.monotonic() + STOP_TIMEOUT_S
        while time.monotonic() < end:
            with contextlib.suppress(OSError, ValueError):
                return int(path.read_text())
            time.sleep(0.01)
        raise FileNotFoundError(f"{path} did not appear")

    @contextlib.contextmanager
    def readiness(self, kind: str) -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
        """For Type=notify: what waits until the process says READY=1; for the other types a start is enough."""
        if not kind.startswith("notify"):
            yield lambda _process: None
            return
        path = STATES.parent / f"notify.{self.unit.name}.{os.getpid()}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.bind(str(path))
            path.chmod(0o666)
            notify.settimeout(0.1)
            self.environment["NOTIFY_SOCKET"] = str(path)
            yield lambda process: wait_until_ready(process, notify)
        path.unlink()


def wait_until_ready(process: subprocess.Popen[bytes], notify: socket.socket) -> None:
    """Block until READY=1 arrives."""
    end = time.monotonic() + TIMEOUT_S
    while time.monotonic() < end:
        with contextlib.suppress(TimeoutError, socket.timeout):  # one and the same from Python 3.10 on
            if b"READY=1" in notify.recv(4096):
                return
        if process.poll() is not None:
            raise subprocess.CalledProcessError(process.returncode, process.args)
    raise subprocess.TimeoutExpired(process.args, TIMEOUT_S)


def read_environment(path: Path) -> dict[str, str]:
    """NAME=value lines, values perhaps quoted."""
    lines = [line.strip() for line in path.read_text().splitlines()]
    pairs = [line.split("=", 1) for line in lines if "=" in line and line[0] not in "#;"]
    return {name: "".join(shlex.split(value)) if value[:1] in "\"'" else value for name, value in pairs}


def expand(command: str, environment: dict[str, str]) -> list[str]:
    """$NAME as a word of its own is split at spaces, ${NAME} is not: systemd.service(5)."""
    words: list[str] = []
    for word in shlex.split(command):
        if alone := re.fullmatch(r"\$(\w+)", word):
            words += shlex.split(environment.get(alone[1], ""))
        else:
            words.append(re.sub(r"\$\{(\w+)\}", lambda match: environment.get(match[1], ""), word))
    return words


def stop(unit: Unit) -> None:
    """End the main process, and unless KillMode=process its process group."""
    pid = unit.load().get("pid", 0)
    if pid:
        (PROCESSES / str(pid)).unlink(missing_ok=True)  # so that init.py does not take it for a failure
        signal_unit(unit, pid, signal.SIGTERM)
        end = time.monotonic() + STOP_TIMEOUT_S
        while is_alive(pid) and time.monotonic() < end:
            time.sleep(0.01)
        if is_alive(pid):
            signal_unit(unit, pid, signal.SIGKILL)
    (STATES / unit.name).unlink(missing_ok=True)


def signal_unit(unit: Unit, pid: int, number: signal.Signals) -> None:
    """One signal, as KillMode= says."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number) if unit.last("KillMode") == "process" else os.killpg(os.getpgid(pid), number)


def restart(unit: Unit) -> None:
    """Stop and start, or just start."""
    unit.require("restart")
    stop(unit)
    start(unit)


def reload(unit: Unit) -> None:
    """ExecReload=."""
    if unit.active_state != "active":
        raise UnitError(f"{unit.name} is not active, cannot reload.")
    Service(unit).run_all("ExecReload")


def main_process_ended(pid: int, status: int) -> None:
    """init.py reaped a unit's main process: start it again if Restart= says so."""
    record = PROCESSES / str(pid)
    unit = Unit(record.read_text())
    record.unlink()
    policy = unit.last("Restart", "no")
    wanted = (
        policy == "always"
        or (policy == "on-failure" and status != 0)
        or (policy in {"on-abnormal", "on-abort"} and status < 0)
    )
    recent = [moment for moment in unit.load().get("starts", []) if time.time() - moment < START_LIMIT_S]
    if wanted and len(recent) < START_LIMIT:
        time.sleep(float(re.sub(r"s$", "", unit.last("RestartSec", "0.1"))))
        start(unit)
    else:
        unit.save(state="failed" if status else "inactive", pid=0, result=f"exit status {status}")


# ---- the other verbs ----------------------------------------------------------------------------------------------


def enable(unit: Unit) -> None:
    """Link into multi-user.target, which is all that a host here ever reaches."""
    unit.require("enable")
    WANTS.mkdir(parents=True, exist_ok=True)
    if not os.path.lexists(WANTS / unit.name):
        (WANTS / unit.name).symlink_to(unit.path or "")


def disable(unit: Unit) -> None:
    """Undo enable."""
    (WANTS / unit.name).unlink(missing_ok=True)


def mask(unit: Unit) -> None:
    """Link to /dev/null; a unit file that is in the way is an error, as with systemd."""
    path = CONFIGURATION / unit.name
    if path.exists() and not path.is_symlink():
        raise UnitError(f"Failed to mask unit: File {path} already exists.")
    path.unlink(missing_ok=True)
    path.symlink_to(os.devnull)


def unmask(unit: Unit) -> None:
    """Undo mask."""
    if unit.masked:
        (CONFIGURATION / unit.name).unlink()


def is_active(unit: Unit) -> None:
    """Print the state."""
    print(unit.active_state)
    if unit.active_state != "active":
        raise UnitError("", status=3)


def is_enabled(unit: Unit) -> None:
    """Print the unit file's state."""
    print(unit.file_state)
    if unit.file_state not in {"enabled", "static"}:
        raise UnitError("", status=1)


def status(unit: Unit) -> None:
    """Print the state and the end of the log."""
    if not unit.path and not unit.masked:
        raise UnitError(f"Unit {unit.name} could not be found.", status=4)
    print(f"{unit.name}\n  Loaded: {unit.path} ({unit.file_state})\n  Active: {unit.active_state}")
    log = LOG / f"{unit.name}.log"
    print("".join(log.read_text(errors="replace").splitlines(keepends=True)[-10:]) if log.exists() else "")
    if unit.active_state != "active":
        raise UnitError("", status=3)


def show(unit: Unit, wanted: list[str], *, value_only: bool) -> None:
    """Print properties."""
    state = unit.load()
    properties = {
        "Id": unit.name,
        "LoadState": "masked" if unit.masked else "loaded" if unit.path else "not-found",
        "ActiveState": unit.active_state,
        "UnitFileState": unit.file_state,
        "MainPID": state.get("pid", 0) if unit.active_state == "active" else 0,
        "FragmentPath": unit.path or "",
        "Result": "exit-code" if unit.active_state == "failed" else "success",
    }
    for name in wanted or properties:
        if name in properties:
            print(properties[name] if value_only else f"{name}={properties[name]}")


VERBS: dict[str, Callable[[Unit], None]] = {
    "start": start,
    "stop": stop,
    "restart": restart,
    "reload": reload,
    "enable": enable,
    "disable": disable,
    "mask": mask,
    "unmask": unmask,
    "is-active": is_active,
    "is-enabled": is_enabled,
    "status": status,
}
AFTER_NOW = {"enable": start, "disable": stop, "mask": stop}


def main() -> int:
    """Systemctl [--now] VERB UNIT…."""
    with (LOG / "calls").open("a") as calls:
        print("systemctl", shlex.join(sys.argv[1:]), file=calls)
    parser = argparse.ArgumentParser(prog="systemctl", allow_abbrev=False)
    parser.add_argument("--now", action="store_true")
    parser.add_argument("-p", "--property", action="append", default=[])
    parser.add_argument("--value", action="store_true")
    for accepted in ("-q", "--quiet", "--no-pager", "--no-block", "--system"):
        parser.add_argument(accepted, action="store_true")
    parser.add_argument("verb", choices=[*VERBS, "show", "daemon-reload", "reset-failed", "main-process-ended"])
    parser.add_argument("units", nargs="*")
    given = parser.parse_intermixed_args()
    if given.verb == "main-process-ended":
        main_process_ended(*map(int, given.units))
    if given.verb in {"daemon-reload", "reset-failed", "main-process-ended"}:
        return 0
    quiet = open(os.devnull, "w") if given.q or given.quiet else contextlib.nullcontext(sys.stdout)
    result = 0
    with quiet as output, contextlib.redirect_stdout(output):
        for name in given.units:
            result = act(given, Unit(name)) or result
    return result


def act(given: argparse.Namespace, unit: Unit) -> int:
    """One verb on one unit."""
    try:
        if given.verb == "show":
            show(unit, [name for names in given.property for name in names.split(",")], value_only=given.value)
        else:
            VERBS[given.verb](unit)
        if given.now and given.verb in AFTER_NOW:
            AFTER_NOW[given.verb](Unit(unit.name))
    except UnitError as error:
        print(error, file=sys.stderr)
        return error.status
    return 0


if __name__ == "__main__":
    sys.exit(main())
