"""The zones of a cluster's nodes, and the move to an offering's zone."""

from __future__ import annotations

from typing import NamedTuple

from podwright import list_prices
from podwright.aws_session import Session
from podwright.check.account import Account
from podwright.check.rules.live import zones_of_nodes
from podwright.errors import OperationError
from podwright.operations.capacity.offerings import Offering
from podwright.settings.root import Settings


class Move(NamedTuple):
    """A move to an offering's zone: the command, the capacity of file systems, and the price of copies elsewhere."""

    command: str
    data_gib: int
    transfer_usd_at_most: float


def zones_of(settings: Settings, session: Session) -> tuple[str, ...]:
    """Return the ids of the zones of the cluster's nodes; none if only AWS knows them and does not answer."""
    try:
        return tuple(zones_of_nodes(settings.network, Account(session)))
    except OperationError:
        return ()


def move_needed(settings: Settings, zones: tuple[str, ...], offering: Offering) -> Move | None:
    """Return the move to an offering's zone; None if the nodes are there, or the offering names no zone.

    Args:
        settings: the cluster.
        zones: ids of the zones of its nodes.
        offering: where the capacity is.
    """
    is_here = offering.region == settings.region
    if is_here and (not offering.zone_ids or not zones or set(offering.zone_ids) & set(zones)):
        return None
    zone = offering.zone_ids[0] if offering.zone_ids else "ZONE_ID"
    region = "" if is_here else f" --region {offering.region}"
    gib = sum(getattr(item, "capacity_gib", 0) or 0 for item in (settings.lustre, settings.openzfs) if _is_ours(item))
    return Move(
        command=f"podwright move --zone {zone}{region} --training-plan ARN",
        data_gib=gib,
        transfer_usd_at_most=0.0 if is_here else gib * list_prices.REGION_TRANSFER_USD_PER_GB,
    )


def _is_ours(file_system: object) -> bool:
    return getattr(file_system, "source", "") == "create"
