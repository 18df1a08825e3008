"""``podwright nodes``: list nodes, and replace, reboot or delete some of them."""

from __future__ import annotations

import argparse
from collections import Counter

from podwright.operations import node_changes
from podwright.operations.cluster import Cluster, Node
from podwright.operations.errors import ArgumentError
from podwright.operations.node_changes import Change, Result
from podwright.operations.output import Column, age, confirm, print_json, print_table
from podwright.operations.target import NODE_HELP, Target, add_examples, add_target_arguments, target

NAMED = 8  # nodes that a question names; of more, their number
COLUMNS = (
    Column("NODE"),
    Column("GROUP"),
    Column("STATE"),
    Column("INSTANCE ID", rank=1),
    Column("TYPE", rank=3),
    Column("UP", rank=2, right=True),
    Column("IMAGE", rank=4),
    Column("MESSAGE", rank=5),
)
RESULTS = (Column("NODE"), Column("GROUP", rank=1), Column("INSTANCE ID", rank=2), Column("RESULT"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take the verb and its arguments."""
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    listing = verbs.add_parser("list", help="show every node, its state and its instance")
    add_target_arguments(listing)
    listing.add_argument("--group", metavar="NAME", help="only this instance group")
    listing.set_defaults(verb=_list)
    add_examples(listing, "podwright nodes list --group workers")
    _add_change(verbs, node_changes.REPLACE, "give nodes new instances with empty disks")
    _add_change(verbs, node_changes.REBOOT, "restart nodes; their disks stay")
    _add_change(verbs, node_changes.DELETE, "remove nodes, and lower their groups' counts")
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


def row(node: Node) -> tuple[str, ...]:
    """Return a node as a row of ``COLUMNS``."""
    return (
        node.name,
        f"{node.group}/{node.index}",
        node.status,
        node.instance_id,
        node.instance_type,
        age(node.launched_at),
        node.image_version,
        node.message,
    )


def to_dict(node: Node) -> dict[str, object]:
    """Return a node as ``--json`` prints it."""
    return {
        "slurm_name": node.slurm_name,
        "group": node.group,
        "index": node.index,
        "role": node.role,
        "instance_id": node.instance_id,
        "instance_type": node.instance_type,
        "private_ip": node.private_ip,
        "status": node.status,
        "message": node.message,
        "launched_at": node.launched_at,
        "image_version": node.image_version,
        "image_status": node.image_status,
    }


def _list(options: argparse.Namespace) -> int:
    wanted = target(options)
    cluster = wanted.cluster()
    nodes = _of_group(wanted, cluster, options.group) if options.group else wanted.nodes(cluster)
    if options.json:
        print_json("podwright.nodes/1", {"cluster": cluster.name, "nodes": [to_dict(node) for node in nodes]})
    else:
        print_table(COLUMNS, [row(node) for node in nodes])
    return 0


def _add_change(verbs: argparse._SubParsersAction[argparse.ArgumentParser], change: Change, help_: str) -> None:
    parser = verbs.add_parser(change.verb, help=help_)
    parser.add_argument("nodes", nargs="*", metavar="NODE", help=NODE_HELP)
    parser.add_argument("--group", metavar="NAME", help="all nodes of this instance group")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    if change.for_controllers:
        parser.add_argument("--include-controller", action="store_true", help="also a node that runs slurmctld")
    add_target_arguments(parser)
    parser.set_defaults(verb=lambda options: _change(options, change))
    add_examples(parser, f"podwright nodes {change.verb} ip-10-1-0-7 workers/3", f"podwright nodes {change.verb} -h")


def _change(options: argparse.Namespace, change: Change) -> int:
    wanted = target(options)
    if bool(options.nodes) == bool(options.group):
        raise ArgumentError(f"which nodes to {change.verb}?", "name nodes, or --group NAME")
    cluster = wanted.cluster()
    nodes = wanted.nodes(cluster, options.nodes) if options.nodes else _of_group(wanted, cluster, options.group)
    include_controller = getattr(options, "include_controller", False)
    node_changes.protect_controllers(change, nodes, include_controller=include_controller)
    if not nodes:
        raise ArgumentError(f"{options.group} of {cluster.name} has no nodes")
    question = f"{change.verb.capitalize()} {_names(nodes)} of {cluster.name}? {change.consequences}"
    if not confirm(question, yes=options.yes):
        return 1
    results = list(node_changes.apply(wanted.session, cluster, change, nodes))
    _print(options, cluster, change, results)
    return 0 if all(result.accepted for result in results) else 1


def _of_group(wanted: Target, cluster: Cluster, name: str) -> tuple[Node, ...]:
    cluster.group(name)
    return tuple(node for node in wanted.nodes(cluster) if node.group == name)


def _names(nodes: tuple[Node, ...]) -> str:
    if len(nodes) <= NAMED:
        return ", ".join(node.name for node in nodes)
    return f"{len(nodes)} nodes"


def _print(options: argparse.Namespace, cluster: Cluster, change: Change, results: list[Result]) -> None:
    if options.json:
        document = {
            "cluster": cluster.name,
            "accepted": [to_dict(result.node) for result in results if result.accepted],
            "refused": [
                {**to_dict(result.node), "code": result.code, "reason": result.message}
                for result in results
                if not result.accepted
            ],
        }
        print_json(f"podwright.nodes.{change.verb}/1", document)
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


def _next(cluster: Cluster, change: Change, results: list[Result]) -> str:
    """Return the command that comes next."""
    if change is not node_changes.DELETE:
        return "`podwright status --wait` waits until they run"
    fewer = Counter(result.node.group for result in results if result.accepted)
    counts = {name: cluster.group(name).target_count - count for name, count in fewer.items()}
    commands = ", ".join(f"`podwright scale {name} {count}`" for name, count in counts.items())
    return f"cluster.yaml still has the old count, and the next deployment adds nodes again: {commands or 'see it'}"
