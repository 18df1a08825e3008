"""Rules about file systems and databases beside network and key."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Network

from podwright.check.findings import Finding, error, findings_of, warning
from podwright.check.rules.region import zones
from podwright.check.rules.rule import reads
from podwright.settings.access import NoKey
from podwright.settings.network import CreatedNetwork, ExistingNetwork
from podwright.settings.operations import CreatedAccounting, ExistingAccounting
from podwright.settings.root import Settings
from podwright.settings.storage import CreatedLustre, CreatedOpenZfs, ExistingLustre, ExistingOpenZfs
from podwright_constructs import checks, facts
from podwright_constructs.checks.lustre import nid_ranges


@reads("network.subnet_ids", "network.availability_zone_id", "network.extra_private_subnets.availability_zone_id")
def openzfs_zones(settings: Settings) -> Iterator[Finding]:
    """An OpenZFS file system of two zones needs private subnets in both, the first two of the network."""
    openzfs, network = settings.openzfs, settings.network
    if not isinstance(openzfs, CreatedOpenZfs):
        return
    zone_ids = [zone for _, zone in zones(network)]
    subnet_count = len(network.subnet_ids) if isinstance(network, ExistingNetwork) else len(set(zone_ids[:2]))
    problems = checks.openzfs_subnets(deployment_type=openzfs.deployment_type, subnet_count=subnet_count)
    yield from findings_of(("openzfs",), problems)
    of_two_zones = openzfs.deployment_type in facts.OPENZFS_SUBNETS
    if problems or not of_two_zones or not settings.are_valid("network.route_table_ids", "network.vpc_id"):
        return
    if isinstance(network, ExistingNetwork) and not network.route_table_ids:
        yield warning(
            ("openzfs", "deployment_type"),
            f"deployment_type: {openzfs.deployment_type} has its address in the main route table of {network.vpc_id}",
            "give network.route_table_ids if the subnets follow others",
        )


@reads("network.source")
def other_network(settings: Settings) -> Iterator[Finding]:
    """A file system, database or database's subnet exists already, in another VPC than the one that is created.

    Nodes reach it only if you peer the VPCs, or connect them by a transit gateway, before the cluster starts:
    https://docs.aws.amazon.com/fsx/latest/LustreGuide/mounting-on-premises.html,
    https://docs.aws.amazon.com/fsx/latest/OpenZFSGuide/supported-fsx-clients.html and
    https://docs.aws.amazon.com/AmazonRDS/latest/UserGuide/USER_VPC.Scenarios.html
    """
    if not isinstance(settings.network, CreatedNetwork):
        return
    sections = {"lustre": settings.lustre, "openzfs": settings.openzfs, "accounting": settings.accounting}
    for key, section in sections.items():
        if isinstance(section, ExistingLustre | ExistingOpenZfs | ExistingAccounting):
            failure = "controllers cannot reach it" if key == "accounting" else "nodes cannot mount it, and boots fail"
            yield warning(
                (key, "source"),
                f"source: {key} exists, but network.source is create: in the new VPC {failure}",
                "use `network: {source: existing, …}` or `{source: existing_vpc, …}` with its VPC; or deploy the "
                "foundation, peer both VPCs with routes and security groups, and then deploy the cluster",
            )
    yield from _subnets_of_other_network(settings)


@reads("accounting.subnet_cidrs")
def _subnets_of_other_network(settings: Settings) -> Iterator[Finding]:
    accounting = settings.accounting
    if isinstance(accounting, CreatedAccounting) and accounting.subnet_ids and not accounting.subnet_cidrs:
        yield error(
            ("accounting", "subnet_ids"),
            "subnet_ids: existing subnets cannot be in the VPC that network.source: create makes, and RDS refuses the "
            "database's security group, which is there",
            "use accounting.subnet_cidrs, blocks of the new VPC; or `network: {source: existing, …}` or "
            "`{source: existing_vpc, …}` with the VPC of these subnets",
        )


@reads("network.source", "network.private_subnet_cidr", "network.extra_private_subnets.cidr", "lustre.no_squash_nids")
def root_squash(settings: Settings) -> Iterator[Finding]:
    """Nodes create folders on Lustre as root when they boot, so lustre.no_squash_nids must exempt their subnets.

    https://docs.aws.amazon.com/fsx/latest/LustreGuide/root-squash.html
    """
    lustre, network = settings.lustre, settings.network
    if not isinstance(lustre, CreatedLustre) or lustre.root_squash in {None, "0:0"}:
        return
    if any(problem.path[0] in {"root_squash", "no_squash_nids"} for problem in checks.lustre_file_system(lustre)):
        return
    path, exempt = ("lustre", "root_squash"), [ranges for nid in lustre.no_squash_nids if (ranges := nid_ranges(nid))]
    if isinstance(network, ExistingNetwork):
        if not exempt:
            hint = "exempt their subnets in lustre.no_squash_nids, such as 10.0.[16-31].[0-255]@tcp"
            yield error(path, "root_squash: nodes create folders as root when they boot, and none is exempt", hint)
        return
    blocks = [network.private_subnet_cidr]
    if isinstance(network, CreatedNetwork):
        blocks += [subnet.cidr for subnet in network.extra_private_subnets]
    squashed = [block for block in map(IPv4Network, blocks) if not any(_covers(ranges, block) for ranges in exempt)]
    if squashed:
        yield error(
            path,
            "root_squash: nodes create folders as root when they boot, and these subnets of theirs are not exempt: "
            f"{', '.join(map(str, squashed))}",
            f"add to lustre.no_squash_nids: {', '.join(map(_nid, squashed))}",
        )


def _parts(block: IPv4Network) -> list[range]:
    """Return the values of each of the four parts of a block's addresses."""
    return [range(first, last + 1) for first, last in zip(block[0].packed, block[-1].packed, strict=True)]


def _covers(ranges: tuple[range, ...], block: IPv4Network) -> bool:
    pairs = zip(ranges, _parts(block), strict=True)
    return all(outer[0] <= inner[0] and inner[-1] <= outer[-1] for outer, inner in pairs)


def _nid(block: IPv4Network) -> str:
    """Return a block as Lustre writes the addresses of clients."""
    parts = (str(part[0]) if len(part) == 1 else f"[{part[0]}-{part[-1]}]" for part in _parts(block))
    return f"{'.'.join(parts)}@tcp"


def scratch_key(settings: Settings) -> Iterator[Finding]:
    """FSx ignores the file's key for scratch file systems and uses its own."""
    lustre = settings.lustre
    if isinstance(settings.key, NoKey) or not isinstance(lustre, CreatedLustre):
        return
    if lustre.deployment_type == "SCRATCH_2":
        yield warning(
            ("lustre", "deployment_type"),
            "deployment_type: FSx encrypts SCRATCH_2 with its own key, not with the key of this file",
            "use PERSISTENT_2 to encrypt the data with your own key",
        )
