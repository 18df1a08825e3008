"""``podwright nodes``: list a cluster's nodes."""

from __future__ import annotations

import argparse

from podwright.operations.cluster import Node
from podwright.operations.output import Column, age, print_json, print_table
from podwright.operations.target import add_examples, add_target_arguments, target

COLUMNS = (
    Column("NODE"),
    Column("GROUP"),
    Column("STATUS"),
    Column("INSTANCE ID", rank=1),
    Column("TYPE", rank=3),
    Column("UP", rank=2, right=True),
    Column("IMAGE", rank=4),
    Column("MESSAGE", rank=5),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take the verb and its arguments."""
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    listing = verbs.add_parser("list", help="show every node, its state and its instance")
    add_target_arguments(listing)
    listing.add_argument("--group", metavar="NAME", help="only this instance group")
    listing.set_defaults(verb=_list)
    add_examples(listing, "podwright nodes list --group workers")
    add_examples(parser, "podwright nodes list", "podwright nodes list --json | jq '.nodes[].slurm_name'")


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
    if options.group:
        cluster.group(options.group)
    nodes = [node for node in wanted.nodes(cluster) if options.group in {None, node.group}]
    if options.json:
        print_json("podwright.nodes/1", {"cluster": cluster.name, "nodes": [to_dict(node) for node in nodes]})
    else:
        print_table(COLUMNS, [row(node) for node in nodes])
    return 0
