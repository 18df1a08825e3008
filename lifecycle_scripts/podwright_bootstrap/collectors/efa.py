"""EFA interfaces, as the kernel counts.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-working-monitor.html
"""

from __future__ import annotations

from pathlib import Path
from typing import Dict, List

from podwright_bootstrap.collectors.family import Family

DEVICES = Path("/sys/class/infiniband")
NO_COUNTERS = {"lifespan"}  # how often the driver reads the hardware


def collect() -> List[Family]:
    """Each of the driver's counters, whatever this version of it counts: rx_bytes, rdma_read_bytes and so on."""
    families: Dict[str, Family] = {}
    for counter in sorted(DEVICES.glob("*/ports/*/hw_counters/*")):
        if counter.name in NO_COUNTERS:
            continue
        name = f"podwright_efa_{counter.name}_total"
        family = families.setdefault(name, Family(name, f"The driver's counter {counter.name}"))
        *_, device, _, port, _, _ = counter.parts
        family.add(float(counter.read_text()), device=device, port=port)
    return list(families.values())
