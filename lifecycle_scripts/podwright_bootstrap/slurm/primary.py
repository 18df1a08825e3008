"""The primary controller, which starts each of Slurm's daemons first, and the one in control while it is gone.

A backup controller starts each daemon after the primary has: a slurmctld in standby refuses nodes that ask for their
configuration.

https://slurm.schedmd.com/quickstart_admin.html#HA
"""

from __future__ import annotations

import re

from podwright_bootstrap.host import log, network, process, waits
from podwright_bootstrap.host.errors import BootstrapError
from podwright_bootstrap.node import Node
from podwright_bootstrap.slurm import slurm_conf

LIMIT_S = 300  # controllers of a new cluster boot at the same time


def let_begin(node: Node, daemon: str, port: int) -> None:
    """On a backup controller, wait until the primary's daemon listens; go on without a primary that is gone."""
    if len(node.controllers) < 2:  # noqa: PLR2004 (one controller has no backup)
        return
    primary = slurm_conf.controllers()[0]
    if primary.address == node.address:
        return
    try:
        event = f"{daemon} of {primary.hostname}"
        waits.wait_until(lambda: network.listens(primary.address, port), event=event, limit_s=LIMIT_S)
    except BootstrapError as error:
        log.say(f"{error}; going on without it")


def in_control() -> str:
    """Return the host whose slurmctld acts: the first that answers, for the primary takes over again when it is back.

    Raises:
        BootstrapError: none answers.
    """
    answers = process.run("scontrol", "ping", timeout_s=60, check=False, quiet=True).output
    up = re.search(r"(?m)^Slurmctld\(\S+\) at (\S+) is UP", answers)
    if not up:
        raise BootstrapError(f"no slurmctld answers: {answers.strip()}", hint="podwright doctor shows the reason")
    return up[1]
