"""Flow logs of a VPC, in CloudWatch or in a bucket."""

from __future__ import annotations

from constructs import Construct

from podwright_constructs import checks
from podwright_constructs.aws.cloudwatch_log_group import CloudwatchLogGroup
from podwright_constructs.aws.data_caller_identity import DataCallerIdentity
from podwright_constructs.aws.data_iam_policy_document import DataIamPolicyDocument
from podwright_constructs.aws.data_partition import DataPartition
from podwright_constructs.aws.flow_log import FlowLog
from podwright_constructs.aws.iam_role import IamRole
from podwright_constructs.aws.iam_role_policy import IamRolePolicy
from podwright_constructs.bucket import Bucket
from podwright_constructs.construct import CheckedConstruct
from podwright_constructs.key import Key
from podwright_constructs.metric import Metric
from podwright_constructs.ordering import before
from podwright_constructs.problems import refuse

RETENTION_DAYS = 365
ALL_TRAFFIC = "ALL"


class BucketFlowLogs(CheckedConstruct):
    """Flow logs in a bucket, below ``AWSLogs/``.

    The bucket's policy must admit their delivery, as that of a ``TrainingBucket`` with ``receives_logs`` does.
    https://docs.aws.amazon.com/vpc/latest/userguide/flow-logs-s3-permissions.html
    """

    def __init__(self, scope: Construct, id_: str, *, name: str, vpc_id: str, bucket: Bucket) -> None:
        super().__init__(scope, id_)
        partition = DataPartition(self, "partition").partition
        self.flow_log = FlowLog(
            self,
            "flow_log",
            vpc_id=vpc_id,
            traffic_type=ALL_TRAFFIC,
            log_destination_type="s3",
            log_destination=f"arn:{partition}:s3:::{bucket.name}",
            tags={"Name": name},
            depends_on=before(self, bucket.ready),
        )


class CloudWatchFlowLogs(CheckedConstruct):
    """Flow logs in a log group of CloudWatch, kept for a year, with the role that writes them there.

    https://docs.aws.amazon.com/vpc/latest/userguide/flow-logs-iam-role.html

    Args:
        name: Name of the flow log, and the end of its log group's name.
        role_name: Name of the role. Default: Terraform generates one.
        key: The key that encrypts the logs. Default: CloudWatch's own key.
        permissions_boundary_arn: Policy that limits whatever the role is given.
        role_path: IAM path of the role. Default: ``/``.

    Raises:
        InvalidArgumentsError: The boundary is not the ARN of a policy, or the path is malformed.
    """

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        name: str,
        vpc_id: str,
        role_name: str | None = None,
        key: Key | None = None,
        permissions_boundary_arn: str | None = None,
        role_path: str | None = None,
    ) -> None:
        problems = [problem.at("role_path") for problem in checks.role_path(role_path)]
        refuse(self, [*checks.permissions_boundary(permissions_boundary_arn), *problems])
        super().__init__(scope, id_)
        self.log_group_name = f"/aws/vpc/flow-logs/{name}"
        group = CloudwatchLogGroup(
            self,
            "log_group",
            name=self.log_group_name,
            retention_in_days=RETENTION_DAYS,
            kms_key_id=key.arn if key else None,
        )
        role = IamRole(
            self,
            "role",
            name=role_name,
            name_prefix=None if role_name else "vpc-flow-logs-",
            assume_role_policy=self._trust().json,
            path=role_path,
            permissions_boundary=permissions_boundary_arn,
        )
        policy = IamRolePolicy(
            self, "policy", name="write-flow-logs", role=role.name, policy=self._permissions(group.arn).json
        )
        self.flow_log = FlowLog(
            self,
            "flow_log",
            vpc_id=vpc_id,
            traffic_type=ALL_TRAFFIC,
            log_destination_type="cloud-watch-logs",
            log_destination=group.arn,
            iam_role_arn=role.arn,
            tags={"Name": name},
            depends_on=[policy],  # logs that come before it are lost, and the flow log is marked as failed
        )

    def metric_incoming_bytes(self) -> Metric:
        """Return the bytes that the log group receives, which are paid for.

        https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/CloudWatch-Logs-Monitoring-CloudWatch-Metrics.html
        """
        dimensions = {"LogGroupName": self.log_group_name}
        return Metric(namespace="AWS/Logs", name="IncomingBytes", dimensions=dimensions, statistic="Sum")

    def _trust(self) -> DataIamPolicyDocument:
        account = DataCallerIdentity(self, "caller").account_id
        return DataIamPolicyDocument(
            self,
            "trust",
            statement=[
                {
                    "actions": ["sts:AssumeRole"],
                    "principals": [{"type": "Service", "identifiers": ["vpc-flow-logs.amazonaws.com"]}],
                    "condition": [{"test": "StringEquals", "variable": "aws:SourceAccount", "values": [account]}],
                }
            ],
        )

    def _permissions(self, group_arn: str) -> DataIamPolicyDocument:
        return DataIamPolicyDocument(
            self,
            "permissions",
            statement=[
                {
                    "sid": "WriteFlowLogs",
                    "actions": ["logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"],
                    "resources": [group_arn, f"{group_arn}:log-stream:*"],
                },
                {"sid": "FindLogGroup", "actions": ["logs:DescribeLogGroups"], "resources": ["*"]},
            ],
        )
