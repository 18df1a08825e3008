"""Terraform's state moves from the working directory to S3."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from podwright.checkout import ROOT
from podwright.cli import main
from podwright.operations.deployment.terraform import terraform_environment
from podwright.settings import names
from podwright_rehearsal.aws import AwsStandIn

BUCKET = "states-of-a-team"
STACK = "minimal-foundation"
OUTPUTS = {"answer": {"value": "42", "type": "string"}}
STATE = {"version": 4, "terraform_version": "1.5.0", "serial": 3, "lineage": "one", "outputs": OUTPUTS, "resources": []}


@pytest.fixture
def local(folder: Path, aws: AwsStandIn) -> Path:
    """A local state, and settings that keep it in S3."""
    text = (ROOT / "examples" / "minimal" / "cluster.yaml").read_text(encoding="utf-8")
    text = text.replace("us-east-2", aws.region).replace("use2-", "usw2-")
    (folder / "cluster.yaml").write_text(f"{text}\nstate: {{source: s3, bucket: {BUCKET}}}\n", encoding="utf-8")
    file = folder / names.state_file(STACK, aws.region)
    file.write_text(json.dumps(STATE), encoding="utf-8")
    return file


@pytest.mark.terraform
def test_the_state_moves_to_a_bucket_of_its_own(
    local: Path, aws: AwsStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    """The bucket is made, versioned, private and over TLS alone; Terraform reads the state there, whole."""
    assert main(["state", "--yes"]) == 0
    s3, key = aws.client("s3"), names.state_key("minimal", aws.region, STACK)
    assert f"move {local.name} to s3://{BUCKET}/{key}" in capsys.readouterr().out
    assert s3.get_bucket_versioning(Bucket=BUCKET)["Status"] == "Enabled"
    private = s3.get_public_access_block(Bucket=BUCKET)["PublicAccessBlockConfiguration"]
    assert all(private.values())
    assert "aws:SecureTransport" in s3.get_bucket_policy(Bucket=BUCKET)["Policy"]
    assert not local.exists()
    assert json.loads(local.with_name(f"{local.name}.moved").read_text(encoding="utf-8")) == STATE

    backend = {"bucket": BUCKET, "key": key, "region": aws.region, "use_lockfile": True, "use_path_style": True}
    skipped = ("skip_metadata_api_check", "skip_region_validation", "skip_requesting_account_id")
    content = {"terraform": {"backend": {"s3": {**backend, **dict.fromkeys(skipped, True)}}}}
    (local.parent / "main.tf.json").write_text(json.dumps(content), encoding="utf-8")
    environment = {**os.environ, **terraform_environment(local.parent)}
    for command in (["init"], ["output", "-raw", "answer"]):
        answer = subprocess.run(
            [environment["TERRAFORM_BINARY_NAME"], *command],
            cwd=local.parent,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert answer.returncode == 0, answer.stderr
    assert answer.stdout == "42"

    assert main(["state", "--yes"]) == 0
    assert "nothing to do" in capsys.readouterr().out
    local.write_text(json.dumps({**STATE, "lineage": "another"}), encoding="utf-8")
    assert main(["state", "--yes"]) == 1
    assert "is another state than" in capsys.readouterr().err
    assert json.loads(s3.get_object(Bucket=BUCKET, Key=key)["Body"].read())["lineage"] == "one"


def test_a_key_without_a_region_is_moved(local: Path, aws: AwsStandIn, capsys: pytest.CaptureFixture[str]) -> None:
    """The state of an older version gets its region's key, unless a deployment has its lock or it is another's."""
    s3, former = aws.client("s3"), names.former_state_key("minimal", STACK)
    local.unlink()
    main(["state", "--yes"])  # makes the bucket, if no test has made it
    s3.delete_object(Bucket=BUCKET, Key=names.state_key("minimal", aws.region, STACK))
    vpc = {"mode": "managed", "type": "aws_vpc", "instances": [{"attributes": {"arn": "arn:aws:ec2:%s:%s:vpc/vpc-1"}}]}
    content = json.dumps({**STATE, "resources": [vpc]})
    s3.put_object(Bucket=BUCKET, Key=former, Body=content % ("eu-west-1", "123456789012"))
    assert main(["state", "--yes"]) == 1
    assert "is of account 123456789012 in eu-west-1, and this would be" in capsys.readouterr().err
    s3.put_object(Bucket=BUCKET, Key=former, Body=content % (aws.region, "123456789012"))
    s3.put_object(Bucket=BUCKET, Key=f"{former}.tflock", Body="{}")
    assert main(["state", "--yes"]) == 1
    refusal = capsys.readouterr().err
    assert "is locked by a deployment: wait for its end. Only if that Terraform crashed" in refusal
    assert f"`aws s3 rm s3://{BUCKET}/{former}.tflock`" in refusal
    s3.delete_object(Bucket=BUCKET, Key=f"{former}.tflock")
    assert main(["state", "--yes", "--json"]) == 0
    key = names.state_key("minimal", aws.region, STACK)
    assert json.loads(capsys.readouterr().out)["moved"] == [key]
    assert json.loads(s3.get_object(Bucket=BUCKET, Key=key)["Body"].read())["resources"]
    listed = s3.list_objects_v2(Bucket=BUCKET, Prefix="minimal/")["Contents"]
    assert [item["Key"] for item in listed] == [key]


def test_a_local_state_stays_where_the_settings_keep_it(local: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without state: {source: s3} the command says what to write into the settings."""
    settings = local.parent / "cluster.yaml"
    settings.write_text(settings.read_text(encoding="utf-8").replace("\nstate:", "\n# state:"), encoding="utf-8")
    assert main(["state", "--yes"]) == 2
    assert "add `state: {source: s3, bucket: …}` to cluster.yaml" in capsys.readouterr().err
    assert local.exists()
