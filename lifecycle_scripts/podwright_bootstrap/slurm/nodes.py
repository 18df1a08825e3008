"""A node as slurmctld knows it: its state, and a hold on its jobs.

https://slurm.schedmd.com/scontrol.html#OPT_State=
"""

from __future__ import annotations

import re
import time
from typing import List, Sequence

from podwright_bootstrap.contract import BEING_SET_UP, NO_REASON, is_reason_of_slurm
from podwright_bootstrap.host import log, process
from podwright_bootstrap.host.errors import SlowCommandError
from podwright_bootstrap.slurm import slurm_conf
from podwright_bootstrap.slurm.slurm_conf import SCONTROL

ANSWERS_SINCE = (24, 11)  # scontrol of 22.05 waits without end for the configuration of a server.
CLOCK_STEP_S = 5  # The clock may be set after slurmd has started.
SILENT = {"UNKNOWN", "NOT_RESPONDING"}
# Somebody holds the node, or it lacks what slurm.conf says.
HELD = {"DRAIN", "FAIL", "INVALID_REG"}


def state(hostname: str) -> List[str]:
    """Return the node's state and flags, as in IDLE+DRAIN; empty if Slurm does not know the node."""
    return _state(_shown(hostname))


def responds(hostname: str) -> bool:
    """Return whether slurmctld has heard from the node since the node's boot.

    That the node is drained or down is somebody's decision.
    """
    shown = _shown(hostname)
    flags = _state(shown)
    slurmd_started = re.search(r"\bSlurmdStartTime=(\d+)(?=\s|$)", shown)
    is_of_last_boot = slurmd_started is not None and int(slurmd_started[1]) < booted_at() - CLOCK_STEP_S
    return bool(flags) and not is_of_last_boot and not SILENT & set(flags) and not flags[0].endswith("*")


def is_put_down(hostname: str) -> bool:
    """Return whether Slurm itself has put the node down, for a reboot or a silence, and nobody holds it."""
    shown = _shown(hostname)
    flags, match = _state(shown), re.search(r"\sReason=(.*?)(?= \[\S+@|$)", shown)
    reason = match[1] if match else ""
    return flags[:1] == ["DOWN"] and not (HELD | SILENT) & set(flags) and is_reason_of_slurm(reason)


def booted_at() -> float:
    """Return when this node has booted, as seconds since 1970."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def is_return_left_to_operators() -> bool:
    """Return whether slurm.conf says that only operators let jobs onto nodes that were down."""
    shown = process.run(SCONTROL, "show", "config", timeout_s=30, check=False, quiet=True).output
    return re.search(r"^ReturnToService\s*=\s*0\s*$", shown, re.MULTILINE) is not None


def is_named(hostname: str, controllers: Sequence[str]) -> bool:
    """Return whether slurm.conf names the node, also where no Slurm runs yet; true if no controller answers."""
    if slurm_conf.slurm_release() < ANSWERS_SINCE:
        return True
    servers = ",".join(controllers)
    command, variables = (SCONTROL, "show", "node", "-o", hostname), {"SLURM_CONF_SERVER": servers}
    try:
        shown = process.run(*command, timeout_s=30, check=False, quiet=True, variables=variables)
    except SlowCommandError as error:  # Where all are in standby, scontrol asks again after a minute.
        log.say(str(error))
        return True
    return not any(f"{hostname} not found" in line for line in shown.lines)


def drain(hostname: str, reason: str) -> None:
    """Let no further job start there."""
    _update(hostname, "State=DRAIN", f"Reason={reason}")


def release(hostname: str) -> bool:
    """Let jobs in again if it was drained until it is set up; return whether it was."""
    if f"Reason={BEING_SET_UP}" not in _shown(hostname):  # Slurm itself may have added to it
        return False
    _update(hostname, "State=RESUME", f"Reason={NO_REASON}")
    return True


def return_after_reboot(hostname: str) -> bool:
    """Let jobs in again if Slurm itself has put the node down; return whether it had."""
    if not is_put_down(hostname):
        return False
    _update(hostname, "State=RESUME", f"Reason={NO_REASON}")
    return True


def _update(hostname: str, *changes: str) -> None:
    process.run(SCONTROL, "update", f"NodeName={hostname}", *changes, timeout_s=30)


def _state(shown: str) -> List[str]:
    match = re.search(r"\bState=(\S+)", shown)
    return match[1].split("+") if match else []


def _shown(hostname: str) -> str:
    """Return slurmctld's line about the node, times as seconds since 1970."""
    command, variables = (SCONTROL, "show", "node", "-o", hostname), {"SLURM_TIME_FORMAT": "%s"}
    return process.run(*command, timeout_s=30, check=False, quiet=True, variables=variables).output
