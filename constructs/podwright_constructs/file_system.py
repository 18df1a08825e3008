"""Shared parts of FSx file systems.

``on_destroy: retain`` is Terraform's ``prevent_destroy``, because no list of arguments that replace a file system would
be complete: they depend on the provider's version. It also stops ``cdktf destroy``, with a message of Terraform that
names the resource; ``podwright destroy`` works around what is kept.
"""

from __future__ import annotations

from constructs import Construct

from podwright_constructs import checks
from podwright_constructs.aws.data_partition import DataPartition
from podwright_constructs.aws.data_region import DataRegion
from podwright_constructs.kit import TerraformResourceLifecycle
from podwright_constructs.problems import InvalidArgumentsError

# FSx does not report security groups, so after `terraform import` they look changed, and a change means a new, empty
# file system. They are fixed once the file system exists anyway.
KEPT = ["security_group_ids"]


def dns_name(scope: Construct, id_: str, file_system_id: str) -> str:
    """Return the DNS name of a file system that exists, in the account's region.

    https://docs.aws.amazon.com/fsx/latest/LustreGuide/mounting-ec2-instance.html

    Raises:
        InvalidArgumentsError: the id is malformed.
    """
    if problems := checks.file_system_id(file_system_id):
        raise InvalidArgumentsError("file system", problems)
    place = Construct(scope, id_)
    region, partition = DataRegion(place, "region"), DataPartition(place, "partition")
    return f"{file_system_id}.fsx.{region.id}.{partition.dns_suffix}"


def lifecycle(on_destroy: str) -> TerraformResourceLifecycle:
    """Return Terraform's lifecycle rules of a file system."""
    return TerraformResourceLifecycle(ignore_changes=KEPT, prevent_destroy=True if on_destroy == "retain" else None)
