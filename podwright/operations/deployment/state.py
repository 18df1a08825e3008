"""``podwright state``: move Terraform's state from this folder to the S3 bucket or backend that the settings name."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from podwright.aws_session import Session, deployer_session
from podwright.check.load import load
from podwright.config_file import add_file
from podwright.errors import ArgumentError, AwsError, OperationError
from podwright.json_document import JsonObject
from podwright.operations.deployment.deployed_stacks import BACKEND_CACHE, DeployedStack, stacks
from podwright.operations.deployment.kit import Kit
from podwright.operations.output import confirm, print_document
from podwright.operations.target import add_examples, add_profile
from podwright.settings import names
from podwright.state_owner import StateOwner, state_file
from podwright_common.command_line import add_json, add_yes
from podwright_common.exit_status import FAILED, OK

if TYPE_CHECKING:
    from podwright.settings.operations import BackendState, S3State
    from podwright.settings.root import Settings

LOCK = ".tflock"  # The suffix of a lock's key, after the key of the locked state.
MOVED = ".moved"  # The suffix of a local state file whose state is in S3 now.
NO_CONSTRAINT = "us-east-1"  # The region that S3 refuses as a LocationConstraint.


@dataclass(frozen=True, kw_only=True)
class StateMoved(JsonObject):
    """The document of `podwright state --json`."""

    schema: Literal["podwright.state/1"] = "podwright.state/1"
    bucket: str
    """Name of the bucket; empty for another backend."""
    created: bool
    moved: list[str]
    """Keys of the states in the bucket; of another backend, names of the stacks."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add FILE, --profile, --yes and --json."""
    add_file(parser)
    add_profile(parser)
    add_yes(parser)
    add_json(parser)
    add_examples(parser, "podwright state", "podwright state cluster.yaml --yes --json")


def run(options: argparse.Namespace) -> int:
    """Create the bucket of the states if there is none, and move the states of this folder into it, or to a backend.

    Raises:
        PodwrightError: the settings keep the state here, the bucket or backend has another state, or AWS or Terraform
            refuses.
    """
    settings, folder = load(options.file), Path.cwd()
    state = settings.state
    if state.source == "local":
        hint = f"add `state: {{source: s3, bucket: …}}` to {options.file}: the bucket is created if there is none"
        raise ArgumentError("state: got source local, need s3 or backend", hint)
    kit = Kit(options.file, folder)
    with kit.locked("state"):  # a deployment would write the state that is moved
        if state.source == "backend":
            return _push(options, settings, state, kit)
        return _move(options, settings, state, folder)


def _push(options: argparse.Namespace, settings: Settings, state: BackendState, kit: Kit) -> int:
    """Give the states of this folder to a backend by Terraform itself, which refuses to replace another state."""
    local = _local(settings, kit.folder)
    plan = [f"move {file.name} to the backend {state.type}" for file in local.values()]
    if not options.json:
        print("\n".join(plan) or f"nothing to do: no state is in {kit.folder}")
    if plan and not confirm("Go on?", yes=options.yes):
        return FAILED
    remaining = dict(local)
    for stack, file in local.items():
        file.rename(_moved(file))
        (stack.folder / BACKEND_CACHE).unlink(missing_ok=True)
    try:
        if local:
            kit.synthesize()  # it refuses a backend beside a local state
        for stack, file in local.items():
            stack.terraform("state", "push", str(_moved(file)))
            del remaining[stack]
    finally:
        for stack, file in remaining.items():
            _moved(file).rename(file)
            (stack.folder / BACKEND_CACHE).unlink(missing_ok=True)
    if options.json:
        moved_stacks = sorted(stack.name for stack in local)
        print_document(StateMoved(bucket="", created=False, moved=moved_stacks))
    return OK


def _moved(file: Path) -> Path:
    """Return where a local state stays once the bucket or backend has it."""
    return file.with_name(file.name + MOVED)


def _local(settings: Settings, folder: Path) -> dict[DeployedStack, Path]:
    """Return the files with the states in this folder, by stack."""
    state_files = {
        stack: state_file(folder, stack.name, settings.region)
        for stack in stacks(settings.name, folder=folder).values()
    }
    return {stack: file for stack, file in state_files.items() if file.is_file()}


def _move(options: argparse.Namespace, settings: Settings, state: S3State, folder: Path) -> int:
    store = StateBucket(state, Session(region=state.region or settings.region, profile=options.profile))
    local = _local(settings, folder)
    is_new = not store.exists()
    plan = [f"create the bucket {state.bucket} in {store.session.region}"] if is_new else []
    keys = {
        stack: names.state_key(settings.name, settings.region, stack.name)
        for stack in stacks(settings.name, folder=folder).values()
    }
    account_id = deployer_session(settings, profile=options.profile).account_id
    former = {} if is_new else dict(_former(store, settings, keys, account_id))
    plan += [f"move s3://{state.bucket}/{key} to s3://{state.bucket}/{keys[stack]}" for stack, key in former.items()]
    plan += [f"move {file.name} to s3://{state.bucket}/{keys[stack]}" for stack, file in local.items()]
    if not options.json:
        print("\n".join(plan) or f"nothing to do: {state.bucket} is there, and no state is in {folder}")
    if plan and not confirm("Go on?", yes=options.yes):
        return FAILED
    if is_new:
        store.create()
    for stack, key in former.items():
        store.move(key, keys[stack])
    for stack, file in local.items():
        store.put(keys[stack], file)
        file.rename(_moved(file))
        (stack.folder / BACKEND_CACHE).unlink(missing_ok=True)
    if options.json:
        moved = sorted(keys[stack] for stack in {*local, *former})
        print_document(StateMoved(bucket=state.bucket, created=is_new, moved=moved))
    return OK


def _former(
    store: StateBucket, settings: Settings, keys: Mapping[DeployedStack, str], account_id: str
) -> Iterator[tuple[DeployedStack, str]]:
    """Yield the stacks whose state is in the bucket under the key without a region, with that key.

    Raises:
        StateOwnerError: it is another region's or account's, so that its own settings file has to move it.
        OperationError: a deployment has its lock.
    """
    for stack in keys:
        key = names.former_state_key(settings.name, stack.name)
        content = store.content(key)
        if content is None:
            continue
        owner = StateOwner.of(json.loads(content or b"{}"))
        owner.check(stack.name, account_id=account_id, region=settings.region)
        if store.content(f"{key}{LOCK}") is not None:
            place = f"s3://{store.state.bucket}/{key}"
            raise OperationError(
                f"{place} is locked by a deployment",
                "wait for its end. Only if that Terraform crashed and runs nowhere any more, give its lock back: "
                f"`aws s3 rm {place}{LOCK}`",
            )
        yield stack, key


@dataclass(frozen=True)
class StateBucket:
    """The S3 bucket of Terraform's states."""

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
        self._put(key, file.read_bytes(), source=str(file))

    def move(self, former: str, key: str) -> None:
        """Give a state another key, unless there is one already.

        Raises:
            OperationError: there is another state.
        """
        self._put(key, self.content(former), source=former)
        self._call("delete_object", Key=former)

    def _put(self, key: str, content: bytes | None, *, source: str) -> None:
        existing = self.content(key)
        if existing is None:
            self._call("put_object", Key=key, Body=content, IfNoneMatch="*")
        elif existing != content:
            raise OperationError(
                f"s3://{self.state.bucket}/{key} is another state than {source}",
                f"compare their serials and resources, and delete {source} if the other is the newer one",
            )

    def content(self, key: str) -> bytes | None:
        """Return an object; None if there is none."""
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
