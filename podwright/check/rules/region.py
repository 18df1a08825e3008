"""Rules about regions and zones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from difflib import get_close_matches

from podwright.check.findings import Finding, KeyPath, error, warning
from podwright.settings.access import ExistingKey
from podwright.settings.network import CreatedNetwork, CreatedSubnet
from podwright.settings.regions import REGIONS, looks_like_region, zone_id_prefix
from podwright.settings.root import Settings
from podwright.settings.section import Section, UnknownValueError
from podwright.settings.storage import ExistingBucket, ExistingLustre, ExistingOpenZfs
from podwright_constructs import facts


def known_region(settings: Settings) -> Iterator[Finding]:
    """The region's name is malformed (error), or unknown to podwright (warning: AWS adds regions)."""
    similar = get_close_matches(settings.region, REGIONS, n=3)
    hint = f"did you mean {' or '.join(similar)}?" if similar else "`aws account list-regions` lists them"
    if not looks_like_region(settings.region):
        yield error(("region",), f"region: got {settings.region!r}, need a name like us-west-2", hint)
    elif settings.region not in REGIONS:
        yield warning(("region",), f"region: podwright does not know {settings.region}", hint)


def zone_in_region(settings: Settings) -> Iterator[Finding]:
    """The Availability Zone id belongs to another region."""
    prefix = zone_id_prefix(settings.region)
    for path, zone in zones(settings.network):
        if not facts.AVAILABILITY_ZONE_ID_PATTERN.fullmatch(zone) or prefix is None:
            continue
        if not re.fullmatch(rf"{prefix}-az\d+", zone):
            yield error(
                path,
                f"availability_zone_id: {zone!r} is not in {settings.region}",
                f"ids of {settings.region} look like {prefix}-az1; "
                f"`aws ec2 describe-availability-zones --region {settings.region}` lists them",
            )


def zones(network: Section) -> Iterator[tuple[KeyPath, str]]:
    """Yield the zone ids of the file with their paths; skip wrong values."""
    if isinstance(network, CreatedNetwork | CreatedSubnet):
        with suppress(UnknownValueError):
            yield ("network", "availability_zone_id"), network.availability_zone_id
    for index, subnet in enumerate(network.extra_private_subnets if isinstance(network, CreatedNetwork) else ()):
        with suppress(UnknownValueError):
            yield ("network", "extra_private_subnets", index, "availability_zone_id"), subnet.availability_zone_id


def existing_file_system_in_region(settings: Settings) -> Iterator[Finding]:
    """The existing file system is in another region than the cluster."""
    for word, file_system in (("lustre", settings.lustre), ("openzfs", settings.openzfs)):
        if not isinstance(file_system, ExistingLustre | ExistingOpenZfs):
            continue
        match = re.search(r"\.fsx\.([a-z0-9-]+)\.amazonaws\.", file_system.dns_name)
        if match and match[1] != settings.region:
            yield warning(
                (word, "dns_name"),
                f"dns_name: the file system is in {match[1]}, the cluster in {settings.region}",
                f"use a file system in {settings.region}",
            )


def existing_key_in_region(settings: Settings) -> Iterator[Finding]:
    """The existing key is in another region; services use only keys of their own region."""
    arns = {
        ("key", "arn"): settings.key.arn if isinstance(settings.key, ExistingKey) else None,
        ("bucket", "key_arn"): settings.bucket.key_arn if isinstance(settings.bucket, ExistingBucket) else None,
    }
    for path, arn in arns.items():
        match = facts.KEY_ARN_PATTERN.fullmatch(arn or "")
        if match and match[1] != settings.region:
            message = f"{path[-1]}: the key is in {match[1]}, the cluster in {settings.region}"
            yield error(path, message, f"use a key of {settings.region}, or a replica of it there")
