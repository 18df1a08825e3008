"""The permissions that a node needs, simulated by IAM for the roles of a cluster.

https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-prerequisites-iam.html
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from podwright.aws_session import Session
from podwright.operations.account.hyperpod import Cluster

LOGS = ("logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents")
SESSIONS = (
    "ssmmessages:CreateControlChannel",
    "ssmmessages:CreateDataChannel",
    "ssmmessages:OpenControlChannel",
    "ssmmessages:OpenDataChannel",
)
INTERFACES = ("ec2:CreateNetworkInterface", "ec2:CreateNetworkInterfacePermission", "ec2:DeleteNetworkInterface")
DESCRIPTIONS = (
    "ec2:DescribeDhcpOptions",
    "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeSecurityGroups",
    "ec2:DescribeSubnets",
    "ec2:DescribeVpcs",
)


def missing_actions(
    session: Session, cluster: Cluster, account: str, *, bucket_account: str
) -> Iterator[tuple[str, str, str]]:
    """Yield role, action and resource of each permission that a role of the cluster lacks.

    Args:
        session: The account and region.
        cluster: The cluster.
        account: The account of cluster and roles.
        bucket_account: The account of the bucket with the scripts.

    Raises:
        AwsError: IAM does not simulate, for example without ``iam:SimulatePrincipalPolicy``.
    """
    roles = {group.execution_role_arn: group.scripts_s3_uri for group in cluster.groups if group.execution_role_arn}
    for role, scripts in sorted(roles.items()):
        for resource, actions in _needed(cluster, account, scripts).items():
            owner = bucket_account if ":s3:" in resource else account
            context = {**_context(cluster, account, scripts), "aws:ResourceAccount": owner}
            yield from _denied(session, role, resource, actions, context=context)


def _needed(cluster: Cluster, account: str, scripts: str) -> Mapping[str, Sequence[str]]:
    """Return the actions by resource."""
    partition = cluster.arn.split(":")[1]
    place = f"{cluster.region}:{account}"
    group = f"arn:{partition}:logs:{place}:log-group:{cluster.log_group}"
    needed: dict[str, Sequence[str]] = {
        group: ("logs:CreateLogGroup",),
        f"{group}:log-stream:LifecycleConfig/group/instance": LOGS,
        "*": SESSIONS,
    }
    if cluster.subnet_ids:
        needed[f"arn:{partition}:ec2:{place}:network-interface/eni-0"] = INTERFACES
        needed["*"] = (*SESSIONS, *DESCRIPTIONS)
    if scripts:
        path = scripts.removeprefix("s3://").rstrip("/")
        needed[f"arn:{partition}:s3:::{path}/on_create.sh"] = ("s3:GetObject",)
        needed[f"arn:{partition}:s3:::{path.partition('/')[0]}"] = ("s3:ListBucket",)
    return needed


def _context(cluster: Cluster, account: str, scripts: str) -> Mapping[str, str]:
    """Return the request context of a node's own calls, by condition key."""
    prefix = scripts.removeprefix("s3://").partition("/")[2].rstrip("/")
    subnet_id = next(iter(cluster.subnet_ids), "")
    partition = cluster.arn.split(":")[1]
    return {
        "ec2:Subnet": f"arn:{partition}:ec2:{cluster.region}:{account}:subnet/{subnet_id}",
        "s3:prefix": f"{prefix}/",
    }


def _denied(
    session: Session, role: str, resource: str, actions: Sequence[str], *, context: Mapping[str, str]
) -> Iterator[tuple[str, str, str]]:
    results = session.items(
        "iam",
        "simulate_principal_policy",
        "EvaluationResults",
        PolicySourceArn=role,
        ActionNames=list(actions),
        ResourceArns=[resource],
        ContextEntries=[
            {"ContextKeyName": key, "ContextKeyValues": [value], "ContextKeyType": "string"}
            for key, value in context.items()
        ],
    )
    for result in results:
        if result["EvalDecision"] != "allowed":
            yield role, result["EvalActionName"], resource
