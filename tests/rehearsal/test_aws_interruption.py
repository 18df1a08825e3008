"""The call that goes wrong on purpose: which one, how, and that nothing else does."""

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, ConnectionClosedError

from podwright_rehearsal.aws import AwsStandIn

pytestmark = pytest.mark.slow

SERVICES = {
    "ec2": lambda client: client.create_vpc(CidrBlock="10.0.0.0/16"),
    "iam": lambda client: client.create_role(RoleName="role", AssumeRolePolicyDocument='{"Version": "2012-10-17"}'),
    "s3": lambda client: client.create_bucket(
        Bucket="interrupted", CreateBucketConfiguration={"LocationConstraint": "us-west-2"}
    ),
    "logs": lambda client: client.create_log_group(logGroupName="group"),
    "amp": lambda client: client.create_workspace(alias="workspace"),
}


@pytest.fixture
def aws(tmp_path):
    with AwsStandIn(directory=tmp_path) as stand_in:
        yield stand_in


def once(aws, service):
    """A client that asks once, as far as it is up to it."""
    return aws._session.client(
        service, endpoint_url=aws.endpoint_url, config=Config(proxies={}, retries={"total_max_attempts": 1})
    )


def test_a_refused_call_leaves_nothing(aws):
    """In the words of each protocol the first call is refused and nothing is done; the second is done."""
    for service, create in SERVICES.items():
        aws.interrupt(at=1)
        with pytest.raises(ClientError, match=r"\(AccessDenied\).*is refused: an interruption was requested"):
            create(once(aws, service))
        assert aws.inventory() == []
    for service, create in SERVICES.items():
        create(once(aws, service))
    assert len(aws.inventory()) == len(SERVICES)


def test_a_lost_answer_is_of_work_that_was_done(aws):
    """The connection ends without an answer; what was asked for is there."""
    aws.interrupt(at=2, kind="answer lost")
    SERVICES["iam"](once(aws, "iam"))
    with pytest.raises(ConnectionClosedError):
        SERVICES["logs"](once(aws, "logs"))
    assert aws.inventory() == ["AWS::IAM::Role role", "AWS::Logs::LogGroup group"]


def test_counts_changes_alone_and_those_that_are_meant(aws):
    """Looking is not counted; a call is found by its name."""
    aws.interrupt(call="iam CreateRole")
    aws.inventory()
    SERVICES["logs"](once(aws, "logs"))
    with pytest.raises(ClientError, match="iam CreateRole"):
        SERVICES["iam"](once(aws, "iam"))
    assert aws.changing_calls() == ["logs CreateLogGroup", "iam CreateRole"]


def test_a_call_is_refused_with_the_code_that_is_asked_for(aws):
    """As often as asked, calls of a name fail, those that only read too; others do not."""
    aws.refuse("sagemaker ListClusters", code="ThrottlingException", message="Rate exceeded", times=2)
    aws.refuse("ec2 DescribeVpcs", code="RequestExpired")
    for _ in range(2):
        with pytest.raises(ClientError, match=r"\(ThrottlingException\).*Rate exceeded"):
            once(aws, "sagemaker").list_clusters()
    assert once(aws, "sagemaker").list_clusters()["ClusterSummaries"] == []
    with pytest.raises(ClientError, match="RequestExpired"):
        once(aws, "ec2").describe_vpcs()
    assert once(aws, "ec2").describe_subnets()["Subnets"]
