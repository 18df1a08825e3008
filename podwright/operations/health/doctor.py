"""``podwright doctor``: one pass over settings, tools, account, network, scripts, role and recent failures."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import groupby
from pathlib import Path

from podwright.check.findings import Finding, KeyPath, Level, summary, write
from podwright.operations.account.cluster import Cluster
from podwright.operations.account.session import Session
from podwright.operations.deployment.deployed_stacks import stacks
from podwright.operations.deployment.kit import install_command, kit_name, search_path
from podwright.operations.deployment.terraform import TerraformError
from podwright.operations.errors import ArgumentError, OperationError
from podwright.operations.health.node_role import missing_actions
from podwright.operations.health.overview import FAULTY_NODE, overview
from podwright.operations.health.scripts import changed_scripts, changed_uploads
from podwright.operations.output import print_json
from podwright.operations.target import Target, add_examples, add_target_arguments, target

OK, FAILED = 0, 1
SCHEMA = "podwright.doctor/1"
TOOLS = {
    "terraform": "deploys: run `podwright setup`",
    "ssh": "opens shells on nodes: install your system's OpenSSH client",
    "session-manager-plugin": "opens shells on nodes: install AWS's Session Manager plugin",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take the cluster."""
    add_target_arguments(parser)
    add_examples(parser, "podwright doctor", "podwright doctor --cluster research --region us-east-1 --json")


def run(options: argparse.Namespace) -> int:
    """Report all problems of a cluster and its surroundings; return 1 if one is an error. AWS is not changed.

    If AWS does not answer, it reports problems of this machine, and then why AWS did not answer.

    Raises:
        PodwrightError: no cluster is named, or AWS does not answer.
    """
    wanted = target(options)
    found = list(_here(wanted))
    try:
        account = str(wanted.session.call("sts", "get_caller_identity")["Account"])
    except OperationError:
        if not options.json:
            _print(wanted, found)
        raise
    found += _in_aws(wanted, account)
    if options.json:
        found_in = {"cluster": wanted.name, "account": account, "region": wanted.session.region}
        print_json(SCHEMA, {**found_in, "findings": [finding.to_dict() for finding in found]})
    else:
        _print(wanted, found)
        print(f"{wanted.name} in {wanted.session.region}, account {account}: {summary(found) or 'no problems'}")
    return FAILED if any(finding.level is Level.ERROR for finding in found) else OK


def _print(wanted: Target, found: Iterable[Finding]) -> None:
    text = wanted.file.read_text(encoding="utf-8") if wanted.file else ""
    write(found, file=wanted.file or Path(wanted.name), text=text, stream=sys.stdout)


def _here(wanted: Target) -> Iterator[Finding]:
    """Yield problems of this machine: tools, and the settings file."""
    yield from _tools()
    if wanted.file:
        from podwright.check.report import check  # --help need not wait for pydantic

        yield from check(wanted.file).findings


def _in_aws(wanted: Target, account: str) -> Iterator[Finding]:
    """Yield the findings of all areas; an area that AWS does not answer for is a finding itself."""
    if wanted.file:
        from podwright.check.report import check, check_live  # as above

        report = check(wanted.file)
        yield from (finding for finding in check_live(report).findings if finding not in report.findings)
    try:
        cluster = wanted.cluster()
    except ArgumentError as error:
        yield _finding(Level.INFO, "no-cluster", (), str(error), error.hint)
        return
    areas: Iterable[Callable[[], Iterable[Finding]]] = (
        partial(_scripts, wanted, cluster),
        partial(_role, wanted.session, cluster, account),
        partial(_failures, wanted.session, cluster),
    )
    for area in areas:
        try:
            yield from list(area())
        except (OperationError, TerraformError) as error:
            yield _finding(Level.WARNING, "unanswered", (), str(error), error.hint)


def _tools() -> Iterator[Finding]:
    kit = {kit_name(): f"deploys: run `{install_command()}`"}
    for name, use in {**kit, **TOOLS}.items():
        if shutil.which(name, path=search_path()) is None:
            yield _finding(Level.WARNING, "missing-tool", (), f"no {name} on PATH", f"it {use}")


def _scripts(wanted: Target, cluster: Cluster) -> Iterator[Finding]:
    found = dict(changed_scripts(wanted.session, cluster))
    stack = stacks(wanted.name, folder=Path.cwd())["cluster"]
    if wanted.file and stack.was_initialized:
        found |= dict(changed_uploads(wanted.session, stack))
    hint = "nodes run it as root: find out who wrote it, delete it, and deploy the cluster stack again"
    for uri, reason in found.items():
        yield _finding(Level.ERROR, "changed-script", ("cluster",), f"{uri} {reason}", hint)


def _role(session: Session, cluster: Cluster, account: str) -> Iterator[Finding]:
    missing = missing_actions(session, cluster, account)
    for (role, resource), items in groupby(missing, key=lambda item: (item[0], item[2])):
        actions = ", ".join(action for _, action, _ in items)
        hint = f"allow it on {resource} in a policy of the role, or see what denies it"
        yield _finding(Level.ERROR, "role-action", ("role",), f"{role} may not {actions}", hint)


def _failures(session: Session, cluster: Cluster) -> Iterator[Finding]:
    state = overview(session, cluster.name)
    for cause in state.causes:
        yield _finding(Level.ERROR, "failure", ("cluster",), f"{cause.message}: {cause.cause}", f"see {cause.command}")
    explained = {cause.message for cause in state.causes}
    for node in state.nodes:
        if node.status in FAULTY_NODE and node.message not in explained:
            hint = f"`podwright nodes replace {node.name}`"
            yield _finding(Level.ERROR, "node", ("cluster",), f"{node.name} is {node.status}", hint)
    for reason in state.missing:
        yield _finding(Level.WARNING, "unanswered", (), reason, "")


def _finding(level: Level, code: str, path: KeyPath, message: str, hint: str) -> Finding:
    return Finding(level, code, path, message, hint)
