"""Act as HyperPod on a node whose Slurm the API describes, before any script runs: mounts, accounting, daemons.

https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-slurm-api-config.html
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from podwright_bootstrap.contract import PROVISIONING_PARAMETERS
from podwright_rehearsal.clusters.rehearsed import Node

ACCOUNTING_CONF = "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=localhost\n"
SLURMDBD_CONF = (
    "AuthType=auth/munge\nSlurmUser=slurm\nDbdHost=localhost\nLogFile=/var/log/slurm/slurmdbd.log\n"
    "PidFile=/run/slurmdbd.pid\nStorageType=accounting_storage/mysql\nStorageUser=slurm\n"
)
# The service's own file, whose content nobody else may rely on.
_PARAMETERS = f'echo \'{{"written_by": "the service"}}\' > {PROVISIONING_PARAMETERS}'
_DATABASE = (
    "CREATE DATABASE slurm_acct_db; CREATE USER slurm@localhost IDENTIFIED VIA unix_socket; "
    "GRANT ALL ON slurm_acct_db.* TO slurm@localhost;"
)
_CONTROLLER = """\
systemctl enable --quiet --now mariadb
mysql --execute "{database}"
systemctl enable --quiet --now slurmdbd
until timeout 1 bash -c "exec 3<>/dev/tcp/127.0.0.1/6819" 2> /dev/null; do sleep 0.2; done
sacctmgr --immediate --quiet add cluster {cluster} > /dev/null
systemctl enable --quiet --now slurmctld
"""
_CLIENT = """\
echo SLURMD_OPTIONS=--conf-server={controller} > /etc/default/slurmd
until timeout 1 bash -c "exec 3<>/dev/tcp/{controller}/6817" 2> /dev/null; do sleep 0.2; done
systemctl enable --quiet --now slurmd
"""


@dataclass(frozen=True, kw_only=True)
class MountedFileSystem:
    """A file system that an instance group's storage names."""

    kind: str  # A type of mount(8).
    source: str
    path: str

    def script(self) -> str:
        """Mount it now and at each start of the machine."""
        line = f"{self.source} {self.path} {self.kind} defaults,_netdev 0 0"
        return f"mkdir -p {self.path}\nmount -t {self.kind} {self.source} {self.path}\necho '{line}' >> /etc/fstab\n"


def script(node: Node, *, cluster: str, controller: str, file_systems: Sequence[MountedFileSystem]) -> str:
    """Return the commands that set a node up, as root.

    Args:
        node: where they run.
        cluster: its name.
        controller: the address of the controller.
        file_systems: that its instance group has.
    """
    mounts = "".join(file_system.script() for file_system in file_systems)
    if node.role == "controller":
        slurm = _CONTROLLER.format(database=_DATABASE, cluster=cluster)
    else:
        slurm = _CLIENT.format(controller=controller)
    return f"set -e\n{mounts}{_PARAMETERS}\n{slurm}"
