"""Errors of GPUs in the kernel's log, which the collectors' service may read (CAP_SYSLOG).

https://docs.nvidia.com/deploy/xid-errors/index.html
"""

from __future__ import annotations

from collections import Counter
from typing import List

from podwright_bootstrap.collectors.family import Family
from podwright_bootstrap.remediation import checks


def collect() -> List[Family]:
    """Count each Xid of each GPU in the kernel's log, which begins when the node starts."""
    family = Family("podwright_gpu_xid_errors_total", "Errors of the GPU's driver in the kernel's log")
    for (bus, number), count in sorted(Counter(checks.xids()).items()):
        family.add(count, bus=bus, xid=str(number))
    return [family]
