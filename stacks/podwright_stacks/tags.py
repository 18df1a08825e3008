"""Where everything that is created belongs, as a tag: `podwright adopt` finds by it what a killed Terraform left."""

from __future__ import annotations

from cdktf import TerraformStack

from podwright.settings import names
from podwright_constructs.bindings import Resource

# What carries no place, and why it need not. Most of it is written by a PUT, which the next run simply repeats.
WITH_ITS_PARENT = "lives and dies with its parent, and is taken as it is"
WRITTEN_AGAIN = "a setting of its parent: the next run writes it again"
BY_NAME = (
    "takes no tags, or the Tagging API does not look there: found by its planned name (`podwright/deploy/orphans.py`)"
)
UNTAGGED = {
    "aws_budgets_budget": BY_NAME,
    "aws_cloudcontrolapi_resource": "the cluster's Tags are in its desired state",
    "aws_cloudwatch_dashboard": WRITTEN_AGAIN,
    "aws_cloudwatch_event_target": WRITTEN_AGAIN,
    "aws_default_security_group": WITH_ITS_PARENT,
    "aws_iam_role_policy": WRITTEN_AGAIN,
    "aws_kms_alias": BY_NAME,
    "aws_route": BY_NAME,
    "aws_route_table_association": BY_NAME,
    "aws_s3_bucket_lifecycle_configuration": WRITTEN_AGAIN,
    "aws_s3_bucket_logging": WRITTEN_AGAIN,
    "aws_s3_bucket_policy": WRITTEN_AGAIN,
    "aws_s3_bucket_public_access_block": WRITTEN_AGAIN,
    "aws_s3_bucket_server_side_encryption_configuration": WRITTEN_AGAIN,
    "aws_s3_bucket_versioning": WRITTEN_AGAIN,
    "aws_s3_object": "objects have at most ten tags: the next run writes it again",
    "aws_scheduler_schedule": BY_NAME,
    "aws_sns_topic_policy": WRITTEN_AGAIN,
    "aws_sns_topic_subscription": "subscribing twice is one subscription",
    "aws_vpc_ipv4_cidr_block_association": BY_NAME,
}


def tag_places(stack: TerraformStack) -> None:
    """Tag everything in the stack that takes tags with its construct path, which is the same in every account."""
    for construct in stack.node.find_all():
        if isinstance(construct, Resource) and construct.TYPE not in UNTAGGED:
            construct.add_tag(names.PLACE_TAG, construct.node.path)
