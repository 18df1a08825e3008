"""The IAM policy of people who train: what `connect`, `ssh`, `submit`, `jobs`, `logs`, `fetch` and `status` ask of AWS.

A test compares its actions with the calls that these commands make.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from podwright.operations.account import session_documents
from podwright.settings import names
from podwright.settings.access import ExistingKey, NoKey
from podwright.settings.cluster import ExistingScripts
from podwright.settings.regions import partition_of
from podwright.settings.storage import ExistingBucket
from podwright_bootstrap.contract import PROVISIONING_PARAMETERS_NAME
from podwright_constructs import facts

if TYPE_CHECKING:
    from podwright.settings.root import Settings

# Prices, fill and training plans of the cluster in `status`, and of a run's nodes in `submit`; most of these actions
# take no resource.
STATUS_ACTIONS = (
    "cloudwatch:GetMetricData",
    "ec2:DescribeNatGateways",
    "ec2:DescribeSubnets",
    "ec2:DescribeVpcEndpoints",
    "fsx:DescribeFileSystems",
    "rds:DescribeDBInstances",
    "sagemaker:DescribeTrainingPlan",
    "sagemaker:ListClusters",
)
CLUSTER_ACTIONS = (
    "sagemaker:DescribeCluster",
    "sagemaker:DescribeClusterEvent",
    "sagemaker:DescribeClusterNode",
    "sagemaker:ListClusterEvents",
    "sagemaker:ListClusterNodes",
)


def user_policy(settings: Settings, *, account: str | None = None, cluster_id: str = "*") -> dict[str, Any]:
    """Return the policy document; it allows no change in AWS but sessions on nodes.

    With the section ``session``, sessions open the shell of its document or reach sshd; without it, `connect` uses a
    document of AWS that runs any command as root.

    Args:
        settings: the cluster's settings.
        account: the number of the cluster's account. Default: that of the settings, else all accounts.
        cluster_id: the id in the cluster's ARN; sessions have no condition on tags, so that only an id limits them to
            one cluster.
    """
    return {"Version": "2012-10-17", "Statement": list(_statements(settings, account, cluster_id))}


def _statements(settings: Settings, account_id: str | None, cluster_id: str) -> Iterator[dict[str, Any]]:
    partition, region = partition_of(settings.region), settings.region
    account = account_id or settings.account_id or "*"
    clusters = f"arn:{partition}:sagemaker:{region}:{account}:cluster/{cluster_id}"
    tagged = {"StringEquals": {f"aws:ResourceTag/{names.CLUSTER_TAG}": [settings.name]}}
    yield _allow("ReadCluster", CLUSTER_ACTIONS, [clusters], tagged if settings.cluster.own_tags else None)
    yield _allow("ReadStatus", STATUS_ACTIONS, ["*"])
    group = f"arn:{partition}:logs:{region}:{account}:log-group:{facts.LOG_GROUPS}/{settings.name}/*"
    yield _allow("ReadLogs", ["logs:DescribeLogStreams", "logs:GetLogEvents"], [group])
    yield from _sessions(settings, f"arn:{partition}:ssm:{region}", account, clusters)
    yield _allow("ReadNodesParameters", ["s3:GetObject"], [f"arn:{partition}:s3:::{_parameters(settings)}"])
    yield from _key(settings, f"arn:{partition}:kms:{region}:{account}:key/*")


def _sessions(settings: Settings, ssm: str, account: str, clusters: str) -> Iterator[dict[str, Any]]:
    """Yield the rights to sessions with these documents alone, and to end or resume one's own.

    https://docs.aws.amazon.com/systems-manager/latest/userguide/getting-started-sessiondocumentaccesscheck.html
    """
    documents = [f"{ssm}::document/{name}" for name in (session_documents.SSH, session_documents.FORWARD)]
    if settings.session:
        documents.append(f"{ssm}:{account}:document/{names.operations_name(settings.name)}")
    else:
        documents += [f"{ssm}::document/{name}" for name in (session_documents.INTERACTIVE, session_documents.COMMAND)]
    checked = {"BoolIfExists": {"ssm:SessionDocumentAccessCheck": ["true"]}}
    yield _allow("StartSessions", ["ssm:StartSession"], [clusters, *documents], checked)
    own_sessions = [f"{ssm}:{account}:session/${{aws:userid}}-*"]
    yield _allow("KeepSessions", ["ssm:ResumeSession", "ssm:TerminateSession"], own_sessions)


def _parameters(settings: Settings) -> str:
    """Return bucket and key of the file with the roles of groups, which lies beside the nodes' scripts."""
    slurm, bucket = settings.cluster.slurm, settings.bucket
    if isinstance(slurm, ExistingScripts):
        return f"{slurm.source_s3_uri.removeprefix('s3://').rstrip('/')}/{PROVISIONING_PARAMETERS_NAME}"
    name = bucket.name if isinstance(bucket, ExistingBucket) else f"{names.bucket_prefix(settings.name)}*"
    return f"{name}/{names.scripts_prefix(settings.name)}/*{PROVISIONING_PARAMETERS_NAME}"


def _key(settings: Settings, keys: str) -> Iterator[dict[str, Any]]:
    """Yield the right to decrypt that file, if a key of yours encrypts the bucket."""
    bucket, key = settings.bucket, settings.key
    through_s3 = {"StringLike": {"kms:ViaService": ["s3.*"]}}
    if isinstance(bucket, ExistingBucket):
        if bucket.key_arn:
            yield _allow("DecryptNodesParameters", ["kms:Decrypt"], [bucket.key_arn], through_s3)
    elif isinstance(key, ExistingKey):
        yield _allow("DecryptNodesParameters", ["kms:Decrypt"], [key.arn], through_s3)
    elif not isinstance(key, NoKey):
        alias = {"ForAnyValue:StringEquals": {"kms:ResourceAliases": [f"alias/{names.key_alias(settings.name)}"]}}
        yield _allow("DecryptNodesParameters", ["kms:Decrypt"], [keys], {**through_s3, **alias})


def _allow(
    sid: str, actions: Sequence[str], resources: Sequence[str], condition: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    statement = {"Sid": sid, "Effect": "Allow", "Action": list(actions), "Resource": list(resources)}
    return {**statement, "Condition": condition} if condition else statement
