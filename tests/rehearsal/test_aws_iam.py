"""The stand-in authorizes the calls of a role by its policies, as IAM does."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from podwright_rehearsal.aws import AwsStandIn
from podwright_rehearsal.aws.permission import PERMISSIONS_PATH
from podwright_rehearsal.aws.policy_evaluation import decide, statements_of
from podwright_rehearsal.aws.service_authorization import is_action

pytestmark = pytest.mark.slow

REGION = "us-west-2"
ACCOUNT = "123456789012"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/hyperpod-nodes"
TAGS = [{"Key": "podwright:cluster", "Value": "demo"}]
SCHEDULE = {
    "Name": "nightly",
    "ScheduleExpression": "rate(1 day)",
    "FlexibleTimeWindow": {"Mode": "OFF"},
    "Target": {"Arn": f"arn:aws:sns:{REGION}:{ACCOUNT}:topic", "RoleArn": ROLE},
}
CLUSTER = {
    "ClusterName": "demo",
    "InstanceGroups": [
        {
            "InstanceGroupName": "workers",
            "InstanceType": "ml.g5.12xlarge",
            "InstanceCount": 1,
            "ExecutionRole": ROLE,
            "LifeCycleConfig": {"SourceS3Uri": "s3://sagemaker-demo/scripts", "OnCreate": "on_create.sh"},
        }
    ],
}
Client = Callable[[str], Any]


def allow(*actions: str, resource: str = "*", **statement: Any) -> dict[str, Any]:
    """Return a policy with one statement."""
    return policy({"Effect": "Allow", "Action": list(actions), "Resource": resource, **statement})


def policy(*statements: Mapping[str, Any]) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": list(statements)}


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsStandIn]:
    with AwsStandIn(directory=tmp_path_factory.mktemp("aws"), region=REGION, transition_s=0.1) as stand_in:
        yield stand_in


def clients(environment: Mapping[str, str]) -> Client:
    """Return boto3's clients with a principal's credentials."""
    session = boto3.Session(
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
        aws_session_token=environment["AWS_SESSION_TOKEN"] or None,
        region_name=REGION,
    )
    config = Config(proxies={}, retries={"total_max_attempts": 1})
    return lambda service: session.client(service, endpoint_url=environment["AWS_ENDPOINT_URL"], config=config)


def denied(call: Callable[..., Any], **arguments: Any) -> tuple[str, str]:
    """Return code and message of a refusal; the message begins after the principal."""
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    error = caught.value.response["Error"]
    return error["Code"], error["Message"].partition(" is not authorized to perform: ")[2]


IMPLICIT: Mapping[
    str, tuple[str, str, str, Mapping[str, Any]]
] = {  # Each service's code, and its operation's action and resource.
    "ec2 describe_vpcs": ("UnauthorizedOperation", "ec2:DescribeVpcs", "*", {}),
    "ec2 create_subnet": (
        "UnauthorizedOperation",
        "ec2:CreateSubnet",
        f"arn:aws:ec2:{REGION}:{ACCOUNT}:vpc/vpc-0a1b2c3d",
        {"VpcId": "vpc-0a1b2c3d", "CidrBlock": "10.0.0.0/20"},
    ),
    "iam get_role": ("AccessDenied", "iam:GetRole", ROLE, {"RoleName": "hyperpod-nodes"}),
    "s3 list_buckets": ("AccessDenied", "s3:ListAllMyBuckets", '"*"', {}),
    "s3 list_objects_v2": (
        "AccessDenied",
        "s3:ListBucket",
        '"arn:aws:s3:::sagemaker-demo"',
        {"Bucket": "sagemaker-demo"},
    ),
    "s3 create_multipart_upload": (
        "AccessDenied",
        "s3:PutObject",
        '"arn:aws:s3:::sagemaker-demo/a b/c"',
        {"Bucket": "sagemaker-demo", "Key": "a b/c"},
    ),
    "s3 put_bucket_lifecycle_configuration": (
        "AccessDenied",
        "s3:PutLifecycleConfiguration",
        '"arn:aws:s3:::sagemaker-demo"',
        {"Bucket": "sagemaker-demo", "LifecycleConfiguration": {"Rules": []}},
    ),
    "s3 delete_objects": (
        "AccessDenied",
        "s3:DeleteObjectVersion",
        '"arn:aws:s3:::sagemaker-demo/a"',
        {"Bucket": "sagemaker-demo", "Delete": {"Objects": [{"Key": "a", "VersionId": "1"}]}},
    ),
    "fsx describe_file_systems": ("AccessDeniedException", "fsx:DescribeFileSystems", "*", {}),
    "logs create_log_group": (
        "AccessDeniedException",
        "logs:CreateLogGroup",
        f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:/demo",
        {"logGroupName": "/demo"},
    ),
    "rds delete_db_instance": (
        "AccessDenied",
        "rds:DeleteDBInstance",
        f"arn:aws:rds:{REGION}:{ACCOUNT}:db:slurm",
        {"DBInstanceIdentifier": "slurm"},
    ),
    "scheduler create_schedule": (
        "AccessDeniedException",
        "scheduler:CreateSchedule",
        f"arn:aws:scheduler:{REGION}:{ACCOUNT}:schedule/default/nightly",
        SCHEDULE,
    ),
    "amp describe_workspace": (
        "AccessDeniedException",
        "aps:DescribeWorkspace",
        f"arn:aws:aps:{REGION}:{ACCOUNT}:workspace/ws-1",
        {"workspaceId": "ws-1"},
    ),
    "budgets describe_budget": (
        "AccessDeniedException",
        "budgets:ViewBudget",
        f"arn:aws:budgets::{ACCOUNT}:budget/demo",
        {"AccountId": ACCOUNT, "BudgetName": "demo"},
    ),
    "cloudcontrol get_resource": (
        "AccessDeniedException",
        "cloudformation:GetResource",
        f"arn:aws:cloudformation:{REGION}:{ACCOUNT}:resource/*",
        {"TypeName": "AWS::SageMaker::Cluster", "Identifier": "demo"},
    ),
    "resourcegroupstaggingapi get_resources": ("AccessDeniedException", "tag:GetResources", "*", {}),
}


def test_what_no_policy_allows_is_denied_in_the_words_of_the_service(aws: AwsStandIn) -> None:
    """Each service has its own error code; the message names IAM's action and the resource."""
    client = clients(aws.as_principal(allow("sts:AssumeRole")))
    for call, (code, action, resource, arguments) in IMPLICIT.items():
        service, _, operation = call.partition(" ")
        expected = f"{action} on resource: {resource} because no identity-based policy allows the {action} action"
        assert denied(getattr(client(service), operation), **arguments) == (code, expected), call
        assert is_action(action)


