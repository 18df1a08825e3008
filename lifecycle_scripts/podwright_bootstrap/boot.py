"""The boot of a HyperPod node: STEPS is its table of contents.

Runs at creation, at replacement and after a software update, and may be run again at any time: a second run makes no
changes.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import time
import traceback
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Callable, Iterator

from podwright_bootstrap import boot_report, contract
from podwright_bootstrap.boot_report import Result
from podwright_bootstrap.contract import ContractError, ProvisioningParameters
from podwright_bootstrap.host import files, log, waits
from podwright_bootstrap.host.errors import BootstrapError, CommandError, TimeLimitError
from podwright_bootstrap.host.waits import STEP_PATIENCE
from podwright_bootstrap.node import Node, identify
from podwright_bootstrap.remediation import checks
from podwright_bootstrap.slurm import nodes, reboots
from podwright_bootstrap.software import after_reboot
from podwright_bootstrap.steps import Step, ldap, user_updates
from podwright_bootstrap.steps.accelerators import AcceleratorsStep
from podwright_bootstrap.steps.accounting import AccountingStep
from podwright_bootstrap.steps.controller_logins import ControllerLoginsStep
from podwright_bootstrap.steps.controllers import ControllersStep
from podwright_bootstrap.steps.dcgm import DcgmStep
from podwright_bootstrap.steps.dns import DnsStep
from podwright_bootstrap.steps.docker import DockerStep
from podwright_bootstrap.steps.enroot import EnrootStep
from podwright_bootstrap.steps.environment import EnvironmentStep
from podwright_bootstrap.steps.health import HealthStep
from podwright_bootstrap.steps.held_packages import HeldPackagesStep
from podwright_bootstrap.steps.hold import HoldStep
from podwright_bootstrap.steps.homes import HomesStep
from podwright_bootstrap.steps.hooks import HooksAfterStep, HooksBeforeStep
from podwright_bootstrap.steps.ldap import LdapStep
from podwright_bootstrap.steps.limits import LimitsStep
from podwright_bootstrap.steps.lustre import LustreStep
from podwright_bootstrap.steps.metadata import MetadataStep
from podwright_bootstrap.steps.metadata_access import MetadataAccessStep
from podwright_bootstrap.steps.motd import MotdStep
from podwright_bootstrap.steps.neuron import NeuronStep
from podwright_bootstrap.steps.node_record import RecordStep
from podwright_bootstrap.steps.observability import ObservabilityStep
from podwright_bootstrap.steps.old_environments import OldEnvironmentsStep
from podwright_bootstrap.steps.openzfs import OpenZfsStep
from podwright_bootstrap.steps.pam_slurm_adopt import PamSlurmAdoptStep
from podwright_bootstrap.steps.parameters import ParametersStep, source
from podwright_bootstrap.steps.prolog import PrologStep
from podwright_bootstrap.steps.remediation import RemediationStep
from podwright_bootstrap.steps.running_jobs import RunningJobsStep
from podwright_bootstrap.steps.runs import RunsStep
from podwright_bootstrap.steps.s3_mounts import S3MountsStep
from podwright_bootstrap.steps.scratch import ScratchStep
from podwright_bootstrap.steps.slurm import SlurmStep, hear_from
from podwright_bootstrap.steps.slurm_conf import SlurmConfStep
from podwright_bootstrap.steps.slurm_logs import SlurmLogsStep
from podwright_bootstrap.steps.ssh import SshStep
from podwright_bootstrap.steps.striping import StripingStep
from podwright_bootstrap.steps.user_updates import UserUpdatesStep
from podwright_bootstrap.steps.users import UsersStep
from podwright_bootstrap.storage import controller_failure
from podwright_bootstrap.storage.lock import locked

# Nobody waits in a circle: compute nodes wait for a controller, a backup controller for the primary, the primary for no
# other host. Slurm comes last, so that a node that takes jobs has everything else.
STEPS: tuple[Step, ...] = (
    ParametersStep(),
    HoldStep(),  # Slurm gives this node no jobs while it lacks what they need.
    DnsStep(),  # The following steps look up host names.
    HooksBeforeStep(),
    LimitsStep(),
    NeuronStep(),
    AcceleratorsStep(),  # A node with a broken device fails here, and not after minutes of other steps.
    ScratchStep(),
    LustreStep(),
    OpenZfsStep(),  # The following steps write to homes.
    LdapStep(),  # SSSD lets go of names and ids that the next step gives to users.
    UsersStep(),
    HomesStep(),
    S3MountsStep(),
    RunsStep(),
    StripingStep(),
    HealthStep(),  # Limits and mounts are those that a job will have.
    SshStep(),
    MetadataStep(),
    EnvironmentStep(),
    DockerStep(),
    EnrootStep(),
    ObservabilityStep(),
    DcgmStep(),  # The agent of observability reads its file.
    MetadataAccessStep(),  # Observability has added the user that it lets in.
    ControllerLoginsStep(),
    HeldPackagesStep(),  # An image that has just started may be updating itself, so this is late.
    RecordStep(),
    ControllersStep(),
    AccountingStep(),  # slurmctld asks slurmdbd for users when it starts.
    PamSlurmAdoptStep(),
    SlurmLogsStep(),
    RunningJobsStep(),
    OldEnvironmentsStep(),
    MotdStep(),
    PrologStep(),
    RemediationStep(),
    SlurmConfStep(),
    UserUpdatesStep(),
    HooksAfterStep(),
    SlurmStep(),
)


RETRY_PAUSE_S = 10.0  # between two attempts at a step
# One boot of a node runs at a time. The timers that repeat steps, such as after a change of a password, are boots too.
LOCK = contract.STATE_DIRECTORY / ".boot.lock"
LOCK_LIMIT_S = 4 * 3600  # a boot that builds the environment takes its time
LOCK_HINT = "ps -ef shows the other boot; end it if it hangs"


def main(arguments: list[str] | None = None) -> int:
    """Boot this node; 0 if every step that is for it holds."""
    options = _options(arguments)
    os.umask(0o022)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # Exiting ends children, too.
    if options.status:
        return _status()
    with ExitStack() as stack:
        if not options.dry_run:
            try:
                stack.enter_context(_alone())  # before anything is read that another boot may be writing
            except BootstrapError as error:
                return _fail("lock", error)
        try:
            return _chosen_part(options)()
        except Exception as error:  # noqa: BLE001 (whatever it is, it is one line)
            return _fail("users.json" if options.follow_users else "identity", error)


def _chosen_part(options: argparse.Namespace) -> Callable[[], int]:
    if options.follow_users:
        return _follow_users
    return _return_after_reboot if options.after_reboot else partial(_boot_as, options)


def _fail(step: str, error: BaseException) -> int:
    hint = getattr(error, "hint", "") or f"look at the log and at {contract.RESOURCE_CONFIG.parent}"
    log.say(boot_report.failure(step, _why(error), host=socket.gethostname(), hint=hint))
    return 1


def _boot_as(options: argparse.Namespace) -> int:
    """Run the chosen steps as this node."""
    node = identify(ProvisioningParameters.from_json(contract.read(source())))
    _refuse_required(node.parameters.nodes.skip)
    cluster = node.parameters.cluster_name
    log.say(f"{node.hostname} ({node.address}) is {node.role}, group {node.instance_group}, cluster {cluster}")
    chosen = [step for step in STEPS if options.only in {None, step.name} and step.name not in options.skip]
    return _plan(chosen, node) if options.dry_run else _boot(chosen, node)


def _follow_users() -> int:
    """Run the steps that depend on users if the bucket's users changed; run them again the next time if one fails.

    The directory's password counts as a change too: controllers read it for all nodes.
    """
    installed_text = contract.read(contract.installed_parameters())
    deployed_text = user_updates.fetch(installed_text)
    parameters = ProvisioningParameters.from_json(deployed_text)
    node = identify(parameters)
    if parameters == ProvisioningParameters.from_json(installed_text) and not _has_new_password(node):
        log.say("users match users.json")
        return 0
    exit_code = _boot([step for step in STEPS if step.name in user_updates.STEPS], node)
    if not exit_code:
        files.write_file(contract.installed_parameters(), deployed_text)
    return exit_code


def _return_after_reboot() -> int:
    """Let jobs onto this node if Slurm itself has put it down and it passes its checks; drain it after many reboots."""
    node = identify(ProvisioningParameters.from_json(contract.read(source())))
    hear_from(node)
    if not nodes.is_put_down(node.hostname):
        log.say(f"Slurm itself has not put {node.hostname} down")
    elif nodes.is_return_left_to_operators():
        log.say(f"slurm.conf has ReturnToService=0: an operator lets jobs onto {node.hostname}")
    elif reboots.is_limit_reached():
        nodes.drain(node.hostname, reboots.REASON)
        reboots.forget()
        log.say(f"drained {node.hostname}: {reboots.REASON}")
    else:
        return _return_checked(node)
    return 0


def _return_checked(node: Node) -> int:
    """Let jobs onto this node if each step holds without being applied, and its hardware is sound."""
    for step in STEPS:
        problem = _problem(step, node)
        if problem and not step.degraded_feature:
            return _fail(step.name, problem)
        if problem:
            log.say(f"warning: {step.name}: {_why(problem)}")
    if node.parameters.nodes.remediation is not None:
        findings = checks.findings_by_check(node.facts, contract.record_of_this_node())
        if findings:
            texts = "; ".join(text for texts in findings.values() for text in texts)
            return _fail(RemediationStep.name, BootstrapError(texts, hint=RemediationStep.hint))
    reboots.record()  # first: the limit holds if this process is killed
    returned = nodes.return_after_reboot(node.hostname)
    log.say(f"let jobs onto {node.hostname} again" if returned else f"somebody has taken {node.hostname} out meanwhile")
    return 0


def _problem(step: Step, node: Node) -> BaseException | None:
    """Return why a step does not hold; None if it does, or is not for this node."""
    if _why_not(step, node):
        return None
    try:
        with waits.time_limit(step.time_limit_s * STEP_PATIENCE):
            step.verify(node)
    except (Exception, TimeLimitError) as error:  # noqa: BLE001 (whatever it is, the node does not return)
        return error
    return None


def _has_new_password(node: Node) -> bool:
    return LdapStep.name not in node.parameters.nodes.skip and ldap.has_new_password(node)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="on_create.sh", description=__doc__)
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--dry-run", action="store_true", help="list the steps that would run here; run none")
    names = [step.name for step in STEPS]
    parser.add_argument("--only", metavar="STEP", choices=names, help="run this step alone")
    skip = "leave this step out; may be repeated"
    parser.add_argument("--skip", metavar="STEP", choices=names, action="append", default=[], help=skip)
    follow = "run the steps that users go by, if the bucket has other users, groups or another policy"
    modes.add_argument("--follow-users", action="store_true", help=follow)
    returning = "if Slurm itself has put the node down, as after a reboot, check it and let jobs onto it"
    modes.add_argument(after_reboot.OPTION, action="store_true", help=returning)
    parser.add_argument("--status", action="store_true", help="show how the last boot went")
    options = parser.parse_args(arguments)
    if (options.follow_users or options.after_reboot) and (options.only or options.skip):
        parser.error(f"--follow-users and {after_reboot.OPTION} choose their steps: leave out --only and --skip")
    return options


def _status() -> int:
    results = boot_report.load()
    if not results:
        print(f"no boot is recorded in {contract.BOOTSTRAP_JSON}")
        return 1
    print(boot_report.table(results))
    failed = [result for result in results if result.outcome == boot_report.FAILED]
    for result in failed:
        print(boot_report.failure(result.step, result.detail, host=socket.gethostname(), hint=result.hint))
    for step in STEPS:
        for result in results:
            if (result.step, result.outcome) == (step.name, boot_report.DEGRADED):
                print(boot_report.warning(result, host=socket.gethostname(), degraded_feature=step.degraded_feature))
    return 1 if failed else 0


def _plan(steps: list[Step], node: Node) -> int:
    for step in steps:
        purpose, reason = (step.__doc__ or "").splitlines()[0], _why_not(step, node)
        log.say(f"{step.name:<15} {f'skipped: {reason}' if reason else 'would run'}: {purpose}")
    return 0


def _refuse_required(skip: tuple[str, ...]) -> None:
    """``podwright check`` says this earlier; constructs may be used without it."""
    required = [step for step in STEPS if step.required_because and step.name in skip]
    if required:
        reasons = "; ".join(f"nodes.skip: the boot needs {step.name}: {step.required_because}" for step in required)
        raise BootstrapError(reasons, hint="take it out of nodes.skip and deploy the cluster stack again")


def _why_not(step: Step, node: Node) -> str:
    """Return why a step is skipped on this node; "" if it runs."""
    if not step.applies(node):
        return f"for {step.audience}"
    return "cluster.yaml says so (nodes.skip)" if step.name in node.parameters.nodes.skip else ""


@contextmanager
def _alone() -> Iterator[None]:
    """One boot of this node at a time: people start some, and timers."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(LOCK, limit_s=LOCK_LIMIT_S, every_s=1, hint=LOCK_HINT))
        except OSError as error:  # a step will say it better
            log.say(f"going on without the lock {LOCK}: {error}")
        yield


