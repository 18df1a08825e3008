"""The files that a HyperPod node has before any lifecycle script runs."""

from __future__ import annotations

import json
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from podwright_bootstrap.contract import RESOURCE_CONFIG, SLURM_ROOT
from podwright_constructs.catalog import InstanceType
from podwright_rehearsal.clusters import topology
from podwright_rehearsal.clusters.profile import Profile
from podwright_rehearsal.clusters.rehearsed import Node
from podwright_rehearsal.clusters.set_up_by_api import ACCOUNTING_CONF, SLURMDBD_CONF
from podwright_rehearsal.clusters.slurm_conf import node_line, partition_lines
from podwright_rehearsal.hosts.description import File
from podwright_rehearsal.hosts.image import SOURCES

# slurmd loads a plugin in any case, and its autodetect fails on a host.
UNCONFINED = "CgroupPlugin=cgroup/v1\n"
AGENT_CONFIG = RESOURCE_CONFIG.with_name("cluster_agent.json")
CONFINED = f"{UNCONFINED}CgroupMountpoint=/opt/rehearsal/cgroup\nConstrainCores=yes\nConstrainRAMSpace=yes\n"


@dataclass(frozen=True, kw_only=True)
class NodeFiles:
    """The files that the service writes on the nodes of a cluster."""

    cluster_name: str
    cluster_arn: str
    nodes: Sequence[Node]
    environment: Mapping[str, str]
    nameserver: str
    munge_key: bytes
    profile: Profile
    by_api: bool = False  # whether the service sets Slurm up itself

    def of(self, node: Node) -> dict[str, File]:
        """Return the files of a node by path."""
        peers = "".join(f"{peer.private_ip} {peer.hostname}\n" for peer in self.nodes)
        files = {
            "/etc/hostname": File(f"{node.hostname}\n"),
            "/etc/hosts": File(f"127.0.0.1 localhost\n{peers}"),
            "/etc/resolv.conf": File(f"nameserver {self.nameserver}\n"),
            "/etc/environment": File("".join(f'{name}="{value}"\n' for name, value in self.environment.items())),
            "/etc/systemd/system.conf.d/rehearsal.conf": File(_manager(self.environment)),
            "/etc/munge/munge.key": File(self.munge_key, mode=0o400, owner="munge"),
            str(RESOURCE_CONFIG): File(self.resource_config()),
            "/opt/rehearsal/machine": File(_machine(node.instance_type)),
        }
        if node.role == "controller":  # the others are configless
            files |= {f"{SLURM_ROOT}/etc/{name}": File(text) for name, text in self.slurm_files().items()}
            if self.profile.agent_config:
                files[str(AGENT_CONFIG)] = File(self.profile.agent_config)
            if self.by_api:
                files[f"{SLURM_ROOT}/etc/slurmdbd.conf"] = File(SLURMDBD_CONF, mode=0o600, owner="slurm")
        for version in self.profile.slurm_versions[1:]:  # Installed and not in use, as on HyperPod's image.
            files[f"{SLURM_ROOT}-{version}/etc/plugstack.conf"] = File("")
        return files

    def resource_config(self) -> str:
        """Return resource_config.json; its layout is from AWS's "SageMaker HyperPod lifecycle scripts"."""
        groups: dict[str, list[Node]] = {}
        for node in self.nodes:
            groups.setdefault(node.instance_group, []).append(node)
        content = {
            "ClusterType": "Standard",
            "ClusterConfig": {"ClusterArn": self.cluster_arn, "ClusterName": self.cluster_name},
            "SlurmConfig": {
                "PrimaryControllerIp": self._controllers()[0].private_ip,
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
        return [node for node in self.nodes if node.role == "controller"]

    def slurm_files(self) -> dict[str, str]:
        """Return the files of /opt/slurm/etc by name."""
        template = string.Template((SOURCES / "slurm.conf.in").read_text())
        head = template.substitute(cluster_name=self.cluster_name)
        head = head.replace("TaskPlugin=task/none", f"TaskPlugin={self.profile.task_plugin}")
        if self.profile.confines:  # to the memory that a job was given, which Slurm then has to count
            head = head.replace("=CR_CPU\n", "=CR_CPU_Memory\nDefMemPerCPU=1000\n")
            head = head.replace("=proctrack/linuxproc\n", "=proctrack/cgroup\n")
        hosts = [f"SlurmctldHost={node.hostname}({node.private_ip})" for node in self._controllers()]
        roles = {"compute", "login"} if self.profile.lists_login_nodes else {"compute"}
        named_nodes = [node for node in self.nodes if node.hostname not in self.profile.late_nodes]
        members = [node for node in named_nodes if node.role in roles]
        workers = [node for node in members if node.role == "compute" or not self.by_api]
        topology_file = self.profile.generated_topology
        return {
            "slurm.conf": head
            + "".join(
                f"{line}\n"
                for line in (
                    *self.profile.settings,
                    *([topology.PLUGIN] if topology_file == "topology.conf" else []),
                    *hosts,
                    *map(node_line, members),
                    *partition_lines(workers),
                )
            ),
            **(topology.files(topology_file, members) if topology_file else {}),
            **self.profile.topology,
            "gres.conf": "".join(
                f"NodeName={node.hostname} Name=gpu File=/dev/nvidia{index}\n"
                for node in members
                for index in range(node.accelerators)  # a gpu without File= is dropped silently
            ),
            "cgroup.conf": CONFINED if self.profile.confines else UNCONFINED,
            "accounting.conf": ACCOUNTING_CONF if self.by_api else "",
        }


def _manager(environment: Mapping[str, str]) -> str:
    """Return systemd's configuration; services get this environment, as an instance's role would give it."""
    variables = " ".join('"' + f"{name}={value}".replace("%", "%%") + '"' for name, value in environment.items())
    return f"[Manager]\nDefaultEnvironment={variables}\n"


def _machine(instance_type: str) -> str:
    """Return the hardware that the shims report on a host of this type."""
    kind = InstanceType.of(instance_type)
    return f"efa_interfaces={kind.efa_interfaces}\nnvlink={'yes' if kind.nvlink else 'no'}\n"
