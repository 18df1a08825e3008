"""Zone and block of a private subnet. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SubnetConfiguration:
    """A private subnet: the zone's id, such as usw2-az1, and an IPv4 block."""

    availability_zone_id: str
    cidr: str
