"""Our part of slurm.conf on controllers, put back when HyperPod's agent has rewritten the file.

The agent writes slurm.conf anew when the cluster is scaled or a node is replaced:
https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-run-jobs-slurm-lifecycle.html

A systemd path unit notices changes, but only those that its own host makes. Controllers of one cluster share the file,
so a timer also looks every ten minutes.
"""

from __future__ import annotations

import sys
from typing import Iterator

from podwright_bootstrap.contract import CONTROLLER
from podwright_bootstrap.host import units
from podwright_bootstrap.host.errors import BootstrapError
from podwright_bootstrap.node import Node
from podwright_bootstrap.slurm import own_part, slurm_conf, slurmctld, topology
from podwright_bootstrap.slurm.slurm_conf import SLURM_CONF
from podwright_bootstrap.software import installed_copy
from podwright_bootstrap.steps import Step

WATCH = "podwright-slurm-conf"
SERVICE = f"""[Unit]
Description=Our part of slurm.conf, after the service rewrote it
[Service]
Type=oneshot
Environment=PYTHONPATH={installed_copy.FOLDER}
ExecStart={sys.executable} -m podwright_bootstrap --only slurm_conf
"""
PATH = f"""[Unit]
Description=Look at slurm.conf, and the topology beside it, when it is written
[Path]
PathChanged={SLURM_CONF}
[Install]
WantedBy=multi-user.target
"""
# Of several controllers, which share the file, systemd notices only its own host's writes.
TIMER = """[Unit]
Description=Look at slurm.conf every ten minutes
[Timer]
OnBootSec=10min
OnUnitActiveSec=10min
[Install]
WantedBy=timers.target
"""


class SlurmConfStep(Step):
    """Slurm has our settings beside the service's, also after the service has rewritten slurm.conf."""

    name = "slurm_conf"
    audience = "controllers"
    hint = f"look at {SLURM_CONF} and {own_part.OWN_PART}; journalctl -u {WATCH} shows restored lines"
    time_limit_s = 900

    def applies(self, node: Node) -> bool:
        """All other nodes get their configuration from controllers."""
        return node.role == CONTROLLER

    def apply(self, node: Node) -> Iterator[str]:
        """Write the differences, let slurmctld apply them, and watch the file."""
        slurm_conf.wait()
        changes = [*topology.complete(is_running=slurmctld.is_active()), *own_part.write(node.parameters)]
        yield from changes
        if changes and slurmctld.is_active():
            slurmctld.reconfigure()
            yield "reconfigured slurmctld"
            if slurmctld.is_outdated():
                yield from slurmctld.restart()
        yield from _watch()

    def verify(self, node: Node) -> None:
        """Check that the file includes our parts."""
        missing = own_part.not_included(node.parameters)
        if missing:
            raise BootstrapError(f"{SLURM_CONF} does not include {', '.join(file.name for file in missing)}")


def _watch() -> Iterator[str]:
    yield from installed_copy.install()
    yield from units.run_by_timer(WATCH, service=SERVICE, timer=TIMER, path=PATH)
