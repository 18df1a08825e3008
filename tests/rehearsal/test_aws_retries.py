"""A change that is asked for twice under one name is made once."""

from __future__ import annotations

import http.client
from urllib.parse import urlsplit

import pytest

from podwright_rehearsal.aws import AwsStandIn

pytestmark = pytest.mark.slow

FORM = {
    "Authorization": "AWS4-HMAC-SHA256 Credential=a/20260101/us-west-2/ec2/aws4_request, SignedHeaders=a, Signature=b",
    "Content-Type": "application/x-www-form-urlencoded",
}


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """Sends a form to EC2 under an invocation id; gives status and body."""
    with AwsStandIn(directory=tmp_path_factory.mktemp("aws"), region="us-west-2") as stand_in:
        connection = http.client.HTTPConnection(urlsplit(stand_in.endpoint_url).netloc)

        key = stand_in.environment()["AWS_ACCESS_KEY_ID"]
        headers = {name: value.replace("Credential=a", f"Credential={key}") for name, value in FORM.items()}

        def ask(form, invocation):
            connection.request("POST", "/", form, headers | {"amz-sdk-invocation-id": invocation})
            answer = connection.getresponse()
            return answer.status, answer.read()

        yield ask
        connection.close()


def test_a_repeated_change_is_made_once_and_answered_alike(ask):
    """The second attempt gets the first one's answer; another invocation is another change."""
    create = "Action=CreateVpc&CidrBlock=10.1.0.0%2F16&Version=2016-11-15"
    describe = "Action=DescribeVpcs&Version=2016-11-15"
    before = ask(describe, "before")[1].count(b"<vpcId>")
    first = ask(create, "one")
    assert first[0] == 200
    assert ask(create, "one") == first
    assert ask(create, "two")[1] != first[1]
    assert ask(describe, "after")[1].count(b"<vpcId>") == before + 2
