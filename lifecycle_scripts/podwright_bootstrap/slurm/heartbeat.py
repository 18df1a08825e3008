"""The heartbeat of the slurmctld in control: a file in Slurm's state, without which no other controller takes over.

Before Slurm 25.11, slurmctld writes ``heartbeat.new``, unlinks ``heartbeat`` and links the new file in its place. A
controller that loses power between the two leaves no ``heartbeat``, and its backup waits for one without end: "Not
taking control. Primary slurmctld is unresponsive, but heartbeat file could not be read."
https://github.com/SchedMD/slurm/blob/slurm-24-11-5-1/src/slurmctld/heartbeat.c
"""

from __future__ import annotations

from typing import Iterator

from podwright_bootstrap.host import units
from podwright_bootstrap.slurm import slurm_conf

UNIT = "podwright-heartbeat"
# mv -n replaces no heartbeat. A slurmctld that lives is about to do the same, and goes on if the file has moved.
# Not ln: rename(2) in Slurm 25.11 does nothing with two names of one file, so later heartbeats would empty both.
SERVICE = """[Unit]
Description=Restore the heartbeat file of a slurmctld that lost power
[Service]
Type=oneshot
TimeoutStartSec=60
WorkingDirectory=-{state}
ExecStart=-/bin/sh -c '[ -e heartbeat ] || [ ! -e heartbeat.new ] || mv -nT heartbeat.new heartbeat'
"""
TIMER = """[Unit]
Description=Restore the heartbeat file of a slurmctld that lost power, every 30 seconds
[Timer]
OnBootSec=30s
OnUnitActiveSec=30s
AccuracySec=1s
[Install]
WantedBy=timers.target
"""


def keep() -> Iterator[str]:
    """Write and start the timer."""
    state = slurm_conf.value("StateSaveLocation", "/var/spool/slurmctld")
    yield from units.run_by_timer(UNIT, service=SERVICE.format(state=state.replace("%", "%%")), timer=TIMER)


def remove() -> Iterator[str]:
    """Remove the timer."""
    yield from units.remove_timer(UNIT)
