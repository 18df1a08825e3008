"""Neuron devices and the programs on them, as AWS's monitor reports them.

https://awsdocs-neuron.readthedocs-hosted.com/en/latest/tools/neuron-sys-tools/neuron-monitor-user-guide.html
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from typing import Any, Dict, List

from podwright_bootstrap.collectors.family import COMMAND_LIMIT_S, Family

PERCENTILES = ("p50", "p99", "p100")
UNSTARTED = ("timed_out", "incorrect_input", "failed_to_queue")
MONITOR = ("neuron-monitor", "/opt/aws/neuron/bin/neuron-monitor")


def collect() -> List[Family]:
    """Utilisation of each core, memory, errors and latency of each program, and ECC events of each device."""
    content = json.loads(_first_report())
    utilization = Family("podwright_neuroncore_utilization_ratio", "Share of the last seconds in which the core ran")
    memory = Family("podwright_neuron_device_memory_used_bytes", "Device memory in use, of each program")
    errors = Family("podwright_neuron_execution_errors", "Executions of the last seconds that failed, by kind")
    latency = Family("podwright_neuron_execution_latency_seconds", "Quantiles of executions of the last seconds")
    for program in content.get("neuron_runtime_data") or []:
        report, pid = program.get("report") or {}, str(program.get("pid"))
        for core, counters in _at(report, "neuroncore_counters", "neuroncores_in_use").items():
            utilization.add(counters["neuroncore_utilization"] / 100, core=core, pid=pid)
        used = _at(report, "memory_used", "neuron_runtime_used_bytes")
        if "neuron_device" in used:
            memory.add(used["neuron_device"], pid=pid)
        failed = {**_at(report, "execution_stats", "error_summary"), **_unstarted(report)}
        for kind, count in failed.items():
            errors.add(count, kind=kind, pid=pid)
        for scope in ("device", "total"):
            percentiles = _at(report, "execution_stats", "latency_stats", f"{scope}_latency")
            for name in PERCENTILES:
                if name in percentiles:
                    latency.add(percentiles[name], quantile=f"{int(name[1:]) / 100:g}", where=scope, pid=pid)
    return [utilization, memory, errors, latency, _ecc(content)]


def _unstarted(report: Any) -> Dict[str, float]:
    """Executions that are in no error's count: they did not run, or not to their end."""
    outcomes = _at(report, "execution_stats", "execution_summary")
    return {kind: outcomes[kind] for kind in UNSTARTED if kind in outcomes}


def _ecc(content: Any) -> Family:
    events = Family("podwright_neuron_ecc_events", "Memory errors that neuron-monitor counts, of each device")
    for device in _at(content, "system_data", "neuron_hw_counters", "neuron_devices") or []:
        for memory, word in (("dram", "mem"), ("sram", "sram")):
            for kind in ("corrected", "uncorrected"):
                if f"{word}_ecc_{kind}" in device:
                    number = str(device["neuron_device_index"])
                    events.add(device[f"{word}_ecc_{kind}"], device=number, memory=memory, kind=kind)
    return events


def _at(content: Any, *keys: str) -> Any:
    for key in keys:
        content = content.get(key) or {}
    return content


def _first_report() -> str:
    """neuron-monitor prints a line every five seconds and never ends by itself."""
    program = next((path for path in MONITOR if os.access(path, os.X_OK)), MONITOR[0])
    with subprocess.Popen([program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        alarm = threading.Timer(COMMAND_LIMIT_S, process.kill)  # it may hang in the middle of a line too
        alarm.start()
        try:
            line = process.stdout.readline() if process.stdout else ""
        finally:
            alarm.cancel()
            process.kill()
    if not line.endswith("\n"):
        raise subprocess.TimeoutExpired(program, COMMAND_LIMIT_S)
    return line