def test_everybody_may_ask_who_they_are(aws: AwsStandIn) -> None:
    """GetCallerIdentity needs no permission, not even against a Deny."""
    environment = aws.as_principal(policy({"Effect": "Deny", "Action": "*", "Resource": "*"}))
    assert ":assumed-role/caller-" in clients(environment)("sts").get_caller_identity()["Arn"]


def test_a_deny_wins(aws: AwsStandIn) -> None:
    """An explicit Deny wins over an Allow, and its message says so."""
    deny = {"Effect": "Deny", "Action": "ec2:Describe*", "Resource": "*"}
    client = clients(aws.as_principal(allow("ec2:*"), policy(deny)))
    assert denied(client("ec2").describe_vpcs) == (
        "UnauthorizedOperation",
        "ec2:DescribeVpcs on resource: * with an explicit deny in an identity-based policy",
    )
    client("ec2").delete_vpc(VpcId=client("ec2").create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"])


def test_a_boundary_limits(aws: AwsStandIn) -> None:
    """Of what a policy allows, what the permissions boundary allows too."""
    client = clients(aws.as_principal(allow("ec2:*", "s3:*"), boundary=allow("s3:*")))
    client("s3").list_buckets()
    assert denied(client("ec2").describe_vpcs)[1] == (
        "ec2:DescribeVpcs on resource: * because no permissions boundary allows the ec2:DescribeVpcs action"
    )
    assert not [item for item in aws.inventory() if "IAM" in item]  # Callers are no resources of the account.


def test_tags_need_a_permission(aws: AwsStandIn) -> None:
    """Creating a resource with tags needs the action for tags too; its conditions see the tags."""
    arguments: dict[str, Any] = {
        "CidrBlock": "10.0.0.0/16",
        "TagSpecifications": [{"ResourceType": "vpc", "Tags": TAGS}],
    }
    client = clients(aws.as_principal(allow("ec2:CreateVpc", "sns:CreateTopic", "iam:CreateRole")))
    vpcs = f"arn:aws:ec2:{REGION}:{ACCOUNT}:vpc/*"
    assert denied(client("ec2").create_vpc, **arguments)[1].startswith(f"ec2:CreateTags on resource: {vpcs} ")
    assert denied(client("sns").create_topic, Name="x", Tags=TAGS)[1].startswith("sns:TagResource ")
    role: dict[str, Any] = {"RoleName": "x", "AssumeRolePolicyDocument": "{}", "Tags": TAGS}
    assert denied(client("iam").create_role, **role)[1].startswith(f"iam:TagRole on resource: arn:aws:iam::{ACCOUNT}")
    conditions = {"ec2:CreateAction": "CreateVpc", "aws:RequestTag/podwright:cluster": "demo"}
    with_tags = allow("ec2:CreateTags", Condition={"StringEquals": conditions})
    client = clients(aws.as_principal(allow("ec2:CreateVpc", "ec2:DeleteVpc"), with_tags))
    client("ec2").delete_vpc(VpcId=client("ec2").create_vpc(**arguments)["Vpc"]["VpcId"])


def test_conditions_on_region_service_and_tags_of_resources(aws: AwsStandIn) -> None:
    """A statement holds for its region, for the service that a role is passed to, and for resources with a tag."""
    elsewhere = {"StringNotEquals": {"aws:RequestedRegion": ["eu-west-1"]}}
    only_elsewhere = policy({"Effect": "Deny", "Action": "*", "Resource": "*", "Condition": elsewhere})
    assert "explicit deny" in denied(clients(aws.as_principal(allow("ec2:*"), only_elsewhere))("ec2").describe_vpcs)[1]
    passed = {"StringEquals": {"iam:PassedToService": "sagemaker.amazonaws.com"}}
    schedules = allow("scheduler:CreateSchedule")
    client = clients(aws.as_principal(schedules, allow("iam:PassRole", Condition=passed)))
    assert denied(client("scheduler").create_schedule, **SCHEDULE)[1].startswith(f"iam:PassRole on resource: {ROLE} ")
    specification = [{"ResourceType": "vpc", "Tags": TAGS}]
    ours, foreign = (
        aws.client("ec2").create_vpc(CidrBlock="10.0.0.0/16", **arguments)["Vpc"]["VpcId"]
        for arguments in ({"TagSpecifications": specification}, {})
    )
    tagged = {"StringEquals": {"aws:ResourceTag/podwright:cluster": "demo"}}
    client = clients(aws.as_principal(allow("ec2:DeleteVpc", Condition=tagged)))
    assert denied(client("ec2").delete_vpc, VpcId=foreign)[1].startswith("ec2:DeleteVpc ")
    client("ec2").delete_vpc(VpcId=ours)
    aws.client("ec2").delete_vpc(VpcId=foreign)


def test_handlers_act_with_the_callers_rights(aws: AwsStandIn) -> None:
    """Cloud Control accepts a request and fails it if the caller lacks a permission of the handler."""
    handler = ("sagemaker:*", "kms:*", "ec2:*", "iam:CreateServiceLinkedRole")
    request = {"TypeName": "AWS::SageMaker::Cluster", "DesiredState": json.dumps(CLUSTER)}
    for document, action in (
        (allow("cloudformation:*"), "sagemaker:CreateCluster"),
        (allow("cloudformation:*", *handler), "iam:PassRole"),
    ):
        control = clients(aws.as_principal(document))("cloudcontrol")
        event = control.create_resource(**request)["ProgressEvent"]
        while event["OperationStatus"] == "IN_PROGRESS":
            time.sleep(0.05)
            event = control.get_resource_request_status(RequestToken=event["RequestToken"])["ProgressEvent"]
        assert (event["OperationStatus"], event["ErrorCode"]) == ("FAILED", "AccessDenied")
        assert f"is not authorized to perform: {action} on resource: arn:aws:" in event["StatusMessage"]


def test_users_call_with_their_access_keys(aws: AwsStandIn) -> None:
    """A user's policies and those of a group count."""
    iam = aws.client("iam")
    iam.create_user(UserName="ada")
    iam.put_user_policy(UserName="ada", PolicyName="a", PolicyDocument=json.dumps(allow("s3:ListAllMyBuckets")))
    iam.create_group(GroupName="readers")
    iam.put_group_policy(GroupName="readers", PolicyName="a", PolicyDocument=json.dumps(allow("ec2:DescribeVpcs")))
    iam.add_user_to_group(GroupName="readers", UserName="ada")
    key = iam.create_access_key(UserName="ada")["AccessKey"]
    credentials = {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}
    client = clients({**aws.environment(), **credentials})
    client("s3").list_buckets()
    client("ec2").describe_vpcs()
    with pytest.raises(ClientError, match=f"User: arn:aws:iam::{ACCOUNT}:user/ada is not authorized"):
        client("ec2").describe_subnets()


def test_attached_policies_count_in_calls_and_simulations(aws: AwsStandIn) -> None:
    """A managed policy that is attached to a role allows what it says."""
    iam, environment = aws.client("iam"), aws.as_principal()
    name = clients(environment)("sts").get_caller_identity()["Arn"].split("/")[1]
    managed = iam.create_policy(PolicyName="vpcs", PolicyDocument=json.dumps(allow("ec2:DescribeVpcs")))["Policy"][
        "Arn"
    ]
    assert denied(clients(environment)("ec2").describe_vpcs)[0] == "UnauthorizedOperation"
    iam.attach_role_policy(RoleName=name, PolicyArn=managed)
    clients(environment)("ec2").describe_vpcs()
    simulated = iam.simulate_principal_policy(
        PolicySourceArn=iam.get_role(RoleName=name)["Role"]["Arn"], ActionNames=["ec2:DescribeVpcs", "ec2:CreateVpc"]
    )["EvaluationResults"]
    assert [result["EvalDecision"] for result in simulated] == ["allowed", "implicitDeny"]


def test_principals_do_not_control_the_stand_in(aws: AwsStandIn) -> None:
    """The paths with which tests control it need the run's own key; a key without its session's token is nobody's."""
    environment = aws.as_principal(allow("*"))
    credential = f"AWS4-HMAC-SHA256 Credential={environment['AWS_ACCESS_KEY_ID']}/20261128/{REGION}/s3/aws4_request"
    for path, token in ((PERMISSIONS_PATH, environment["AWS_SESSION_TOKEN"]), ("/", "")):
        connection = HTTPConnection(urlsplit(aws.endpoint_url).netloc, timeout=600)
        connection.request("GET", path, headers={"Authorization": credential, "X-Amz-Security-Token": token})
        assert connection.getresponse().status == 403
        connection.close()


@pytest.mark.parametrize(
    ("statement", "context", "decision"),
    [
        ({"NotAction": "iam:*"}, {}, "allowed"),
        ({"NotAction": "ec2:*"}, {}, "implicitDeny"),
        ({"Action": "*", "NotResource": "*"}, {}, "implicitDeny"),
        ({"Action": "ec2:Create*", "Condition": {"BoolIfExists": {"a:b": "true"}}}, {}, "allowed"),
        ({"Action": "*", "Condition": {"Bool": {"a:b": "true"}}}, {}, "implicitDeny"),
        ({"Action": "*", "Condition": {"StringNotLike": {"a:b": "x*"}}}, {"a:b": ["xy"]}, "implicitDeny"),
        (
            {"Action": "*", "Condition": {"ForAllValues:StringEquals": {"a:b": ["x", "y"]}}},
            {"a:b": ["x", "z"]},
            "implicitDeny",
        ),
        (
            {"Action": "*", "Condition": {"ForAllValues:StringEquals": {"a:b": ["x", "y"]}}},
            {"a:b": ["x", "y"]},
            "allowed",
        ),
        ({"Action": "*", "Condition": {"ForAnyValue:StringEquals": {"a:b": ["x"]}}}, {"a:b": ["z", "x"]}, "allowed"),
        ({"Action": "ec2:*", "Resource": "arn:aws:ec2:*:*:vpc/${aws:userid}"}, {"aws:userid": ["vpc-1"]}, "allowed"),
    ],
)
def test_statements_hold_as_in_iam(statement: Mapping[str, Any], context: dict[str, list[str]], decision: str) -> None:
    """Actions, resources, operators and variables of policies are evaluated as the reference says."""
    resource = {} if "Resource" in statement or "NotResource" in statement else {"Resource": "*"}
    statements = statements_of([policy({"Effect": "Allow", **resource, **statement})])
    assert decide(statements, "ec2:CreateVpc", f"arn:aws:ec2:{REGION}:{ACCOUNT}:vpc/vpc-1", context) == decision
