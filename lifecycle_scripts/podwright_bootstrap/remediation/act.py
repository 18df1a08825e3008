"""Let HyperPod reboot or replace sick nodes, on the controller whose slurmctld is in control.

Actions are recorded in the folder of Slurm's state, which controllers share, so that the limits outlive a failover.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Dict, List

from podwright_bootstrap import contract
from podwright_bootstrap.contract import ContractError
from podwright_bootstrap.features import Remediation, build
from podwright_bootstrap.host import files, log, process
from podwright_bootstrap.host.errors import BootstrapError
from podwright_bootstrap.remediation import decision
from podwright_bootstrap.remediation.decision import DRAIN, OURS, REBOOT, REPLACE, Act, Claim, NodeState
from podwright_bootstrap.slurm import listing, primary, slurm_conf
from podwright_bootstrap.slurm.listing import ListingError

DONE = "podwright-remediation.json"  # in the folder of Slurm's state, which controllers share: limits are the cluster's
REASONS = {REBOOT: "Action:Reboot", REPLACE: "Action:Replace"}  # HyperPod compares all of it


def main() -> int:
    """Act once; 1 if Slurm does not answer."""
    try:
        limits = contract.parameters_of_this_node().nodes.remediation
        if limits is None or primary.in_control() != socket.gethostname().split(".")[0]:
            return 0
        shown = process.run("scontrol", "show", "nodes", "--oneliner", timeout_s=60, quiet=True).output
        nodes, done, now = decision.parse_nodes(shown), _done(), int(time.time())
        acts = decision.decide(nodes, done, limits, now)
        for act in acts:
            done.append(act)
            _remember(done, now)  # first: limits hold if we die
            _apply(act)
        if limits.jobs:
            _follow_claims(nodes, acts, done, limits, now)
        waiting = [node.name for node in nodes if node.report and node.name not in {act.node for act in acts}]
        if waiting:
            log.say(f"not acted on now: {', '.join(waiting)}")
    except (BootstrapError, ContractError, ListingError, OSError) as error:
        log.say(f"no remediation: {error}")
        return 1
    return 0


def _follow_claims(nodes: List[NodeState], acts: List[Act], done: List[Act], limits: Remediation, now: int) -> None:
    """Let HyperPod reboot nodes on which the run of a job fails, as its comment claims."""
    by_node: Dict[str, List[Claim]] = {}
    for claim in _claims():
        by_node.setdefault(claim.node, []).append(claim)
    acts = list(acts)
    for node in nodes:
        claims = by_node.get(node.name)
        if not claims or node.name in {act.node for act in acts} or not decision.has_room(nodes, acts, limits):
            continue
        act = decision.decide_claim(node, claims, listing.occupants(node.name), done=done, limits=limits, now=now)
        if act:
            done.append(act)
            _remember(done, now)
            acts.append(act)
            _reboot_for(act)


def _claims() -> List[Claim]:
    rows = listing.jobs(("userid", "arrayjobid", "state", "comment"), "--all", "--states=RUNNING")
    claims = (Claim.from_text(int(row["userid"]), row["arrayjobid"], row["comment"]) for row in rows)
    return [claim for claim in claims if claim]


def _reboot_for(act: Act) -> None:
    """Let no further job onto the node, look once more, and only then let HyperPod reboot it.

    A job of another user may have begun since the decision.
    """
    hold = f"Reason={OURS} a job claims that its run fails here"  # no reason that HyperPod acts on
    process.run("scontrol", "update", f"NodeName={act.node}", "State=FAIL", hold, timeout_s=30)
    uids = {occupant.uid for occupant in listing.occupants(act.node)}
    if uids - {act.claimed_by}:
        resumed = ("State=RESUME", f"Reason={contract.NO_REASON}")
        process.run("scontrol", "update", f"NodeName={act.node}", *resumed, timeout_s=30)
        log.say(f"{act.node}: not rebooted, a job of another user has begun there")
        return
    _apply(act)


def _apply(act: Act) -> None:
    claimed = "" if act.claimed_by is None else f", claimed by a job of user {act.claimed_by}"
    log.say(f"{act.action} {act.node}: {', '.join(act.checks)}{claimed}")
    state = "DRAIN" if act.action == DRAIN else "FAIL"
    reason = REASONS.get(act.action) or f"{OURS} {', '.join(act.checks)}"
    process.run("scontrol", "update", f"NodeName={act.node}", f"State={state}", f"Reason={reason}", timeout_s=30)


def _path() -> Path:
    return Path(slurm_conf.value("StateSaveLocation", "/var/spool/slurmctld")) / DONE


def _remember(done: List[Act], now: int) -> None:
    files.write_file(_path(), json.dumps([asdict(act) for act in done if decision.still_counts(act, now)]))


def _done() -> List[Act]:
    try:
        return [build(Act, item) for item in json.loads(_path().read_text())]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, RecursionError) as error:
        raise BootstrapError(f"{_path()} is damaged: {error}", hint=f"remove {_path()}") from error


if __name__ == "__main__":
    sys.exit(main())
