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
from pathlib import Path
from typing import Iterator

from podwright_bootstrap import contract, report
from podwright_bootstrap.contract import ContractError, ProvisioningParameters
from podwright_bootstrap.host import shell
from podwright_bootstrap.host.shell import STEP_PATIENCE, BootstrapError, CommandError, TimeLimitError
from podwright_bootstrap.node import Node, identify
from podwright_bootstrap.report import Result
from podwright_bootstrap.steps import Step, ldap, user_updates
from podwright_bootstrap.steps.accelerators import Accelerators
from podwright_bootstrap.steps.accounting import Accounting
from podwright_bootstrap.steps.controller_logins import ControllerLogins
from podwright_bootstrap.steps.controllers import Controllers
from podwright_bootstrap.steps.dcgm import Dcgm
from podwright_bootstrap.steps.dns import Dns
from podwright_bootstrap.steps.docker import Docker
from podwright_bootstrap.steps.enroot import Enroot
from podwright_bootstrap.steps.environment import Environment
from podwright_bootstrap.steps.health import Health
from podwright_bootstrap.steps.held_packages import HeldPackages
from podwright_bootstrap.steps.hold import Hold
from podwright_bootstrap.steps.homes import Homes
from podwright_bootstrap.steps.hooks import HooksAfter, HooksBefore
from podwright_bootstrap.steps.ldap import Ldap
from podwright_bootstrap.steps.limits import Limits
from podwright_bootstrap.steps.lustre import Lustre
from podwright_bootstrap.steps.metadata import Metadata
from podwright_bootstrap.steps.metadata_access import MetadataAccess
from podwright_bootstrap.steps.motd import Motd
from podwright_bootstrap.steps.neuron import Neuron
from podwright_bootstrap.steps.node_record import Record
from podwright_bootstrap.steps.observability import Observability
from podwright_bootstrap.steps.old_environments import OldEnvironments
from podwright_bootstrap.steps.openzfs import OpenZfs
from podwright_bootstrap.steps.pam_slurm_adopt import PamSlurmAdopt
from podwright_bootstrap.steps.parameters import Parameters, source
from podwright_bootstrap.steps.prolog import Prolog
from podwright_bootstrap.steps.remediation import Remediation
from podwright_bootstrap.steps.running_jobs import RunningJobs
from podwright_bootstrap.steps.runs import Runs
from podwright_bootstrap.steps.s3_mounts import S3Mounts
from podwright_bootstrap.steps.scratch import Scratch
from podwright_bootstrap.steps.slurm import Slurm
from podwright_bootstrap.steps.slurm_conf import SlurmConf
from podwright_bootstrap.steps.slurm_logs import SlurmLogs
from podwright_bootstrap.steps.ssh import Ssh
from podwright_bootstrap.steps.striping import Striping
from podwright_bootstrap.steps.user_updates import UserUpdates
from podwright_bootstrap.steps.users import Users
from podwright_bootstrap.storage.lock import locked

# Nobody waits in a circle: compute nodes wait for a controller, a backup controller for the primary, the primary for no
# other host. Slurm comes last, so that a node that takes jobs has everything else.
STEPS: tuple[Step, ...] = (
    Parameters(),
    Hold(),  # before anything that a job needs is there
    Dns(),  # before anything is looked up
    HooksBefore(),
    Limits(),
    Neuron(),
    Accelerators(),  # before the minutes of the rest
    Scratch(),
    Lustre(),
    OpenZfs(),  # before anything is written to a home
    Ldap(),  # lets go of names and ids that users are about to have
    Users(),
    Homes(),
    S3Mounts(),
    Runs(),
    Striping(),
    Health(),  # with the limits and mounts that a job will have
    Ssh(),
    Metadata(),
    Environment(),
    Docker(),
    Enroot(),
    Observability(),
    Dcgm(),  # its file is one that observability's agent reads
    MetadataAccess(),  # lets the user in that observability adds
    ControllerLogins(),
    HeldPackages(),  # late: an image that has just started may be updating itself
    Record(),
    Controllers(),
    Accounting(),  # slurmctld asks it for its users when it starts
    PamSlurmAdopt(),
    SlurmLogs(),
    RunningJobs(),
    OldEnvironments(),
    Motd(),
    Prolog(),
    Remediation(),
    SlurmConf(),
    UserUpdates(),
    HooksAfter(),
    Slurm(),
)


