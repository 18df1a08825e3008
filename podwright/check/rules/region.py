"""Rules about regions and zones."""

from __future__ import annotations

import re
from collections.abc import Iterator

from podwright.check.findings import Finding, KeyPath, error, warning
from podwright.check.rules.rule import reads
from podwright.settings.network import CreatedNetwork, CreatedSubnet
from podwright.settings.operations import CreatedAccounting, S3State
from podwright.settings.regions import (
    CHINA,
    HYPERPOD_REGIONS,
    HYPERPOD_REGIONS_DATE,
    REGIONS,
    looks_like_region,
    partition_of,
    zone_id_prefix,
    zone_ids,
)
from podwright.settings.root import Settings
from podwright.settings.section import Section, texts
from podwright.settings.storage import ExistingLustre, ExistingOpenZfs
from podwright_common.similar_names import did_you_mean
from podwright_constructs import facts


def known_region(settings: Settings) -> Iterator[Finding]:
    """The region's name is malformed (error), or it is on no list of regions with HyperPod (warning).

    AWS adds regions, and podwright's list has a date, so a region that it lacks is a warning. Regions of China are an
    error: no list of AWS has HyperPod in the partition aws-cn.
    `aws cloudformation describe-type --type RESOURCE --type-name AWS::SageMaker::Cluster --region …` shows whether a
    region has HyperPod today. https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod.html
    """
    hint = did_you_mean(settings.region, REGIONS, limit=3) or "`aws account list-regions` lists them"
    if not looks_like_region(settings.region):
        yield error(("region",), f"region: got {settings.region!r}, need a name like us-west-2", hint)
    elif settings.region not in REGIONS:
        yield warning(("region",), f"region: podwright does not know {settings.region}", hint)
    elif settings.region not in HYPERPOD_REGIONS:
        message = f"region: {settings.region} has no SageMaker HyperPod clusters, as of {HYPERPOD_REGIONS_DATE}"
        regions = f"regions that have them: {', '.join(HYPERPOD_REGIONS)}"
        if partition_of(settings.region) == CHINA:
            yield error(("region",), message, regions)
        else:
            yield warning(("region",), message, f"{regions}; deploy nevertheless if AWS has added this one since")


@reads("region")
def zone_in_region(settings: Settings) -> Iterator[Finding]:
    """The Availability Zone is in another region (error), or podwright does not know it (warning)."""
    prefix = zone_id_prefix(settings.region)
    known_zones = zone_ids(settings.region)
    for path, zone in [*zones(settings.network), *_zones_of_database(settings)]:
        if not facts.AVAILABILITY_ZONE_ID_PATTERN.fullmatch(zone) or prefix is None:
            continue
        if not re.fullmatch(rf"{prefix}-az[0-9]+", zone):
            yield error(
                path,
                f"{_word(path)}: {zone!r} is not in {settings.region}",
                f"ids of {settings.region} look like {prefix}-az1; "
                f"`aws ec2 describe-availability-zones --region {settings.region}` lists them",
                at_key=path[-1] == zone,  # subnet_cidrs has zones for keys
            )
        elif known_zones and zone not in known_zones:
            message = f"{_word(path)}: podwright knows no zone {zone} in {settings.region}"
            yield warning(path, message, f"zones of {settings.region}: {', '.join(known_zones)}")


def _word(path: KeyPath) -> str:
    """Return the key of a zone for messages; subnet_cidrs has zones for keys."""
    return str(path[1] if path[0] == "accounting" else path[-1])


def _zones_of_database(settings: Settings) -> Iterator[tuple[KeyPath, str]]:
    if isinstance(settings.accounting, CreatedAccounting):
        for zone in settings.accounting.subnet_cidrs:
            yield ("accounting", "subnet_cidrs", zone), zone


def zones(network: Section) -> Iterator[tuple[KeyPath, str]]:
    """Yield the zone ids of the file with their paths."""
    if isinstance(network, CreatedNetwork | CreatedSubnet):
        yield ("network", "availability_zone_id"), network.availability_zone_id
    for index, subnet in enumerate(network.extra_private_subnets if isinstance(network, CreatedNetwork) else ()):
        yield ("network", "extra_private_subnets", index, "availability_zone_id"), subnet.availability_zone_id


@reads("region")
def existing_file_system_in_region(settings: Settings) -> Iterator[Finding]:
    """The existing file system is in another region than the cluster."""
    for word, file_system in (("lustre", settings.lustre), ("openzfs", settings.openzfs)):
        if not isinstance(file_system, ExistingLustre | ExistingOpenZfs):
            continue
        match = re.search(r"\.fsx\.([a-z0-9-]+)\.amazonaws\.", file_system.dns_name)
        if match and match[1] != settings.region and looks_like_region(settings.region):
            yield error(
                (word, "dns_name"),
                f"dns_name: the file system is in {match[1]}, the cluster in {settings.region}",
                f"use a file system in {settings.region}",
            )


@reads("region")
def arns_in_region(settings: Settings) -> Iterator[Finding]:
    """An ARN is in another partition or another region: services use resources in their own region."""
    if not looks_like_region(settings.region):
        return
    partition = partition_of(settings.region)
    for path, text in texts(settings):
        match = _ARN.match(text)
        if match is None:
            continue
        if match["partition"] != partition:
            message = (
                f"{path[-1]}: got an ARN of the partition {match['partition']}, {settings.region} is in {partition}"
            )
            yield error(path, message, f"use a resource of this partition, arn:{partition}:…")
        elif path[:2] == ("role", "statements") or (path[0] == "state" and not settings.are_valid("state.region")):
            continue  # Statements may name what is in other regions, such as a registry of images.
        elif match["region"] and match["region"] != (region := _region_of(path, settings)):
            message = f"{path[-1]}: the {_THINGS.get(match['service'], 'resource')} is in {match['region']}"
            hint = "use a key of {}, or a replica of it there" if match["service"] == "kms" else "use one of {}"
            user = "state" if path[0] == "state" else "cluster"
            yield error(path, f"{message}, the {user} in {region}", hint.format(region))


_ARN = re.compile(r"arn:(?P<partition>aws[a-z-]*):(?P<service>[a-z0-9-]+):(?P<region>[a-z0-9-]*):")
_THINGS = {"kms": "key", "secretsmanager": "secret", "aps": "workspace", "sagemaker": "training plan", "sns": "topic"}


def _region_of(path: KeyPath, settings: Settings) -> str:
    """Return the region where an ARN belongs: the state's bucket may be elsewhere than the cluster."""
    state = settings.state
    if path[0] == "state" and isinstance(state, S3State) and state.region:
        return state.region
    return settings.region
