"""The timers of remediation: compute nodes report their findings, the controller acts."""

from __future__ import annotations

import sys
from typing import Iterator

from podwright_bootstrap.contract import COMPUTE, CONTROLLER, SLURM_ROOT
from podwright_bootstrap.host import units
from podwright_bootstrap.node import Node
from podwright_bootstrap.remediation import act, report
from podwright_bootstrap.software import installed_copy
from podwright_bootstrap.steps import Step

UNIT = "podwright-remediation"
MODULES = {COMPUTE: report.__name__, CONTROLLER: act.__name__}
SERVICE = """[Unit]
Description=Remediation of sick nodes
[Service]
Type=oneshot
Environment=PYTHONPATH={package} PATH={slurm}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ExecStart={python} -m {module}
"""
TIMER = """[Unit]
Description=Remediation of sick nodes every {minutes} minutes
[Timer]
OnBootSec={minutes}min
OnUnitActiveSec={minutes}min
RandomizedDelaySec=30s
[Install]
WantedBy=timers.target
"""


class RemediationStep(Step):
    """Compute nodes report faults, and the controller lets HyperPod reboot or replace some."""

    name = "remediation"
    audience = "controllers and compute nodes of clusters with nodes.remediation"
    hint = f"journalctl -u {UNIT} says more"
    time_limit_s = 300
    degraded_feature = "reports of faults that need a reboot or another instance"

    def applies(self, node: Node) -> bool:
        """Run with nodes.remediation."""
        return node.parameters.nodes.remediation is not None and node.role in MODULES

    def apply(self, node: Node) -> Iterator[str]:
        """Install the role's timer."""
        settings = node.parameters.nodes.remediation
        if settings is None:
            return
        yield from installed_copy.install()
        module = MODULES[node.role]
        service = SERVICE.format(package=installed_copy.FOLDER, slurm=SLURM_ROOT, python=sys.executable, module=module)
        yield from units.run_by_timer(UNIT, service=service, timer=TIMER.format(minutes=settings.interval_minutes))

    def remove(self, node: Node) -> Iterator[str]:
        """Remove the timer."""
        yield from units.remove_timer(UNIT)

    def verify(self, node: Node) -> None:
        """Check that the timer is on."""
        units.require_active(f"{UNIT}.timer")
