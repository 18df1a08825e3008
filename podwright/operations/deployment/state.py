"""``podwright state``: move Terraform's state from this folder to the S3 bucket that the settings name."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from podwright.check.load import load
from podwright.config_file import add_file
from podwright.deploy.deployed import stacks
from podwright.operations.account.session import Session
from podwright.operations.deployment.kit import Kit
from podwright.operations.errors import ArgumentError, AwsError, OperationError
from podwright.operations.output import confirm, print_json
from podwright.operations.target import add_examples, add_profile
from podwright.settings import names

if TYPE_CHECKING:
    from podwright.settings.operations import S3State
    from podwright.settings.root import Settings

OK, FAILED = 0, 1
SCHEMA = "podwright.state/1"
MOVED = ".moved"  # behind the name of a local state that is in S3 now
BACKEND_CACHE = Path(".terraform", "terraform.tfstate")  # in which Terraform remembers where the state was
NO_CONSTRAINT = "us-east-1"  # the region whose name S3 refuses as a constraint


def local_file(folder: Path, stack: str) -> Path:
    """Return where the kit keeps the state of a stack without a backend of its own."""
    return folder / f"terraform.{stack}.tfstate"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take the settings file, and how to ask."""
    add_file(parser)
    add_profile(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    add_examples(parser, "podwright state", "podwright state cluster.yaml --yes --json")


def run(options: argparse.Namespace) -> int:
    """Create the bucket of the states if there is none, and move the states of this folder into it.

    Raises:
        PodwrightError: the settings keep the state here, the bucket has another state, or AWS refuses.
    """
    settings, folder = load(options.file), Path.cwd()
    state = settings.state
    if state.source != "s3":
        hint = f"add `state: {{source: s3, bucket: …}}` to {options.file}: the bucket is created if there is none"
        raise ArgumentError("state: got source local, need s3", hint)
    with Kit(options.file, folder).locked("state"):  # a deployment would write the state that is moved
        return _move(options, settings, state, folder)


def _move(options: argparse.Namespace, settings: Settings, state: S3State, folder: Path) -> int:
    store = Store(state, Session(region=state.region or settings.region, profile=options.profile))
    found = [(stack, local_file(folder, stack.name)) for stack in stacks(settings.name, folder=folder).values()]
    local = {stack: file for stack, file in found if file.is_file()}
    is_new = not store.exists()
    plan = [f"create the bucket {state.bucket} in {store.session.region}"] if is_new else []
    keys = {stack: names.state_key(settings.name, stack.name) for stack in local}
    plan += [f"move {file.name} to s3://{state.bucket}/{keys[stack]}" for stack, file in local.items()]
    if not options.json:
        print("\n".join(plan) or f"nothing to do: {state.bucket} is there, and no state is in {folder}")
    if plan and not confirm("Go on?", yes=options.yes):
        return FAILED
    if is_new:
        store.create()
    for stack, file in local.items():
        store.put(keys[stack], file)
        file.rename(file.with_name(file.name + MOVED))
        (stack.folder / BACKEND_CACHE).unlink(missing_ok=True)
    if options.json:
        print_json(SCHEMA, {"bucket": state.bucket, "created": is_new, "moved": sorted(keys.values())})
    return OK


@dataclass(frozen=True)
class Store:
    """The bucket of the states."""

    state: S3State
    session: Session

    def exists(self) -> bool:
        """Return whether the bucket exists and is ours.

        Raises:
            AwsError: it is another account's, or AWS refuses.
        """
        try:
            self._call("head_bucket")
        except AwsError as error:
            if error.absent:
                return False
            raise
        return True

    def create(self) -> None:
        """Create it private, versioned, encrypted, and open to TLS alone."""
        region = self.session.region
        constraint = {} if region == NO_CONSTRAINT else {"CreateBucketConfiguration": {"LocationConstraint": region}}
        self._call("create_bucket", **constraint)
        private = ("BlockPublicAcls", "BlockPublicPolicy", "IgnorePublicAcls", "RestrictPublicBuckets")
        self._call("put_public_access_block", PublicAccessBlockConfiguration=dict.fromkeys(private, True))
        self._call("put_bucket_versioning", VersioningConfiguration={"Status": "Enabled"})
        rule = {"ApplyServerSideEncryptionByDefault": dict(self._encryption())}
        self._call("put_bucket_encryption", ServerSideEncryptionConfiguration={"Rules": [rule]})
        self._call("put_bucket_policy", Policy=json.dumps(self._policy()))

    def put(self, key: str, file: Path) -> None:
        """Upload a state, unless the bucket has it already.

        Raises:
            OperationError: it is another one.
        """
        content = file.read_bytes()
        there = self._content(key)
        if there is None:
            self._call("put_object", Key=key, Body=content, IfNoneMatch="*")
        elif there != content:
            raise OperationError(
                f"s3://{self.state.bucket}/{key} is another state than {file}",
                f"compare their serials and resources, and delete or rename {file.name} if S3 has the newer one",
            )

    def _content(self, key: str) -> bytes | None:
        try:
            return bytes(self._call("get_object", Key=key)["Body"].read())
        except AwsError as error:
            if error.absent:
                return None
            raise

    def _encryption(self) -> Iterator[tuple[str, str]]:
        yield "SSEAlgorithm", "aws:kms" if self.state.key_arn else "AES256"
        if self.state.key_arn:
            yield "KMSMasterKeyID", self.state.key_arn

    def _policy(self) -> Mapping[str, object]:
        partition = self.session.client("s3").meta.partition
        bucket = f"arn:{partition}:s3:::{self.state.bucket}"
        statement = {
            "Sid": "RefuseAnythingButTls",
            "Effect": "Deny",
            "Principal": "*",
            "Action": "s3:*",
            "Resource": [bucket, f"{bucket}/*"],
            "Condition": {"Bool": {"aws:SecureTransport": "false"}},
        }
        return {"Version": "2012-10-17", "Statement": [statement]}

    def _call(self, operation: str, **arguments: Any) -> Mapping[str, Any]:
        return self.session.call("s3", operation, Bucket=self.state.bucket, **arguments)
