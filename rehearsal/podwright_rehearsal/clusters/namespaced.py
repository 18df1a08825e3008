"""A HyperPod Slurm cluster of real Slurm daemons on hosts in namespaces of one Linux machine.

A host has its own name, address, disk and processes, and before any script runs the files a HyperPod node has. What
starts Slurm is the lifecycle script, as on HyperPod.

With ``by_api`` the cluster sets Slurm up before scripts run, as HyperPod does from the API. A replacement writes
slurm.conf again, as HyperPod's agent does.
"""

from __future__ import annotations

import ipaddress
import json
import secrets
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import final

from podwright_bootstrap.contract import RESOURCE_CONFIG, RESOURCE_CONFIG_VARIABLE, SLURM_ROOT
from podwright_rehearsal.clusters import set_up_by_api
from podwright_rehearsal.clusters.boots import BootResult, follow
from podwright_rehearsal.clusters.node_files import NodeFiles
from podwright_rehearsal.clusters.profile import Profile
from podwright_rehearsal.clusters.rehearsed import REPLACED, Failure, Node, RehearsedCluster, Resumption
from podwright_rehearsal.clusters.set_up_by_api import MountedFileSystem
from podwright_rehearsal.hosts import session_manager_plugin
from podwright_rehearsal.hosts.description import File, HostDescription
from podwright_rehearsal.hosts.fabric import Fabric
from podwright_rehearsal.hosts.host_errors import HostError

