"""The stand-in serves the rehearsal alone, because hosts run as root what it stores."""

from __future__ import annotations

import http.client
import multiprocessing
import os
import socket
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from podwright_rehearsal.aws import AwsStandIn

pytestmark = pytest.mark.slow

NOBODY = 65534
HALF_OPEN = 110


def attack(port, access_key, pid, files, pipe):
    """Send scripts, touch files and leave half-open requests as another user; send what came of each, then wait."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    headers = {"Authorization": f"AWS4-HMAC-SHA256 Credential={access_key}/"}
    outcomes = []
    for method, path in (("PUT", "/sagemaker-x/lifecycle/on_create.sh"), ("POST", "/moto-api/reset")):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
            connection.request(method, path, b"#!/bin/sh", headers)
            outcomes.append(str(connection.getresponse().status))
        except OSError:  # closed before an answer
            outcomes.append("closed")
    for path, mode in (*((file, mode) for file in files for mode in ("r", "a")), (f"/proc/{pid}/environ", "r")):
        try:
            with Path(path).open(mode):
                outcomes.append(f"opened {path}")
        except PermissionError:
            outcomes.append("denied")
    with ExitStack() as held:
        for _ in range(HALF_OPEN):
            half_open = held.enter_context(socket.create_connection(("127.0.0.1", port)))
            with suppress(OSError):
                half_open.send(b"PUT /x HTTP/1.1\r\n")
        pipe.send(outcomes)
        pipe.recv()


@pytest.fixture(scope="module")
def aws():
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # as a checkout's: others may look for what is in it
        with AwsStandIn(directory=Path(folder) / "aws") as stand_in:
            yield stand_in


@pytest.fixture(scope="module")
def access_key(aws):
    return aws.environment()["AWS_ACCESS_KEY_ID"]


def status(aws, method, path, access_key="", *, length=None):
    connection = http.client.HTTPConnection(urlsplit(aws.endpoint_url).netloc, timeout=600)
    connection.putrequest(method, path)
    connection.putheader(
        "Authorization", f"AWS4-HMAC-SHA256 Credential={access_key}/20261122/us-west-2/s3/aws4_request"
    )
    connection.putheader("Content-Length", str(length or 0))
    connection.endheaders()
    answer = connection.getresponse().status
    connection.close()
    return answer


@pytest.mark.skipif(os.geteuid() != 0, reason="acts as another user, which only root can")
def test_another_user_of_this_machine_is_turned_away(aws, access_key):
    """Another user cannot connect, even with the access key, nor block others, nor open the account's files."""
    client = aws.client("s3")
    client.create_bucket(Bucket="sagemaker-x", CreateBucketConfiguration={"LocationConstraint": aws.region})
    ours, theirs = multiprocessing.Pipe()
    files = [aws.directory / "on_create.sh", aws.log, Path(aws.environment()["AWS_CONFIG_FILE"])]
    files[0].write_text("#!/bin/sh\n")
    files[0].chmod(0o666)  # the folder alone protects it
    arguments = (urlsplit(aws.endpoint_url).port, access_key, aws.pid, files, theirs)
    attacker = multiprocessing.get_context("fork").Process(target=attack, args=arguments)
    attacker.start()
    theirs.close()  # or nobody would notice that the attacker has died
    assert ours.recv() == ["closed", "closed", *["denied"] * (2 * len(files) + 1)]
    assert [item["Name"] for item in client.list_buckets()["Buckets"]] == ["sagemaker-x"]
    assert client.list_objects_v2(Bucket="sagemaker-x")["KeyCount"] == 0
    ours.send("end")
    attacker.join()
    assert attacker.exitcode == 0


def test_requests_without_the_access_key_are_refused(aws, access_key):
    """No key, another key and the beginning of the key are refused, for every path."""
    for key in ("", "rehearsal", access_key[:-1]):
        for path in ("/sagemaker-x/on_create.sh", "/_interruption", "/moto-api/reset"):
            assert status(aws, "PUT", path, key) == 403
    assert status(aws, "GET", "/", access_key) == 200


def test_motos_own_api_is_off(aws, access_key):
    """Not even the rehearsal reaches the API with which moto resets accounts."""
    assert status(aws, "POST", "/moto-api/reset", access_key) == 403


@pytest.mark.parametrize("path", ["/b/../x", "/b/a/..", "/b/%2e%2e/x", "/b/a%2f..%2fx"])
def test_keys_that_lead_elsewhere_are_refused(aws, access_key, path):
    """A key with a folder .. would be written outside the folder that it is downloaded to."""
    assert status(aws, "PUT", path, access_key) == 400


def test_bodies_are_bounded(aws, access_key):
    """A body that would fill the disk is refused by its length."""
    assert status(aws, "PUT", "/b/x", access_key, length=10**12) == 413


def test_many_open_requests_do_not_block(aws):
    """Some hundred requests that never end leave the stand-in answering."""
    port = urlsplit(aws.endpoint_url).port
    with ExitStack() as held:
        for _ in range(200):
            half_open = held.enter_context(socket.create_connection(("127.0.0.1", port)))
            half_open.send(b"PUT /x HTTP/1.1\r\n")
        assert aws.client("sts").get_caller_identity()["Account"]


def test_the_access_key_is_in_no_file_of_others(aws, access_key):
    """The configuration file is the owner's alone, and no two runs have the same key."""
    assert Path(aws.environment()["AWS_CONFIG_FILE"]).stat().st_mode & 0o077 == 0
    assert len(access_key) > 30