RETRY_PAUSE_S = 10.0  # between two attempts at a step
LOCK = contract.STATE_DIRECTORY / ".boot.lock"
LOCK_LIMIT_S = 4 * 3600  # a boot that builds the environment takes its time
LOCK_HINT = "ps -ef shows the other boot; end it if it hangs"


def main(arguments: list[str] | None = None) -> int:
    """Boot this node; 0 if every step that is for it holds."""
    options = _options(arguments)
    os.umask(0o022)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that children are ended too
    if options.status:
        return _status()
    with ExitStack() as stack:
        if not options.dry_run:
            try:
                stack.enter_context(_alone())  # before anything is read that another boot may be writing
            except BootstrapError as error:
                return _fail("lock", error)
        try:
            return _follow_users() if options.follow_users else _boot_as(options)
        except Exception as error:  # noqa: BLE001 (whatever it is, it is one line)
            return _fail("users.json" if options.follow_users else "identity", error)


def _fail(step: str, error: Exception) -> int:
    hint = getattr(error, "hint", "") or f"look at the log and at {contract.RESOURCE_CONFIG.parent}"
    shell.say(report.failure(step, _why(error), host=socket.gethostname(), hint=hint))
    return 1


def _boot_as(options: argparse.Namespace) -> int:
    """Run the chosen steps as this node."""
    node = identify(ProvisioningParameters.from_json(contract.read(source())))
    _require_needed(node.parameters.nodes.skip)
    cluster = node.parameters.cluster_name
    shell.say(f"{node.hostname} ({node.address}) is {node.role}, group {node.instance_group}, cluster {cluster}")
    chosen = [step for step in STEPS if options.only in {None, step.name} and step.name not in options.skip]
    return _plan(chosen, node) if options.dry_run else _boot(chosen, node)


def _follow_users() -> int:
    """Run the steps that depend on users if the bucket's users changed; run them again the next time if one fails.

    The directory's password counts as a change too: controllers read it for all nodes.
    """
    known = contract.read(contract.installed_parameters())
    wanted = user_updates.fetch(known)
    parameters = ProvisioningParameters.from_json(wanted)
    node = identify(parameters)
    if parameters == ProvisioningParameters.from_json(known) and not _has_new_password(node):
        shell.say("users match users.json")
        return 0
    exit_code = _boot([step for step in STEPS if step.name in user_updates.STEPS], node)
    if not exit_code:
        shell.write_file(contract.installed_parameters(), wanted)
    return exit_code


def _has_new_password(node: Node) -> bool:
    return Ldap.name not in node.parameters.nodes.skip and ldap.has_new_password(node)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="on_create.sh", description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="list the steps that would run here; run none")
    names = [step.name for step in STEPS]
    parser.add_argument("--only", metavar="STEP", choices=names, help="run this step alone")
    skip = "leave this step out; may be repeated"
    parser.add_argument("--skip", metavar="STEP", choices=names, action="append", default=[], help=skip)
    follow = "run the steps that users go by, if the bucket has other users, groups or another policy"
    parser.add_argument("--follow-users", action="store_true", help=follow)
    parser.add_argument("--status", action="store_true", help="show how the last boot went")
    return parser.parse_args(arguments)


def _status() -> int:
    results = report.load()
    if not results:
        print(f"no boot is recorded in {contract.BOOTSTRAP_JSON}")
        return 1
    print(report.table(results))
    failed = [result for result in results if result.outcome == report.FAILED]
    for result in failed:
        print(report.failure(result.step, result.detail, host=socket.gethostname(), hint=result.hint))
    for step in STEPS:
        for result in results:
            if (result.step, result.outcome) == (step.name, report.DEGRADED):
                print(report.warning(result, host=socket.gethostname(), without=step.without))
    return 1 if failed else 0


