"""The hosts of a rehearsed cluster: in namespaces or, where those are not permitted, flat.

Steps of a rehearsal use either kind of cluster through this module.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from podwright.settings.root import Settings
from podwright_bootstrap import boot_report
from podwright_bootstrap.aws import instance_metadata
from podwright_bootstrap.boot_report import DEGRADED, SKIPPED
from podwright_bootstrap.contract import (
    BOOTSTRAP_JSON,
    NODE_JSON,
    SHARED_DIRECTORY,
    NodeRecord,
    ProvisioningParameters,
)
from podwright_bootstrap.steps import slurm, slurm_conf
from podwright_rehearsal import processes
from podwright_rehearsal.clusters import flat_environment
from podwright_rehearsal.clusters.boots import BootResult
from podwright_rehearsal.clusters.flat import FlatCluster
from podwright_rehearsal.clusters.namespaced import NamespacedCluster
from podwright_rehearsal.clusters.profile import Release
from podwright_rehearsal.clusters.rehearsed import RehearsedCluster
from podwright_rehearsal.clusters.releases import NEWEST
from podwright_rehearsal.clusters.stock_image import (
    STOCK,
    UPDATER,
    WAITS_FOR_APT,
    metadata_service,
    updates,
)
from podwright_rehearsal.hosts import cgroups
from podwright_rehearsal.hosts.debian_root import RELEASES, DebianRelease
from podwright_rehearsal.hosts.image import WHEELS
from podwright_rehearsal.hosts.slurm_packages import SlurmPackages
from podwright_rehearsal.hosts.waiting import wait_for
from podwright_rehearsal.run import left_out
from podwright_rehearsal.run.deployment import Deployment
from podwright_rehearsal.run.lifecycle_logs import LifecycleLogs
from podwright_rehearsal.run.progress import StepFailed
from podwright_rehearsal.run.supplies import CACHE, Supplies, emptied

# An instance's role and region, which its metadata would give.
HOST_VARIABLES = (
    "AWS_ENDPOINT_URL",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_REGION",
)
BOOT_TIMEOUT_S = 900
RESTORE_PAUSE_S = 5.0  # systemd refuses a unit that starts five times within ten seconds.
UPDATE_S = 20.0  # A host's boot is delayed so long: the scripts wait for it.


@dataclass
class Hosts(ABC):
    """The hosts of one deployed cluster, and their preparation for the first job."""

    directory: Path  # The rehearsal's folder.
    settings: Settings
    supplies: Supplies
    deployment: Deployment
    note: Callable[[str], None]
    profile: Release = NEWEST
    cluster: RehearsedCluster = field(init=False)
    environment: Path = field(init=False)  # The trainer's, on the hosts; set by the preparation.
    boot_seconds: dict[str, dict[str, float]] = field(
        init=False, default_factory=dict
    )  # Seconds by host and bootstrap step.

    # As the command line names this kind, and as the summary describes it.
    kind: ClassVar[str]
    description: ClassVar[str]
    # The Debian that hosts boot. None: hosts are plain processes.
    release: ClassVar[DebianRelease | None] = None
    # The rehearsal's folder: another one for each kind of hosts, so that both can be rehearsed at the same time.
    folder: ClassVar[Path]
    # The steps between the hosts' start and the first job; each returns its detail.
    preparation: ClassVar[Mapping[str, Callable[[Any], str]]]

    @abstractmethod
    def start(self) -> None:
        """Start a host for each node of the deployed cluster; raise ``HostError`` if one does not start."""

    def stop(self) -> None:
        """End everything. May be called twice."""
        self.cluster.stop()

    def operator_variables(self) -> dict[str, str]:
        """Return the variables that lead podwright's commands, Terraform and the AWS CLI to this cluster."""
        return self.deployment.aws.environment()

    @abstractmethod
    def delete_logs(self) -> None:
        """Delete the log group that AWS made for the cluster and keeps."""

    @property
    def limits(self) -> str:
        """The part of Slurm that these hosts cannot show, in a few words; empty if they show all of it."""
        return ""

    @staticmethod
    def omitted_parts(settings: Settings) -> list[str]:
        """Return the parts of the settings that the boots of these hosts leave out, a line for each."""
        del settings
        return []

    @property
    @abstractmethod
    def mount_path(self) -> Path:
        """The path of ``shared`` on the hosts."""

    @property
    def submit_flags(self) -> list[str]:
        """Options that ``podwright-train launch`` needs on these hosts."""
        return []

    @abstractmethod
    def lose(self, hostname: str) -> None:
        """Fail a host in the worst way these hosts permit."""

    @abstractmethod
    def auto_resume(self, job_id: int) -> None:
        """Replace faulty hosts and restart the job, as HyperPod does."""

    @property
    def shared(self) -> Path:
        """The folder that hosts see as their Lustre file system."""
        return self.directory / "fsx"

    def _shared_with_dataset(self) -> Path:
        shutil.copytree(self.supplies.dataset, emptied(self.directory / "fsx") / "data")
        return self.shared

    def _host_variables(self) -> dict[str, str]:
        environment = self.deployment.aws.environment()
        return {name: environment[name] for name in HOST_VARIABLES}


