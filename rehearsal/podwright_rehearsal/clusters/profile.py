"""The files that HyperPod writes on nodes and when: they differ by image, by release and by instance type."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from podwright_rehearsal.clusters import topology
from podwright_rehearsal.clusters.rehearsed import Node
from podwright_rehearsal.clusters.topology import TopologyFile

CONFINING = "task/cgroup"
# As public listings of HyperPod's slurm.conf have them: quotes, and comments after values.
# https://github.com/awslabs/awsome-distributed-ai/pull/452
SETTINGS = (
    'RebootProgram="/usr/bin/systemctl reboot"',
    "MaxNodeCount=32768  # dynamic nodes may register",
    "TreeWidth=65533",
)


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A behaviour of the service.

    Args:
        task_plugin: as slurm.conf names it; task/cgroup, where ``cgroups.version_1()``, confines jobs to their cores
            and memory.
        lists_login_nodes: whether the service puts login nodes into slurm.conf.
        rewrites_slurm_conf: whether the service writes slurm.conf anew when it replaces an instance.
        late_nodes: hostnames that slurm.conf names only minutes after their scripts have run, as those of a new group.
            https://github.com/aws-samples/sample-physical-ai-scaffolding-kit/blob/main/physai/docs/en/INFRA.md
        settings: further lines of slurm.conf, as the service writes them.
        topology: files beside slurm.conf by name: topology.conf, topology.yaml.
        generated_topology: the file that the service generates from the nodes, beside ``topology``.
        agent_config: the content of cluster_agent.json, which only controllers have; empty: there is none.
        slurm_versions: /opt/slurm is a link to the folder of the first version, and the others lie beside it. Empty:
            /opt/slurm is a folder.
    """

    task_plugin: str = "task/none"
    lists_login_nodes: bool = True
    rewrites_slurm_conf: bool = True
    late_nodes: Collection[str] = ()
    settings: Sequence[str] = SETTINGS
    topology: Mapping[str, str] = field(default_factory=dict)
    generated_topology: TopologyFile | None = None
    agent_config: str = ""
    slurm_versions: Sequence[str] = ()

    @property
    def confines(self) -> bool:
        """Return whether jobs are confined to their cores and memory."""
        return CONFINING in self.task_plugin.split(",")


@dataclass(frozen=True, kw_only=True)
class Release:
    """HyperPod as of a month: its image, and what its agent writes.

    Args:
        name: the month, a value of ``--profile``.
        slurm: the version that the image runs.
        settings: further lines of slurm.conf.
        staged_slurm: versions that the image has beside the one that runs. Empty: /opt/slurm is no link.
        topology: the file that the agent generates; None: no topology.
        agent_config: the content of cluster_agent.json; empty: there is no such file.
        names_nodes_late: whether nodes may boot before slurm.conf names them.
        external_accounting: whether the service connects slurmdbd to a database outside the cluster.
        sources: a public page for each field that differs from the release before, by its name.
    """

    name: str
    slurm: str
    settings: Sequence[str]
    staged_slurm: Sequence[str] = ()
    topology: TopologyFile | None = None
    agent_config: Mapping[str, Any] = field(default_factory=dict)
    names_nodes_late: bool = False
    external_accounting: bool = False
    sources: Mapping[str, str]

    def missing_slurm(self, hosts_slurm: str) -> str:
        """Return a line that names the Slurm of hosts, if it is not the release's; else an empty text."""
        if generation(self.slurm) == generation(hosts_slurm):
            return ""
        return f"Slurm {self.slurm} of profile {self.name} is not available here; hosts run {hosts_slurm}"

    def profile(self, nodes: Sequence[Node], *, hosts_slurm: str, by_api: bool) -> Profile:
        """Return what the service of this release writes for these nodes, in files that the hosts' Slurm reads.

        Args:
            nodes: of the cluster.
            hosts_slurm: the version on the hosts.
            by_api: whether the service sets Slurm up. Its own slurmd then starts when slurm.conf names the node.
        """
        versions = dict.fromkeys(map(generation, [hosts_slurm, self.slurm, *self.staged_slurm]))
        return Profile(
            settings=self.settings,
            late_nodes=late_nodes(nodes) if self.names_nodes_late and not by_api else (),
            generated_topology=topology.readable(self.topology, hosts_slurm) if self.topology else None,
            agent_config=json.dumps(self.agent_config, indent=2) + "\n" if self.agent_config else "",
            slurm_versions=tuple(versions) if self.staged_slurm else (),
        )


def generation(slurm: str) -> str:
    """Return the first two numbers of a version of Slurm: 25.11 of 25.11.8."""
    return ".".join(slurm.split(".")[:2])


def late_nodes(nodes: Sequence[Node]) -> Collection[str]:
    """Return the last node of the largest compute group; none if all have one node, or its partition would be empty."""
    sizes = Counter(node.instance_group for node in nodes if node.role == "compute")
    group, size = next(iter(sizes.most_common(1)), ("", 0))
    return {[node.hostname for node in nodes if node.instance_group == group][-1]} if size > 1 else ()
