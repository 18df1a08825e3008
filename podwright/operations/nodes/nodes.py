"""``podwright nodes``: list, add, replace, reboot, delete, check, drain and undrain nodes."""

from __future__ import annotations

import argparse
import getpass
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Literal

from podwright.errors import ArgumentError
from podwright.json_document import JsonObject
from podwright.operations.account.hyperpod import Cluster, Node, select
from podwright.operations.nodes import api, slurm_states
from podwright.operations.nodes.api import Added, NodeChange, Result
from podwright.operations.nodes.slurm_states import ACTIONS, SlurmState
from podwright.operations.output import Column, age, confirm, print_document, print_table
from podwright.operations.target import NODE_HELP, Target, add_examples, add_target_arguments, target
from podwright_bootstrap.contract import COMPUTE, CONTROLLER
from podwright_common.command_line import add_yes
from podwright_constructs import facts
from podwright_constructs.arguments.instance_group import DEEP_HEALTH_CHECKS

AFTER_JOBS = "Slurm starts no job on them from now on; HyperPod does it when their jobs have ended."
CHECKED = "They take no jobs meanwhile, and HyperPod reboots or replaces a node that fails."
NODES_NAMED = 8  # A question about more nodes has their number instead of their names.
COLUMNS = (
    Column("NODE"),
    Column("GROUP"),
    Column("STATE"),
    Column("INSTANCE ID", rank=1),
    Column("TYPE", rank=3),
    Column("UP", rank=2, right=True),
    Column("IMAGE", rank=4),
    Column("SLURM", rank=6),
    Column("REASON", rank=7),
    Column("MESSAGE", rank=5),
)
SLURM = (Column("NODE"), Column("GROUP", rank=1), Column("SLURM"), Column("REASON"))
UNKNOWN = SlurmState("", "")
ADDED = (Column("GROUP"), Column("NODES", right=True), Column("RESULT"))
CONTINUOUS = "Continuous"
RESULTS = (Column("NODE"), Column("GROUP", rank=1), Column("INSTANCE ID", rank=2), Column("RESULT"))


@dataclass(frozen=True)
class NodeDocument(JsonObject):
    """A node, as SageMaker and Slurm know it."""

    slurm_name: str
    group: str
    index: int
    """Within its group, from 1."""
    role: str
    instance_id: str
    instance_type: str
    private_ip: str
    status: str
    """SageMaker's."""
    message: str
    launched_at: datetime | None
    image_version: str
    image_status: str


@dataclass(frozen=True)
class _NodeInSlurm(NodeDocument):
    slurm_state: str | None = field(default=None, metadata={"optional": True})
    """Missing without `--slurm`."""
    slurm_reason: str | None = field(default=None, metadata={"optional": True})


@dataclass(frozen=True)
class _RefusedNode(NodeDocument):
    code: str
    reason: str


@dataclass(frozen=True)
class _NodesListed(JsonObject):
    schema: Literal["podwright.nodes/1", "podwright.nodes.drain/1", "podwright.nodes.undrain/1"]
    cluster: str
    nodes: list[_NodeInSlurm]


@dataclass(frozen=True)
class _NodesChanged(JsonObject):
    schema: Literal["podwright.nodes.replace/1", "podwright.nodes.reboot/1", "podwright.nodes.delete/1"]
    cluster: str
    accepted: list[NodeDocument]
    refused: list[_RefusedNode]


@dataclass(frozen=True, kw_only=True)
class _NodesChecked(JsonObject):
    schema: Literal["podwright.nodes.check/1"] = "podwright.nodes.check/1"
    cluster: str
    checks: list[str]
    nodes: list[NodeDocument]


@dataclass(frozen=True, kw_only=True)
class _NodesAdded(JsonObject):
    schema: Literal["podwright.nodes.add/1"] = "podwright.nodes.add/1"
    cluster: str
    count: int
    """Of the group, with the new ones."""
    results: list[Added]


