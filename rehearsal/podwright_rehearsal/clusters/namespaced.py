"""The cluster stand-in: a HyperPod Slurm cluster of real Slurm daemons on hosts in namespaces of one Linux machine.

A host has its own name, address, disk and processes, and before any script runs the files a HyperPod node has. What
starts Slurm is the lifecycle script, as on HyperPod.
"""

from __future__ import annotations

import ipaddress
import json
import secrets
import shutil
import string
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import final

from podwright_bootstrap.contract import (
    RESOURCE_CONFIG,
    RESOURCE_CONFIG_VARIABLE,
    SLURM_ROOT,
)
from podwright_constructs.catalog import InstanceType
from podwright_rehearsal.clusters.cluster import Cluster, Failure, Node, Resumption, end_group
from podwright_rehearsal.clusters.slurm_conf import node_line, partition_lines
from podwright_rehearsal.hosts.fabric import Fabric, File, HostDescription, HostError, tail
from podwright_rehearsal.hosts.faults import Faults
from podwright_rehearsal.hosts.image import SOURCES, WHEELS, ImageError, build_image
from podwright_rehearsal.hosts.leftovers import Leftover, clean, leftovers
from podwright_rehearsal.hosts.permission import why_not

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


_SSH_PORT = 22
_GREETING_S, _GREETINGS = 2, 2  # sshd's, from a busy machine
_SLURMCTLD_PORT = 6817
_TIMED_OUT = 124  # timeout(1)'s exit status
_PATH = f"{SLURM_ROOT}/bin:{SLURM_ROOT}/sbin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


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


