"""Run sackd, which gives Slurm's configuration to a host outside Slurm's nodes, so that its users can submit jobs.

Login nodes that slurm.conf does not name are such hosts.

https://slurm.schedmd.com/sackd.html
"""

from __future__ import annotations

from typing import Iterator, Sequence

from podwright_bootstrap import contract
from podwright_bootstrap.host import files, units
from podwright_bootstrap.host.errors import BootstrapError

PROGRAM = contract.SLURM_ROOT / "sbin" / "sackd"
UNIT = "podwright-sackd.service"
TEXT = """[Unit]
Description=Slurm's configuration for its commands on this login node
Wants=network-online.target
After=network-online.target munge.service

[Service]
Type=notify
User=slurm
RuntimeDirectory=slurm
ExecStart={program} --systemd --conf-server {controllers}
ExecReload=/bin/kill -HUP $MAINPID
Restart=on-failure
RestartSec=5

[Install]
WantedBy=multi-user.target
"""


def is_used() -> bool:
    """Return whether this host has its configuration from sackd."""
    return units.exists(UNIT)


def keep_on(controllers: Sequence[str]) -> Iterator[str]:
    """Run sackd in slurmd's place.

    Raises:
        BootstrapError: this Slurm is older than 24.05, the first with sackd.
    """
    if not PROGRAM.exists():
        raise BootstrapError(
            f"slurmctld does not know this login node, and this image has no {PROGRAM.name}",
            hint="use an image with Slurm 24.05 or later, or add a NodeName= for this host to slurm.conf",
        )
    yield from units.keep_off("slurmd")
    text = TEXT.format(program=PROGRAM, controllers=",".join(controllers))
    changed = files.write_file(units.FOLDER / UNIT, text)
    if changed:
        yield f"wrote {UNIT}"
    yield from units.keep_on(UNIT, restart=changed)