def _boot(steps: list[Step], node: Node) -> int:
    results: list[Result] = []
    # Timers repeat other steps, whose results say nothing about slurmctld.
    starts_slurm = any(step.name == SlurmStep.name for step in steps)
    is_forgotten = not starts_slurm
    for step in steps:
        is_forgotten = is_forgotten or controller_failure.forget(node)
        results.append(_run(step, node))
        results[-1].log(node)
        if results[-1].outcome == boot_report.DEGRADED:
            log.say(boot_report.warning(results[-1], host=node.hostname, degraded_feature=step.degraded_feature))
        if results[-1].outcome == boot_report.FAILED:
            break
    print(boot_report.table(results), flush=True)
    try:
        boot_report.save(results)
    except OSError as error:
        results.append(
            Result("report", boot_report.FAILED, [], 0.0, detail=str(error), hint="df -h shows which disk is full")
        )
    failed = next((result for result in results if result.outcome == boot_report.FAILED), None)
    if not failed:
        return 0
    host = f"{node.hostname} ({node.instance_group}, {node.instance_id})"
    log.say(boot_report.failure(failed.step, failed.detail, host=host, hint=failed.hint))
    if starts_slurm:
        controller_failure.record(node, failed.step, failed.detail)
    return 1


def _why(error: BaseException) -> str:
    """Return the message of an error that was written for users; for other errors, name the place in the code."""
    if isinstance(error, (BootstrapError, ContractError, OSError, TimeLimitError)):
        return str(error)
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(place.filename).name}, line {place.lineno})"


