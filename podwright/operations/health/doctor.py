"""``podwright doctor``: one pass over settings, tools, account, network, scripts, role and recent failures."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Literal

from podwright.aws_session import Session
from podwright.check.findings import Finding, FindingDocument, KeyPath, Level, summary, write
from podwright.errors import ArgumentError, OperationError
from podwright.json_document import JsonObject
from podwright.operations.account.hyperpod import Cluster, Node
from podwright.operations.account.hyperpod import nodes as cluster_nodes
from podwright.operations.deployment.deployed_stacks import stacks
from podwright.operations.deployment.kit import install_command, kit_name, search_path
from podwright.operations.deployment.terraform import TerraformError
from podwright.operations.health.node_role import missing_actions
from podwright.operations.health.overview import FAULTY_NODE, overview
from podwright.operations.health.scripts import changed_scripts, changed_uploads
from podwright.operations.health.topology import topology
from podwright.operations.nodes import slurm_states
from podwright.operations.output import print_document
from podwright.operations.target import Target, add_examples, add_target_arguments, target
from podwright_bootstrap.contract import COMPUTE, NO_REASON, is_reason_of_slurm
from podwright_common.exit_status import FAILED, OK

PLUGIN = "session-manager-plugin"
# HyperPod writes a node's line about five minutes after its scripts have run; AWS says only when it was launched.
NAMED_WITHIN_S = 2700
TOOLS = {
    "terraform": "deploys: run `podwright setup`",
    "ssh": "opens shells on nodes: install your system's OpenSSH client",
    PLUGIN: "opens shells on nodes: install AWS's Session Manager plugin",
}


@dataclass(frozen=True, kw_only=True)
class Doctor(JsonObject):
    """The document of `podwright doctor --json`."""

    schema: Literal["podwright.doctor/1"] = "podwright.doctor/1"
    cluster: str
    account: str
    region: str
    findings: list[FindingDocument]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the cluster and --json."""
    add_target_arguments(parser)
    add_examples(parser, "podwright doctor", "podwright doctor --cluster research --region us-east-1 --json")


def run(options: argparse.Namespace) -> int:
    """Report all problems of a cluster and its surroundings; return 1 if one is an error. AWS is not changed.

    If AWS does not answer, it reports problems of this machine, and then why AWS did not answer.

    Raises:
        PodwrightError: no cluster is named, or AWS does not answer.
    """
    cluster_target = target(options)
    findings = list(_on_this_machine(cluster_target))
    try:
        account = str(cluster_target.session.call("sts", "get_caller_identity")["Account"])
    except OperationError:
        if not options.json:
            _print(cluster_target, findings)
        raise
    findings += _in_aws(cluster_target, account)
    if options.json:
        document = Doctor(
            cluster=cluster_target.name,
            account=account,
            region=cluster_target.session.region,
            findings=[finding.document() for finding in findings],
        )
        print_document(document)
    else:
        _print(cluster_target, findings)
        place = f"{cluster_target.name} in {cluster_target.session.region}, account {account}"
        print(f"{place}: {summary(findings) or 'no problems'}")
    return FAILED if any(finding.level is Level.ERROR for finding in findings) else OK


def _print(cluster_target: Target, findings: Iterable[Finding]) -> None:
    text = cluster_target.file.read_text(encoding="utf-8") if cluster_target.file else ""
    write(findings, file=cluster_target.file or Path(cluster_target.name), text=text, stream=sys.stdout)


def _on_this_machine(cluster_target: Target) -> Iterator[Finding]:
    """Yield problems of this machine: tools, and the settings file."""
    yield from _tools()
    if cluster_target.file:
        from podwright.check.checked_settings import check  # --help need not wait for pydantic

        yield from check(cluster_target.file).findings


