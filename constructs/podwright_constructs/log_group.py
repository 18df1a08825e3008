"""The retention of the log group that HyperPod creates for the nodes' logs.

Its name contains the cluster's id. The policy of the schedule that sets the retention has the cluster's name instead,
so that scaling an instance group changes one resource.
"""

from __future__ import annotations

from constructs import Construct

from podwright_constructs import checks, facts
from podwright_constructs.aws.data_caller_identity import DataCallerIdentity
from podwright_constructs.aws.data_iam_policy_document import DataIamPolicyDocument
from podwright_constructs.aws.data_partition import DataPartition
from podwright_constructs.aws.data_region import DataRegion
from podwright_constructs.aws.iam_role import IamRole
from podwright_constructs.aws.iam_role_policy import IamRolePolicy
from podwright_constructs.aws.scheduler_schedule import SchedulerSchedule
from podwright_constructs.construct import CheckedConstruct
from podwright_constructs.kit import Fn
from podwright_constructs.problems import refuse


def log_group_name(cluster_name: str, cluster_id: str) -> str:
    """Return the log group that HyperPod writes the nodes' output to.

    https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-resiliency-slurm.html
    """
    return f"{facts.LOG_GROUPS}/{cluster_name}/{cluster_id}"


class ClusterLogGroup(CheckedConstruct):
    """Set the retention, and the key, of a cluster's log group.

    The group's name ends in the cluster's id, and the cluster's first node makes it, so Terraform can neither make it
    before nor after. A schedule sets both through CloudWatch's own API at once and every day; that does not harm where
    they are set already. After the cluster is gone its group stays until the last log has expired.
    https://docs.aws.amazon.com/scheduler/latest/UserGuide/managing-targets-universal.html

    ``name`` is the schedules' and their role's. A key must let logs.REGION.amazonaws.com use it. The permissions
    boundary is the role's.

    Raises:
        InvalidArgumentsError: CloudWatch keeps no logs for so many days; all problems are in it.
    """

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        name: str,
        cluster_name: str,
        cluster_id: str,
        retention_days: int,
        key_arn: str | None = None,
        permissions_boundary_arn: str | None = None,
        role_path: str | None = None,
    ) -> None:
        problems = checks.cluster_log_group(name=name, retention_days=retention_days, key_arn=key_arn)
        problems += [problem.at("role_path") for problem in checks.role_path(role_path)]
        refuse(self, [*problems, *checks.permissions_boundary(permissions_boundary_arn)])
        super().__init__(scope, id_)
        self._partition = DataPartition(self, "partition").partition
        self.name = log_group_name(cluster_name, cluster_id)
        calls: dict[str, dict[str, object]] = {"putRetentionPolicy": {"RetentionInDays": retention_days}}
        if key_arn:
            calls["associateKmsKey"] = {"KmsKeyId": key_arn}
        role, policy = self._role(name, cluster_name, sorted(calls), permissions_boundary_arn, role_path)
        self.schedules = [
            SchedulerSchedule(
                self,
                call,
                name=f"{name}-{call}",
                schedule_expression="rate(1 day)",
                flexible_time_window={"mode": "OFF"},
                target={
                    "arn": f"arn:{self._partition}:scheduler:::aws-sdk:cloudwatchlogs:{call}",
                    "role_arn": role.arn,
                    "input": Fn.jsonencode({"LogGroupName": self.name, **arguments}),
                },
                depends_on=[policy],
            )
            for call, arguments in calls.items()
        ]

    def _role(
        self, name: str, cluster_name: str, calls: list[str], boundary_arn: str | None, path: str | None
    ) -> tuple[IamRole, IamRolePolicy]:
        region, account = DataRegion(self, "region").id, DataCallerIdentity(self, "caller").account_id
        trust = DataIamPolicyDocument(
            self,
            "trust",
            statement=[
                {
                    "actions": ["sts:AssumeRole"],
                    "principals": [{"type": "Service", "identifiers": ["scheduler.amazonaws.com"]}],
                    "condition": [{"test": "StringEquals", "variable": "aws:SourceAccount", "values": [account]}],
                }
            ],
        )
        # Without the id: a policy that names it would be open in the plan of every change of the cluster.
        group = f"arn:{self._partition}:logs:{region}:{account}:log-group:{log_group_name(cluster_name, '*')}"
        actions = [f"logs:{call[0].upper()}{call[1:]}" for call in calls]
        permissions = DataIamPolicyDocument(
            self,
            "permissions",
            statement=[{"sid": "SetLogRetention", "actions": actions, "resources": [group]}],
        )
        role = IamRole(
            self, "role", name=name, assume_role_policy=trust.json, path=path, permissions_boundary=boundary_arn
        )
        policy = IamRolePolicy(self, "policy", name="set-log-retention", role=role.name, policy=permissions.json)
        return role, policy