Nodes = Annotated[
    _NodesListed | _NodesChanged | _NodesChecked | _NodesAdded, "The documents of `podwright nodes VERB --json`."
]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verbs, each with its arguments."""
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    listing = verbs.add_parser("list", help="show every node, its state and its instance")
    add_target_arguments(listing)
    listing.add_argument("--group", metavar="NAME", help="only this instance group")
    listing.add_argument("--slurm", action="store_true", help="also Slurm's state and reason, from the controller")
    listing.set_defaults(verb=_list)
    add_examples(listing, "podwright nodes list --group workers --slurm")
    _add_change(verbs, api.REPLACE, "give nodes new instances with empty disks")
    _add_change(verbs, api.REBOOT, "restart nodes; their disks stay")
    _add_change(verbs, api.DELETE, "remove nodes, and lower their groups' counts")
    _add_check(verbs)
    adding = verbs.add_parser("add", help="add nodes to a group of a cluster with continuous provisioning")
    adding.add_argument("group", metavar="GROUP", help="instance group")
    adding.add_argument("count", type=int, metavar="N", help="number of new nodes, from 1")
    add_yes(adding)
    add_target_arguments(adding)
    adding.set_defaults(verb=_add)
    add_examples(adding, "podwright nodes add workers 2")
    draining = _add_slurm(verbs, "drain", "let running jobs end, and start no new ones")
    draining.add_argument(
        "--reason", default=f"drained by {getpass.getuser()}", help="reason that Slurm shows. Default: %(default)s"
    )
    _add_slurm(verbs, "undrain", "let jobs start again on drained, failed or down nodes")
    add_examples(
        parser,
        "podwright nodes list --json | jq -r '.nodes[].slurm_name'",
        "podwright nodes replace ip-10-1-0-7",
        "podwright nodes reboot controller --include-controller",
    )


def run(options: argparse.Namespace) -> int:
    """Run the verb and return its exit status."""
    status: int = options.verb(options)
    return status


def row(node: Node, slurm: SlurmState) -> tuple[str, ...]:
    """Return a node as a row of ``COLUMNS``."""
    return (
        node.name,
        f"{node.group}/{node.index}",
        node.status,
        node.instance_id,
        node.instance_type,
        age(node.launched_at),
        node.image_version,
        slurm.state,
        slurm.reason,
        node.message,
    )


def _list(options: argparse.Namespace) -> int:
    cluster_target = target(options)
    cluster = cluster_target.cluster()
    existing = cluster_target.nodes(cluster)
    if options.group:
        cluster.group(options.group)
    nodes = [node for node in existing if options.group in {None, node.group}]
    states: dict[str, SlurmState] = {}
    if options.slurm:
        states = slurm_states.states(slurm_states.controller_shell(cluster_target.session, cluster, existing))
    if options.json:
        without_slurm = {"slurm_state": None, "slurm_reason": None}
        documents = [
            _with_slurm_state(node, states) if options.slurm else _NodeInSlurm.of(node, **without_slurm)
            for node in nodes
        ]
        print_document(_NodesListed(schema="podwright.nodes/1", cluster=cluster.name, nodes=documents))
    else:
        print_table(COLUMNS, [row(node, states.get(node.slurm_name, UNKNOWN)) for node in nodes])
    return 0


def _with_slurm_state(node: Node, states: Mapping[str, SlurmState]) -> _NodeInSlurm:
    slurm_state = states.get(node.slurm_name, UNKNOWN)
    return _NodeInSlurm.of(node, slurm_state=slurm_state.state, slurm_reason=slurm_state.reason)


def _add_slurm(
    verbs: argparse._SubParsersAction[argparse.ArgumentParser], verb: str, help_: str
) -> argparse.ArgumentParser:
    parser = verbs.add_parser(verb, help=help_)
    parser.add_argument("nodes", nargs="+", metavar="NODE", help=NODE_HELP)
    add_target_arguments(parser)
    parser.set_defaults(verb=lambda options: _slurm(options, verb))
    add_examples(parser, f"podwright nodes {verb} ip-10-1-0-7 workers/3")
    return parser


def _slurm(options: argparse.Namespace, verb: str) -> int:
    cluster_target = target(options)
    cluster = cluster_target.cluster()
    existing = cluster_target.nodes(cluster)
    nodes = select(cluster, existing, options.nodes)
    shell = slurm_states.controller_shell(cluster_target.session, cluster, existing)
    if verb == "drain":
        slurm_states.drain(shell, nodes, reason=options.reason)
    else:
        slurm_states.resume(shell, nodes)
    states = slurm_states.states(shell)
    if options.json:
        documents = [_with_slurm_state(node, states) for node in nodes]
        schema: Any = f"podwright.nodes.{verb}/1"
        print_document(_NodesListed(schema=schema, cluster=cluster.name, nodes=documents))
        return 0
    rows = [(node, states.get(node.slurm_name, UNKNOWN)) for node in nodes]
    print_table(SLURM, [(node.name, f"{node.group}/{node.index}", state.state, state.reason) for node, state in rows])
    return 0


def _add_change(verbs: argparse._SubParsersAction[argparse.ArgumentParser], change: NodeChange, help_: str) -> None:
    parser = verbs.add_parser(change.verb, help=help_)
    parser.add_argument("nodes", nargs="*", metavar="NODE", help=NODE_HELP)
    parser.add_argument("--group", metavar="NAME", help="all nodes of this instance group")
    add_yes(parser)
    if change.verb in ACTIONS:
        parser.add_argument("--after-jobs", action="store_true", help="do it after the nodes' jobs have ended")
    if change.for_controllers:
        parser.add_argument("--include-controller", action="store_true", help="allow nodes that run slurmctld")
    add_target_arguments(parser)
    parser.set_defaults(verb=lambda options: _change(options, change))
    add_examples(parser, f"podwright nodes {change.verb} ip-10-1-0-7 workers/3", f"podwright nodes {change.verb} -h")


def _add_check(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("check", help="start AWS's deep health checks, which take up to hours, on compute nodes")
    parser.add_argument("nodes", nargs="*", metavar="NODE", help=NODE_HELP)
    parser.add_argument("--group", metavar="NAME", help="all nodes of this instance group")
    help_ = f"{' or '.join(DEEP_HEALTH_CHECKS)}; may be repeated. Default: {DEEP_HEALTH_CHECKS[0]}"
    parser.add_argument("--deep", action="append", choices=DEEP_HEALTH_CHECKS, metavar="CHECK", help=help_)
    add_yes(parser)
    add_target_arguments(parser)
    parser.set_defaults(verb=_check)
    add_examples(parser, "podwright nodes check workers/3", "podwright nodes check --group workers --yes")


def _check(options: argparse.Namespace) -> int:
    cluster_target, cluster, _, nodes = _selected(options, "check")
    if wrong := [node.name for node in nodes if node.role != COMPUTE]:
        raise ArgumentError(
            f"{' and '.join(wrong)} runs no jobs", "deep health checks are for compute nodes: name those"
        )
    checks = ["".join(map(str.capitalize, check.split("-"))) for check in options.deep or DEEP_HEALTH_CHECKS[:1]]
    question = f"Check {_names(nodes)} of {cluster.name} by {' and '.join(checks)}? {CHECKED}"
    if not confirm(question, yes=options.yes):
        return 1
    api.start_health_checks(cluster_target.session, cluster, nodes, checks)
    if options.json:
        documents = [NodeDocument.of(node) for node in nodes]
        print_document(_NodesChecked(cluster=cluster.name, checks=checks, nodes=documents))
    else:
        print("started: `podwright status --wait` waits until the nodes run again")
    return 0


def _change(options: argparse.Namespace, change: NodeChange) -> int:
    cluster_target, cluster, existing, nodes = _selected(options, change.verb)
    after_jobs = getattr(options, "after_jobs", False)
    include_controller = getattr(options, "include_controller", False)
    api.protect_controllers(change, nodes, include_controller=include_controller)
    consequences = AFTER_JOBS if after_jobs else change.consequences
    question = f"{change.verb.capitalize()} {_names(nodes)} of {cluster.name}? {consequences}"
    if not confirm(question, yes=options.yes):
        return 1
    if after_jobs:
        shell = slurm_states.controller_shell(cluster_target.session, cluster, existing)
        slurm_states.act_after_jobs(shell, nodes, change.verb)
        results = [Result(node) for node in nodes]
    else:
        results = list(api.apply(cluster_target.session, cluster, change, nodes))
    _print(options, cluster, change, results)
    return 0 if all(result.accepted for result in results) else 1


def _add(options: argparse.Namespace) -> int:
    cluster_target = target(options)
    cluster = cluster_target.cluster()
    group = cluster.group(options.group)
    if not 1 <= options.count <= facts.MAX_INSTANCE_COUNT:
        need = f"need 1 to {facts.MAX_INSTANCE_COUNT}"
        raise ArgumentError(f"N: got {options.count}, {need}", "`podwright nodes delete` removes nodes")
    if cluster.node_provisioning_mode != CONTINUOUS:
        hint = f"use `podwright scale {group.name} {group.target_count + options.count}`"
        raise ArgumentError(f"{cluster.name} has no continuous provisioning, which adding nodes needs", hint)
    if group.role == CONTROLLER:
        raise ArgumentError(f"{group.name} runs Slurm's controller", "add nodes to another group")
    question = f"Add {options.count} {group.instance_type} to {group.name} of {cluster.name}?"
    if not confirm(question, yes=options.yes):
        return 1
    results = list(api.add(cluster_target.session, cluster, group.name, options.count))
    refused = sum(result.refused for result in results)
    count = group.target_count + options.count - refused
    if options.json:
        print_document(_NodesAdded(cluster=cluster.name, count=count, results=results))
        return 1 if refused else 0
    rows = [
        (item.group, str(len(item.nodes) or item.refused), f"{item.code}: {item.message}" if item.code else "accepted")
        for item in results
    ]
    print_table(ADDED, rows)
    print(f"cluster.yaml still has the old count: `podwright scale {group.name} {count}` writes it")
    return 1 if refused else 0


def _selected(options: argparse.Namespace, verb: str) -> tuple[Target, Cluster, tuple[Node, ...], tuple[Node, ...]]:
    """Return the target, its cluster, all nodes, and the nodes that the arguments select."""
    if bool(options.nodes) == bool(options.group):
        raise ArgumentError(f"name the nodes to {verb}, or give --group NAME")
    cluster_target = target(options)
    cluster = cluster_target.cluster()
    existing = cluster_target.nodes(cluster)
    nodes = select(cluster, existing, options.nodes) if options.nodes else _of_group(cluster, existing, options.group)
    return cluster_target, cluster, existing, nodes


def _of_group(cluster: Cluster, existing: tuple[Node, ...], name: str) -> tuple[Node, ...]:
    cluster.group(name)
    nodes = tuple(node for node in existing if node.group == name)
    if not nodes:
        raise ArgumentError(f"{name} of {cluster.name} has no nodes")
    return nodes


def _names(nodes: tuple[Node, ...]) -> str:
    if len(nodes) <= NODES_NAMED:
        return ", ".join(node.name for node in nodes)
    return f"{len(nodes)} nodes"


def _print(options: argparse.Namespace, cluster: Cluster, change: NodeChange, results: list[Result]) -> None:
    if options.json:
        schema: Any = f"podwright.nodes.{change.verb}/1"
        document = _NodesChanged(
            schema=schema,
            cluster=cluster.name,
            accepted=[NodeDocument.of(result.node) for result in results if result.accepted],
            refused=[
                _RefusedNode.of(result.node, code=result.code, reason=result.message)
                for result in results
                if not result.accepted
            ],
        )
        print_document(document)
        return
    rows = [
        (
            result.node.name,
            f"{result.node.group}/{result.node.index}",
            result.node.instance_id,
            "accepted" if result.accepted else f"{result.code}: {result.message}",
        )
        for result in results
    ]
    print_table(RESULTS, rows)
    print(_next(cluster, change, results))


def _next(cluster: Cluster, change: NodeChange, results: list[Result]) -> str:
    """Return a line with the command to run next."""
    if change is not api.DELETE:
        return "`podwright status --wait` waits until they run"
    fewer = Counter(result.node.group for result in results if result.accepted)
    counts = {name: cluster.group(name).target_count - count for name, count in fewer.items()}
    commands = ", ".join(f"`podwright scale {name} {count}`" for name, count in counts.items())
    return f"cluster.yaml still has the old count, and the next deployment adds nodes again: {commands or 'see it'}"
