"""Compare the scripts and programs in a cluster's bucket with those that podwright uploaded."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator

from podwright.aws_session import Session
from podwright.errors import AwsError
from podwright.operations.account.hyperpod import Cluster
from podwright.operations.deployment.deployed_stacks import DeployedStack, attributes_in
from podwright_bootstrap.contract import API_PARAMETERS_NAME, PROVISIONING_PARAMETERS_NAME
from podwright_constructs.lifecycle_archive import ARCHIVE

_DIGEST = re.compile(rb"^archive_sha256=([0-9a-f]{64})$", re.MULTILINE)


def changed_scripts(session: Session, cluster: Cluster) -> Iterator[tuple[str, str]]:
    """Yield URI and reason of each script that new nodes could not run, or that was changed after its upload.

    podwright's on_create.sh names the SHA-256 of its archive. Other scripts are only looked for.

    Raises:
        AwsError: AWS refuses to read the bucket.
    """
    scripts = {
        (config["SourceS3Uri"].rstrip("/"), config.get("OnCreate") or config.get("OnInitComplete"))
        for group in cluster.groups
        if (config := group.description.get("LifeCycleConfig"))
    }
    for folder, name in sorted(scripts):
        uri = f"{folder}/{name}"
        text = _read(session, uri)
        if text is None:
            yield uri, "does not exist: a new node cannot boot"
            continue
        if b"\r\n" in text:
            yield uri, "has Windows line ends, which a shell does not run"
        if expected := _DIGEST.search(text):
            archive = _read(session, f"{folder}/{ARCHIVE}")
            if archive is None:
                yield f"{folder}/{ARCHIVE}", "does not exist: a new node cannot boot"
            elif hashlib.sha256(archive).hexdigest() != expected[1].decode():
                yield f"{folder}/{ARCHIVE}", "is not the archive that on_create.sh was uploaded with"
        for file in (f"{folder}/{name}" for name in (PROVISIONING_PARAMETERS_NAME, API_PARAMETERS_NAME)):
            parameters = _read(session, file)
            if parameters is not None and not _is_json(parameters):
                yield file, "is not JSON"


def changed_uploads(session: Session, stack: DeployedStack) -> Iterator[tuple[str, str]]:
    """Yield URI and reason of each object that is not as a stack's state has it.

    Raises:
        AwsError: AWS refuses to read the bucket.
        TerraformError: reading the state fails.
    """
    for attributes in attributes_in(stack.state()).values():
        if attributes["type"] != "aws_s3_object":
            continue
        bucket, key, uploaded = (attributes[name] for name in ("bucket", "key", "etag"))
        try:
            etag = session.call("s3", "head_object", Bucket=bucket, Key=key)["ETag"].strip('"')
        except AwsError as error:
            if not error.absent:
                raise
            yield f"s3://{bucket}/{key}", "does not exist"
            continue
        if etag != uploaded:
            yield f"s3://{bucket}/{key}", "is not what was uploaded"


def _read(session: Session, uri: str) -> bytes | None:
    """Return an object's content; None if the object does not exist."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    try:
        with session.translated("s3"):
            body: bytes = session.call("s3", "get_object", Bucket=bucket, Key=key)["Body"].read()
            return body
    except AwsError as error:
        if error.absent:
            return None
        raise


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
