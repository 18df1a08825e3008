"""The Terraform resource types that the stacks create: one row each for tags, adoption, guard and diagram."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from podwright.settings import names

Values = Mapping[str, Any]
CLUSTER = "aws_cloudcontrolapi_resource"

# Why a type carries no construct path as a tag. Most are written by a PUT, which the next run repeats.
WITH_ITS_PARENT = "is created and deleted with its parent"
WRITTEN_AGAIN = "a setting of its parent: the next run writes it again"
BY_NAME = "takes no tags, or the Tagging API does not list it: found by its planned name"


class AccountQueries(Protocol):
    """The queries to an AWS account that the table needs."""

    def look(self, expression: str, service: str, operation: str, **arguments: Any) -> Any:
        """Return the part of an answer that a JMESPath expression selects; None if the resource does not exist."""

    def account_id(self) -> str:
        """Return the account's id."""

    def file_system(self, file_system_id: str) -> Mapping[str, Any] | None:
        """Return FSx's description of a file system."""


@dataclass(frozen=True, kw_only=True)
class ResourceType:
    """Properties of a Terraform resource type; every field has a default.

    Args:
        label: Its name in the diagram. Default: the words of the type.
        in_diagram: Whether the diagram shows it, rather than only the resource that it is a part of.
        hourly: Whether it costs money by the hour, rather than by use. ``diagram/prices.py`` has the prices.
        untagged: Why it carries no construct path as a tag. Default: it carries one.
        find: Returns the id of an existing resource with the planned values, where it has no tag.
        status: Returns AWS's status of a resource whose creation takes minutes.
        delete: The AWS CLI command that deletes it, up to the id.
        loss: What its end loses, such as ``loses its data``: a deployment replaces or destroys it only when it is
            named. Default: nothing.
        holds_nodes: Whether AWS keeps it while nodes are in it.
    """

    label: str = ""
    in_diagram: bool = True
    hourly: bool = False
    untagged: str = ""
    find: Callable[[AccountQueries, Values], Any] | None = None
    status: Callable[[AccountQueries, str], Any] | None = None
    delete: str = ""
    loss: str = ""
    holds_nodes: bool = False


def resource_type(name: str) -> ResourceType:
    """Return the row of a type; a type without a row has the defaults."""
    return RESOURCE_TYPES.get(name, ResourceType())


def _untagged_bucket(account: AccountQueries, planned: Values) -> str | None:
    """Find a bucket that was created and not yet tagged: its name is one that Terraform gives, and it has no tags."""
    generated = re.compile(re.escape(planned["bucket_prefix"]) + r"\d{26}")  # the provider's unique suffix
    for name in account.look("Buckets[].Name", "s3", "list_buckets") or ():
        if generated.fullmatch(name) and not account.look("TagSet", "s3", "get_bucket_tagging", Bucket=name):
            return str(name)
    return None


def _filters(**values: str) -> list[dict[str, Any]]:
    """Return EC2's filters for values by name; ``__`` stands for a dot."""
    return [{"Name": name.replace("__", ".").replace("_", "-"), "Values": [value]} for name, value in values.items()]


