"""Check this node, and report problems that are found twice in a row, as the node's comment in Slurm."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import List

from podwright_bootstrap import contract
from podwright_bootstrap.contract import ContractError, NodeRecord
from podwright_bootstrap.host import files, log, process
from podwright_bootstrap.host.errors import CommandError
from podwright_bootstrap.remediation import checks
from podwright_bootstrap.remediation.decision import Report

STATE = Path("/run/podwright-remediation.json")  # the checks that failed the last time, gone after a reboot


def main() -> int:
    """Report once; 1 if Slurm or the node's own files do not answer."""
    try:
        parameters = contract.parameters_of_this_node()
        record = contract.record_of_this_node()
        if parameters.nodes.remediation is None:
            return 0
        findings = checks.findings_by_check(parameters.facts_of(record.instance_group), record)
        for name, texts in findings.items():
            log.say(f"{name}: {'; '.join(texts)}")
        before = _before()
        confirmed = [name for name in findings if name in before]
        if confirmed:
            _comment(record, Report(checks.action(confirmed), int(time.time()), tuple(confirmed)).to_text())
        elif before and not findings:
            _comment(record, "")
        files.write_file(STATE, json.dumps(list(findings)))
    except (CommandError, ContractError, OSError) as error:
        log.say(f"no report: {error}")
        return 1
    return 0


def _before() -> List[str]:
    try:
        names = json.loads(STATE.read_text())
    except (OSError, ValueError, RecursionError):
        return []
    return names if isinstance(names, list) else []


def _comment(record: NodeRecord, text: str) -> None:
    process.run("scontrol", "update", f"NodeName={record.hostname}", f"Comment={text}", timeout_s=30)


if __name__ == "__main__":
    sys.exit(main())