@dataclass
class NamespacedHosts(Hosts):
    """Hosts that boot systemd, with a disk, a network and users of their own, set up by the lifecycle scripts."""

    cluster: NamespacedCluster = field(init=False)
    lifecycle: Path = field(init=False)
    logs: LifecycleLogs = field(init=False)

    def start(self) -> None:
        """Start the hosts; no lifecycle script has run."""
        assert self.release is not None  # noqa: S101 -- each kind of hosts in namespaces has one
        endpoint, nodes = self.deployment.aws.endpoint_url, self.deployment.nodes()
        is_by_api = self.deployment.is_by_api
        self.cluster = NamespacedCluster(
            directory=emptied(self.directory / "cluster"),
            image=self.supplies.slurm,
            cluster_name=self.settings.name,
            cluster_arn=self.deployment.cluster_arn,
            subnet_cidr=self.deployment.subnet_cidr(),
            nodes=nodes,
            shared=self._shared_with_dataset(),
            relay=("127.0.0.1", int(endpoint.rpartition(":")[2])),
            environment=self._host_variables(),
            binds=[(self.supplies.wheelhouse, WHEELS)],
            image_lacks=STOCK,
            image_has={**metadata_service(), **updates(self.supplies.slurm, runtime_s=UPDATE_S)},
            profile=self.profile.profile(nodes, hosts_slurm=self.release.slurm, by_api=is_by_api),
            by_api=self.deployment.mounts() if is_by_api else None,
        )
        self.cluster.start()
        self.logs = LifecycleLogs(self.deployment.aws.client("logs"), self.deployment.log_group)

    @property
    def limits(self) -> str:
        """Say that jobs are not confined, and which controllers cgroup2 lacks here."""
        lacks = ", ".join(cgroups.missing())
        return "jobs are not confined" + (f"; cgroup2 has no {lacks} here" if lacks else "")

    @staticmethod
    def omitted_parts(settings: Settings) -> list[str]:
        """Return the features that hosts lack because they reach no network outside the cluster."""
        return left_out.parts(settings)

    def bootstrap(self) -> str:
        """Run the lifecycle scripts from the bucket on every host at once, as HyperPod does."""
        self.lifecycle = self.deployment.download_lifecycle(emptied(self.directory / "lifecycle"))
        parameters = self.lifecycle / self.deployment.parameters_name
        deployed = ProvisioningParameters.from_json(parameters.read_text())
        if (reduced := left_out.without(deployed)) != deployed:
            parameters.write_text(json.dumps(reduced.to_dict()))
        boots = self._boot()
        self.boot_seconds = {boot.hostname: self._step_seconds(boot.hostname) for boot in boots}
        record = NodeRecord.from_json(self.cluster.path(self.cluster.controller, NODE_JSON).read_text())
        self.environment = Path(record.environment or "")
        warned = warnings({boot.hostname: self._results(boot.hostname) for boot in boots})
        self._name_late_nodes()
        return "; ".join([f"{len(boots)} hosts, the slowest in {max(boot.seconds for boot in boots):.1f} s", *warned])

    def _name_late_nodes(self) -> None:
        """Name late nodes in slurm.conf, and run at once what the scripts' units would run within a minute."""
        late_nodes = self.cluster.profile.late_nodes
        if not late_nodes:
            return
        self.note(f"{', '.join(late_nodes)}: named in slurm.conf after the boot")
        self.cluster.name_nodes()
        restore = f"systemctl start {slurm_conf.WATCH}.service"
        wait_for(
            lambda: self.cluster.run(restore, user="root", check=False).returncode == 0,
            timeout_s=BOOT_TIMEOUT_S,
            description=lambda: f"{slurm_conf.WATCH} to restore slurm.conf on {self.cluster.controller}",
            pause_s=RESTORE_PAUSE_S,
        )
        for hostname in late_nodes:
            self._continue_boot(hostname)

    def _continue_boot(self, hostname: str) -> None:
        """Run the checks that wait for slurm.conf until they have passed."""
        unit = slurm.CONTINUATION
        timer = self.cluster.path(hostname, f"/etc/systemd/system/{unit}.timer")

        def has_passed() -> bool:
            self.cluster.run(f"systemctl start {unit}.service", host=hostname, user="root", check=False)
            return not timer.exists()

        wait_for(
            has_passed,
            timeout_s=BOOT_TIMEOUT_S,
            description=lambda: f"{hostname} to join Slurm",
            pause_s=RESTORE_PAUSE_S,
        )

    def bootstrap_again(self) -> str:
        """Run the lifecycle scripts again; fail if they change anything."""
        changed = [boot for boot in self._boot() if "0 changes" not in boot.log.read_text()]
        if changed:
            names = ", ".join(boot.hostname for boot in changed)
            raise StepFailed(f"the second run changed something on {names}", host=names, log=changed[0].log)
        return "0 changes"

    preparation = {"bootstrap": bootstrap, "bootstrap again": bootstrap_again}  # noqa: RUF012 -- read only

    @property
    def mount_path(self) -> Path:
        """The mount path of the Lustre file system."""
        return Path(self.settings.lustre.mount_path)

    def operator_variables(self) -> dict[str, str]:
        """Return also PATH, with a session-manager-plugin that enters the hosts."""
        return {**super().operator_variables(), "PATH": f"{self.cluster.session_plugin()}:{os.environ['PATH']}"}

    def delete_logs(self) -> None:
        """Delete the copies of the boots' output."""
        self.logs.delete()

    def lose(self, hostname: str) -> None:
        """Cut its power."""
        self.cluster.kill(hostname, how="power")

    def auto_resume(self, job_id: int) -> None:
        """Replace the instance; the lifecycle scripts run on the new one."""
        self.cluster.auto_resume(
            job_id,
            lifecycle=self.lifecycle,
            new_instance_id=lambda name: self.deployment.replace_instance(self.cluster.nodes[name].instance_id),
            on_line=self._on_line,
        )
        self.logs.flush()

    def _step_seconds(self, hostname: str) -> dict[str, float]:
        """Return seconds by boot step, without skipped steps."""
        return {it["step"]: it["seconds"] for it in self._results(hostname) if it["outcome"] != SKIPPED}

    def _results(self, hostname: str) -> list[dict[str, Any]]:
        return [asdict(result) for result in boot_report.parse(self.cluster.path(hostname, BOOTSTRAP_JSON).read_text())]

    def _on_line(self, hostname: str, line: str) -> None:
        """Show a line of a boot, and copy it to CloudWatch as HyperPod's agent does; end the update it waits for."""
        self.note(f"{hostname}: {line}")
        if WAITS_FOR_APT.search(line):
            self.cluster.run(f"systemctl stop {UPDATER}", host=hostname, user="root")
        node = self.cluster.nodes[hostname]
        self.logs.write(instance_group=node.instance_group, instance_id=node.instance_id, line=line)

    def _boot(self) -> list[BootResult]:
        results = self.cluster.boot(
            self.lifecycle,
            timeout_s=BOOT_TIMEOUT_S,
            on_line=self._on_line,
        )
        self.logs.flush()
        for result in results.values():
            if not result.ok:
                message = f"the lifecycle script ended with exit code {result.exit_code}"
                raise StepFailed(message, host=result.hostname, log=result.log)
        return list(results.values())


