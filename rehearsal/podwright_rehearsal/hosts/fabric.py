"""Hosts in namespaces: started, reached, failed and ended. Knows nothing of Slurm."""

from __future__ import annotations

import base64
import contextlib
import ipaddress
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from podwright_rehearsal.hosts.anchor import FABRIC
from podwright_rehearsal.hosts.image import LAYER, SOURCES

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 30.0
_CALLS = "/opt/rehearsal/log/calls"
_HALTED = "/run/rehearsal/halted"
_STOP_UNITS = "cd /etc/systemd/system/multi-user.target.wants && systemctl stop *"
_DISK_SIZE = "50%"  # of the machine's memory, tmpfs's own default

# Before a host starts: each disk is a file system of its own, which may fill up.
Disk = Literal["empty", "kept"]
_PREPARE: dict[Disk, str] = {
    "empty": """
        mkdir -p "$0"
        umount --lazy "$0" 2> /dev/null
        mount -t tmpfs -o mode=755 tmpfs "$0" && exec "$@"
    """,
    "kept": 'exec "$@"',
}


class HostError(RuntimeError):
    """A host could not be started, reached or asked; the message says which one and ends with its own words."""


@dataclass(frozen=True)
class File:
    """One file that a host has before any script runs."""

    content: str | bytes
    mode: int = 0o644
    owner: str = "root"

    def to_json(self) -> dict[str, Any]:
        """For host.py."""
        content = self.content.encode() if isinstance(self.content, str) else self.content
        return {"content": base64.b64encode(content).decode(), "mode": self.mode, "owner": self.owner}


@dataclass(frozen=True)
class HostDescription:
    """What makes a host: its name, its address, its devices, its files."""

    hostname: str
    private_ip: str
    accelerators: int = 0
    files: Mapping[str, File] = field(default_factory=dict)


@dataclass
class _Host:
    """A host that is on."""

    pid: int  # its PID 1 as this machine sees it
    process: subprocess.Popen[str]  # the nsenter that it is a child of
    link: str  # the bridge's end of its network cable
    frozen: bool = False


