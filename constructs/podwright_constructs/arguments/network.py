"""Arguments of networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from typing_extensions import Doc


@dataclass(frozen=True, kw_only=True)
class ExistingNetworkArguments:
    """An existing VPC; its security group must allow all traffic to itself, in and out, or EFA is unhealthy."""

    vpc_id: Annotated[str, Doc("The VPC, vpc-….")]
    subnet_ids: Annotated[Sequence[str], Doc("Private subnets, subnet-…; nodes and Lustre are in the first.")]
    security_group_id: Annotated[str, Doc("Security group of nodes and file system, sg-….")]
    route_table_ids: Annotated[
        Sequence[str],
        Doc(
            "Route tables of the subnets, rtb-…, where a created OpenZFS of two zones adds routes. "
            "Default: the main route table."
        ),
    ] = ()