def warnings(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Return the warnings of the hosts' boots, each once with its hosts."""
    hosts: dict[str, list[str]] = {}
    for hostname, steps in results.items():
        for step in steps:
            if step["outcome"] == DEGRADED:
                hosts.setdefault(f"{step['step']}: {step['detail']}", []).append(hostname)
    return [f"warning on {', '.join(names)} at step {failure}" for failure, names in hosts.items()]


@dataclass
class Debian13Hosts(NamespacedHosts):
    """Hosts that boot Debian 13's systemd and run its Slurm, of HyperPod's generation."""

    kind: ClassVar[str] = "debian-13"
    description: ClassVar[str] = f"in namespaces, with {RELEASES['debian-13'].description}"
    release: ClassVar[DebianRelease | None] = RELEASES["debian-13"]
    folder: ClassVar[Path] = CACHE / "rehearsal"


@dataclass
class Debian12Hosts(NamespacedHosts):
    """Hosts that boot Debian 12's systemd and run its Slurm."""

    kind: ClassVar[str] = "debian-12"
    description: ClassVar[str] = f"in namespaces, with {RELEASES['debian-12'].description}"
    release: ClassVar[DebianRelease | None] = RELEASES["debian-12"]
    folder: ClassVar[Path] = CACHE / "rehearsal-debian-12"


@dataclass
class FlatHosts(Hosts):
    """Hosts that are plain processes of one user: Slurm and the trainer are real, a boot is not rehearsed."""

    kind: ClassVar[str] = "flat"
    description: ClassVar[str] = "flat"
    folder: ClassVar[Path] = CACHE / "rehearsal-flat"
    cluster: FlatCluster = field(init=False)

    def start(self) -> None:
        """Start the hosts with Slurm."""
        self._shared_with_dataset()
        self.cluster = FlatCluster(
            directory=emptied(self.directory / "cluster"),
            packages=SlurmPackages(self.supplies.slurm),
            cluster_name=self.settings.name,
            nodes=self.deployment.nodes(),
            environment={**self._host_variables(), instance_metadata.DISABLED: "true", **self._mark()},
        )
        self.cluster.start()

    def build_environment(self) -> str:
        """Build the training environment from the bucket's wheel and lock, by the bootstrap's code."""
        folder = self.deployment.download_lifecycle(emptied(self.directory / "lifecycle"))
        parameters, log = folder / self.deployment.parameters_name, self.directory / "logs" / "environment.log"
        self.environment = self.shared / SHARED_DIRECTORY / "environment"
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith("UV_")
        }  # uvx's user sets some
        code = processes.run_logged(
            [sys.executable, "-m", flat_environment.__name__, str(parameters), str(self.environment)],
            log=log,
            cwd=self.directory,
            environment={**inherited, **self.deployment.aws.environment(), **self._pip_options(), **self._mark()},
            on_line=self.note,
        )
        if code:
            raise StepFailed("the training environment could not be built", log=log)
        return "built; the lifecycle scripts are NOT rehearsed: they need hosts of their own, run as root"

    preparation = {"environment": build_environment}  # noqa: RUF012 -- read only

    @property
    def mount_path(self) -> Path:
        """The folder itself: hosts share this machine's file system."""
        return self.shared

    @property
    def submit_flags(self) -> list[str]:
        """HyperPod's option, if this srun has it: there is no node.json to read it from."""
        return ["--auto-resume"] if self.cluster.srun_takes_auto_resume else []

    def lose(self, hostname: str) -> None:
        """Kill its processes."""
        self.cluster.kill(hostname, how="processes")

    def delete_logs(self) -> None:
        """Do nothing: no lifecycle script has run."""

    def auto_resume(self, job_id: int) -> None:
        """Replace the instance in SageMaker and the slurmd in Slurm."""
        self.cluster.auto_resume(
            job_id, new_instance_id=lambda name: self.deployment.replace_instance(self.cluster.nodes[name].instance_id)
        )

    def _mark(self) -> dict[str, str]:
        return {processes.MARKER: str(self.directory)}

    def _pip_options(self) -> dict[str, str]:
        """As pip.conf of the hosts in namespaces says."""
        return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.supplies.wheelhouse), "PIP_CONFIG_FILE": os.devnull}


KINDS: Mapping[str, type[Hosts]] = {hosts.kind: hosts for hosts in (Debian13Hosts, Debian12Hosts, FlatHosts)}