class Fabric:
    """A network, a shared directory and the hosts on it.

    Args:
        directory: logs go here; its path in a process's arguments is how `leftovers` finds it.
        image: a folder that `build_image` made.
        subnet_cidr: the hosts' network; its first address is the machine's.
        shared: this machine's folder that `mount -t lustre` shows.
        relay_port: hosts reach this port of the machine's loopback at the gateway's address; None: no way out at all.
        binds: (folder or file of this machine, path on every host), read-only.
    """

    def __init__(
        self,
        *,
        directory: Path,
        image: Path,
        subnet_cidr: str,
        shared: Path,
        relay_port: int | None = None,
        binds: Sequence[tuple[Path, str]] = (),
    ) -> None:
        self.directory = directory.resolve()
        self._image = image.resolve() / LAYER
        self._subnet = ipaddress.ip_network(subnet_cidr)
        self.gateway = str(self._subnet[1])
        self._shared = shared.resolve()
        self._homes = directory.resolve() / "homes"  # what `mount -t nfs` shows
        self._relay_port = relay_port
        self._binds = [(str(source.resolve()), target) for source, target in binds]
        self._anchor: subprocess.Popen[bytes] | None = None
        self._anchor_pid = 0
        self._owner_end: socket.socket | None = None
        self._relay: subprocess.Popen[bytes] | None = None
        self._resolver: subprocess.Popen[bytes] | None = None
        self._hosts: dict[str, _Host] = {}
        self._links = 0

    # ---- the whole ------------------------------------------------------------------------------------------------

    def start(self, hosts: Sequence[HostDescription]) -> None:
        """Make the network and boot the hosts, all at once.

        Raises:
            HostError: the namespaces or a host could not be made; nothing is left running.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        self._shared.mkdir(parents=True, exist_ok=True)
        self._homes.mkdir(exist_ok=True)
        for name in ("anchor", "relay", "resolver", *(host.hostname for host in hosts)):
            self._log_path(name).unlink(missing_ok=True)  # an earlier cluster's
        try:
            self._start_anchor()
            self.start_hosts(hosts)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End every process of every host; with them go mounts and network. May be called twice."""
        if self._owner_end:
            self._owner_end.close()
            self._owner_end = None
        hosts = (host.process for host in self._hosts.values())
        for process in (self._anchor, self._relay, self._resolver, *hosts):
            _end(process)
        self._anchor = self._relay = self._resolver = None
        self._hosts.clear()

    def _start_anchor(self) -> None:
        self._owner_end, theirs = socket.socketpair()
        with theirs, self._log("anchor") as log:
            self._anchor = subprocess.Popen(
                [
                    *(
                        "unshare",
                        "--mount",
                        "--net",
                        "--pid",
                        "--fork",
                        "--kill-child=KILL",
                        "--propagation",
                        "private",
                    ),
                    *_script("anchor.py", self.directory),
                ],
                stdin=theirs.fileno(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        gateway = f"{self.gateway}/{self._subnet.prefixlen}"
        request = {"image": str(self._image), "gateway": gateway, "port": self._relay_port or 0}
        self._owner_end.sendall(json.dumps(request).encode())
        self._owner_end.settimeout(_START_TIMEOUT_S)
        try:
            answer, descriptors, _, _ = socket.recv_fds(self._owner_end, 65536, 2)
        except TimeoutError:
            answer, descriptors = b"", []
        if not answer:
            raise HostError(f"the hosts' network could not be made:\n{self._tail('anchor')}")
        self._anchor_pid = json.loads(answer)["pid"]
        with socket.socket(fileno=descriptors[0]) as listener, socket.socket(fileno=descriptors[1]) as questions:
            self._resolver = self._start_server("resolver", questions, self.gateway)
            if self._relay_port is not None:
                self._relay = self._start_server("relay", listener, self._relay_port)

    def _start_server(self, name: str, own: socket.socket, argument: object) -> subprocess.Popen[bytes]:
        """In the cluster's pid namespace, so that it ends with it, but in the machine's network."""
        with self._log(name) as log:
            return subprocess.Popen(
                [
                    *("nsenter", "--target", str(self._anchor_pid), "--pid"),
                    *_script(f"{name}.py", own.fileno(), argument, self.directory),
                ],
                pass_fds=[own.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    # ---- one host -------------------------------------------------------------------------------------------------

    def start_hosts(self, hosts: Iterable[HostDescription], *, on: Disk = "empty") -> None:
        """Boot hosts on empty disks, or on those they had, and wait until their init has started what is enabled."""
        booting = [(host, self._spawn(host, on)) for host in hosts]
        for host, process in booting:
            pid = int(self._read_line(host.hostname, process))
            self._hosts[host.hostname] = _Host(pid, process, self._connect(pid, host.private_ip))
            self._describe(host, process)
        for host, process in booting:
            if self._read_line(host.hostname, process) != "ready":
                raise HostError(f"{host.hostname} did not boot:\n{self._tail(host.hostname)}")

    def _spawn(self, host: HostDescription, on: Disk) -> subprocess.Popen[str]:
        disk = self._disk(host.hostname)
        with self._log(host.hostname) as log:
            return subprocess.Popen(
                [
                    *self._enter_cluster("--pid", "--mount"),
                    *("bash", "-c", _PREPARE[on], str(disk)),
                    *("unshare", "--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "--kill-child=KILL"),
                    *_script("host.py", disk),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def _connect(self, pid: int, private_ip: str) -> str:
        """A cable from the bridge to the host. A replacement has the same MAC, or its peers' ARP entries are stale."""
        self._links += 1
        link = f"host{self._links}"
        mac = "02:00:" + ":".join(f"{octet:02x}" for octet in ipaddress.IPv4Address(private_ip).packed)
        self._ip(
            f"link add {link} type veth peer name eth0 address {mac} netns {pid}", f"link set {link} master br0 up"
        )
        return link

    def _describe(self, host: HostDescription, process: subprocess.Popen[str]) -> None:
        description = {
            "hostname": host.hostname,
            "interface": f"{host.private_ip}/{self._subnet.prefixlen}",
            "gateway": self.gateway,
            "accelerators": host.accelerators,
            "shared": str(self._shared),
            "homes": str(self._homes),
            "binds": self._binds,
            "files": {path: file.to_json() for path, file in host.files.items()},
        }
        if process.stdin is None:
            raise HostError(f"{host.hostname} was started without a pipe")
        with process.stdin:
            json.dump(description, process.stdin)

    def _read_line(self, hostname: str, process: subprocess.Popen[str]) -> str:
        if process.stdout is None:
            raise HostError(f"{hostname} was started without a pipe")
        ready, _, _ = select.select([process.stdout], [], [], _START_TIMEOUT_S)
        line = process.stdout.readline().strip() if ready else ""
        if not line:
            raise HostError(f"{hostname} did not boot:\n{self._tail(hostname)}")
        return line

    @property
    def is_up(self) -> dict[str, bool]:
        """By host name: whether the host is on."""
        return {name: host.process.poll() is None for name, host in self._hosts.items()}

    def power_off(self, hostname: str) -> None:
        """Everything is gone at once and says nothing: the cable goes first, so no peer hears a connection close."""
        host = self._host(hostname)
        self._ip(f"link del {host.link}")
        os.kill(host.pid, signal.SIGKILL)
        host.process.wait(_STOP_TIMEOUT_S)
        _end(host.process)

    def end_processes(self, hostname: str) -> None:
        """All processes are killed, the kernel stays: peers see their connections reset."""
        self.path(hostname, _HALTED).touch()
        subprocess.run(self.enter(hostname, "bash", "-c", "kill -KILL -1"), check=False, timeout=_STOP_TIMEOUT_S)

    def plug(self, hostname: str, *, into: bool) -> None:
        """Its network cable, out or in again. Out: the host lives on but nobody reaches it."""
        self._ip(f"link set {self._host(hostname).link} {'up' if into else 'down'}")

    def freeze(self, hostname: str) -> None:
        """Every process stops where it is. The kernel lives on: it accepts connections, and nobody answers."""
        host = self._host(hostname)
        host.frozen = True
        wait_for(
            lambda: not _send(signal.SIGSTOP, _running(host.pid)),
            timeout_s=_STOP_TIMEOUT_S,
            what=lambda: f"the processes {list(_running(host.pid))} of {hostname} to stop",
        )

    def thaw(self, hostname: str) -> None:
        """What was frozen goes on."""
        host = self._host(hostname)
        host.frozen = False
        _send(signal.SIGCONT, _members(host.pid))

    def reboot(self, host: HostDescription) -> None:
        """Off and on again: the disk stays, memory and mounts do not, enabled units and fstab come back."""
        if self.is_up[host.hostname]:
            subprocess.run(self.enter(host.hostname, "bash", "-c", _STOP_UNITS), check=False, timeout=_STOP_TIMEOUT_S)
            self.power_off(host.hostname)
        self.start_hosts([host], on="kept")

    def fill_disk(self, hostname: str) -> None:
        """Nothing more fits on the host's disk; /tmp and /run are not on it."""
        disk = self._disk(hostname)
        now = os.statvfs(f"/proc/{self._anchor_pid}/root/{disk}")
        self._resize(disk, f"{(now.f_blocks - now.f_bfree) * now.f_frsize}")

    def empty_disk(self, hostname: str) -> None:
        """The host's disk has space again; its files stay."""
        self._resize(self._disk(hostname), _DISK_SIZE)

    def _resize(self, disk: Path, size: str) -> None:
        command = [*self._enter_cluster("--mount"), "mount", "-o", f"remount,size={size}", str(disk)]
        subprocess.run(command, check=True, timeout=_STOP_TIMEOUT_S)

    def init(self, hostname: str) -> int:
        """The host's PID 1 as this machine numbers it: another one after every start."""
        return self._host(hostname).pid

    def path(self, hostname: str, path: str | Path) -> Path:
        """A host's file, seen from this machine."""
        return Path(f"/proc/{self._host(hostname).pid}/root") / str(path).lstrip("/")

    def shim_calls(self, hostname: str) -> list[str]:
        """What was asked of the shims (mount.lustre, systemctl, modprobe …), in order."""
        calls = self.path(hostname, _CALLS)
        return calls.read_text().splitlines() if calls.exists() else []

    def enter(self, hostname: str, *command: str) -> list[str]:
        """The arguments that run a command on a host as root, with the environment that they are started in."""
        host = self._host(hostname)
        if host.frozen:
            raise HostError(f"{hostname} hangs: nothing can be run there")
        return [
            *(
                "nsenter",
                "--target",
                str(host.pid),
                "--mount",
                "--uts",
                "--ipc",
                "--net",
                "--pid",
                "--root",
                "--wd",
                "--",
            ),
            *command,
        ]

    def _host(self, hostname: str) -> _Host:
        if hostname not in self._hosts:
            raise HostError(f"no host {hostname!r}: there are {', '.join(self._hosts) or 'none'}")
        host = self._hosts[hostname]
        if host.process.poll() is not None:
            raise HostError(f"{hostname} is off")
        return host

    def _disk(self, hostname: str) -> Path:
        """Where its disk is mounted, in the anchor's mount namespace."""
        return self.directory / FABRIC / hostname

    def _enter_cluster(self, *namespaces: str) -> list[str]:
        return ["nsenter", "--target", str(self._anchor_pid), *namespaces, "--"]

    def _ip(self, *commands: str) -> None:
        """ip(8) in the cluster's network, where an outer process's id is still understood."""
        command = [*self._enter_cluster("--net"), "ip", "-batch", "-"]
        subprocess.run(command, input="\n".join(commands), text=True, check=True, timeout=_STOP_TIMEOUT_S)

    def _log(self, name: str) -> IO[bytes]:
        return self._log_path(name).open("ab")

    def _log_path(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def _tail(self, name: str) -> str:
        return tail(self._log_path(name))


def _members(init: int) -> Iterator[int]:
    """The processes in the pid namespace of a host's init, as this machine numbers them."""
    namespace = Path(f"/proc/{init}/ns/pid").readlink()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            if (folder / "ns/pid").readlink() == namespace:
                yield int(folder.name)


def _running(init: int) -> Iterator[int]:
    """Those that are neither stopped nor dead."""
    for pid in _members(init):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "TZX":
                yield pid


def _send(number: signal.Signals, pids: Iterable[int]) -> int:
    """Send a signal to each; how many there were."""
    sent = 0
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            sent += 1
    return sent


def tail(log: Path, lines: int = 20) -> str:
    """The last lines of a log, and where the whole of it is."""
    text = log.read_text(errors="replace").splitlines()[-lines:] if log.exists() else []
    return "\n".join([*text, f"(whole log: {log})"])


def _script(name: str, *arguments: object) -> list[str]:
    """-I: neither the caller's PYTHON* variables nor its folder; -S: the standard library is all that is needed."""
    return [sys.executable, "-I", "-S", str(SOURCES / name), *map(str, arguments)]


def _end(process: subprocess.Popen[Any] | None) -> None:
    """Wait for a process that is about to end, kill it if it does not, close its pipes."""
    if process is None:
        return
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe:
            pipe.close()


def wait_for(
    condition: Callable[[], bool], *, timeout_s: float, what: Callable[[], str], pause_s: float = 0.05
) -> None:
    """Return when the condition holds.

    Raises:
        HostError: it did not within `timeout_s`; `what` says what was waited for.
    """
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            raise HostError(f"after {timeout_s:g} s still waiting for {what()}")
        time.sleep(pause_s)
