"""Slurm's logs, which its daemons let grow for ever."""

from __future__ import annotations

from pathlib import Path
from typing import Iterator

from podwright_bootstrap.host import files, process
from podwright_bootstrap.node import Node
from podwright_bootstrap.steps import Step

LOGROTATE_CONF = Path("/etc/logrotate.d/slurm")
# https://slurm.schedmd.com/slurm.conf.html#SECTION_LOGGING
ROTATION = """/var/log/slurm/*.log {
  weekly
  maxsize 100M
  rotate 5
  compress
  delaycompress
  missingok
  notifempty
  nocopytruncate
  create 640 slurm root
  su root root
  sharedscripts
  postrotate
    for daemon in slurmctld slurmd slurmdbd; do
      pkill --exact --signal SIGUSR2 "$daemon" || true
    done
  endscript
}
"""


class SlurmLogsStep(Step):
    """Logs of Slurm's daemons are rotated before they fill the root volume."""

    name = "slurm_logs"
    hint = f"`logrotate --debug {LOGROTATE_CONF}` shows the problem"
    time_limit_s = 120
    degraded_feature = "rotated logs of Slurm: watch the root volume"

    def apply(self, node: Node) -> Iterator[str]:
        """Configure logrotate, which its own timer runs every day."""
        if files.write_file(LOGROTATE_CONF, ROTATION):
            yield f"wrote {LOGROTATE_CONF}"

    def verify(self, node: Node) -> None:
        """Check that logrotate accepts the file."""
        process.run("logrotate", "--debug", LOGROTATE_CONF, timeout_s=60, quiet=True)
