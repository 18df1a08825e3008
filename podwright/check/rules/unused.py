"""A rule about settings without effect."""

from __future__ import annotations

from collections.abc import Iterator

from podwright.check.findings import Finding, error
from podwright.settings.network import CreatedNetwork, ExistingNetwork
from podwright.settings.root import Settings
from podwright.settings.storage import CreatedOpenZfs
from podwright_constructs import facts


def unused_settings(settings: Settings) -> Iterator[Finding]:
    """A setting has no effect beside another one."""
    network, openzfs = settings.network, settings.openzfs
    word = "public_subnet_cidr"
    if isinstance(network, CreatedNetwork) and network.internet == "none" and word in network.model_fields_set:
        yield error(("network", word), f"{word} has no effect with internet: none", "delete the line")
    of_two_zones = isinstance(openzfs, CreatedOpenZfs) and openzfs.deployment_type in facts.OPENZFS_SUBNETS
    if of_two_zones or not settings.are_valid("openzfs.deployment_type"):
        return
    if isinstance(network, ExistingNetwork) and network.route_table_ids:
        hint = "delete the lines; only a created OpenZFS file system of two zones adds routes there"
        yield error(("network", "route_table_ids"), "route_table_ids has no effect without OpenZFS of two zones", hint)
