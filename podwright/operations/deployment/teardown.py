"""``podwright teardown --check``: list resources of a cluster that still cost money, in the order to delete them."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from typing import Literal

from podwright.aws_session import Session, deployer_role
from podwright.diagram.prices import label
from podwright.json_document import JsonObject
from podwright.operations.account.inventory import Inventory, Leftover, inventory
from podwright.operations.output import Column, print_document, print_table
from podwright.operations.target import Target, add_examples, add_target_arguments, target
from podwright_common.exit_status import FAILED, OK

COLUMNS = (
    Column("what"),
    Column("id"),
    Column("detail", rank=1),
    Column("$/h", right=True),
    Column("delete with", rank=2),
)


@dataclass(frozen=True, kw_only=True)
class Teardown(JsonObject):
    """The document of `podwright teardown --json`, in the order in which to delete."""

    schema: Literal["podwright.teardown/1"] = "podwright.teardown/1"
    cluster: str
    leftovers: list[Leftover] = field(metadata={"key": "left"})
    usd_per_hour: float = field(metadata={"digits": 6})
    free: list[str]
    """ARNs of resources that cost nothing alone."""
    unanswered: list[str]
    """What AWS did not list, and why."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --cluster, --region, --profile, --json and --check."""
    add_target_arguments(parser)
    parser.add_argument("--check", action="store_true", help="exit with 1 if any resource is left, for CI")
    add_examples(parser, "podwright teardown --check", "podwright teardown --cluster old --region us-east-1")


def run(options: argparse.Namespace) -> int:
    """List the remaining resources; AWS is not changed.

    Raises:
        OperationError: AWS does not answer.
    """
    cluster_target = target(options)
    remaining_resources = inventory(_session(cluster_target), cluster_target.name)
    if options.json:
        print_document(Teardown.of(remaining_resources))
    else:
        print_inventory(remaining_resources)
    return FAILED if options.check and (remaining_resources.leftovers or remaining_resources.unanswered) else OK


def _session(cluster_target: Target) -> Session:
    """Return a session with the role that the settings name: the resources may be in another account."""
    if cluster_target.file is None:
        return cluster_target.session
    from podwright.check.input_errors import InvalidSettingsError
    from podwright.check.load import load

    try:
        settings = load(cluster_target.file)
    except InvalidSettingsError:  # What is left costs money also where the file has errors.
        return cluster_target.session
    profile = cluster_target.session.profile
    return Session(region=cluster_target.session.region, profile=profile, role=deployer_role(settings))


def print_inventory(remaining_resources: Inventory) -> None:
    """Print the remaining resources, and the sum on the last line."""
    if remaining_resources.leftovers:
        print_table(COLUMNS, [_row(item.to_dict()) for item in remaining_resources.leftovers])
        print("`podwright destroy` deletes resources in Terraform's state; the commands delete the rest, from the top.")
    for refused in remaining_resources.unanswered:
        print(f"not listed: {refused}")
    if remaining_resources.free:
        print(f"free, with the cluster's tag: {len(remaining_resources.free)} (--json lists them)")
    based = (
        f" ({label(remaining_resources.region, remaining_resources.instance_types)})"
        if remaining_resources.usd_per_hour
        else ""
    )
    print(f"{remaining_resources.cluster}: {remaining_resources.summary}{based}")


def _row(item: dict[str, object]) -> list[str]:
    price = item["usd_per_hour"]
    words = "?" if price is None else f"{price:,.4f}"
    return [str(item["kind"]), str(item["id"]), str(item["detail"]), words, str(item["delete"])]
