"""Ask an AWS account, read-only, for the facts that rules need.

Every question needs one read-only permission, which has the name of boto3's operation.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from podwright.aws_session import Session
from podwright.errors import AwsError, OperationError


class Account:
    """An account in one region; each question is asked once.

    Every method raises ``OperationError`` where AWS does not answer: no credentials, no network, no permission.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._answers: dict[tuple[str, str, str], Mapping[str, Any] | OperationError] = {}

    def quotas(self) -> dict[str, float]:
        """Return SageMaker's quotas by name: AWS's defaults, replaced by the account's own values."""
        operations = ("list_aws_default_service_quotas", "list_service_quotas")
        answers = [self._ask("service-quotas", operation, ServiceCode="sagemaker") for operation in operations]
        return {quota["QuotaName"]: quota["Value"] for answer in answers for quota in answer.get("Quotas", ())}

    def nodes(self) -> dict[str, Counter[str]]:
        """Return the number of nodes of each type, by cluster, for all clusters of the region."""
        names = [item["ClusterName"] for item in self._ask("sagemaker", "list_clusters").get("ClusterSummaries", ())]
        return {name: self._nodes_of(name) for name in names}

    def _nodes_of(self, cluster: str) -> Counter[str]:
        counts: Counter[str] = Counter()
        for group in self._ask("sagemaker", "describe_cluster", ClusterName=cluster)["InstanceGroups"]:
            nodes = {item["InstanceType"]: item["CurrentCount"] for item in group.get("InstanceTypeDetails", ())}
            counts += Counter(nodes or {group["InstanceType"]: max(group["CurrentCount"], group.get("TargetCount", 0))})
        return counts

    def cluster(self, name: str) -> Mapping[str, Any] | None:
        """Return the cluster as SageMaker describes it, or None if it does not exist."""
        return self._ask("sagemaker", "describe_cluster", may_be_absent=True, ClusterName=name) or None

    def training_plan(self, arn: str) -> Mapping[str, Any] | None:
        """Return the training plan as SageMaker describes it, or None if it does not exist."""
        return self._ask("sagemaker", "describe_training_plan", may_be_absent=True, TrainingPlanName=arn) or None

    def zones_offering(self, instance_type: str) -> tuple[str, ...]:
        """Return the ids of the zones of the region that have an EC2 type, sorted."""
        filters = {"instance-type": [instance_type]}
        answer = self._ec2("describe_instance_type_offerings", filters, LocationType="availability-zone-id")
        return tuple(sorted(item["Location"] for item in answer["InstanceTypeOfferings"]))

    def offered(self, instance_types: Sequence[str], zone_id: str) -> set[str]:
        """Return the EC2 types that the zone offers, out of the given ones."""
        filters = {"instance-type": instance_types, "location": [zone_id]}
        answer = self._ec2("describe_instance_type_offerings", filters, LocationType="availability-zone-id")
        return {item["InstanceType"] for item in answer["InstanceTypeOfferings"]}

    def vpc(self, vpc_id: str) -> Mapping[str, Any] | None:
        """Return the VPC as EC2 describes it, or None if it does not exist."""
        return next(iter(self._ec2("describe_vpcs", {"vpc-id": [vpc_id]})["Vpcs"]), None)

    def has_dns(self, vpc_id: str) -> dict[str, bool]:
        """EC2's two attributes of the VPC, by name."""
        attributes = {"enableDnsSupport": "EnableDnsSupport", "enableDnsHostnames": "EnableDnsHostnames"}
        return {
            name: self._ask("ec2", "describe_vpc_attribute", VpcId=vpc_id, Attribute=name)[key]["Value"]
            for name, key in attributes.items()
        }

    def subnets(self, subnet_ids: Sequence[str]) -> dict[str, Mapping[str, Any]]:
        """Return the subnets that exist, by id, as EC2 describes them."""
        answer = self._ec2("describe_subnets", {"subnet-id": subnet_ids})
        return {item["SubnetId"]: item for item in answer["Subnets"]}

    def subnets_of(self, vpc_id: str) -> Sequence[Mapping[str, Any]]:
        """Every subnet of the VPC."""
        return tuple(self._ec2("describe_subnets", {"vpc-id": [vpc_id]})["Subnets"])

    def security_group(self, group_id: str) -> Mapping[str, Any] | None:
        """Return the security group as EC2 describes it, with its permissions, or None if it does not exist."""
        return next(iter(self._ec2("describe_security_groups", {"group-id": [group_id]})["SecurityGroups"]), None)

    def route_tables(self, vpc_id: str) -> Sequence[Mapping[str, Any]]:
        """Every route table of the VPC."""
        return tuple(self._ec2("describe_route_tables", {"vpc-id": [vpc_id]})["RouteTables"])

    def s3_route_tables(self, vpc_id: str) -> set[str]:
        """The route tables that a gateway endpoint of S3 is on."""
        filters = {"vpc-id": [vpc_id], "vpc-endpoint-type": ["Gateway"]}
        endpoints = self._ec2("describe_vpc_endpoints", filters)["VpcEndpoints"]
        return {
            table
            for item in endpoints
            if item["ServiceName"].endswith(".s3")
            for table in item.get("RouteTableIds", ())
        }

    def bucket_region(self, name: str) -> str | None:
        """Return the region of a bucket, or None if the bucket does not exist.

        https://docs.aws.amazon.com/AmazonS3/latest/API/API_GetBucketLocation.html
        """
        answer = self._ask("s3", "get_bucket_location", may_be_absent=True, Bucket=name)
        return str(answer["LocationConstraint"] or "us-east-1") if answer else None

    def trust_policy(self, role_name: str) -> Mapping[str, Any] | None:
        """Return the principals that may assume a role, or None if the role does not exist."""
        answer = self._ask("iam", "get_role", may_be_absent=True, RoleName=role_name)
        return dict(answer["Role"]["AssumeRolePolicyDocument"]) if answer else None

    def denied(self, role_arn: str, actions: Sequence[str], resources: Sequence[str]) -> list[str]:
        """Return the actions that IAM's simulation denies a role on one of the resources; none for an absent role."""
        answer = self._ask(
            "iam",
            "simulate_principal_policy",
            may_be_absent=True,
            PolicySourceArn=role_arn,
            ActionNames=list(actions),
            ResourceArns=list(resources),
        )
        results = answer.get("EvaluationResults", ())
        return list(dict.fromkeys(item["EvalActionName"] for item in results if item["EvalDecision"] != "allowed"))

    def file_system(self, file_system_id: str) -> Mapping[str, Any] | None:
        """Return the file system as FSx describes it, or None if it does not exist."""
        answer = self._ask("fsx", "describe_file_systems", may_be_absent=True, FileSystemIds=[file_system_id])
        return next(iter(answer.get("FileSystems", ())), None)

    def account_id(self) -> str:
        """Return the account's id."""
        return self._session.account_id

    def tagged(self, key: str, value: str) -> dict[str, dict[str, str]]:
        """The tags of everything in the region that has this one, by ARN; IAM's roles are not among it.

        https://docs.aws.amazon.com/resourcegroupstagging/latest/APIReference/API_GetResources.html
        """
        tag_filters = [{"Key": key, "Values": [value]}]
        answer = self._ask("resourcegroupstaggingapi", "get_resources", TagFilters=tag_filters)
        return {
            item["ResourceARN"]: {tag["Key"]: tag["Value"] for tag in item["Tags"]}
            for item in answer["ResourceTagMappingList"]
        }

    def look(self, expression: str, service: str, operation: str, **arguments: Any) -> Any:
        """Return the result of a JMESPath expression on an answer, or None if the resource does not exist."""
        import jmespath  # noqa: PLC0415 — only deployments need it.

        return jmespath.search(expression, self._ask(service, operation, may_be_absent=True, **arguments)) or None

    def _ec2(self, operation: str, filters: Mapping[str, Sequence[str]], **arguments: Any) -> Mapping[str, Any]:
        """Call EC2 with filters instead of ids: a missing resource is then left out of the answer and is no error."""
        ec2_filters = [{"Name": name, "Values": list(values)} for name, values in filters.items()]
        return self._ask("ec2", operation, Filters=ec2_filters, **arguments)

    def _ask(self, service: str, operation: str, *, may_be_absent: bool = False, **arguments: Any) -> Mapping[str, Any]:
        """Return all pages of the answer; empty if the error says that the resource does not exist."""
        key = (service, operation, json.dumps(arguments, sort_keys=True))
        if key not in self._answers:
            try:
                self._answers[key] = self._session.call_all_pages(service, operation, **arguments)
            except OperationError as error:
                is_absent = may_be_absent and isinstance(error, AwsError) and error.absent
                self._answers[key] = {} if is_absent else error
        answer = self._answers[key]
        if isinstance(answer, OperationError):
            raise answer
        return answer
