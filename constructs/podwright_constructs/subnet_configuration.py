"""Zone and block of a private subnet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from typing_extensions import Doc


@dataclass(frozen=True, kw_only=True)
class SubnetConfiguration:
    """A private subnet: the zone's id, such as usw2-az1, and an IPv4 block."""

    availability_zone_id: Annotated[str, Doc("Id of its zone, such as usw2-az2.")]
    cidr: Annotated[str, Doc("Its addresses, within cidr or secondary_cidrs and apart from every other subnet.")]