def _plan(steps: list[Step], node: Node) -> int:
    for step in steps:
        purpose, reason = (step.__doc__ or "").splitlines()[0], _why_not(step, node)
        shell.say(f"{step.name:<15} {f'skipped: {reason}' if reason else 'would run'}: {purpose}")
    return 0


def _require_needed(skip: tuple[str, ...]) -> None:
    """``podwright check`` says this earlier; constructs may be used without it."""
    needed = [step for step in STEPS if step.needed and step.name in skip]
    if needed:
        why = "; ".join(f"nodes.skip: the boot needs {step.name}: {step.needed}" for step in needed)
        raise BootstrapError(why, hint="take it out of nodes.skip and deploy the cluster stack again")


def _why_not(step: Step, node: Node) -> str:
    """Return why a step is skipped on this node; "" if it runs."""
    if not step.applies(node):
        return f"for {step.whose}"
    return "cluster.yaml says so (nodes.skip)" if step.name in node.parameters.nodes.skip else ""


@contextmanager
def _alone() -> Iterator[None]:
    """One boot of this node at a time: people start some, and timers."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(LOCK, limit_s=LOCK_LIMIT_S, every_s=1, hint=LOCK_HINT))
        except OSError as error:  # a step will say it better
            shell.say(f"going on without the lock {LOCK}: {error}")
        yield


def _boot(steps: list[Step], node: Node) -> int:
    results: list[Result] = []
    for step in steps:
        results.append(_run(step, node))
        results[-1].log(node)
        if results[-1].outcome == report.DEGRADED:
            shell.say(report.warning(results[-1], host=node.hostname, without=step.without))
        if results[-1].outcome == report.FAILED:
            break
    print(report.table(results), flush=True)
    try:
        report.save(results)
    except OSError as error:
        results.append(
            Result("report", report.FAILED, [], 0.0, detail=str(error), hint="df -h shows which disk is full")
        )
    failed = next((result for result in results if result.outcome == report.FAILED), None)
    if not failed:
        return 0
    host = f"{node.hostname} ({node.instance_group}, {node.instance_id})"
    shell.say(report.failure(failed.step, failed.detail, host=host, hint=failed.hint))
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
        return Result(step.name, report.SKIPPED, _removed(step, node), 0.0, detail=reason)
    started = time.monotonic()
    changes: list[str] = []

    def attempt() -> None:
        changes.extend(step.apply(node))  # of a step that fails, what it had changed until then
        step.verify(node)

    try:
        with shell.time_limit(step.time_limit_s * STEP_PATIENCE):
            pause_s = max(RETRY_PAUSE_S, node.poll_s)
            shell.retry(attempt, attempts=step.attempts, pause_s=pause_s, errors=(CommandError, OSError))
    except (Exception, TimeLimitError) as error:  # noqa: BLE001 (whatever it is, the table and the report follow)
        seconds = round(time.monotonic() - started, 3)
        hint = getattr(error, "hint", "") or step.hint
        outcome = report.DEGRADED if step.without else report.FAILED
        return Result(step.name, outcome, changes, seconds, detail=_why(error), hint=hint)
    outcome = report.CHANGED if changes else report.UNCHANGED
    return Result(step.name, outcome, changes, round(time.monotonic() - started, 3))


def _removed(step: Step, node: Node) -> list[str]:
    """Remove leftovers of a step that is off; a failure only warns. Steps in nodes.skip leave everything as it is."""
    removed: list[str] = []
    try:
        if not step.applies(node):
            with shell.time_limit(step.time_limit_s * STEP_PATIENCE):
                removed.extend(step.remove(node))
    except (Exception, TimeLimitError) as error:  # noqa: BLE001 (the next boot tries again)
        shell.say(f"warning: {step.name} is off, but its leftovers could not be removed: {_why(error)}")
    return removed
