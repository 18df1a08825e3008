"""The timer that removes training environments that were replaced."""

from __future__ import annotations

import sys
from typing import Iterator

from podwright_bootstrap.contract import CONTROLLER, SLURM_ROOT
from podwright_bootstrap.host import units
from podwright_bootstrap.node import Node
from podwright_bootstrap.software import installed_copy, old_environments
from podwright_bootstrap.steps import Step

UNIT = "podwright-old-environments"
SERVICE = f"""[Unit]
Description=Remove training environments that were replaced and that no job uses
[Service]
Type=oneshot
Environment=PYTHONPATH={installed_copy.FOLDER} PATH={SLURM_ROOT}/bin:/usr/local/bin:/usr/bin:/bin
ExecStart={sys.executable} -m {old_environments.__name__}
"""
TIMER = """[Unit]
Description=Remove training environments that were replaced, once a day
[Timer]
OnBootSec=1h
OnUnitActiveSec=1d
[Install]
WantedBy=timers.target
"""


class OldEnvironmentsStep(Step):
    """Training environments that were replaced a week ago, and that no job uses, are removed every day."""

    name = "old_environments"
    audience = "controllers of clusters that train"
    hint = f"journalctl -u {UNIT} says more"
    time_limit_s = 300
    degraded_feature = "the space of training environments that were replaced"

    def applies(self, node: Node) -> bool:
        """Run on controllers, which ask Slurm for all jobs."""
        return node.role == CONTROLLER and node.environment is not None

    def apply(self, node: Node) -> Iterator[str]:
        """Install the timer."""
        yield from installed_copy.install()
        yield from units.run_by_timer(UNIT, service=SERVICE, timer=TIMER)

    def remove(self, node: Node) -> Iterator[str]:
        """Remove the timer."""
        yield from units.remove_timer(UNIT)

    def verify(self, node: Node) -> None:
        """Check that the timer is on."""
        units.require_active(f"{UNIT}.timer")
