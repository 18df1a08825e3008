"""The cluster stand-in: a HyperPod Slurm cluster of real Slurm daemons on hosts in namespaces of one Linux machine.

A host has its own name, address, disk and processes, and before any script runs the files a HyperPod node has. What
starts Slurm is the lifecycle script, as on HyperPod.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import re
import secrets
import shlex
import shutil
import signal
import string
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, final

from podwright.rehearsal.hosts.fabric import (
    Fabric,
    File,
    HostDescription,
    HostError,
    Leftover,
    clean,
    leftovers,
    tail,
    wait_for,
    why_not,
)
from podwright.rehearsal.hosts.image import SOURCES, WHEELS, ImageError, build_image
from podwright_bootstrap.contract import RESOURCE_CONFIG, RESOURCE_CONFIG_VARIABLE, SLURM_ROOT

__all__ = [
    "WHEELS",
    "BootResult",
    "HostError",
    "ImageError",
    "Leftover",
    "Node",
    "Resumption",
    "SlurmStandIn",
    "build_image",
    "clean",
    "leftovers",
    "why_not",
]

Role = Literal["controller", "login", "compute"]
Failure = Literal["power", "processes", "network"]

ALL_NODES_PARTITION = "dev"  # HyperPod puts every node but the controller into it
_SSH_PORT = 22
_SLURMCTLD_PORT = 6817
_GRACE_S = 3.0
_TIMED_OUT = 124  # timeout(1)'s exit status
_PATH = f"{SLURM_ROOT}/bin:{SLURM_ROOT}/sbin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_AUTO_RESUME_COMMENT = "auto-resume=1"  # written by auto_resume.c
_ENDED = frozenset({"COMPLETED", "FAILED", "NODE_FAIL", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "BOOT_FAIL"})


@dataclass(frozen=True, kw_only=True)
class Node:
    """One node of the deployed cluster."""

    hostname: str  # ip-10-0-16-5
    private_ip: str
    instance_id: str
    instance_group: str
    instance_type: str
    role: Role
    partition: str | None = None  # of a compute node
    accelerators: int = 0  # Gres=gpu:N, /dev/nvidia0…
    vcpus: int = 1  # what Slurm is told
    memory_mib: int = 1024


@dataclass(frozen=True, kw_only=True)
class BootResult:
    """How a lifecycle script ended on a host."""

    hostname: str
    exit_code: int  # 124: it ran out of time
    log: Path
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether the node would become Running."""
        return self.exit_code == 0

    def describe(self) -> str:
        """The end of the log, and where the whole of it is."""
        return f"{self.hostname}: exit {self.exit_code} after {self.seconds:.1f} s\n{tail(self.log)}"


@dataclass(frozen=True, kw_only=True)
class Resumption:
    """What auto-resume did."""

    replaced: Sequence[str]  # host names
    detected_s: float  # from the call to the fault
    resumed_s: float  # from the call until the job ran again


