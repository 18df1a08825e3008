"""Check the node before a job, as slurmd's prolog. A failure drains the node, and the job starts on another."""

from __future__ import annotations

import sys
from functools import partial
from typing import Dict, Iterator, List

from podwright_bootstrap import contract, health_checks
from podwright_bootstrap.contract import ContractError, InstanceFacts, NodeRecord, ProvisioningParameters
from podwright_bootstrap.health_checks import Check, accelerators
from podwright_bootstrap.host import log, process, waits
from podwright_bootstrap.host.errors import BootstrapError, CommandError, TimeLimitError
from podwright_bootstrap.host.waits import PATIENCE
from podwright_bootstrap.slurm import gpu_jobs
from podwright_bootstrap.slurm.job import PARENT_MODE, Job, folder_of
from podwright_bootstrap.storage import own_folder, user_folders

# Every job waits for these: only what takes little time, and can break while a node is up.
QUICK: Dict[str, Check] = {"accelerators": accelerators.count, "gpu_memory": accelerators.gpu_memory}
SHARED_LIMIT_S = 30
# For all checks together. Drain included, they end before the prolog is killed (steps/prolog.py, LIMITS_S): then Slurm
# would give the node a reason that says nothing.
CHECKS_LIMIT_S = 70
DRAIN_LIMIT_S = 20
REASON_LENGTH = 200


def main() -> int:
    """Check, make the job's folder; 1 if the node must not have the job."""
    try:
        parameters = contract.parameters_of_this_node()
        record = contract.record_of_this_node()
    except (ContractError, OSError) as error:
        print(f"prolog: {error}")
        return 1
    findings = _findings(parameters.facts_of(record.instance_group), record) if _checks(parameters) else []
    if "--only-check" in sys.argv[1:]:
        print("; ".join(findings))
        return 1 if findings else 0
    job = Job.of_environment()
    if findings:
        _drain(findings, job)
        return 1
    _make_folder(job, parameters)
    if parameters.nodes.runs_containers:
        user_folders.make(job.uid, job.gid, parameters.nodes, record.shared_root)
    _note_gpus(job, parameters)
    return 0


def _make_folder(job: Job, parameters: ProvisioningParameters) -> None:
    """Make the job's folder. Without it, as when users have filled the disk, the node is sound all the same."""
    folder = folder_of(job, parameters)
    if not folder:
        return
    try:
        for change in own_folder.make_own(folder.parent, mode=PARENT_MODE):
            log.say(f"prolog: {change}")
        for change in own_folder.make_for(folder, uid=job.uid, gid=job.gid, mode=0o700):
            log.say(f"prolog: {change}")
    except (BootstrapError, OSError) as error:
        log.say(f"prolog: job {job.id} has no folder: {error}")


def _note_gpus(job: Job, parameters: ProvisioningParameters) -> None:
    """Label metrics of the job's GPUs; a node without them is sound all the same."""
    if parameters.nodes.observability:
        try:
            gpu_jobs.add(job)
        except (BootstrapError, OSError, ValueError) as error:
            log.say(f"prolog: metrics of GPUs do not name job {job.id}: {error}")


def _checks(parameters: ProvisioningParameters) -> bool:
    return parameters.nodes.prolog is not None and parameters.nodes.prolog.check


def _findings(facts: InstanceFacts, record: NodeRecord) -> List[str]:
    """Return the findings of the first check that fails: one is enough, and other checks may be slow."""
    checks: Dict[str, Check] = {**QUICK, "file_system": partial(_file_system, record)}
    at = ""
    try:
        with waits.time_limit(CHECKS_LIMIT_S * PATIENCE):
            for name, check in checks.items():
                at = name
                findings = health_checks.findings(check, facts)
                if findings:
                    return findings
    except TimeLimitError as error:
        return [f"check of {at}: {error}"]
    return []


def _file_system(record: NodeRecord, facts: InstanceFacts) -> Iterator[str]:  # noqa: ARG001 (a check, for every type)
    if record.shared_root:
        process.run("stat", "--file-system", record.shared_root, timeout_s=SHARED_LIMIT_S, quiet=True)
    yield from ()


def _drain(findings: List[str], job: Job) -> None:
    """Set the reason before slurmd does: slurmd only knows that the prolog failed, and the first reason stays."""
    reason = f"podwright: {'; '.join(findings)}"[:REASON_LENGTH]
    command = ("scontrol", "update", f"NodeName={job.node}", "State=DRAIN", f"Reason={reason}")
    try:
        process.run(*command, timeout_s=DRAIN_LIMIT_S, check=False)
    except CommandError as error:  # slurmd drains it all the same
        log.say(f"prolog: {reason}: {error}")


if __name__ == "__main__":
    sys.exit(main())
