"""Check that the node has what its instance type promises. A check changes nothing; a finding is one line.

``CHECKS`` are those that ``Health`` names. They are also what the prolog of a job asks before the job starts.
"""

from __future__ import annotations

from typing import Callable, Dict, Iterator, List

from podwright_bootstrap.checks import accelerators, host
from podwright_bootstrap.contract import InstanceFacts
from podwright_bootstrap.host.shell import CommandError

Check = Callable[[InstanceFacts], Iterator[str]]

CHECKS: Dict[str, Check] = {
    "efa": host.efa,
    "gpu_memory": accelerators.gpu_memory,
    "gpu_persistence": accelerators.gpu_persistence,
    "nvlink": accelerators.nvlink,
    "clock": host.clock,
    "limits": host.limits,
    "huge_pages": host.huge_pages,
    "shared_memory": host.shared_memory,
}


def findings(check: Check, facts: InstanceFacts) -> List[str]:
    """Return a check's findings; a program that fails, hangs or is missing is a finding too."""
    try:
        return list(check(facts))
    except (CommandError, OSError) as error:
        return [str(error)]