def _in_aws(cluster_target: Target, account: str) -> Iterator[Finding]:
    """Yield problems in AWS; if AWS does not answer for an area, such as the role, that is a finding itself."""
    bucket_account = account
    if cluster_target.file:
        from podwright.check.checked_settings import check, check_live  # --help need not wait for pydantic

        report = check(cluster_target.file)
        if report.settings:
            bucket_account = getattr(report.settings.bucket, "account_id", None) or account
        live_findings = check_live(report, cluster_target.session).findings
        yield from (finding for finding in live_findings if finding not in report.findings)
    try:
        cluster = cluster_target.cluster()
    except ArgumentError as error:
        yield _finding(Level.INFO, "no-cluster", (), str(error), error.hint)
        return
    areas: Iterable[Callable[[], Iterable[Finding]]] = (
        partial(_scripts, cluster_target, cluster),
        partial(_role, cluster_target.session, cluster, account, bucket_account),
        partial(_failures, cluster_target.session, cluster),
        *([partial(_nodes_in_slurm, cluster_target.session, cluster)] if shutil.which(PLUGIN) else []),
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


def _scripts(cluster_target: Target, cluster: Cluster) -> Iterator[Finding]:
    reason_by_uri = dict(changed_scripts(cluster_target.session, cluster))
    stack = stacks(cluster_target.name, folder=Path.cwd())["cluster"]
    if cluster_target.file and stack.was_initialized:
        reason_by_uri |= dict(changed_uploads(cluster_target.session, stack))
    hint = "nodes run it as root: find out who wrote it, delete it, and deploy the cluster stack again"
    for uri, reason in reason_by_uri.items():
        yield _finding(Level.ERROR, "changed-script", ("cluster",), f"{uri} {reason}", hint)


def _role(session: Session, cluster: Cluster, account: str, bucket_account: str) -> Iterator[Finding]:
    missing = missing_actions(session, cluster, account, bucket_account=bucket_account)
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


def _nodes_in_slurm(session: Session, cluster: Cluster) -> Iterator[Finding]:
    """Yield nodes in service that Slurm lacks or has put down, and nodes that its topology lacks or still names."""
    nodes = cluster_nodes(session, cluster)
    shell = slurm_states.controller_shell(session, cluster, nodes)
    states = slurm_states.states(shell)
    yield from _down_nodes(nodes, states)
    yield from _unnamed_nodes(nodes, states.keys())
    current = topology(shell)
    hint = (
        "HyperPod writes topology.conf or topology.yaml: compare it with `podwright nodes list`, correct it on the "
        "controller, then `scontrol reconfigure`"
    )
    for level, messages in ((Level.ERROR, current.errors()), (Level.WARNING, current.warnings())):
        yield from (_finding(level, "topology", ("cluster",), message, hint) for message in messages)


def _down_nodes(nodes: Iterable[Node], states: Mapping[str, slurm_states.SlurmState]) -> Iterator[Finding]:
    for node, state in down_in_slurm(nodes, states):
        reason = f" ({state.reason})" if state.reason else ""
        is_silent = state.state.endswith("*")  # Until the node responds, it cannot return.
        returns = is_reason_of_slurm(state.reason or NO_REASON) and not is_silent
        unit = "podwright-return" if returns else "slurmd"
        hint = (
            f"`journalctl -u {unit}` there says why; `podwright nodes undrain {node.name}` lets jobs start all the same"
        )
        message = f"{node.name} ({node.group}) is {state.state} in Slurm{reason}"
        yield _finding(Level.WARNING, "down-node", ("cluster",), message, hint)


def _unnamed_nodes(nodes: Iterable[Node], names: Collection[str]) -> Iterator[Finding]:
    for node in missing_in_slurm(nodes, names, now=datetime.now(timezone.utc)):
        launched_at = node.launched_at.astimezone(timezone.utc)
        message = f"{node.name} ({node.group}), launched at {launched_at:%Y-%m-%d %H:%M} UTC, is not in slurm.conf"
        hint = "HyperPod names a node in slurm.conf minutes after its boot; after that, replace it or ask AWS support"
        yield _finding(Level.ERROR, "unnamed-node", ("cluster",), message, hint)


def down_in_slurm(
    nodes: Iterable[Node], states: Mapping[str, slurm_states.SlurmState]
) -> list[tuple[Node, slurm_states.SlurmState]]:
    """Return the compute nodes that run and that Slurm calls down, with its reason."""
    running = (
        node for node in nodes if node.role == COMPUTE and node.status == "Running" and node.slurm_name in states
    )
    pairs = ((node, states[node.slurm_name]) for node in running)
    return [(node, state) for node, state in pairs if state.state.startswith("down")]


def missing_in_slurm(nodes: Iterable[Node], slurm_names: Collection[str], *, now: datetime) -> list[Node]:
    """Return the compute nodes that have run for so long that slurm.conf should name them, and are not in Slurm."""
    return [
        node
        for node in nodes
        if node.role == COMPUTE
        and node.status == "Running"
        and node.slurm_name
        and node.slurm_name not in slurm_names
        and (now - node.launched_at).total_seconds() > NAMED_WITHIN_S
    ]


def _finding(level: Level, code: str, path: KeyPath, message: str, hint: str) -> Finding:
    return Finding(level, code, path, message, hint)
