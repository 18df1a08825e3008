"""Start, enter, fail and end hosts in namespaces, independently of Slurm.

A killed host is lost with its processes; a rebooted one keeps its disk. Faults that a host survives are context
managers of the tests (``tests/support/podwright_testing/faults.py``).
"""

from __future__ import annotations

import ipaddress
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from podwright_rehearsal.hosts import cgroups, freezing, uptime
from podwright_rehearsal.hosts.cluster_namespaces import FABRIC
from podwright_rehearsal.hosts.description import HostDescription
from podwright_rehearsal.hosts.host_errors import HostError, tail
from podwright_rehearsal.hosts.image import LAYER, ROOT, SOURCES
from podwright_rehearsal.hosts.waiting import wait_for

_EXIT_TIMEOUT_S = 5.0  # A process that has closed its output ends within this time.
_START_TIMEOUT_S = 600.0  # A busy machine takes so long at most.
_STOP_TIMEOUT_S = 60.0
_OFF_S = 3.0  # Slurm compares whole seconds: a host that is back at once has not rebooted. An instance takes a minute.
_CALLS = "/opt/rehearsal/log/calls"
_JOURNAL = "systemctl --no-pager --failed; journalctl --no-pager --boot --lines=200"

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
# A host has a control group, which is the root of all that it sees of the hierarchy.
_JOIN_GROUP = """
    find "$0" -mindepth 1 -depth -type d -delete 2> /dev/null
    mkdir -p "$0" && echo 0 > "$0/cgroup.procs" && exec "$@"
"""


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
        self._root = (image / ROOT).resolve()
        self._group: Path | None = None  # the control group of the cluster
        self._subnet = ipaddress.ip_network(subnet_cidr)
        self.gateway = str(self._subnet[1])
        self._shared = shared.resolve()
        self._homes = directory.resolve() / "homes"  # `mount -t nfs` shows this folder.
        self._relay_port = relay_port
        self._binds = [(str(source.resolve()), target) for source, target in binds]
        self._holder: subprocess.Popen[bytes] | None = None
        self._holder_pid = 0
        self._owner_end: socket.socket | None = None
        self._relay: subprocess.Popen[bytes] | None = None
        self._resolver: subprocess.Popen[bytes] | None = None
        self._hosts: dict[str, _Host] = {}
        self._links = 0

    # ---- the whole ------------------------------------------------------------------------------------------------

    def start(self, hosts: Sequence[HostDescription]) -> None:
        """Make the network and boot the hosts, all at once.

        Raises:
            HostError: the namespaces or a host could not be made; all others are stopped.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        self._shared.mkdir(parents=True, exist_ok=True)
        self._homes.mkdir(exist_ok=True)
        for name in ("namespaces", "relay", "resolver", *(host.hostname for host in hosts)):
            self._log_path(name).unlink(missing_ok=True)  # an earlier cluster's
        try:
            self._group = cgroups.make(self.directory)
            self._hold_namespaces()
            self.start_hosts(hosts)
        except BaseException:  # Ctrl-C too: no host stays
            self.stop()
            raise

    def stop(self) -> None:
        """End every process of every host, and with them mounts and network. May be called twice."""
        if self._owner_end:
            self._owner_end.close()
            self._owner_end = None
        hosts = (host.process for host in self._hosts.values())
        for process in (self._holder, self._relay, self._resolver, *hosts):
            _end(process)
        self._holder = self._relay = self._resolver = None
        self._hosts.clear()
        if self._group:
            cgroups.remove(self._group)
            self._group = None

    def _hold_namespaces(self) -> None:
        self._owner_end, theirs = socket.socketpair()
        with theirs, self._log("namespaces") as log:
            self._holder = subprocess.Popen(
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
                    *_script("cluster_namespaces.py", self.directory),
                ],
                stdin=theirs.fileno(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        gateway = f"{self.gateway}/{self._subnet.prefixlen}"
        request = {
            "image": str(self._image),
            "root": str(self._root),
            "gateway": gateway,
            "port": self._relay_port or 0,
        }
        self._owner_end.sendall(json.dumps(request).encode())
        self._owner_end.settimeout(_START_TIMEOUT_S)
        try:
            answer, descriptors, _, _ = socket.recv_fds(self._owner_end, 65536, 2)
        except TimeoutError:
            answer, descriptors = b"", []
        if not answer:
            raise HostError(f"the hosts' network could not be made:\n{self._tail('namespaces')}")
        self._holder_pid = json.loads(answer)["pid"]
        with socket.socket(fileno=descriptors[0]) as listener, socket.socket(fileno=descriptors[1]) as questions:
            self._resolver = self._start_server("resolver", questions, self.gateway)
            if self._relay_port is not None:
                self._relay = self._start_server("relay", listener, self._relay_port)

    def _start_server(self, name: str, listener: socket.socket, argument: object) -> subprocess.Popen[bytes]:
        """Start a server in the cluster's pid namespace, with which it ends, and the machine's network."""
        with self._log(name) as log:
            return subprocess.Popen(
                [
                    *("nsenter", "--target", str(self._holder_pid), "--pid"),
                    *_script(f"{name}.py", listener.fileno(), argument, self.directory),
                ],
                pass_fds=[listener.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    # ---- one host -------------------------------------------------------------------------------------------------

    def start_hosts(self, hosts: Iterable[HostDescription], *, on: Disk = "empty") -> None:
        """Boot hosts on empty disks, or on their earlier ones, and wait until systemd has started all enabled units."""
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
                    *self._join_group(host.hostname),
                    *("unshare", "--mount", "--net", "--uts", "--ipc", "--cgroup", "--pid"),
                    *uptime.begin(),
                    *("--fork", "--kill-child=KILL"),
                    *_script("host.py", disk),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def _join_group(self, hostname: str) -> list[str]:
        """Return the words that start a command in the host's control group."""
        return ["bash", "-c", _JOIN_GROUP, str(self._group / hostname)] if self._group else []

    def _connect(self, pid: int, private_ip: str) -> str:
        """Connect the host to the bridge. A replacement has the same MAC, or its peers' ARP entries are stale."""
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
            "groups": cgroups.confine(self._group, host.hostname) if self._group else {},
            "absent": list(host.absent),
            "moved": dict(host.moved),
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
            self._keep_journal(hostname)
            raise HostError(f"{hostname} did not boot, {_how_it_ended(process)}:\n{self._tail(hostname)}")
        return line

    def _keep_journal(self, hostname: str) -> None:
        """Append the host's failed units and journal to its log, if it has come so far."""
        host = self._hosts.get(hostname)
        if host and host.process.poll() is None:
            with self._log(hostname) as log:
                command = self.enter(hostname, "bash", "-c", _JOURNAL)
                subprocess.run(command, stdout=log, stderr=log, check=False, timeout=_STOP_TIMEOUT_S)

    @property
    def is_up(self) -> dict[str, bool]:
        """True for each host that is on, by host name."""
        return {name: host.process.poll() is None for name, host in self._hosts.items()}

    def power_off(self, hostname: str) -> None:
        """Cut a host's power: first the network link, so that no connection is closed."""
        host = self._host(hostname)
        self._ip(f"link del {host.link}")
        namespace = freezing.namespace_of(host.pid)
        os.kill(host.pid, signal.SIGKILL)
        wait_for(  # The kernel ends a host's first process after all others.
            lambda: host.process.poll() is not None,
            timeout_s=_START_TIMEOUT_S,
            description=lambda: f"the processes of {hostname} to end: {freezing.described(namespace)}",
        )
        _end(host.process)

    def end_processes(self, hostname: str) -> None:
        """Kill all processes of a host; its kernel stays and resets connections."""
        os.kill(self._host(hostname).pid, signal.SIGSTOP)  # or systemd would start them again
        subprocess.run(self.enter(hostname, "bash", "-c", "kill -KILL -1"), check=False, timeout=_STOP_TIMEOUT_S)

    def plug(self, hostname: str, *, into: bool) -> None:
        """Unplug a host's network cable, or plug it in again."""
        self._ip(f"link set {self._host(hostname).link} {'up' if into else 'down'}")

    def freeze(self, hostname: str) -> None:
        """Stop every process of a host; its kernel still accepts connections."""
        host = self._host(hostname)
        host.frozen = True
        freezing.freeze(host.pid)

    def thaw(self, hostname: str) -> None:
        """Continue every process of a host."""
        host = self._host(hostname)
        host.frozen = False
        freezing.thaw(host.pid)

    def reboot(self, host: HostDescription) -> None:
        """Reboot a host: its disk stays, memory and mounts do not; fstab is mounted, enabled units start."""
        if self.is_up[host.hostname]:
            subprocess.run(self.enter(host.hostname, "systemctl", "reboot"), check=True, timeout=_STOP_TIMEOUT_S)
            _end(self._hosts[host.hostname].process)
            # It may outlive the host for a while, and its kernel would answer for the new one.
            self._ip(f"link del {self._hosts[host.hostname].link}", check=False)
        time.sleep(_OFF_S)
        self.start_hosts([host], on="kept")

    def init(self, hostname: str) -> int:
        """Return the host's PID 1 on this machine: another one after every start."""
        return self._host(hostname).pid

    def path(self, hostname: str, path: str | Path) -> Path:
        """Return the path of a host's file on this machine."""
        return Path(f"/proc/{self._host(hostname).pid}/root") / str(path).lstrip("/")

    def shim_calls(self, hostname: str) -> list[str]:
        """Return the calls of the shims (mount.lustre, lctl, modprobe …), in order."""
        calls = self.path(hostname, _CALLS)
        return calls.read_text().splitlines() if calls.exists() else []

    def enter(self, hostname: str, *command: str) -> list[str]:
        """Return the arguments that run a command on a host as root, in the caller's environment."""
        host = self._host(hostname)
        if host.frozen:
            raise HostError(f"{hostname} hangs: it runs no command")
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
                *uptime.join(),
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
        """Return the mount point of the host's disk, in the cluster's mount namespace."""
        return self.directory / FABRIC / hostname

    def _enter_cluster(self, *namespaces: str) -> list[str]:
        return ["nsenter", "--target", str(self._holder_pid), *namespaces, "--"]

    def _ip(self, *commands: str, check: bool = True) -> None:
        """Run ip(8) in the cluster's network and the machine's pid namespace."""
        command = [*self._enter_cluster("--net"), "ip", "-batch", "-"]
        lines = "\n".join(commands)
        subprocess.run(command, input=lines, text=True, check=check, capture_output=True, timeout=_STOP_TIMEOUT_S)

    def _log(self, name: str) -> IO[bytes]:
        return self._log_path(name).open("ab")

    def _log_path(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def _tail(self, name: str) -> str:
        return tail(self._log_path(name))


def _how_it_ended(process: subprocess.Popen[str]) -> str:
    try:
        return f"its first process ended with status {process.wait(_EXIT_TIMEOUT_S)}"
    except subprocess.TimeoutExpired:
        return "its first process still runs"


def _script(name: str, *arguments: object) -> list[str]:
    """Return the command of a script: -I ignores PYTHON* variables and the folder, -S skips site packages."""
    return [sys.executable, "-I", "-S", str(SOURCES / name), *map(str, arguments)]


def _end(process: subprocess.Popen[Any] | None) -> None:
    """Wait for a process to end, kill it after a time, close its pipes."""
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
