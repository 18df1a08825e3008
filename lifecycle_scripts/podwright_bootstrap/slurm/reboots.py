"""The reboots after which this node has returned to service: a node that reboots again and again stays out.

A kernel that panics under load passes all checks while the node is idle. Without a limit, Slurm would give such a node
its next job, and lose that job, too.
"""

from __future__ import annotations

import json
import time
from typing import List

from podwright_bootstrap import contract
from podwright_bootstrap.host import files
from podwright_bootstrap.slurm import nodes

RECORD = contract.STATE_DIRECTORY / "reboots.json"  # the times of those boots, as seconds since 1970
# Operators, HyperPod's agent and AWS's maintenance may each reboot a node on one day; more reboots are a fault.
MAX_RETURNS, HOURS = 3, 24
HOUR_S = 3600
# It begins as the reasons do that leave remediation free to reboot or replace the node.
REASON = f"podwright: rebooted {MAX_RETURNS} times in {HOURS} h"


def is_limit_reached() -> bool:
    """Return whether the node has returned after as many earlier reboots as it may."""
    return len(_earlier()) >= MAX_RETURNS


def record() -> None:
    """Count the last reboot; once, although the node may also return after a silence."""
    files.write_file(RECORD, json.dumps([*_earlier(), int(nodes.booted_at())]) + "\n")


def forget() -> None:
    """Count from the start: whoever lets jobs onto the drained node wants it to return after its next reboots."""
    RECORD.unlink(missing_ok=True)


def _earlier() -> List[int]:
    """Return the times of the boots before the last one; a damaged record counts nothing."""
    try:
        times = [int(at) for at in json.loads(RECORD.read_text())]
    except (OSError, ValueError, TypeError, OverflowError, RecursionError):
        return []
    last_boot = nodes.booted_at() - nodes.CLOCK_STEP_S
    return [at for at in times if time.time() - HOURS * HOUR_S < at < last_boot]
