"""What is in the account and in no state: found by its place, a tag, or else by the name it is planned to have."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from podwright.check.account import Account
from podwright.deploy.deployed import DeployedStack
from podwright.settings import names

CLUSTER_TYPE = "aws_cloudcontrolapi_resource"
COPIES = re.compile(r":(backup/|snapshot:)")  # AWS copies a resource's tags to its backups
GONE = {"deleted", "deleting", "DELETING", "Deleting", "PendingDeletion", "terminated"}
FAILED = {"failed", "FAILED", "Failed", "MISCONFIGURED"}
READY = {"available", "AVAILABLE", "Enabled", "InService"}

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Stray:
    """Something that costs money and that no run will ever end.

    Args:
        arn: or what is known in place of one.
        address: where it belongs; none if the settings have no such place any more.
        import_id: what ``terraform import`` takes.
        status: AWS's word for how far it is, of what takes minutes.
        rival: what has its place, in the state or among the strays.
    """

    arn: str
    address: str | None
    import_id: str
    status: str | None = None
    rival: str | None = None

    @property
    def is_adoptable(self) -> bool:
        """Whether its place is free and it is of use."""
        return self.address is not None and self.rival is None and self.status not in FAILED

    @property
    def is_ready(self) -> bool:
        """Whether the next run may build upon it."""
        return self.status is None or self.status in READY

    @property
    def removal(self) -> str:
        """What deletes it, for the user to decide."""
        kind = _kind(self.address or "")
        return f"aws {REMOVALS[kind]}{self.import_id}" if kind in REMOVALS else f"delete {self.arn}"


def strays(
    stack: DeployedStack, plan: Mapping[str, Any], tagged: Mapping[str, Mapping[str, str]], account: Account
) -> list[Stray]:
    """The stack's strays.

    Args:
        stack: the stack.
        plan: its own, as ``DeployedStack.plan`` gives it.
        tagged: tags by ARN of all that is the cluster's.
        account: where to ask for more.
    """
    placed = list(_by_place(stack, _state(plan), tagged, account))
    taken = {stray.address for stray in placed if stray.is_adoptable}
    return [*placed, *(stray for stray in _by_name(plan, account) if stray.address not in taken)]


def _by_place(
    stack: DeployedStack, state: Mapping[str, Values], tagged: Mapping[str, Mapping[str, str]], account: Account
) -> Iterator[Stray]:
    addresses = stack.addresses()
    taken = {address: str(values["id"]) for address, values in state.items() if values.get("id")}
    for arn, tags in sorted(tagged.items()):
        place = tags.get(names.PLACE_TAG, "")
        if not place.startswith(f"{stack.name}/") or COPIES.search(arn):
            continue
        address = addresses.get(place)
        kind = _kind(address or "")
        name = import_id(kind, arn)
        if any(arn == values.get("arn") or name == values.get("id") for values in _alike(kind, state)):
            continue
        status = STATUSES[kind](account, name) or "deleted" if kind in STATUSES else None
        if status in GONE:
            continue
        stray = Stray(arn, address, name, status, rival=taken.get(address or ""))
        if address and stray.is_adoptable:
            taken[address] = name
        yield stray


def _by_name(plan: Mapping[str, Any], account: Account) -> Iterator[Stray]:
    """What the plan would create although it is there."""
    for change in plan.get("resource_changes", ()):
        if change["type"] not in NAMED or change["change"]["actions"] != ["create"]:
            continue
        try:
            import_id = NAMED[change["type"]](account, change["change"]["after"])
        except KeyError:  # known only when its parent is there: then there is none of it either
            continue
        if import_id:
            yield Stray(import_id, change["address"], import_id)


def _state(plan: Mapping[str, Any]) -> dict[str, Values]:
    """Attributes by address."""
    root = plan.get("prior_state", {}).get("values", {}).get("root_module", {})
    return {item["address"]: item["values"] for item in root.get("resources", ()) if item["mode"] == "managed"}


def _alike(kind: str, state: Mapping[str, Values]) -> list[Values]:
    """What of the state it could be: an id is one among its kind."""
    return [values for address, values in state.items() if not kind or _kind(address) == kind]


def _kind(address: str) -> str:
    return address.partition(".")[0]


def import_id(kind: str, arn: str) -> str:
    """What ``terraform import`` takes: ``vpc-1`` of ``arn:aws:ec2:us-west-2:123456789012:vpc/vpc-1``, or all of it."""
    if kind in {CLUSTER_TYPE, "aws_sns_topic"}:
        return arn
    name = re.split("[:/]", arn.split(":", 5)[5], maxsplit=1)[-1].removesuffix(":*")  # as log groups' ARNs may end
    return name.rpartition("/")[2] if kind == "aws_fsx_data_repository_association" else name


def _untagged_bucket(account: Account, planned: Values) -> str | None:
    """A bucket whose maker died before it was tagged: it has the name that Terraform gives, and no tags at all."""
    made = re.compile(re.escape(planned["bucket_prefix"]) + r"\d{26}")  # the provider's unique suffix
    for name in account.look("Buckets[].Name", "s3", "list_buckets") or ():
        if made.fullmatch(name) and not account.look("TagSet", "s3", "get_bucket_tagging", Bucket=name):
            return str(name)
    return None


def _filters(**wanted: str) -> list[dict[str, Any]]:
    """EC2's."""
    return [{"Name": name.replace("__", ".").replace("_", "-"), "Values": [value]} for name, value in wanted.items()]


