"""List the account's resources, except a fresh account's defaults and callers' roles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import jmespath


@dataclass(frozen=True)
class Query:
    """One listing call; ``expression`` (JMESPath) selects the ids, without a fresh account's defaults."""

    type_name: str
    service: str
    operation: str
    expression: str
    arguments: dict[str, str] = field(default_factory=dict)


PRINCIPALS_PATH = "/principals/"  # IAM's path of roles that call the account, and of their boundaries.
VPCS = Query("AWS::EC2::VPC", "ec2", "describe_vpcs", "Vpcs[?!IsDefault].VpcId")
BUCKETS = Query("AWS::S3::Bucket", "s3", "list_buckets", "Buckets[].Name")
BUDGETS = Query("AWS::Budgets::Budget", "budgets", "describe_budgets", "Budgets[].BudgetName")
OBJECTS = "[Versions, DeleteMarkers][][].[Key, VersionId]"

QUERIES = (
    Query("AWS::SageMaker::Cluster", "sagemaker", "list_clusters", "ClusterSummaries[].ClusterArn"),
    Query("AWS::FSx::FileSystem", "fsx", "describe_file_systems", "FileSystems[].FileSystemId"),
    Query("AWS::FSx::Backup", "fsx", "describe_backups", "Backups[].BackupId"),
    Query(
        "AWS::FSx::DataRepositoryAssociation",
        "fsx",
        "describe_data_repository_associations",
        "Associations[].AssociationId",
    ),
    Query("AWS::KMS::Alias", "kms", "list_aliases", "Aliases[?!starts_with(AliasName, 'alias/aws/')].AliasName"),
    VPCS,
    Query("AWS::EC2::NatGateway", "ec2", "describe_nat_gateways", "NatGateways[?State!='deleted'].NatGatewayId"),
    Query("AWS::EC2::EIP", "ec2", "describe_addresses", "Addresses[].AllocationId"),
    Query("AWS::EC2::InternetGateway", "ec2", "describe_internet_gateways", "InternetGateways[].InternetGatewayId"),
    Query("AWS::EC2::VPCEndpoint", "ec2", "describe_vpc_endpoints", "VpcEndpoints[?State!='deleted'].VpcEndpointId"),
    Query("AWS::EC2::NetworkInterface", "ec2", "describe_network_interfaces", "NetworkInterfaces[].NetworkInterfaceId"),
    # A VPC's default group and main route table live and die with it.
    Query(
        "AWS::EC2::SecurityGroup", "ec2", "describe_security_groups", "SecurityGroups[?GroupName!='default'].GroupId"
    ),
    Query(
        "AWS::EC2::RouteTable",
        "ec2",
        "describe_route_tables",
        "RouteTables[?length(Associations[?Main]) == `0`].RouteTableId",
    ),
    Query("AWS::EC2::FlowLog", "ec2", "describe_flow_logs", "FlowLogs[].FlowLogId"),
    Query(
        "AWS::IAM::Role",
        "iam",
        "list_roles",
        f"Roles[?!starts_with(Path, '/aws-service-role/') && Path != '{PRINCIPALS_PATH}'].RoleName",
    ),
    Query(
        "AWS::IAM::ManagedPolicy",
        "iam",
        "list_policies",
        f"Policies[?Path != '{PRINCIPALS_PATH}'].Arn",
        {"Scope": "Local"},
    ),
    Query("AWS::IAM::InstanceProfile", "iam", "list_instance_profiles", "InstanceProfiles[].InstanceProfileName"),
    Query("AWS::RDS::DBInstance", "rds", "describe_db_instances", "DBInstances[].DBInstanceIdentifier"),
    Query(
        "AWS::RDS::DBParameterGroup",
        "rds",
        "describe_db_parameter_groups",
        "DBParameterGroups[?!starts_with(DBParameterGroupName, 'default.')].DBParameterGroupName",
    ),
    Query("AWS::RDS::DBSubnetGroup", "rds", "describe_db_subnet_groups", "DBSubnetGroups[].DBSubnetGroupName"),
    Query("AWS::SecretsManager::Secret", "secretsmanager", "list_secrets", "SecretList[].Name"),
    Query("AWS::APS::Workspace", "amp", "list_workspaces", "workspaces[].workspaceId"),
    Query("AWS::SNS::Topic", "sns", "list_topics", "Topics[].TopicArn"),
    Query("AWS::Events::Rule", "events", "list_rules", "Rules[].Name"),
    Query("AWS::Scheduler::Schedule", "scheduler", "list_schedules", "Schedules[].Name"),
    Query("AWS::CloudWatch::Dashboard", "cloudwatch", "list_dashboards", "DashboardEntries[].DashboardName"),
    Query("AWS::CloudWatch::Alarm", "cloudwatch", "describe_alarms", "MetricAlarms[].AlarmName"),
    Query("AWS::SSM::Document", "ssm", "list_documents", "DocumentIdentifiers[?Owner!='Amazon'].Name"),
    Query("AWS::Logs::LogGroup", "logs", "describe_log_groups", "logGroups[].logGroupName"),
    BUCKETS,
)


def list_resources(client: Callable[[str], Any], account_id: str) -> list[str]:
    """Return type and id of every resource, ``AWS::EC2::VPC vpc-…``; ``client`` makes a service's boto3 client."""
    client = cache(client)  # making one takes longer than the call
    queries = (*QUERIES, replace(BUDGETS, arguments={"AccountId": account_id}))
    resources = [
        f"{query.type_name} {resource}" for query in queries for resource in _ids(client(query.service), query)
    ]
    return [*resources, *_subnets(client("ec2")), *_objects(client("s3")), *_keys(client("kms"))]


def _keys(kms: Any) -> Iterator[str]:
    """Yield customer keys, except those scheduled for deletion: AWS offers no more than that."""
    for page in kms.get_paginator("list_keys").paginate():
        for key in page["Keys"]:
            metadata = kms.describe_key(KeyId=key["KeyId"])["KeyMetadata"]
            if metadata["KeyManager"] == "CUSTOMER" and metadata["KeyState"] != "PendingDeletion":
                yield f"AWS::KMS::Key {key['KeyId']}"


def _subnets(ec2: Any) -> Iterator[str]:
    """Yield subnets by their VPC: moto sets DefaultForAz for every subnet made with an availability zone's id."""
    vpcs = _ids(ec2, VPCS)
    for page in ec2.get_paginator("describe_subnets").paginate():
        yield from (f"AWS::EC2::Subnet {subnet['SubnetId']}" for subnet in page["Subnets"] if subnet["VpcId"] in vpcs)


def _objects(s3: Any) -> Iterator[str]:
    """Yield every object version and delete marker: S3 deletes no bucket that has one."""
    for bucket in _ids(s3, BUCKETS):
        for page in s3.get_paginator("list_object_versions").paginate(Bucket=bucket):
            for key, version in jmespath.search(OBJECTS, page) or []:
                yield f"AWS::S3::Object s3://{bucket}/{key}" + (f"?versionId={version}" if version != "null" else "")


def _ids(client: Any, query: Query) -> list[str]:
    if client.can_paginate(query.operation):
        pages = client.get_paginator(query.operation).paginate(**query.arguments)
    else:
        pages = [getattr(client, query.operation)(**query.arguments)]
    return [resource for page in pages for resource in jmespath.search(query.expression, page) or []]
