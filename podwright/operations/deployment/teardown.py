"""``podwright teardown --check``: list resources of a cluster that still cost money, in the order to delete them."""

from __future__ import annotations

import argparse

from podwright.diagram.prices import label
from podwright.operations.account.inventory import Inventory, inventory
from podwright.operations.output import Column, print_json, print_table
from podwright.operations.target import add_examples, add_target_arguments, target

OK, FAILED = 0, 1
SCHEMA = "podwright.teardown/1"
COLUMNS = (
    Column("what"),
    Column("id"),
    Column("detail", rank=1),
    Column("$/h", right=True),
    Column("delete with", rank=2),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take the cluster, and whether leftovers fail the command."""
    add_target_arguments(parser)
    parser.add_argument("--check", action="store_true", help="exit with 1 if any resource is left, for CI")
    add_examples(parser, "podwright teardown --check", "podwright teardown --cluster old --region us-east-1")


def run(options: argparse.Namespace) -> int:
    """List the remaining resources; AWS is not changed.

    Raises:
        OperationError: AWS does not answer.
    """
    wanted = target(options)
    found = inventory(wanted.session, wanted.name)
    if options.json:
        print_json(SCHEMA, to_dict(found))
    else:
        print_inventory(found)
    return FAILED if options.check and (found.leftovers or found.unanswered) else OK


def to_dict(found: Inventory) -> dict[str, object]:
    """Return an inventory for ``--json``."""
    return {
        "cluster": found.cluster,
        "left": [item.to_dict() for item in found.leftovers],
        "usd_per_hour": round(found.usd_per_hour, 6),
        "free": found.free,
        "unanswered": found.unanswered,
    }


def print_inventory(found: Inventory) -> None:
    """Print the remaining resources, and the sum on the last line."""
    if found.leftovers:
        print_table(COLUMNS, [_row(item.to_dict()) for item in found.leftovers])
        print("`podwright destroy` deletes resources in Terraform's state; the commands delete the rest, from the top.")
    for refused in found.unanswered:
        print(f"not listed: {refused}")
    if found.free:
        print(f"free, with the cluster's tag: {len(found.free)} (--json lists them)")
    based = f" ({label(found.region, found.instance_types)})" if found.usd_per_hour else ""
    print(f"{found.cluster}: {found.summary}{based}")


def _row(item: dict[str, object]) -> list[str]:
    price = item["usd_per_hour"]
    words = "?" if price is None else f"{price:,.4f}"
    return [str(item["kind"]), str(item["id"]), str(item["detail"]), words, str(item["delete"])]