RESOURCE_TYPES: dict[str, ResourceType] = {
    "terraform_data": ResourceType(in_diagram=False, untagged="is in Terraform's state alone"),
    "aws_budgets_budget": ResourceType(
        label="Budget",
        untagged=BY_NAME,
        find=lambda account, planned: account.look(
            f"Budget.BudgetName && '{account.account_id()}:{planned['name']}'",
            "budgets",
            "describe_budget",
            AccountId=account.account_id(),
            BudgetName=planned["name"],
        ),
    ),
    CLUSTER: ResourceType(
        in_diagram=False,
        untagged="the cluster's Tags are in its desired state",
        status=lambda account, name: account.look("ClusterStatus", "sagemaker", "describe_cluster", ClusterName=name),
        delete="sagemaker delete-cluster --cluster-name ",
        loss="ends all jobs",
    ),
    "aws_cloudwatch_dashboard": ResourceType(label="Dashboard", untagged=WRITTEN_AGAIN),
    "aws_cloudwatch_event_rule": ResourceType(label="Event rule"),
    "aws_cloudwatch_event_target": ResourceType(in_diagram=False, untagged=WRITTEN_AGAIN),
    "aws_cloudwatch_log_group": ResourceType(label="Log group", loss="loses its logs"),
    "aws_cloudwatch_metric_alarm": ResourceType(label="Alarm", untagged=WRITTEN_AGAIN),
    "aws_db_instance": ResourceType(
        label="Database",
        hourly=True,
        loss="loses the job accounting",
        status=lambda account, name: account.look(
            "DBInstances[0].DBInstanceStatus", "rds", "describe_db_instances", DBInstanceIdentifier=name
        ),
    ),
    "aws_db_parameter_group": ResourceType(in_diagram=False),
    "aws_db_subnet_group": ResourceType(in_diagram=False),
    "aws_default_security_group": ResourceType(in_diagram=False, untagged=WITH_ITS_PARENT),
    "aws_eip": ResourceType(in_diagram=False, delete="ec2 release-address --allocation-id "),
    "aws_flow_log": ResourceType(in_diagram=False, delete="ec2 delete-flow-logs --flow-log-ids "),
    "aws_fsx_data_repository_association": ResourceType(label="Data repository"),
    "aws_fsx_lustre_file_system": ResourceType(
        label="Lustre",
        hourly=True,
        status=lambda account, name: (account.file_system(name) or {}).get("Lifecycle"),
        delete="fsx delete-file-system --file-system-id ",
        loss="loses its data",
    ),
    "aws_fsx_openzfs_file_system": ResourceType(
        label="OpenZFS",
        hourly=True,
        status=lambda account, name: (account.file_system(name) or {}).get("Lifecycle"),
        delete="fsx delete-file-system --file-system-id ",
        loss="loses its data",
    ),
    "aws_iam_role": ResourceType(
        label="Role",
        find=lambda account, planned: account.look(
            f"Role.Tags[?Key=='{names.CONSTRUCT_PATH_TAG}' || Key=='{names.FORMER_CONSTRUCT_PATH_TAG}']"
            " && Role.RoleName",
            "iam",
            "get_role",
            RoleName=planned["name"],
        ),
    ),
    "aws_iam_role_policy": ResourceType(in_diagram=False, untagged=WRITTEN_AGAIN),
    "aws_iam_role_policy_attachment": ResourceType(in_diagram=False, untagged=WRITTEN_AGAIN),
    "aws_internet_gateway": ResourceType(delete="ec2 delete-internet-gateway --internet-gateway-id "),
    "aws_kms_alias": ResourceType(
        in_diagram=False,
        untagged=BY_NAME,
        find=lambda account, planned: account.look(
            f"KeyMetadata.KeyId && '{planned['name']}'", "kms", "describe_key", KeyId=planned["name"]
        ),
    ),
    "aws_kms_key": ResourceType(
        label="Key",
        hourly=True,
        status=lambda account, name: account.look("KeyMetadata.KeyState", "kms", "describe_key", KeyId=name),
        delete="kms schedule-key-deletion --key-id ",
        loss="loses what it has encrypted",
    ),
    "aws_nat_gateway": ResourceType(
        label="NAT gateway",
        hourly=True,
        status=lambda account, name: account.look(
            "NatGateways[0].State", "ec2", "describe_nat_gateways", NatGatewayIds=[name]
        ),
        delete="ec2 delete-nat-gateway --nat-gateway-id ",
    ),
    "aws_prometheus_workspace": ResourceType(delete="amp delete-workspace --workspace-id ", loss="loses its metrics"),
    "aws_route": ResourceType(
        in_diagram=False,
        untagged=BY_NAME,
        find=lambda account, planned: account.look(
            f"RouteTables[0] && '{planned['route_table_id']}_{planned['destination_cidr_block']}'",
            "ec2",
            "describe_route_tables",
            Filters=_filters(
                route_table_id=planned["route_table_id"],
                route__destination_cidr_block=planned["destination_cidr_block"],
            ),
        ),
    ),
    "aws_route_table": ResourceType(in_diagram=False, delete="ec2 delete-route-table --route-table-id "),
    "aws_route_table_association": ResourceType(
        in_diagram=False,
        untagged=BY_NAME,
        find=lambda account, planned: account.look(
            f"RouteTables[0] && '{planned['subnet_id']}/{planned['route_table_id']}'",
            "ec2",
            "describe_route_tables",
            Filters=_filters(route_table_id=planned["route_table_id"], association__subnet_id=planned["subnet_id"]),
        ),
    ),
    "aws_s3_bucket": ResourceType(
        label="Bucket", find=_untagged_bucket, delete="s3 rb --force s3://", loss="loses its objects"
    ),
    "aws_s3_bucket_lifecycle_configuration": ResourceType(in_diagram=False, untagged=WRITTEN_AGAIN),
    "aws_s3_bucket_logging": ResourceType(in_diagram=False, untagged=WRITTEN_AGAIN),
    "aws_s3_bucket_policy": ResourceType(in_diagram=False, untagged=WRITTEN_AGAIN),
    "aws_s3_bucket_public_access_block": ResourceType(in_diagram=False, untagged=WRITTEN_AGAIN),
    "aws_s3_bucket_server_side_encryption_configuration": ResourceType(in_diagram=False, untagged=WRITTEN_AGAIN),
    "aws_s3_bucket_versioning": ResourceType(in_diagram=False, untagged=WRITTEN_AGAIN),
    "aws_s3_object": ResourceType(
        in_diagram=False, untagged="objects have at most ten tags: the next run writes it again"
    ),
    "aws_scheduler_schedule": ResourceType(
        label="Schedule",
        untagged=BY_NAME,
        find=lambda account, planned: account.look(
            "join('/', [GroupName, Name])", "scheduler", "get_schedule", Name=planned["name"]
        ),
    ),
    "aws_security_group": ResourceType(delete="ec2 delete-security-group --group-id ", holds_nodes=True),
    "aws_sns_topic": ResourceType(label="SNS topic"),
    "aws_sns_topic_policy": ResourceType(in_diagram=False, untagged=WRITTEN_AGAIN),
    "aws_sns_topic_subscription": ResourceType(in_diagram=False, untagged="subscribing twice is one subscription"),
    "aws_ssm_document": ResourceType(label="Session document"),
    "aws_subnet": ResourceType(in_diagram=False, delete="ec2 delete-subnet --subnet-id ", holds_nodes=True),
    "aws_vpc": ResourceType(in_diagram=False, delete="ec2 delete-vpc --vpc-id ", holds_nodes=True),
    "aws_vpc_endpoint": ResourceType(hourly=True, delete="ec2 delete-vpc-endpoints --vpc-endpoint-ids "),
    "aws_vpc_ipv4_cidr_block_association": ResourceType(
        in_diagram=False,
        untagged=BY_NAME,
        find=lambda account, planned: account.look(
            f"Vpcs[0].CidrBlockAssociationSet[?CidrBlock=='{planned['cidr_block']}'].AssociationId | [0]",
            "ec2",
            "describe_vpcs",
            VpcIds=[planned["vpc_id"]],
        ),
    ),
    "aws_vpc_security_group_egress_rule": ResourceType(
        in_diagram=False,
        find=lambda account, planned: account.look(
            f"SecurityGroupRules[?IsEgress && CidrIpv4=='{planned['cidr_ipv4']}'"
            f" && IpProtocol=='{planned['ip_protocol']}'].SecurityGroupRuleId | [0]",
            "ec2",
            "describe_security_group_rules",
            Filters=_filters(group_id=planned["security_group_id"]),
        ),
    ),
    "aws_vpc_security_group_ingress_rule": ResourceType(in_diagram=False),
}
