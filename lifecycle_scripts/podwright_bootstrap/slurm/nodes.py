"""A node as slurmctld knows it: its state, and a hold on its jobs.

https://slurm.schedmd.com/scontrol.html#OPT_State=
"""

from __future__ import annotations

import re
from typing import List, Sequence, Tuple

from podwright_bootstrap.host import log, process
from podwright_bootstrap.host.errors import SlowCommandError
from podwright_bootstrap.slurm.slurm_conf import SCONTROL

ANSWERS_SINCE, NEWEST = (24, 11), (99,)  # scontrol of 22.05 waits without end for the configuration of a server.
BEING_SET_UP = "podwright: being set up"


def state(hostname: str) -> List[str]:
    """Return the node's state and flags, as in IDLE+DRAIN; empty if Slurm does not know the node."""
    match = re.search(r"\bState=(\S+)", _shown(hostname))
    return match[1].split("+") if match else []


def is_named(hostname: str, controllers: Sequence[str]) -> bool:
    """Return whether slurm.conf names the node, also where no Slurm runs yet; true if no controller answers."""
    if _version() < ANSWERS_SINCE:
        return True
    servers = ",".join(controllers)
    command, variables = (SCONTROL, "show", "node", "-o", hostname), {"SLURM_CONF_SERVER": servers}
    try:
        shown = process.run(*command, timeout_s=30, check=False, quiet=True, variables=variables)
    except SlowCommandError as error:  # Where all are in standby, scontrol asks again after a minute.
        log.say(str(error))
        return True
    return not any(f"{hostname} not found" in line for line in shown.lines)


def _version() -> Tuple[int, ...]:
    """Return Slurm's release, as (24, 11); the newest if scontrol does not say it."""
    shown = process.run(SCONTROL, "--version", timeout_s=30, check=False, quiet=True).output
    match = re.search(r"slurm (\d+)\.(\d+)", shown)
    return tuple(map(int, match.groups())) if match else NEWEST


def drain(hostname: str, reason: str) -> None:
    """Let no further job start there."""
    _update(hostname, "State=DRAIN", f"Reason={reason}")


def release(hostname: str) -> bool:
    """Let jobs in again if it was drained until it is set up; return whether it was."""
    if f"Reason={BEING_SET_UP}" not in _shown(hostname):  # Slurm itself may have added to it
        return False
    _update(hostname, "State=RESUME")
    return True


def _update(hostname: str, *changes: str) -> None:
    process.run(SCONTROL, "update", f"NodeName={hostname}", *changes, timeout_s=30)


def _shown(hostname: str) -> str:
    return process.run(SCONTROL, "show", "node", "-o", hostname, timeout_s=30, check=False, quiet=True).output
