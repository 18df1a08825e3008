"""The fallback without namespaces: real Slurm daemons as plain processes of one user on the loopback.

Every host is a `slurmd -N` on a loopback address of its own, which is its name too: every resolver understands it. It
has no file system, user or network of its own. So there is nothing that lifecycle scripts could set up, and the only
way to fail is to lose all processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import final

from podwright_rehearsal.clusters import flat_supervisor
from podwright_rehearsal.clusters.rehearsed import REPLACED, Failure, Node, RehearsedCluster, Resumption
from podwright_rehearsal.clusters.slurm_conf import node_line, partition_lines
from podwright_rehearsal.hosts.host_errors import HostError, tail
from podwright_rehearsal.hosts.image import SOURCES
from podwright_rehearsal.hosts.slurm_packages import SlurmPackages
from podwright_rehearsal.hosts.waiting import wait_for

_CONTROLLER = "127.0.0.1"
_FIRST_COMPUTE = 11  # 127.0.0.11, 127.0.0.12 …
_START_TIMEOUT_S = 600.0  # A busy machine takes so long at most.
_STOP_TIMEOUT_S = 60.0


@final
class FlatCluster(RehearsedCluster):
    """A cluster of processes. A context manager: entering starts it, leaving ends every process.

    `nodes` has the controller and the compute nodes by their loopback names; login nodes are left out, for there would
    be nothing to log in to.

    Args:
        directory: configuration, state and logs of the daemons.
        packages: Slurm and munge.
        cluster_name: as deployed.
        nodes: as deployed, under their deployed names; exactly one has the role controller.
        environment: in the environment of every daemon and command, beside PATH.

    Raises:
        HostError: the user who runs this has no name.
        ValueError: there is no controller, or more than one.
    """

    def __init__(
        self,
        *,
        directory: Path,
        packages: SlurmPackages,
        cluster_name: str,
        nodes: Sequence[Node],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(_on_loopback(nodes))
        self.directory = directory.resolve()
        self.cluster_name = cluster_name
        self.srun_takes_auto_resume = not packages.without_auto_resume
        self._packages = packages
        self._ports = dict(zip(self.nodes, _free_ports(len(self.nodes)), strict=True))
        self._supervisors: dict[str, subprocess.Popen[bytes]] = {}
        self._sockets: tempfile.TemporaryDirectory[str] | None = None
        self._user = _own_name()
        self._environment = {
            "HOME": str(Path.home()),
            "USER": self._user,
            "LC_ALL": "C.UTF-8",
            **(environment or {}),
            "PATH": packages.path,
            "LD_LIBRARY_PATH": packages.libraries,
            "SLURM_CONF": str(self.directory / "slurm.conf"),
        }

    # ---- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start all daemons; return when all compute nodes are idle.

        Raises:
            HostError: a daemon did not come up; all others are stopped.
        """
        for name in ("log", "state"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        try:
            # Not below `directory`: the path of a socket may have no more than 107 characters.
            self._sockets = tempfile.TemporaryDirectory(prefix="podwright-munge-")
            for name, text in self._slurm_files().items():
                (self.directory / name).write_text(text)
            self._keep(self.controller, self._munged(), [str(self._packages.bin / "slurmctld"), "-D"])
            for hostname in self._compute():
                self._keep(hostname, self._slurmd(hostname))
            self._wait_for_slurm()
        except BaseException:  # Ctrl-C too: no daemon stays
            self.stop()
            raise

    def stop(self) -> None:
        """End everything. May be called twice."""
        for hostname in reversed(list(self._supervisors)):
            self._end(hostname)
        if self._sockets:
            self._sockets.cleanup()
            self._sockets = None

    # ---- faults ---------------------------------------------------------------------------------------------------

    def kill(self, hostname: str, *, how: Failure = "processes") -> None:
        """Kill all processes of a host; its peers' connections are reset.

        Raises:
            HostError: it was to lose its power or network.
        """
        if how != "processes":
            raise HostError(f"{hostname} is a flat host: got how={how!r}, only 'processes' is available")
        self._end(hostname)

    def replace(self, hostname: str, *, instance_id: str) -> None:
        """Start a new slurmd for the host.

        Raises:
            HostError: it did not come up.
        """
        slurmd_started = self._slurmd_started(hostname)
        self._mark_down(hostname, REPLACED)
        self._end(hostname)
        self._name_instance(hostname, instance_id)
        self._keep(hostname, self._slurmd(hostname))
        wait_for(
            lambda: self._is_healthy(hostname),
            timeout_s=_START_TIMEOUT_S,
            description=lambda: f"slurmd of {hostname}\n{tail(self._log(hostname))}",
        )
        self._lift_mark(hostname, slurmd_started_before=slurmd_started)

    def auto_resume(self, job_id: int, *, new_instance_id: Callable[[str], str], timeout_s: float = 600) -> Resumption:
        """Act as HyperPod's agent for `srun --auto-resume=1`: replace faulty nodes, until the job runs again.

        Args:
            job_id: a job that was started with `srun --auto-resume=1`, if this cluster's srun takes that.
            new_instance_id: called with the name of a host to be replaced; returns the new instance's id.
            timeout_s: for the whole.

        Raises:
            HostError: the job does not want it, no node is faulty (a job's own error is not resumed), or it took too
                long.
        """
        return self._resume(
            job_id,
            replace_host=lambda hostname: self.replace(hostname, instance_id=new_instance_id(hostname)),
            timeout_s=timeout_s,
        )

    # ---- processes ------------------------------------------------------------------------------------------------

    def _keep(self, hostname: str, *commands: Sequence[str]) -> None:
        with self._log(hostname).open("ab") as log:
            self._supervisors[hostname] = subprocess.Popen(
                [sys.executable, "-m", flat_supervisor.__name__, str(os.getpid()), json.dumps(commands)],
                cwd=Path(flat_supervisor.__file__).parents[2],  # Python finds it from there, installed or not.
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _end(self, hostname: str) -> None:
        running = self._supervisors.pop(hostname, None)
        if running:
            running.terminate()
            running.wait(_STOP_TIMEOUT_S)

    def _munged(self) -> list[str]:
        key = self.directory / "munge.key"
        key.unlink(missing_ok=True)
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        files = {
            "key-file": key,
            "socket": self._munge_socket,
            "pid-file": self.directory / "munged.pid",
            "log-file": self.directory / "log/munged.log",
            "seed-file": self.directory / "munged.seed",
        }
        # Forced: it distrusts folders that others may write to, and this one is not its business.
        return [
            str(self._packages.munged),
            "--foreground",
            "--force",
            *(f"--{name}={at}" for name, at in files.items()),
        ]

    def _slurmd(self, hostname: str) -> list[str]:
        (self.directory / "state" / hostname).mkdir(exist_ok=True)
        return [
            str(self._packages.bin / "slurmd"), "-D", "-N", hostname, "-d", str(self._packages.bin / "slurmstepd")
        ]  # fmt: skip

    def _wait_for_slurm(self) -> None:
        def wait_description() -> str:
            logs = "\n".join(tail(log) for log in sorted((self.directory / "log").iterdir()))
            return f"Slurm to start; it says {self._states_or_none() or 'nothing'}\n{logs}"

        wait_for(
            lambda: all(self._states_or_none().get(name) == "idle" for name in self._compute()),
            timeout_s=_START_TIMEOUT_S,
            description=wait_description,
        )

    def _log(self, hostname: str) -> Path:
        return self.directory / "log" / f"{hostname}.log"

    # ---- what a cluster is asked ----------------------------------------------------------------------------------

    def _login(self, hostname: str, user: str, line: str) -> tuple[Sequence[str], Mapping[str, str]]:  # noqa: ARG002 -- hosts have no users of their own
        if hostname not in self._supervisors:
            raise HostError(f"{hostname} is off")
        return ["/bin/bash", "-c", line], self._environment

    def _is_healthy(self, hostname: str) -> bool:
        return hostname in self._supervisors and self._answers(hostname)

    def _controller_answers(self) -> bool:
        return self._answers(self.controller)

    def _answers(self, hostname: str) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((hostname, self._ports[hostname]), timeout=1):
            return True
        return False

    # ---- files ----------------------------------------------------------------------------------------------------

    @property
    def _munge_socket(self) -> Path:
        if self._sockets is None:
            raise HostError(f"{self.controller} is off")
        return Path(self._sockets.name) / "munge.socket"

    def _slurm_files(self) -> dict[str, str]:
        members = [self.nodes[hostname] for hostname in self._compute()]
        settings = self._settings()
        common = (SOURCES / "slurm.conf.in").read_text().splitlines()
        lines = [
            line for line in common if not line.startswith(("#", "include")) and line.split("=")[0] not in settings
        ]
        lines += [f"{name}={value}" for name, value in settings.items()]
        # All nodes are this machine, so NodeHostname is its name; each slurmd needs a port of its own.
        machine_name = socket.gethostname()
        lines += [
            f"{node_line(node)} NodeHostname={machine_name} Port={self._ports[node.hostname]}" for node in members
        ]
        return {
            "slurm.conf": "".join(f"{line}\n" for line in (*lines, *partition_lines(members))),
            "gres.conf": "".join(
                f"NodeName={node.hostname} Name=gpu File={device}\n"
                for node in members
                for device in self._devices(node)
            ),
            "cgroup.conf": "CgroupPlugin=cgroup/v1\n",  # Namespaced hosts have the same.
            "plugstack.conf": f"required {self._packages.auto_resume}\n" if self.srun_takes_auto_resume else "",
        }

    def _settings(self) -> dict[str, str]:
        """Return the settings that differ from those of namespaced hosts."""
        state, log = self.directory / "state", self.directory / "log"
        return {
            "ClusterName": self.cluster_name,
            "SlurmctldHost": f"localhost({self.controller})",
            "SlurmctldPort": str(self._ports[self.controller]),
            "SlurmUser": self._user,
            "SlurmdUser": self._user,
            "AuthInfo": f"cred_expire=5,socket={self._munge_socket}",
            "PluginDir": str(self._packages.plugins),
            "PlugStackConfig": str(self.directory / "plugstack.conf"),
            "StateSaveLocation": str(state),
            "SlurmdSpoolDir": f"{state}/%n",
            "SlurmctldPidFile": f"{state}/slurmctld.pid",
            "SlurmdPidFile": f"{state}/%n.pid",
            "SlurmctldLogFile": f"{log}/slurmctld.log",
            "SlurmdLogFile": f"{log}/slurmd-%n.log",
        }

    def _devices(self, node: Node) -> list[Path]:
        """Create a file for each gpu: Slurm drops a gpu without one."""
        devices = [self.directory / "state" / f"gpu{index}" for index in range(node.accelerators)]
        for device in devices:
            device.touch()
        return devices


def _on_loopback(nodes: Sequence[Node]) -> list[Node]:
    controllers = [node for node in nodes if node.role == "controller"]
    if len(controllers) != 1:
        raise ValueError(f"got {len(controllers)} controllers, need exactly 1")
    compute = [node for node in nodes if node.role == "compute"]
    names = [f"127.0.0.{_FIRST_COMPUTE + number}" for number in range(len(compute))]
    return [
        replace(node, hostname=name, private_ip=name)
        for name, node in zip([_CONTROLLER, *names], [*controllers, *compute], strict=True)
    ]


def _own_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError as error:
        raise HostError(f"Slurm needs users with names, and number {os.getuid()} has none in /etc/passwd") from error


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server((_CONTROLLER, 0))) for _ in range(count)]
        return [listener.getsockname()[1] for listener in listeners]