@final
class SlurmStandIn(Cluster):
    """A cluster of hosts. A context manager: entering starts it, leaving ends every process, mount and namespace.

    Args:
        directory: logs of hosts and boots; what `leftovers` and `clean` look for.
        image: a folder that `build_image` made.
        cluster_name: as deployed.
        cluster_arn: as deployed.
        subnet_cidr: the nodes' subnet; its first address is the relay's.
        nodes: the first with the role controller is the primary, others of that role are its backups.
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
        super().__init__(nodes)
        self.directory = directory.resolve()
        self.cluster_name = cluster_name
        self.cluster_arn = cluster_arn
        self.environment = {"PATH": _PATH, **(environment or {})}
        if relay:
            here, there = f"//127.0.0.1:{relay[1]}", f"//{ipaddress.ip_network(subnet_cidr)[1]}:{relay[1]}"
            self.environment = {name: value.replace(here, there) for name, value in self.environment.items()}
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
        self.faults = Faults(self._fabric)

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

    def path(self, hostname: str, path: str | Path) -> Path:
        """A host's file, seen from outside. Links in it are followed as this machine sees them."""
        return self._fabric.path(hostname, path)

    def shim_calls(self, hostname: str) -> list[str]:
        """What was asked of the shims on a host (`mount.lustre …`, `systemctl …`, `modprobe …`), in order."""
        return self._fabric.shim_calls(hostname)

    # ---- faults ---------------------------------------------------------------------------------------------------

    def kill(self, hostname: str, *, how: Failure = "power") -> None:
        """Fail a host.

        power: it is gone, its peers hear nothing. processes: all of them are killed but the kernel lives, its peers'
        connections are reset. network: it lives and is cut off. heartbeat: it hangs; its kernel accepts connections
        and nobody answers.
        """
        failures: dict[Failure, Callable[[str], None]] = {
            "power": self._fabric.power_off,
            "processes": self._fabric.end_processes,
            "network": partial(self._fabric.plug, into=False),
            "heartbeat": self._fabric.freeze,
        }
        failures[how](hostname)

    def reboot(self, hostname: str) -> None:
        """Off and on again: the same instance and disk. No lifecycle script runs, as on HyperPod.

        Raises:
            HostError: the host did not come up.
        """
        node = self.nodes[hostname]
        self._fabric.reboot(HostDescription(hostname, node.private_ip, node.accelerators))

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
        self._name_instance(hostname, instance_id)
        self._fabric.start_hosts([self._describe(self.nodes[hostname])])
        for name, is_up in self._fabric.is_up.items():
            if is_up:
                self.path(name, RESOURCE_CONFIG).write_text(self._resource_config())
        result = self.boot_one(hostname, lifecycle, entry=entry, timeout_s=timeout_s, on_line=on_line)
        self._lift_mark(hostname)
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
        """Play HyperPod's agent for `srun --auto-resume=1`: replace what is faulty, until the job runs again.

        Args:
            job_id: a job that was started with `srun --auto-resume=1`.
            lifecycle: what runs on the replacement.
            new_instance_id: called with the name of a host to be replaced; returns the new instance's id.
            timeout_s: for the whole.
            on_line: as for `boot`.

        Raises:
            HostError: the job does not want it, no node is faulty (a job's own error is not resumed), the
                replacement did not boot, or it took too long.
        """

        def replace_host(hostname: str) -> None:
            booted = self.replace(
                hostname,
                instance_id=new_instance_id(hostname),
                lifecycle=lifecycle,
                on_line=on_line,
                timeout_s=timeout_s,
            )
            if not booted.ok:
                raise HostError(f"the replacement failed\n{booted.describe()}")

        return self._resume(job_id, replace_host=replace_host, timeout_s=timeout_s)

    def _login(self, hostname: str, user: str, line: str) -> tuple[Sequence[str], Mapping[str, str]]:
        command = self._fabric.enter(hostname, "/usr/bin/su", "--login", user, "--command", line)
        return command, {"PATH": _PATH, "LC_ALL": "C.UTF-8"}

    def _is_healthy(self, hostname: str) -> bool:
        """A connection is not enough: the kernel of a host that hangs accepts it. One busy moment is no fault."""
        greets = "read -r line <&3 && [[ $line == SSH-* ]]"
        return any(self._answers(hostname, _SSH_PORT, greets) for _ in range(_GREETINGS))

    def _controller_answers(self) -> bool:
        return self._fabric.is_up[self.controller] and self._answers(self.controller, _SLURMCTLD_PORT)

    def _answers(self, hostname: str, port: int, then: str = "true") -> bool:
        """Whether a host takes connections, and says what it should, as the controller sees it."""
        connect = f"exec 3<>/dev/tcp/{self.nodes[hostname].private_ip}/{port}"
        probe = f"timeout {_GREETING_S} bash -c '{connect} && {then}'"
        return self.run(probe, user="root", check=False).returncode == 0

    # ---- the files of a node --------------------------------------------------------------------------------------

    def _describe(self, node: Node) -> HostDescription:
        peers = "".join(f"{peer.private_ip} {peer.hostname}\n" for peer in self.nodes.values())
        files = {
            "/etc/hostname": File(f"{node.hostname}\n"),
            "/etc/hosts": File(f"127.0.0.1 localhost\n{peers}"),
            "/etc/resolv.conf": File(f"nameserver {self._fabric.gateway}\n"),
            "/etc/environment": File("".join(f'{name}="{value}"\n' for name, value in self.environment.items())),
            "/etc/munge/munge.key": File(self._munge_key, mode=0o400, owner="munge"),
            str(RESOURCE_CONFIG): File(self._resource_config()),
            "/opt/rehearsal/machine": File(_machine(node.instance_type)),
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
            "ClusterType": "Standard",
            "ClusterConfig": {"ClusterArn": self.cluster_arn, "ClusterName": self.cluster_name},
            "SlurmConfig": {
                "PrimaryControllerIp": self.nodes[self.controller].private_ip,
                "SecondaryControllerIps": [node.private_ip for node in self._controllers()[1:]],
            },
            "InstanceGroups": [
                {
                    "Name": name,
                    "InstanceType": members[0].instance_type,
                    "Instances": [
                        {
                            "InstanceName": f"{name}-{number}",
                            "InstanceId": node.instance_id,
                            "AgentIpAddress": node.private_ip,
                            "CustomerIpAddress": node.private_ip,
                            "InstanceLabel": f"{name}-{number}",
                        }
                        for number, node in enumerate(members, start=1)
                    ],
                }
                for name, members in groups.items()
            ],
        }
        return json.dumps(content, indent=2) + "\n"

    def _controllers(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.role == "controller"]

    def _slurm_files(self) -> dict[str, str]:
        template = string.Template((SOURCES / "slurm.conf.in").read_text())
        head = template.substitute(cluster_name=self.cluster_name)
        hosts = [f"SlurmctldHost={node.hostname}({node.private_ip})" for node in self._controllers()]
        members = [node for node in self.nodes.values() if node.role != "controller"]
        return {
            "slurm.conf": head
            + "".join(f"{line}\n" for line in (*hosts, *map(node_line, members), *partition_lines(members))),
            "gres.conf": "".join(
                f"NodeName={node.hostname} Name=gpu File=/dev/nvidia{index}\n"
                for node in members
                for index in range(node.accelerators)  # a gpu without File= is dropped without a word
            ),
            "cgroup.conf": "CgroupPlugin=cgroup/v1\n",  # slurmd loads one; autodetect fails without /sys/fs/cgroup
            "accounting.conf": "",
        }


def _machine(instance_type: str) -> str:
    """What the shims say that a host of this type has."""
    kind = InstanceType.of(instance_type)
    return f"efa_interfaces={kind.efa_interfaces}\nnvlink={'yes' if kind.nvlink else 'no'}\n"


def _check(nodes: Sequence[Node], subnet_cidr: str, relay: tuple[str, int] | None) -> None:
    problems = []
    controllers = [node.hostname for node in nodes if node.role == "controller"]
    if not controllers:
        problems.append("at least one node must be the controller, given: none")
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
                    end_group(process)
                    return _TIMED_OUT
            for line in lines:
                on_line(line.rstrip("\n"))
    return process.returncode
