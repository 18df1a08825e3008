"""NeuronCores, as AWS's monitor reports them.

https://awsdocs-neuron.readthedocs-hosted.com/en/latest/tools/neuron-sys-tools/neuron-monitor-user-guide.html
"""

from __future__ import annotations

import json
import os
import select
import subprocess
from typing import Any, List

from podwright_bootstrap.collectors.family import COMMAND_LIMIT_S, Family

MONITOR = ("neuron-monitor", "/opt/aws/neuron/bin/neuron-monitor")


def collect() -> List[Family]:
    """Utilisation of each core and device memory, over all programs that run on them."""
    utilization = Family("podwright_neuroncore_utilization_ratio", "Share of the last seconds in which the core ran")
    memory = Family("podwright_neuron_device_memory_used_bytes", "Device memory in use, of each program")
    for program in json.loads(_first_report()).get("neuron_runtime_data") or []:
        report = program.get("report") or {}
        for core, counters in _at(report, "neuroncore_counters", "neuroncores_in_use").items():
            utilization.add(counters["neuroncore_utilization"] / 100, core=core, pid=str(program.get("pid")))
        used = _at(report, "memory_used", "neuron_runtime_used_bytes")
        if "neuron_device" in used:
            memory.add(used["neuron_device"], pid=str(program.get("pid")))
    return [utilization, memory]


def _at(content: Any, *keys: str) -> Any:
    for key in keys:
        content = content.get(key) or {}
    return content


def _first_report() -> str:
    """neuron-monitor prints a line every five seconds and never ends by itself."""
    program = next((path for path in MONITOR if os.access(path, os.X_OK)), MONITOR[0])
    with subprocess.Popen([program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            if process.stdout and select.select([process.stdout], [], [], COMMAND_LIMIT_S)[0]:
                return process.stdout.readline()
            raise subprocess.TimeoutExpired(program, COMMAND_LIMIT_S)
        finally:
            process.kill()