def _run(step: Step, node: Node) -> Result:
    """Run one step within its time, again if trying again may help."""
    reason = _why_not(step, node)
    if reason:
        return Result(step.name, boot_report.SKIPPED, _removed(step, node), 0.0, detail=reason)
    started = time.monotonic()
    changes: list[str] = []

    def attempt() -> None:
        changes.extend(step.apply(node))  # A step that fails reports what it had changed until then.
        step.verify(node)

    try:
        with waits.time_limit(step.time_limit_s * STEP_PATIENCE):
            pause_s = max(RETRY_PAUSE_S, node.poll_s)
            waits.retry(attempt, attempts=step.attempts, pause_s=pause_s, errors=(CommandError, OSError))
    except (Exception, TimeLimitError) as error:  # noqa: BLE001 (whatever it is, the table and the report follow)
        seconds = round(time.monotonic() - started, 3)
        hint = getattr(error, "hint", "") or step.hint
        outcome = boot_report.DEGRADED if step.degraded_feature else boot_report.FAILED
        return Result(step.name, outcome, changes, seconds, detail=_why(error), hint=hint)
    outcome = boot_report.CHANGED if changes else boot_report.UNCHANGED
    return Result(step.name, outcome, changes, round(time.monotonic() - started, 3))


def _removed(step: Step, node: Node) -> list[str]:
    """Remove leftovers of a step that is off; a failure only warns. Steps in nodes.skip leave everything as it is."""
    removed: list[str] = []
    try:
        if not step.applies(node):
            with waits.time_limit(step.time_limit_s * STEP_PATIENCE):
                removed.extend(step.remove(node))
    except (Exception, TimeLimitError) as error:  # noqa: BLE001 (the next boot tries again)
        log.say(f"warning: {step.name} is off, but its leftovers could not be removed: {_why(error)}")
    return removed
