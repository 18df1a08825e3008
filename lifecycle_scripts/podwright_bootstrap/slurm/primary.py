"""The primary controller, which starts each of Slurm's daemons before its backups do.

https://slurm.schedmd.com/quickstart_admin.html#HA
"""

from __future__ import annotations

from podwright_bootstrap.host import network, shell
from podwright_bootstrap.host.shell import BootstrapError
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
        what = f"{daemon} of {primary.hostname}"
        shell.wait_until(lambda: network.listens(primary.address, port), what=what, limit_s=LIMIT_S)
    except BootstrapError as error:
        shell.say(f"{error}; going on without it")
