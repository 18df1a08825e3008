"""Let HyperPod reboot or replace sick nodes, on the controller whose slurmctld is in control."""

from __future__ import annotations

import json
import socket
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import List

from podwright_bootstrap import contract
from podwright_bootstrap.contract import ContractError
from podwright_bootstrap.features import build
from podwright_bootstrap.host import shell
from podwright_bootstrap.host.shell import BootstrapError
from podwright_bootstrap.remediation import decision
from podwright_bootstrap.remediation.decision import DRAIN, OURS, REBOOT, REPLACE, Act, Claim, NodeState
from podwright_bootstrap.slurm import primary, slurm_conf

DONE = "podwright-remediation.json"  # in the folder of Slurm's state, which controllers share: limits are the cluster's
REASONS = {REBOOT: "Action:Reboot", REPLACE: "Action:Replace"}  # HyperPod compares all of it


def main() -> int:
    """Act once; 1 if Slurm does not answer."""
    try:
        wanted = contract.parameters_of_this_node().nodes.remediation
        if wanted is None or primary.in_control() != socket.gethostname().split(".")[0]:
            return 0
        shown = shell.run("scontrol", "show", "nodes", "--oneliner", timeout_s=60, quiet=True).output
        nodes, done, now = decision.parse_nodes(shown), _done(), int(time.time())
        if wanted.jobs:
            nodes = _with_claims(nodes)
        acts = decision.decide(nodes, done, wanted, now)
        for act in acts:
            done.append(act)
            _remember(done)  # first: limits hold if we die
            _apply(act)
        waiting = [node.name for node in nodes if node.report and node.name not in {act.node for act in acts}]
        if waiting:
            shell.say(f"not acted on now: {', '.join(waiting)}")
    except (BootstrapError, ContractError, OSError) as error:
        shell.say(f"no remediation: {error}")
        return 1
    return 0


def _with_claims(nodes: List[NodeState]) -> List[NodeState]:
    """Add the reports of running jobs. A comment may contain newlines: each claim is read again, from its job alone."""
    jobs = decision.parse_jobs(_squeue("%i|%U|%N"))
    claims = []
    for line in _squeue("%i|%k").splitlines():
        job, _, comment = line.partition("|")
        if job in jobs and Claim.from_text(job, comment):
            claims.append(Claim.from_text(job, _squeue("%k", f"--jobs={job}").rstrip("\n")))
    return decision.claimed(nodes, [claim for claim in claims if claim], jobs)


def _squeue(columns: str, *options: str) -> str:
    command = ("squeue", "--noheader", "--states=RUNNING", f"--format={columns}", *options)
    return shell.run(*command, timeout_s=60, quiet=True).output


def _apply(act: Act) -> None:
    shell.say(f"{act.action} {act.node}: {', '.join(act.checks)}")
    state = "DRAIN" if act.action == DRAIN else "FAIL"
    reason = REASONS.get(act.action) or f"{OURS} {', '.join(act.checks)}"
    shell.run("scontrol", "update", f"NodeName={act.node}", f"State={state}", f"Reason={reason}", timeout_s=30)


def _path() -> Path:
    return Path(slurm_conf.value("StateSaveLocation", "/var/spool/slurmctld")) / DONE


def _remember(done: List[Act]) -> None:
    shell.write_file(_path(), json.dumps([asdict(act) for act in done[-1000:]]))


def _done() -> List[Act]:
    try:
        return [build(Act, item) for item in json.loads(_path().read_text())]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, RecursionError) as error:
        raise BootstrapError(f"{_path()} is damaged: {error}", hint=f"remove {_path()}") from error


if __name__ == "__main__":
    sys.exit(main())
