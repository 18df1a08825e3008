"""The checks of a node that is up, and the remedy of each finding: a reboot, or another instance."""

from __future__ import annotations

import re
from typing import Dict, Iterator, List, Tuple

from podwright_bootstrap.contract import InstanceFacts, NodeRecord
from podwright_bootstrap.health_checks import Check, accelerators, findings, host
from podwright_bootstrap.host import kernel_messages, log, process
from podwright_bootstrap.host.errors import CommandError
from podwright_bootstrap.host.waits import PATIENCE
from podwright_bootstrap.remediation.decision import REBOOT, REPLACE, SEVERITY

SHARED_LIMIT_S = 60
DIAGNOSIS_LIMIT_S = 300
# Errors of the GPU or its driver that end with a reset or a new GPU; those of programs, such as 13 and 31, are not
# here. https://docs.nvidia.com/deploy/xid-errors/index.html
XIDS = {
    48: REBOOT,  # double-bit ECC error
    64: REPLACE,  # a row could not be remapped
    74: REBOOT,  # NVLink
    79: REBOOT,  # the GPU has fallen off the bus
    95: REBOOT,  # uncontained memory error
    119: REBOOT,  # the GPU's system processor does not answer
    120: REBOOT,
    140: REBOOT,  # unrecovered ECC error
}
# The beginning of a message. No address fits into a program's name, with which others begin.
XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]{7,})\): (\d+)")


def gpu_rows(facts: InstanceFacts) -> Iterator[str]:
    """A GPU could not replace a row of its memory: no reset cures it. A driver that does not answer may need one."""
    try:
        yield from (text for text in accelerators.gpu_memory(facts) if "could not replace" in text)
    except CommandError as error:  # gpu_memory reports this.
        log.say(f"gpu_rows: {error}")


def xids() -> Iterator[Tuple[str, int]]:
    """Give the bus and the number of each error that the driver has reported since the last reboot."""
    for message in kernel_messages.messages():
        error = XID.match(message)
        if error:
            yield error[1], int(error[2])


def _xids(action: str) -> Check:
    def check(facts: InstanceFacts) -> Iterator[str]:
        if facts.accelerator != "gpu":
            return
        for bus, number in sorted(set(xids())):
            if XIDS.get(number) == action:
                yield f"the driver reported Xid {number} of the GPU at {bus}"

    return check


# By name, as in a report. The driver writes what it found since the last reboot, so a cured fault is not found again.
CHECKS: Dict[str, Tuple[str, Check]] = {
    "accelerators": (REBOOT, accelerators.count),
    "neuron_memory": (REBOOT, accelerators.neuron_memory),
    "gpu_memory": (REBOOT, accelerators.gpu_memory),
    "gpu_rows": (REPLACE, gpu_rows),
    "xid": (REBOOT, _xids(REBOOT)),
    "xid_memory": (REPLACE, _xids(REPLACE)),
    "nvlink": (REBOOT, accelerators.nvlink),
    "efa": (REBOOT, host.efa),
}


def findings_by_check(facts: InstanceFacts, record: NodeRecord) -> Dict[str, List[str]]:
    """Return the findings by the names of their checks; empty for a node that is sound."""
    by_check = {name: findings(check, facts) for name, (_, check) in CHECKS.items()}
    by_check["file_system"] = list(_file_system(record))
    if facts.accelerator == "gpu" and not any(by_check.values()):
        by_check["diagnosis"] = list(_diagnosis(record))
    return {name: texts for name, texts in by_check.items() if texts}


def action(names: List[str]) -> str:
    """Return the remedy that the gravest of the named checks needs."""
    return max((CHECKS[name][0] if name in CHECKS else REBOOT for name in names), key=SEVERITY.index)


def _file_system(record: NodeRecord) -> Iterator[str]:
    if record.shared_root:
        command = ("stat", "--file-system", record.shared_root)
        try:
            process.run(*command, timeout_s=SHARED_LIMIT_S, quiet=True)
        except CommandError as error:
            yield str(error)


def _diagnosis(record: NodeRecord) -> Iterator[str]:
    """Run DCGM's quick diagnosis on a node without jobs, if the image has it; one that never ends is a finding.

    https://docs.nvidia.com/datacenter/dcgm/latest/user-guide/dcgm-diagnostics.html
    """
    if not process.finds("dcgmi") or _has_jobs(record):
        return
    command, limit_s = ("dcgmi", "diag", "-r", "1"), DIAGNOSIS_LIMIT_S * PATIENCE
    try:
        outcome = process.run(*command, timeout_s=limit_s, check=False, quiet=True)
    except CommandError as error:
        yield str(error)
        return
    failed = [line.strip(" |") for line in outcome.lines if re.search(r"\|\s*fail\b", line, re.IGNORECASE)]
    if failed:
        yield f"dcgmi diag: {'; '.join(failed)}"


def _has_jobs(record: NodeRecord) -> bool:
    command = ("squeue", "--noheader", f"--nodelist={record.hostname}", "--states=running,completing", "--format=%i")
    try:
        return bool(process.run(*command, timeout_s=30, quiet=True).output.strip())
    except CommandError as error:  # Slurm does not say: nothing that would disturb a job
        log.say(f"no diagnosis: {error}")
        return True
