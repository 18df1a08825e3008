"""The number of running jobs in CloudWatch, for the notice about an idle cluster."""

from __future__ import annotations

import shlex
import sys
from typing import Iterator

from podwright_bootstrap.contract import CONTROLLER, SLURM_ROOT
from podwright_bootstrap.host import units
from podwright_bootstrap.node import Node
from podwright_bootstrap.software import installed_copy
from podwright_bootstrap.steps import Step

UNIT = "podwright-running-jobs"
SERVICE = """[Unit]
Description=Publish the number of running jobs in CloudWatch
[Service]
Type=oneshot
Environment=PYTHONPATH={package} PATH={slurm}/bin:/usr/local/bin:/usr/bin:/bin
ExecStart={command}
"""
TIMER = """[Unit]
Description=Publish the number of running jobs in CloudWatch every five minutes
[Timer]
OnBootSec=5min
OnUnitActiveSec=5min
[Install]
WantedBy=timers.target
"""


class RunningJobsStep(Step):
    """A timer publishes the number of running jobs."""

    name = "running_jobs"
    audience = "controllers of clusters with an idle notice"
    hint = f"journalctl -u {UNIT} says more"
    time_limit_s = 300
    degraded_feature = "the notice about an idle cluster"

    def applies(self, node: Node) -> bool:
        """Run on controllers, with notices.idle_hours."""
        return node.role == CONTROLLER and node.parameters.publishes_running_jobs

    def apply(self, node: Node) -> Iterator[str]:
        """Write and start the timer."""
        yield from installed_copy.install()
        words = [sys.executable, "-m", "podwright_bootstrap.slurm.running_jobs"]
        command = " ".join(map(shlex.quote, (*words, node.parameters.cluster_name, node.parameters.region)))
        service = SERVICE.format(package=installed_copy.FOLDER, slurm=SLURM_ROOT, command=command)
        yield from units.run_by_timer(UNIT, service=service, timer=TIMER)

    def remove(self, node: Node) -> Iterator[str]:
        """Remove the timer."""
        yield from units.remove_timer(UNIT)

    def verify(self, node: Node) -> None:
        """The timer runs; CloudWatch's answers are in its service's journal."""
        units.require_active(f"{UNIT}.timer")
