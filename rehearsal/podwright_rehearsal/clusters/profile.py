"""What HyperPod writes on the nodes of a cluster and when: it changes by image, by release and by instance type."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

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
    """How the service behaves.

    Args:
        task_plugin: as slurm.conf names it; task/cgroup, where ``cgroups.version_1()``, confines jobs to their cores
            and memory.
        lists_login_nodes: whether the service puts login nodes into slurm.conf.
        rewrites_slurm_conf: whether the service writes slurm.conf anew when it replaces an instance.
        late_nodes: hostnames that slurm.conf names only minutes after their scripts have run, as those of a new group.
            https://github.com/aws-samples/sample-physical-ai-scaffolding-kit/blob/main/physai/docs/en/INFRA.md
        settings: further lines of slurm.conf, as the service writes them.
        topology: files beside slurm.conf by name: topology.conf, topology.yaml.
    """

    task_plugin: str = "task/none"
    lists_login_nodes: bool = True
    rewrites_slurm_conf: bool = True
    late_nodes: Collection[str] = ()
    settings: Sequence[str] = SETTINGS
    topology: Mapping[str, str] = field(default_factory=dict)

    @property
    def confines(self) -> bool:
        """Return whether jobs are confined to their cores and memory."""
        return CONFINING in self.task_plugin.split(",")
