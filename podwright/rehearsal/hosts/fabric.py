"""Hosts in namespaces: started, reached, failed and ended. Knows nothing of Slurm."""

from __future__ import annotations

import base64
import contextlib
import ipaddress
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from podwright.rehearsal.hosts.anchor import FABRIC
from podwright.rehearsal.hosts.image import LAYER, SOURCES

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 30.0
_CALLS = "/opt/rehearsal/log/calls"
_HALTED = "/run/rehearsal/halted"


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
        for name in ("anchor", "relay", *(host.hostname for host in hosts)):
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
        for process in (self._anchor, self._relay, *(host.process for host in self._hosts.values())):
            _end(process)
        self._anchor = self._relay = None
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
            answer, descriptors, _, _ = socket.recv_fds(self._owner_end, 65536, 1)
        except TimeoutError:
            answer, descriptors = b"", []
        if not answer:
            raise HostError(f"the hosts' network could not be made:\n{self._tail('anchor')}")
        self._anchor_pid = json.loads(answer)["pid"]
        with socket.socket(fileno=descriptors[0]) as listener:
            if self._relay_port is not None:
                self._start_relay(listener, self._relay_port)

    def _start_relay(self, listener: socket.socket, port: int) -> None:
        """In the cluster's pid namespace, so that it ends with it, but in the machine's network."""
        with self._log("relay") as log:
            self._relay = subprocess.Popen(
                [
                    *("nsenter", "--target", str(self._anchor_pid), "--pid"),
                    *_script("relay.py", listener.fileno(), port, self.directory),
                ],
                pass_fds=[listener.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    # ---- one host -------------------------------------------------------------------------------------------------

    def start_hosts(self, hosts: Iterable[HostDescription]) -> None:
        """Boot hosts with empty disks and wait until their init has started what an AMI starts."""
        booting = [(host, self._spawn(host)) for host in hosts]
        for host, process in booting:
            pid = int(self._read_line(host.hostname, process))
            self._hosts[host.hostname] = _Host(pid, process, self._connect(pid, host.private_ip))
            self._describe(host, process)
        for host, process in booting:
            if self._read_line(host.hostname, process) != "ready":
                raise HostError(f"{host.hostname} did not boot:\n{self._tail(host.hostname)}")

    def _spawn(self, host: HostDescription) -> subprocess.Popen[str]:
        disk = self.directory / FABRIC / host.hostname
        with self._log(host.hostname) as log:
            return subprocess.Popen(
                [
                    *self._enter_cluster("--pid", "--mount"),
                    *("unshare", "--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "--kill-child=KILL"),
                    *("bash", "-c", 'rm -rf "$0" && mkdir "$0" && exec "$@"', str(disk)),
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

    def cut_off(self, hostname: str) -> None:
        """The host lives on but nobody reaches it."""
        self._ip(f"link set {self._host(hostname).link} down")

    def path(self, hostname: str, path: str | Path) -> Path:
        """A host's file, seen from this machine."""
        return Path(f"/proc/{self._host(hostname).pid}/root") / str(path).lstrip("/")

    def shim_calls(self, hostname: str) -> list[str]:
        """What was asked of the shims (mount.lustre, systemctl, modprobe …), in order."""
        calls = self.path(hostname, _CALLS)
        return calls.read_text().splitlines() if calls.exists() else []

    def enter(self, hostname: str, *command: str) -> list[str]:
        """The arguments that run a command on a host as root, with the environment that they are started in."""
        target = str(self._host(hostname).pid)
        return [
            *("nsenter", "--target", target, "--mount", "--uts", "--ipc", "--net", "--pid", "--root", "--wd", "--"),
            *command,
        ]

    def _host(self, hostname: str) -> _Host:
        if hostname not in self._hosts:
            raise HostError(f"no host {hostname!r}: there are {', '.join(self._hosts) or 'none'}")
        host = self._hosts[hostname]
        if host.process.poll() is not None:
            raise HostError(f"{hostname} is off")
        return host

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


# ---- what this machine lacks, what an earlier fabric left ----------------------------------------------------------

_TRIAL = """set -e
mount -t tmpfs tmpfs "$0" && mkdir "$0"/upper "$0"/work "$0"/root
mount -t overlay overlay -o "lowerdir=/,upperdir=$0/upper,workdir=$0/work" "$0"/root
mknod "$0"/null c 1 3
mount -t proc proc "$0"/root/proc
ip link add br0 type bridge
ip link add trial0 type veth peer name trial1
"""


def why_not() -> str | None:
    """What this machine lacks for hosts in namespaces, and what to do; None if nothing."""
    if sys.platform != "linux":
        return "hosts need Linux namespaces: run this on Linux"
    tools = {
        "unshare": "util-linux",
        "nsenter": "util-linux",
        "mount": "mount",
        "ip": "iproute2",
        "apt-get": "apt",
        "bash": "bash",
    }
    missing = {package: tool for tool, package in tools.items() if not shutil.which(tool)}
    if "apt" in missing:
        return "hosts are made of Debian's packages and this machine has no apt-get: run this on Debian or Ubuntu"
    if missing:
        return f"{', '.join(missing.values())} not found: apt-get install {' '.join(missing)}"
    if os.geteuid() != 0:
        return "hosts need root, for namespaces and mounts: run this with sudo"
    root = Path("/").stat().st_dev
    separate = [path for path in ("/usr", "/etc", "/var/lib/dpkg") if Path(path).stat().st_dev != root]
    if separate:
        return f"hosts lie over this machine's root, and {', '.join(separate)} is on a file system of its own"
    return _try_namespaces()


def _try_namespaces() -> str | None:
    with tempfile.TemporaryDirectory() as scratch:
        command = ["unshare", "--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "--propagation", "private"]
        trial = subprocess.run([*command, "bash", "-c", _TRIAL, scratch], capture_output=True, text=True, check=False)
    if trial.returncode == 0:
        return None
    said = trial.stderr.strip().splitlines()[-1:] or ["no reason given"]
    return (
        f"this machine does not permit namespaces, overlays and virtual networks ({said[0]}): "
        "in a container, start it with --privileged"
    )


@dataclass(frozen=True)
class Leftover:
    """A process or a mount that an earlier fabric, or the building of an image, left on this machine."""

    kind: str  # process | mount
    what: str  # a command line | a mount point
    pid: int = 0


def leftovers(below: Path) -> list[Leftover]:
    """Processes and mounts of fabrics and image builds whose directory is at or below a folder.

    A process is ours when its arguments name both one of our programs and such a directory; never by a program's name.
    """
    below = below.resolve()
    found = [Leftover("process", " ".join(words), pid) for pid, words in _command_lines() if _is_ours(words, below)]
    mounts = [Path(line.split()[4]) for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return found + [Leftover("mount", str(mount)) for mount in mounts if mount.is_relative_to(below)]


def _is_ours(words: Sequence[str], below: Path) -> bool:
    names_our_program = any(Path(word).parent == SOURCES for word in words)
    return names_our_program and any(word.startswith("/") and Path(word).is_relative_to(below) for word in words)


def _command_lines() -> Iterable[tuple[int, list[str]]]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:  # it has just ended
                continue
            yield int(folder.name), words


def clean(below: Path, *, timeout_s: float = _STOP_TIMEOUT_S) -> list[Leftover]:
    """End what `leftovers` finds and wait for its end.

    Returns:
        What there was.

    Raises:
        HostError: something would not go; the message names it.
    """
    found = leftovers(below)
    for leftover in found:
        if leftover.kind == "process":
            _kill(leftover.pid)
        else:
            subprocess.run(["umount", "--lazy", leftover.what], check=False)
    wait_for(lambda: not leftovers(below), timeout_s=timeout_s, what=lambda: f"the end of {leftovers(below)}")
    return found


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it may have gone with another one
        os.kill(pid, signal.SIGKILL)


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
