"""Let HyperPod reboot or replace sick nodes, on the primary controller."""

from __future__ import annotations

import json
import socket
import sys
import time
from dataclasses import asdict
from typing import List

from podwright_bootstrap import contract
from podwright_bootstrap.contract import ContractError, ProvisioningParameters
from podwright_bootstrap.features import build
from podwright_bootstrap.host import shell
from podwright_bootstrap.host.shell import BootstrapError
from podwright_bootstrap.remediation import decision
from podwright_bootstrap.remediation.decision import DRAIN, OURS, REBOOT, REPLACE, Act
from podwright_bootstrap.slurm import slurm_conf

DONE = contract.STATE_DIRECTORY / "remediation.json"
REASONS = {REBOOT: "Action:Reboot", REPLACE: "Action:Replace"}  # HyperPod compares all of it


def main() -> int:
    """Act once; 1 if Slurm does not answer."""
    try:
        wanted = ProvisioningParameters.from_json(contract.PROVISIONING_PARAMETERS.read_text()).nodes.remediation
        if wanted is None or slurm_conf.controllers()[0].hostname != socket.gethostname().split(".")[0]:
            return 0
        shown = shell.run("scontrol", "show", "nodes", "--oneliner", timeout_s=60, quiet=True).output
        nodes, done, now = decision.parse_nodes(shown), _done(), int(time.time())
        acts = decision.decide(nodes, done, wanted, now)
        for act in acts:
            done.append(act)
            shell.write_file(DONE, json.dumps([asdict(item) for item in done[-1000:]]))  # first: limits hold if we die
            _apply(act)
        waiting = [node.name for node in nodes if node.report and node.name not in {act.node for act in acts}]
        if waiting:
            shell.say(f"not acted on now: {', '.join(waiting)}")
    except (BootstrapError, ContractError, OSError) as error:
        shell.say(f"no remediation: {error}")
        return 1
    return 0


def _apply(act: Act) -> None:
    shell.say(f"{act.action} {act.node}: {', '.join(act.checks)}")
    state = "DRAIN" if act.action == DRAIN else "FAIL"
    reason = REASONS.get(act.action) or f"{OURS} {', '.join(act.checks)}"
    shell.run("scontrol", "update", f"NodeName={act.node}", f"State={state}", f"Reason={reason}", timeout_s=30)


def _done() -> List[Act]:
    try:
        return [build(Act, item) for item in json.loads(DONE.read_text())]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError) as error:
        raise BootstrapError(f"{DONE} is not what podwright wrote: {error}", hint=f"remove {DONE}") from error


if __name__ == "__main__":
    sys.exit(main())