# ---- tables ------------------------------------------------------------------------------------

# The id of what has the planned values, if it is there: it cannot be made twice, and no tag says where it belongs.
NAMED: dict[str, Callable[[Account, Values], Any]] = {
    "aws_budgets_budget": lambda account, planned: account.look(
        f"Budget.BudgetName && '{account.account_id()}:{planned['name']}'",
        "budgets",
        "describe_budget",
        AccountId=account.account_id(),
        BudgetName=planned["name"],
    ),
    "aws_iam_role": lambda account, planned: account.look(
        f"Role.Tags[?Key=='{names.PLACE_TAG}'] && Role.RoleName", "iam", "get_role", RoleName=planned["name"]
    ),
    "aws_kms_alias": lambda account, planned: account.look(
        f"KeyMetadata.KeyId && '{planned['name']}'", "kms", "describe_key", KeyId=planned["name"]
    ),
    "aws_route": lambda account, planned: account.look(
        f"RouteTables[0] && '{planned['route_table_id']}_{planned['destination_cidr_block']}'",
        "ec2",
        "describe_route_tables",
        Filters=_filters(
            route_table_id=planned["route_table_id"], route__destination_cidr_block=planned["destination_cidr_block"]
        ),
    ),
    "aws_route_table_association": lambda account, planned: account.look(
        f"RouteTables[0] && '{planned['subnet_id']}/{planned['route_table_id']}'",
        "ec2",
        "describe_route_tables",
        Filters=_filters(route_table_id=planned["route_table_id"], association__subnet_id=planned["subnet_id"]),
    ),
    "aws_s3_bucket": _untagged_bucket,
    "aws_scheduler_schedule": lambda account, planned: account.look(
        "join('/', [GroupName, Name])", "scheduler", "get_schedule", Name=planned["name"]
    ),
    # A new group has a rule that lets everything out; Terraform takes it away in a call of its own.
    "aws_vpc_security_group_egress_rule": lambda account, planned: account.look(
        f"SecurityGroupRules[?IsEgress && CidrIpv4=='{planned['cidr_ipv4']}'"
        f" && IpProtocol=='{planned['ip_protocol']}'].SecurityGroupRuleId | [0]",
        "ec2",
        "describe_security_group_rules",
        Filters=_filters(group_id=planned["security_group_id"]),
    ),
    "aws_vpc_ipv4_cidr_block_association": lambda account, planned: account.look(
        f"Vpcs[0].CidrBlockAssociationSet[?CidrBlock=='{planned['cidr_block']}'].AssociationId | [0]",
        "ec2",
        "describe_vpcs",
        VpcIds=[planned["vpc_id"]],
    ),
}
# AWS's word for how far what takes minutes is.
STATUSES: dict[str, Callable[[Account, str], Any]] = {
    CLUSTER_TYPE: lambda account, name: account.look(
        "ClusterStatus", "sagemaker", "describe_cluster", ClusterName=name
    ),
    "aws_db_instance": lambda account, name: account.look(
        "DBInstances[0].DBInstanceStatus", "rds", "describe_db_instances", DBInstanceIdentifier=name
    ),
    "aws_fsx_lustre_file_system": lambda account, name: (account.file_system(name) or {}).get("Lifecycle"),
    "aws_fsx_openzfs_file_system": lambda account, name: (account.file_system(name) or {}).get("Lifecycle"),
    "aws_kms_key": lambda account, name: account.look("KeyMetadata.KeyState", "kms", "describe_key", KeyId=name),
    "aws_nat_gateway": lambda account, name: account.look(
        "NatGateways[0].State", "ec2", "describe_nat_gateways", NatGatewayIds=[name]
    ),
}
# The AWS CLI's commands for what may exist twice, up to the id.
REMOVALS = {
    CLUSTER_TYPE: "sagemaker delete-cluster --cluster-name ",
    "aws_eip": "ec2 release-address --allocation-id ",
    "aws_flow_log": "ec2 delete-flow-logs --flow-log-ids ",
    "aws_fsx_lustre_file_system": "fsx delete-file-system --file-system-id ",
    "aws_fsx_openzfs_file_system": "fsx delete-file-system --file-system-id ",
    "aws_internet_gateway": "ec2 delete-internet-gateway --internet-gateway-id ",
    "aws_kms_key": "kms schedule-key-deletion --key-id ",
    "aws_nat_gateway": "ec2 delete-nat-gateway --nat-gateway-id ",
    "aws_prometheus_workspace": "amp delete-workspace --workspace-id ",
    "aws_route_table": "ec2 delete-route-table --route-table-id ",
    "aws_s3_bucket": "s3 rb --force s3://",
    "aws_security_group": "ec2 delete-security-group --group-id ",
    "aws_subnet": "ec2 delete-subnet --subnet-id ",
    "aws_vpc": "ec2 delete-vpc --vpc-id ",
    "aws_vpc_endpoint": "ec2 delete-vpc-endpoints --vpc-endpoint-ids ",
}
