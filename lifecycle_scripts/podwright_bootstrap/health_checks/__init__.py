"""Health checks: compare the node's hardware with its instance type. Read-only; a finding is one line.

``nodes.health`` in cluster.yaml has a key for each of ``CHECKS``. The prolog of a job runs the quick ones.
"""

from __future__ import annotations

from typing import Callable, Dict, Iterator, List

from podwright_bootstrap.contract import InstanceFacts
from podwright_bootstrap.health_checks import accelerators, host
from podwright_bootstrap.host.errors import CommandError

Check = Callable[[InstanceFacts], Iterator[str]]

CHECKS: Dict[str, Check] = {
    "efa": host.efa,
    "gpu_memory": accelerators.gpu_memory,
    "gpu_persistence": accelerators.gpu_persistence,
    "neuron_memory": accelerators.neuron_memory,
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