@final
class SlurmStandIn:
    """A cluster of hosts. A context manager: entering starts it, leaving ends every process, mount and namespace.

    Args:
        directory: logs of hosts and boots; what `leftovers` and `clean` look for.
        image: a folder that `build_image` made.
        cluster_name: as deployed.
        cluster_arn: as deployed.
        subnet_cidr: the nodes' subnet; its first address is the relay's.
        nodes: exactly one has the role controller.
        shared: this machine's folder that every `mount -t lustre` shows.
        relay: 127.0.0.1 and a port of this machine, which hosts reach at the subnet's first address and the same port;
            they reach nothing else outside the cluster.
        environment: in the environment of every service and every login, beside PATH; URLs of the relay's port on
            127.0.0.1 become the address that hosts reach.
        binds: (folder or file of this machine, path on every host), read-only.

    Raises:
        ValueError: the nodes do not make a cluster; all problems are named.
    """

    def __init__(
        self,
        *,
        directory: Path,
        image: Path,
        cluster_name: str,
        cluster_arn: str,
        subnet_cidr: str,
        nodes: Sequence[Node],
        shared: Path,
        relay: tuple[str, int] | None = None,
        environment: Mapping[str, str] | None = None,
        binds: Sequence[tuple[Path, str]] = (),
    ) -> None:
        _check(nodes, subnet_cidr, relay)
        self.directory = directory.resolve()
        self.cluster_name = cluster_name
        self.cluster_arn = cluster_arn
        self.nodes = {node.hostname: node for node in nodes}
        self.controller = next(node.hostname for node in nodes if node.role == "controller")
        self.environment = {"PATH": _PATH, **(environment or {})}
        if relay:
            here, there = f"//127.0.0.1:{relay[1]}", f"//{ipaddress.ip_network(subnet_cidr)[1]}:{relay[1]}"
            self.environment = {name: value.replace(here, there) for name, value in self.environment.items()}
        self._instance_ids = {node.hostname: node.instance_id for node in nodes}
        self._munge_key = secrets.token_bytes(128)
        self._boots: Counter[str] = Counter()
        self._fabric = Fabric(
            directory=self.directory,
            image=image,
            subnet_cidr=subnet_cidr,
            shared=shared,
            relay_port=relay[1] if relay else None,
            binds=binds,
        )

    def __enter__(self) -> SlurmStandIn:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    # ---- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Hosts up, with sshd and munge running and slurm.conf on the controller; no Slurm daemon yet.

        Raises:
            HostError: a host did not come up; nothing is left running.
        """
        self._fabric.start([self._describe(node) for node in self.nodes.values()])

    def stop(self) -> None:
        """End everything. May be called twice."""
        self._fabric.stop()

    def boot(
        self,
        lifecycle: Path,
        *,
        entry: str = "on_create.sh",
        timeout_s: float = 600,
        on_line: Callable[[str, str], None] | None = None,
    ) -> dict[str, BootResult]:
        """Run the lifecycle scripts on all hosts at once, as the service does when it creates a cluster.

        Args:
            lifecycle: the unpacked bundle; copied into a temporary folder of each host, where it runs as root.
            entry: the script of it that is run.
            timeout_s: after which a script is killed (exit code 124).
            on_line: called with host name and line while the scripts write.
        """
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            results = pool.map(
                lambda name: self.boot_one(name, lifecycle, entry=entry, timeout_s=timeout_s, on_line=on_line),
                self.nodes,
            )
            try:
                return {result.hostname: result for result in results}
            except (KeyboardInterrupt, SystemExit):
                self.stop()  # or the pool would wait for scripts that nobody waits for any more
                raise

    def boot_one(
        self,
        hostname: str,
        lifecycle: Path,
        *,
        entry: str = "on_create.sh",
        timeout_s: float = 600,
        on_line: Callable[[str, str], None] | None = None,
    ) -> BootResult:
        """Run the lifecycle scripts on one host; arguments as for `boot`.

        Raises:
            HostError: the host is off, or there is no such script.
        """
        if not (lifecycle / entry).is_file():
            raise HostError(f"{hostname} cannot boot: {lifecycle} has no {entry}")
        folder = Path(f"/tmp/lifecycle-{secrets.token_hex(4)}")  # noqa: S108 -- of the host, and the service takes /tmp too
        inside = self.path(hostname, folder)
        shutil.copytree(lifecycle, inside, copy_function=shutil.copyfile)  # a download from S3 has no mode bits
        (inside / entry).chmod(0o755)
        self._boots[hostname] += 1
        log = self.directory / f"{hostname}-boot-{self._boots[hostname]}.log"
        environment = {**self.environment, "HOME": "/root", RESOURCE_CONFIG_VARIABLE: str(RESOURCE_CONFIG)}
        began = time.monotonic()
        with log.open("wb") as output:
            process = subprocess.Popen(
                self._fabric.enter(hostname, "/usr/bin/env", f"--chdir={folder}", f"./{entry}"),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        exit_code = _follow(process, log, timeout_s, lambda line: on_line(hostname, line) if on_line else None)
        return BootResult(hostname=hostname, exit_code=exit_code, log=log, seconds=time.monotonic() - began)

    # ---- use ------------------------------------------------------------------------------------------------------

    def run(
        self,
        command: Sequence[str] | str,
        *,
        host: str = "controller",
        user: str = "ubuntu",
        check: bool = True,
        timeout_s: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host as a login of `user` would.

        Raises:
            HostError: the host is off, the command failed (unless `check` is false) or ran out of time.
        """
        hostname = self.controller if host == "controller" else host
        line = command if isinstance(command, str) else shlex.join(command)
        with subprocess.Popen(
            self._fabric.enter(hostname, "/usr/bin/su", "--login", user, "--command", line),
            env={"PATH": _PATH, "LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            try:
                stdout, stderr = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired as error:
                _end_group(process)
                raise HostError(f"{hostname}: `{line}` did not end within {timeout_s:g} s") from error
            except BaseException:
                _end_group(process)
                raise
        done = subprocess.CompletedProcess(line, process.returncode, stdout, stderr)
        if check and done.returncode:
            raise HostError(f"{hostname}: `{line}` ended with {done.returncode}\n{done.stdout}{done.stderr}".rstrip())
        return done

    def path(self, hostname: str, path: str | Path) -> Path:
        """A host's file, seen from outside. Links in it are followed as this machine sees them."""
        return self._fabric.path(hostname, path)

    def shim_calls(self, hostname: str) -> list[str]:
        """What was asked of the shims on a host (`mount.lustre …`, `systemctl …`, `modprobe …`), in order."""
        return self._fabric.shim_calls(hostname)

    def node_states(self) -> dict[str, str]:
        """By host name, Slurm's state in full with its flags: idle, allocated, down*, draining …."""
        lines = self.run(["sinfo", "--noheader", "--Node", "--format=%N %T"], user="root").stdout.splitlines()
        return dict(line.split() for line in lines)

    def wait_until_idle(self, hostnames: Sequence[str] | None = None, *, timeout_s: float = 60) -> None:
        """Return when the hosts (all compute nodes if none are named) are idle.

        Raises:
            HostError: they are not within `timeout_s`; the message has their states.
        """
        wanted = hostnames if hostnames is not None else self._compute()
        wait_for(
            lambda: all(self._states_or_none().get(name) == "idle" for name in wanted),
            timeout_s=timeout_s,
            what=lambda: f"{', '.join(wanted)} to be idle; Slurm says {self._states_or_none() or 'nothing'}",
        )

    def job(self, job_id: int) -> dict[str, str]:
        """What `scontrol show job` knows: JobState, Restarts, NodeList, ExitCode …."""
        text = self.run(["scontrol", "show", "job", "--oneliner", str(job_id)], user="root").stdout
        return dict(re.findall(r"(\w[\w/:]*)=(\S*)", text))

    def wait_for_job(
        self, job_id: int, states: frozenset[str] = _ENDED, *, timeout_s: float = 300, restarts: int = 0
    ) -> dict[str, str]:
        """Return the job when it is in one of the states (any final one by default) after so many restarts.

        Raises:
            HostError: it is not within `timeout_s`; the message has its state and Slurm's reason.
        """

        def reached() -> bool:
            now = self.job(job_id)
            return now["JobState"] in states and int(now["Restarts"]) >= restarts

        def what() -> str:
            now = self.job(job_id)
            return f"job {job_id} to be {' or '.join(sorted(states))}; it is {now['JobState']} ({now['Reason']})"

        wait_for(reached, timeout_s=timeout_s, what=what)
        return self.job(job_id)

    # ---- faults ---------------------------------------------------------------------------------------------------

    def kill(self, hostname: str, *, how: Failure = "power") -> None:
        """Fail a host.

        power: it is gone, its peers hear nothing. processes: all of them are killed but the kernel lives, its peers'
        connections are reset. network: it lives and is cut off.
        """
        if how == "power":
            self._fabric.power_off(hostname)
        elif how == "processes":
            self._fabric.end_processes(hostname)
        else:
            self._fabric.cut_off(hostname)

    def replace(
        self,
        hostname: str,
        *,
        instance_id: str,
        lifecycle: Path,
        entry: str = "on_create.sh",
        timeout_s: float = 600,
        on_line: Callable[[str, str], None] | None = None,
    ) -> BootResult:
        """A new instance in a host's place: the same name and address, an empty disk; the lifecycle scripts run on it.

        Everybody's resource_config.json names the new instance before they do.
        """
        self._mark_down(hostname, "instance replaced")
        if self._fabric.is_up[hostname]:
            self._fabric.power_off(hostname)
        self._instance_ids[hostname] = instance_id
        self._fabric.start_hosts([self._describe(self.nodes[hostname])])
        for name, is_up in self._fabric.is_up.items():
            if is_up:
                self.path(name, RESOURCE_CONFIG).write_text(self._resource_config())
        result = self.boot_one(hostname, lifecycle, entry=entry, timeout_s=timeout_s, on_line=on_line)
        if (
            self._states_or_none().get(hostname, "").startswith(("fail", "drain"))
        ):  # an operator's mark outlives a registration
            self._update(hostname, "State=RESUME")
        return result

    def auto_resume(
        self,
        job_id: int,
        *,
        lifecycle: Path,
        new_instance_id: Callable[[str], str],
        timeout_s: float = 180,
        on_line: Callable[[str, str], None] | None = None,
    ) -> Resumption:
        """Play HyperPod's agent for `srun --auto-resume=1`, until the job runs again.

        Waits for a hardware fault (a node that no longer answers, or that an operator marked with the reason
        Action:Replace), tells Slurm at once, replaces the node and has the whole job requeued, as HyperPod does for
        jobs with GRES.

        Args:
            job_id: a job that was started with `srun --auto-resume=1`.
            lifecycle: what runs on the replacement.
            new_instance_id: called with the name of a host to be replaced; returns the new instance's id.
            timeout_s: for the whole.
            on_line: as for `boot`.

        Raises:
            HostError: the job does not want it, no node is faulty (a job's own error is not resumed), or it took too
                long.
        """
        began = time.monotonic()
        before = self.job(job_id)
        if before.get("Comment") != _AUTO_RESUME_COMMENT:
            raise HostError(f"job {job_id} was not started with srun --auto-resume=1")
        faulty = self._wait_for_fault(job_id, timeout_s)
        detected_s = time.monotonic() - began
        # A job that Slurm has requeued already has its restart counted.
        restarts = int(before["Restarts"]) + (before["JobState"] == "RUNNING")
        for hostname in faulty:
            self._mark_down(hostname, "hardware fault")
        for hostname in faulty:
            booted = self.replace(
                hostname,
                instance_id=new_instance_id(hostname),
                lifecycle=lifecycle,
                on_line=on_line,
                timeout_s=timeout_s,
            )
            if not booted.ok:
                raise HostError(f"the replacement failed\n{booted.describe()}")
        self._requeue_unless_slurm_has(job_id, restarts)
        left_s = max(1.0, timeout_s - (time.monotonic() - began))
        self.wait_for_job(job_id, frozenset({"RUNNING", "COMPLETED"}), restarts=restarts, timeout_s=left_s)
        return Resumption(replaced=tuple(faulty), detected_s=detected_s, resumed_s=time.monotonic() - began)

    def _wait_for_fault(self, job_id: int, timeout_s: float) -> list[str]:
        end = time.monotonic() + timeout_s
        while not (faulty := self._faulty()):
            state = self.job(job_id)["JobState"]
            if state in _ENDED:
                raise HostError(f"job {job_id} is {state} and every node is healthy: its own error is not resumed")
            if time.monotonic() > end:
                raise HostError(f"no node failed within {timeout_s:g} s; job {job_id} is {state}")
            time.sleep(0.2)
        return faulty

    def _faulty(self) -> list[str]:
        marked = self.run(["sinfo", "--noheader", "--Node", "--format=%N|%E"], user="root").stdout
        by_operator = {line.split("|")[0] for line in marked.splitlines() if line.endswith("|Action:Replace")}
        return [name for name in self._compute() if name in by_operator or not self._answers(name)]

    def _answers(self, hostname: str, port: int = _SSH_PORT) -> bool:
        """Whether a host takes connections, as health monitoring and Slurm on the controller see it."""
        probe = f"timeout 1 bash -c 'exec 3<>/dev/tcp/{self.nodes[hostname].private_ip}/{port}'"
        return self.run(probe, user="root", check=False).returncode == 0

    def _mark_down(self, hostname: str, reason: str) -> None:
        """Tell Slurm: a node that is back before Slurm missed it passes for one that never left, and its job hangs."""
        state = self._states_or_none().get(hostname)
        if state and not state.startswith("down"):
            self._update(hostname, "State=DOWN", f"Reason={reason}")

    def _update(self, hostname: str, *changes: str) -> None:
        self.run(["scontrol", "update", f"NodeName={hostname}", *changes], user="root")

    def _requeue_unless_slurm_has(self, job_id: int, restarts: int) -> None:
        now = self.job(job_id)
        if int(now["Restarts"]) < restarts and now["JobState"] not in {"PENDING", "COMPLETING"}:
            self.run(["scontrol", "requeue", str(job_id)], user="root")

    def _states_or_none(self) -> dict[str, str]:
        """Empty while there is no slurmctld to ask; sinfo would try for five seconds."""
        if not self._fabric.is_up[self.controller] or not self._answers(self.controller, _SLURMCTLD_PORT):
            return {}
        return self.node_states()

    def _compute(self) -> list[str]:
        return [name for name, node in self.nodes.items() if node.role == "compute"]

    # ---- the files of a node --------------------------------------------------------------------------------------

    def _describe(self, node: Node) -> HostDescription:
        peers = "".join(f"{peer.private_ip} {peer.hostname}\n" for peer in self.nodes.values())
        files = {
            "/etc/hostname": File(f"{node.hostname}\n"),
            "/etc/hosts": File(f"127.0.0.1 localhost\n{peers}"),
            "/etc/resolv.conf": File(""),
            "/etc/environment": File("".join(f'{name}="{value}"\n' for name, value in self.environment.items())),
            "/etc/munge/munge.key": File(self._munge_key, mode=0o400, owner="munge"),
            str(RESOURCE_CONFIG): File(self._resource_config()),
        }
        if node.role == "controller":  # the others are configless
            files |= {f"{SLURM_ROOT}/etc/{name}": File(text) for name, text in self._slurm_files().items()}
        return HostDescription(node.hostname, node.private_ip, node.accelerators, files)

    def _resource_config(self) -> str:
        """As the service writes it: AWS, "SageMaker HyperPod lifecycle scripts", resource_config.json."""
        groups: dict[str, list[Node]] = {}
        for node in self.nodes.values():
            groups.setdefault(node.instance_group, []).append(node)
        content = {
            "ClusterConfig": {"ClusterArn": self.cluster_arn, "ClusterName": self.cluster_name},
            "SlurmConfig": {
                "PrimaryControllerIp": self.nodes[self.controller].private_ip,
                "SecondaryControllerIps": [],
            },
            "InstanceGroups": [
                {
                    "Name": name,
                    "InstanceType": members[0].instance_type,
                    "Instances": [
                        {
                            "InstanceName": f"{name}-{number}",
                            "InstanceId": self._instance_ids[node.hostname],
                            "AgentIpAddress": node.private_ip,
                            "CustomerIpAddress": node.private_ip,
                        }
                        for number, node in enumerate(members, start=1)
                    ],
                }
                for name, members in groups.items()
            ],
        }
        return json.dumps(content, indent=2) + "\n"

    def _slurm_files(self) -> dict[str, str]:
        template = string.Template((SOURCES / "slurm.conf.in").read_text())
        head = template.substitute(
            cluster_name=self.cluster_name,
            controller=self.controller,
            controller_ip=self.nodes[self.controller].private_ip,
        )
        members = [node for node in self.nodes.values() if node.role != "controller"]
        return {
            "slurm.conf": head
            + "".join(f"{line}\n" for line in (*map(_node_line, members), *_partition_lines(members))),
            "gres.conf": "".join(
                f"NodeName={node.hostname} Name=gpu File=/dev/nvidia{index}\n"
                for node in members
                for index in range(node.accelerators)  # a gpu without File= is dropped without a word
            ),
            "cgroup.conf": "CgroupPlugin=cgroup/v1\n",  # slurmd loads one; autodetect fails without /sys/fs/cgroup
            "accounting.conf": "# filled where accounting is set up\n",
        }


def _check(nodes: Sequence[Node], subnet_cidr: str, relay: tuple[str, int] | None) -> None:
    problems = []
    controllers = [node.hostname for node in nodes if node.role == "controller"]
    if len(controllers) != 1:
        problems.append(f"exactly one node must be the controller, given: {', '.join(controllers) or 'none'}")
    for attribute in ("hostname", "private_ip", "instance_id"):
        values = [getattr(node, attribute) for node in nodes]
        problems += [
            f"two nodes have the {attribute} {value}" for value in sorted(set(values)) if values.count(value) > 1
        ]
    subnet = ipaddress.ip_network(subnet_cidr)
    strangers = [node.private_ip for node in nodes if ipaddress.ip_address(node.private_ip) not in subnet]
    problems += [f"{address} is not in the subnet {subnet}" for address in strangers]
    problems += [
        f"{node.hostname} is a compute node without a partition"
        for node in nodes
        if node.role == "compute" and not node.partition
    ]
    if relay and relay[0] != "127.0.0.1":
        problems.append(f"the relay leads to 127.0.0.1 of this machine, not to {relay[0]}")
    if problems:
        raise ValueError("these nodes do not make a cluster: " + "; ".join(problems))


def _node_line(node: Node) -> str:
    gres = f" Gres=gpu:{node.accelerators}" if node.accelerators else ""
    return f"NodeName={node.hostname} NodeAddr={node.private_ip} CPUs={node.vcpus} RealMemory={node.memory_mib}{gres}"


def _partition_lines(members: Sequence[Node]) -> list[str]:
    partitions: dict[str, list[str]] = {ALL_NODES_PARTITION: [node.hostname for node in members]}
    for node in members:
        if node.partition and node.partition != ALL_NODES_PARTITION:
            partitions.setdefault(node.partition, []).append(node.hostname)
    return [
        f"PartitionName={name} Nodes={','.join(hostnames)} State=UP"
        + (" Default=YES" if name == ALL_NODES_PARTITION else "")
        for name, hostnames in partitions.items()
        if hostnames
    ]


def _follow(process: subprocess.Popen[bytes], log: Path, timeout_s: float, on_line: Callable[[str], None]) -> int:
    """Wait for a script and hand on its lines. They come from a file: a daemon that keeps it open delays nothing."""
    end = time.monotonic() + timeout_s
    with log.open(errors="replace") as lines:
        ended = False
        while not ended:
            try:
                process.wait(0.05)
                ended = True
            except subprocess.TimeoutExpired:
                if time.monotonic() > end:
                    _end_group(process)
                    return _TIMED_OUT
            for line in lines:
                on_line(line.rstrip("\n"))
    return process.returncode


def _end_group(process: subprocess.Popen[Any]) -> None:
    """End a command on a host: on SIGTERM, su ends the shell that it started in a session of its own."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
