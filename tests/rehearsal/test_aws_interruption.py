"""The call that goes wrong on purpose: which one, how, and that nothing else does."""

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, ConnectionClosedError, ReadTimeoutError

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


def once(aws, service, **options):
    """A client that asks once, as far as it is up to it."""
    config = Config(proxies={}, retries={"total_max_attempts": 1}, **options)
    return aws._session.client(service, endpoint_url=aws.endpoint_url, config=config)


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


def test_late_answers_are_of_work_that_was_done(aws):
    """A caller that gives up before the answer does not know that what it asked for is there; others do not wait."""
    aws.interrupt(kind="answers late", call="iam CreateRole")
    with pytest.raises(ReadTimeoutError):
        SERVICES["iam"](once(aws, "iam", read_timeout=1))
    assert aws.inventory() == ["AWS::IAM::Role role"]
    with pytest.raises(ReadTimeoutError):
        SERVICES["logs"](once(aws, "logs", read_timeout=1))
    aws.interrupt(at=0)
    SERVICES["amp"](once(aws, "amp"))


def test_each_process_is_the_account_that_was_asked_for(aws, tmp_path):
    """Two accounts beside each other: their own numbers, resources and keys."""
    with AwsStandIn(directory=tmp_path / "other", account_id="210987654321") as other:
        SERVICES["iam"](once(other, "iam"))
        assert other.client("iam").get_role(RoleName="role")["Role"]["Arn"] == "arn:aws:iam::210987654321:role/role"
        assert [it.client("sts").get_caller_identity()["Account"] for it in (aws, other)] == [
            "123456789012",
            "210987654321",
        ]
        assert aws.inventory() == []
        stranger = aws._session.client("sts", endpoint_url=other.endpoint_url, config=Config(proxies={}))
        with pytest.raises(ClientError) as refused:
            stranger.get_caller_identity()
        assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403