_SSH_PORT = 22
_CONNECT_S, _CONNECTS = 2, 2  # the kernel accepts: a host that is on takes no time
_GREETING_S = 10  # sshd forks first, on a busy machine
_SLURMCTLD_PORT = 6817
_PATH = f"{SLURM_ROOT}/bin:{SLURM_ROOT}/sbin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@final
class NamespacedCluster(RehearsedCluster):
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
        image_lacks: patterns of paths that the hosts' image lacks, such as those of ``stock_image``.
        image_has: further files of the hosts' image, by path.
        profile: what the service writes on the nodes, and when.
        by_api: the file systems that the service mounts where it sets Slurm up itself, before a node's first boot.
            Default: the lifecycle scripts set Slurm up.

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
        image_lacks: Sequence[str] = (),
        image_has: Mapping[str, File] | None = None,
        profile: Profile | None = None,
        by_api: Sequence[MountedFileSystem] | None = None,
    ) -> None:
        _check(nodes, subnet_cidr, relay)
        super().__init__(nodes)
        self.directory = directory.resolve()
        self.cluster_name = cluster_name
        self.cluster_arn = cluster_arn
        self.environment = {"PATH": _PATH, **(environment or {})}
        if relay:
            machine_address, gateway_address = (
                f"//127.0.0.1:{relay[1]}",
                f"//{ipaddress.ip_network(subnet_cidr)[1]}:{relay[1]}",
            )
            self.environment = {
                name: value.replace(machine_address, gateway_address) for name, value in self.environment.items()
            }
        self._image_lacks = tuple(image_lacks)
        self._image_has = image_has or {}
        self.profile = profile or Profile()
        self._by_api = by_api
        self._is_set_up: set[str] = set()  # instances, by the service
        self._munge_key = secrets.token_bytes(128)
        self._boots: Counter[str] = Counter()
        # A child that another thread forks while a script is copied has it open: "text file busy" for who starts it.
        self._no_program_starts = threading.Lock()
        self.fabric = Fabric(
            directory=self.directory,
            image=image,
            subnet_cidr=subnet_cidr,
            shared=shared,
            relay_port=relay[1] if relay else None,
            binds=binds,
        )

    # ---- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the hosts with sshd, munge and, on the controller, slurm.conf; no Slurm daemon runs yet.

        Raises:
            HostError: a host did not come up; all others are stopped.
        """
        self.fabric.start([self._describe(node) for node in self.nodes.values()])
        self._publish_instances()

    def stop(self) -> None:
        """End everything. May be called twice."""
        self.fabric.stop()

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
            raise HostError(f"{hostname} did not boot: no {entry} in {lifecycle}")
        self._set_up(hostname)
        folder = Path(f"/tmp/lifecycle-{secrets.token_hex(4)}")  # noqa: S108 -- of the host, and the service takes /tmp too
        inside = self.path(hostname, folder)
        with self._no_program_starts:
            shutil.copytree(lifecycle, inside, copy_function=shutil.copyfile)  # a download from S3 has no mode bits
        (inside / entry).chmod(0o755)
        self._boots[hostname] += 1
        log = self.directory / f"{hostname}-boot-{self._boots[hostname]}.log"
        environment = {**self.environment, "HOME": "/root", RESOURCE_CONFIG_VARIABLE: str(RESOURCE_CONFIG)}
        began = time.monotonic()
        with log.open("wb") as output, self._no_program_starts:
            process = subprocess.Popen(
                self.fabric.enter(hostname, "/usr/bin/env", f"--chdir={folder}", f"./{entry}"),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        exit_code = follow(process, log, timeout_s, lambda line: on_line(hostname, line) if on_line else None)
        return BootResult(hostname=hostname, exit_code=exit_code, log=log, seconds=time.monotonic() - began)

    def _set_up(self, hostname: str) -> None:
        """Act as the service before a new instance's scripts run, if it sets Slurm up itself."""
        node = self.nodes[hostname]
        if self._by_api is None or node.instance_id in self._is_set_up:
            return
        controller = self.nodes[self.controller].private_ip
        script = set_up_by_api.script(node, cluster=self.cluster_name, controller=controller, file_systems=self._by_api)
        self.run(script, host=hostname, user="root")
        self._is_set_up.add(node.instance_id)

    # ---- use ------------------------------------------------------------------------------------------------------

    def path(self, hostname: str, path: str | Path) -> Path:
        """Return the path of a host's file on this machine. Links resolve as this machine resolves them."""
        return self.fabric.path(hostname, path)

    def shim_calls(self, hostname: str) -> list[str]:
        """Return the calls of the shims on a host (`mount.lustre …`, `lctl …`, `modprobe …`), in order."""
        return self.fabric.shim_calls(hostname)

    def session_plugin(self) -> Path:
        """Return a folder with a ``session-manager-plugin`` that opens sessions on these hosts; put it on PATH."""
        folder = self.directory / "bin"
        folder.mkdir(exist_ok=True)
        program = folder / "session-manager-plugin"
        command = [sys.executable, "-I", "-S", session_manager_plugin.__file__, str(self.directory)]
        program.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        program.chmod(0o755)
        return folder

    def _publish_instances(self) -> None:
        """Write which process is which instance's, for the plugin."""
        pids = {
            node.instance_id: self.fabric.init(name) for name, node in self.nodes.items() if self.fabric.is_up.get(name)
        }
        partial_file = self.directory / f".{session_manager_plugin.INSTANCES}"
        partial_file.write_text(json.dumps(pids))
        partial_file.replace(self.directory / session_manager_plugin.INSTANCES)

    # ---- faults ---------------------------------------------------------------------------------------------------

    def kill(self, hostname: str, *, how: Failure = "power") -> None:
        """Fail a host.

        power: the host is gone, connections to it time out. processes: all of them are killed, but the kernel lives
        and resets connections. network: the host lives without a network. heartbeat: the host hangs; its kernel
        accepts connections and no process answers.
        """
        failures: dict[Failure, Callable[[str], None]] = {
            "power": self.fabric.power_off,
            "processes": self.fabric.end_processes,
            "network": partial(self.fabric.plug, into=False),
            "heartbeat": self.fabric.freeze,
        }
        failures[how](hostname)

    def reboot(self, hostname: str) -> None:
        """Reboot a host: the same instance and disk. No lifecycle script runs, as on HyperPod.

        Raises:
            HostError: the host did not come up.
        """
        node = self.nodes[hostname]
        self.fabric.reboot(HostDescription(hostname, node.private_ip, node.accelerators))
        self._publish_instances()

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
        """Replace a host's instance: same name and address, empty disk; the lifecycle scripts run on it.

        Before they do, every host's resource_config.json has the new instance, and the controller another slurm.conf.
        """
        slurmd_started = self._slurmd_started(hostname)
        self._mark_down(hostname, REPLACED)
        if self.fabric.is_up[hostname]:
            self.fabric.power_off(hostname)
        self._name_instance(hostname, instance_id)
        self.fabric.start_hosts([self._describe(self.nodes[hostname])])
        self._publish_instances()
        for name, is_up in self.fabric.is_up.items():
            if is_up:
                self.path(name, RESOURCE_CONFIG).write_text(self._files().resource_config())
        if self.profile.rewrites_slurm_conf and hostname != self.controller and self.fabric.is_up[self.controller]:
            self.rewrite_slurm_conf()
        result = self.boot_one(hostname, lifecycle, entry=entry, timeout_s=timeout_s, on_line=on_line)
        if result.ok:
            self._lift_mark(hostname, slurmd_started_before=slurmd_started)
        return result

    def rewrite_slurm_conf(self) -> None:
        """Act as HyperPod's agent after a scaling or replacement: write slurm.conf anew, without other lines."""
        self._write_slurm_file("slurm.conf")

    def name_nodes(self) -> None:
        """Act as HyperPod's agent minutes after the boot of late nodes: name them, and let slurmctld read the files."""
        late_nodes = self.profile.late_nodes
        self.profile = replace(self.profile, late_nodes=())
        for name, text in self._files().slurm_files().items():
            if name != "slurm.conf" and any(hostname in text for hostname in late_nodes):
                self._write_slurm_file(name)
        self.rewrite_slurm_conf()
        # It may time out on a busy machine, where the scripts notice the file and reconfigure slurmctld, too.
        self.run("scontrol reconfigure", user="root", check=False)

    def _write_slurm_file(self, name: str) -> None:
        written = Path("/opt/rehearsal") / name
        self.path(self.controller, written).write_text(self._files().slurm_files()[name])
        conf = f"$(readlink --canonicalize {SLURM_ROOT / 'etc' / name})"  # Several controllers share it by a link.
        self.run(f"conf={conf} && cp {written} $conf.agent && mv $conf.agent $conf", user="root")

    def auto_resume(
        self,
        job_id: int,
        *,
        lifecycle: Path,
        new_instance_id: Callable[[str], str],
        timeout_s: float = 600,
        on_line: Callable[[str, str], None] | None = None,
    ) -> Resumption:
        """Act as HyperPod's agent for `srun --auto-resume=1`: replace faulty nodes, until the job runs again.

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

        def reboot_host(hostname: str) -> None:
            slurmd_started = self._slurmd_started(hostname)
            self.reboot(hostname)
            self._lift_mark(hostname, slurmd_started_before=slurmd_started)

        return self._resume(job_id, replace_host=replace_host, reboot_host=reboot_host, timeout_s=timeout_s)

    def _login(self, hostname: str, user: str, line: str) -> tuple[Sequence[str], Mapping[str, str]]:
        command = self.fabric.enter(hostname, "/usr/bin/su", "--login", user, "--command", line)
        return command, {"PATH": _PATH, "LC_ALL": "C.UTF-8"}

    def _is_healthy(self, hostname: str) -> bool:
        """Connect, then wait for sshd's greeting: the kernel of a host that hangs accepts connections too."""
        if not any(self._answers(hostname, _SSH_PORT) for _ in range(_CONNECTS)):
            return False
        return self._answers(hostname, _SSH_PORT, "read -r line <&3 && [[ $line == SSH-* ]]", limit_s=_GREETING_S)

    def _controller_answers(self) -> bool:
        return self.fabric.is_up[self.controller] and self._answers(self.controller, _SLURMCTLD_PORT)

    def _answers(self, hostname: str, port: int, then: str = "true", *, limit_s: int = _CONNECT_S) -> bool:
        """Return whether the controller can connect to a port of a host, and ``then`` succeeds, in time."""
        connect = f"exec 3<>/dev/tcp/{self.nodes[hostname].private_ip}/{port}"
        probe = f"timeout {limit_s} bash -c '{connect} && {then}'"
        return self.run(probe, user="root", check=False).returncode == 0

    def _describe(self, node: Node) -> HostDescription:
        files = {**self._image_has, **self._files().of(node)}
        versions = self.profile.slurm_versions
        moved = {str(SLURM_ROOT): f"{SLURM_ROOT.name}-{versions[0]}"} if versions else {}
        return HostDescription(node.hostname, node.private_ip, node.accelerators, files, self._image_lacks, moved)

    def _files(self) -> NodeFiles:
        return NodeFiles(
            cluster_name=self.cluster_name,
            cluster_arn=self.cluster_arn,
            nodes=list(self.nodes.values()),
            environment=self.environment,
            nameserver=self.fabric.gateway,
            munge_key=self._munge_key,
            profile=self.profile,
            by_api=self._by_api is not None,
        )


def _check(nodes: Sequence[Node], subnet_cidr: str, relay: tuple[str, int] | None) -> None:
    problems = []
    controllers = [node.hostname for node in nodes if node.role == "controller"]
    if not controllers:
        problems.append("got 0 controllers, need at least 1")
    for attribute in ("hostname", "private_ip", "instance_id"):
        values = [getattr(node, attribute) for node in nodes]
        problems += [
            f"two nodes have the {attribute} {value}" for value in sorted(set(values)) if values.count(value) > 1
        ]
    subnet = ipaddress.ip_network(subnet_cidr)
    strangers = [node.private_ip for node in nodes if ipaddress.ip_address(node.private_ip) not in subnet]
    problems += [f"{address} is not in the subnet {subnet}" for address in strangers]
    problems += [
        f"compute node {node.hostname} has no partition"
        for node in nodes
        if node.role == "compute" and not node.partition
    ]
    if relay and relay[0] != "127.0.0.1":
        problems.append(f"relay: got {relay[0]}, need 127.0.0.1")
    if problems:
        raise ValueError("invalid cluster: " + "; ".join(problems))
