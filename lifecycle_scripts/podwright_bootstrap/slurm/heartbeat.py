"""The heartbeat of the slurmctld in control: a file in Slurm's state, without which no other controller takes over.

slurmctld writes ``heartbeat.new``, unlinks ``heartbeat`` and links the new one in its place. A controller that loses
power between the two leaves no ``heartbeat``, and its backup waits for one for ever: "Not taking control. Primary
slurmctld is unresponsive, but heartbeat file could not be read."
https://github.com/SchedMD/slurm/blob/slurm-24-11-5-1/src/slurmctld/heartbeat.c
"""

from __future__ import annotations

from typing import Iterator

from podwright_bootstrap.host import units
from podwright_bootstrap.slurm import slurm_conf

UNIT = "podwright-heartbeat"
# ln(1) replaces nothing: while the controller in control lives, it makes the link that this one would make next.
SERVICE = """[Unit]
Description=Link the heartbeat of a slurmctld that was lost while it wrote it
[Service]
Type=oneshot
WorkingDirectory=-{state}
ExecStart=-/bin/sh -c '[ -e heartbeat ] || [ ! -e heartbeat.new ] || ln heartbeat.new heartbeat'
"""
TIMER = """[Unit]
Description=Look for the heartbeat of slurmctld every half minute
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
    yield from units.run_by_timer(UNIT, service=SERVICE.format(state=state), timer=TIMER)


def remove() -> Iterator[str]:
    """Remove the timer."""
    yield from units.remove_timer(UNIT)
