"""Start, address and end the process of the AWS stand-in.

Terraform and boto3 reach it through AWS's own variable ``AWS_ENDPOINT_URL``.
"""

from __future__ import annotations

import json
import os
import secrets
import selectors
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cached_property, partial
from http.client import HTTPConnection
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import boto3
import botocore.session
from botocore.config import Config

from podwright.errors import PodwrightError
from podwright_rehearsal.aws import clock, inventory
from podwright_rehearsal.aws.gate import KEY_VARIABLE
from podwright_rehearsal.aws.identity import ACCOUNT_VARIABLE, DEFAULT_ACCOUNT_ID
from podwright_rehearsal.aws.interruption import EVENT_PATH, FAULT_PATH, PATH, REFUSAL_PATH, Kind
from podwright_rehearsal.aws.permission import PERMISSIONS_PATH, Permission

if TYPE_CHECKING:
    from typing_extensions import Self  # typing's own is Python 3.11's

START_TIMEOUT_S = 600
STOP_TIMEOUT_S = 60
LOG_LINES_SHOWN = 20
SECRET_KEY = "rehearsal"  # noqa: S105 -- not checked: the id of the access key is the secret


class AwsStandInError(PodwrightError):
    """The AWS stand-in did not start; the message ends with its log."""


class AwsStandIn:
    """One AWS account, in a separate process on 127.0.0.1, empty at every start.

    The process ends with ``stop()``, with the ``with`` block, or with this process, however that ends.

    Args:
        directory: for its log and its AWS configuration file; made if missing.
        account_id: its number.
        region: where calls go that name no other.
        other_regions: regions beside it. Default: no other region; calls to one are refused.
        storage: the folder where file systems and backups have their files, each in a folder of its own, named by its
            id. Default: they have no files.
        transition_s: how long what takes minutes in AWS (a file system, a cluster) takes here.
        instant_deletion: answer the deletion of a file system as already done. Without it Terraform's provider sleeps
            for ten minutes after each (seen with hashicorp/aws 5.100).
        order_seed: of the order in which Cloud Control lists what has no order. Default: as it was written.
    """

    def __init__(
        self,
        *,
        directory: Path,
        account_id: str = DEFAULT_ACCOUNT_ID,
        region: str = "us-west-2",
        other_regions: Sequence[str] = (),
        storage: Path | None = None,
        transition_s: float = 1.0,
        instant_deletion: bool = False,
        order_seed: int | None = None,
    ) -> None:
        self.account_id = account_id
        self.region = region
        self._options = ["--region", region, "--transition-s", str(transition_s)]
        self._options += [word for name in other_regions for word in ("--other-region", name)]
        self._options += [] if storage is None else ["--storage", str(storage.resolve())]
        self._options += ["--instant-deletion"] * instant_deletion
        self._options += [] if order_seed is None else ["--order-seed", str(order_seed)]
        self.directory = directory
        self.log = directory / "aws.log"
        self._access_key = f"REHEARSAL{secrets.token_hex(16).upper()}"
        self._config_file = directory / "aws.config"
        self._process: subprocess.Popen[str] | None = None
        self._endpoint_url = ""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def endpoint_url(self) -> str:
        """The URL at which the stand-in listens.

        Raises:
            AwsStandInError: it is not running.
        """
        self._running()
        return self._endpoint_url

    @property
    def pid(self) -> int:
        """The process id of the stand-in.

        Raises:
            AwsStandInError: it is not running.
        """
        return self._running().pid

    def start(self) -> Self:
        """Start the process and wait until it listens.

        Raises:
            AwsStandInError: it runs already, or it did not come up.
        """
        if self._process is not None:
            raise AwsStandInError(f"The AWS stand-in already runs as process {self._process.pid}")
        self.directory.mkdir(parents=True, exist_ok=True)
        self.directory.chmod(0o700)  # hosts run as root what the account stores
        self._config_file.unlink(missing_ok=True)
        self._config_file.touch(mode=0o600)
        self._config_file.write_text(
            f"[default]\nregion = {self.region}\n"
            f"aws_access_key_id = {self._access_key}\naws_secret_access_key = {SECRET_KEY}\n",
            encoding="utf-8",
        )
        command = [sys.executable, "-m", __package__, *self._options, "--owner-pid", str(os.getpid())]
        with self.log.open("w", encoding="utf-8") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                    KEY_VARIABLE: self._access_key,
                    ACCOUNT_VARIABLE: self.account_id,
                },
                start_new_session=True,  # Ctrl-C is for the rehearsal, which still needs the account to destroy
            )
        self._process = process
        self._endpoint_url = _first_line(process.stdout)
        if not self._endpoint_url:
            self.stop()
            lines = self.log.read_text(encoding="utf-8").splitlines()[-LOG_LINES_SHOWN:]
            raise AwsStandInError("\n".join([f"The AWS stand-in did not start; its log is {self.log}:", *lines]))
        return self

    def stop(self) -> None:
        """End the process. May be called twice."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout:
            process.stdout.close()

    def environment(self) -> dict[str, str]:
        """Return the variables that point Terraform, boto3 and the AWS CLI at the stand-in only.

        To be laid over the caller's own environment: it overrides what there could lead to a real account (profiles,
        configuration files, per-service endpoints, proxies).
        """
        per_service = {name: self.endpoint_url for name in os.environ if name.startswith("AWS_ENDPOINT_URL_")}
        no_proxy = ",".join(filter(None, [os.environ.get("NO_PROXY"), os.environ.get("no_proxy"), "127.0.0.1"]))
        return {
            **per_service,
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "false",
            # Empty, not false: Terraform's S3 backend takes any word for yes.
            "AWS_USE_FIPS_ENDPOINT": "",
            "AWS_USE_DUALSTACK_ENDPOINT": "",
            "AWS_ACCESS_KEY_ID": self._access_key,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_SESSION_TOKEN": "",
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_PROFILE": "default",
            "AWS_CONFIG_FILE": str(self._config_file.resolve()),
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
            "NO_PROXY": no_proxy,
            "no_proxy": no_proxy,
        }

    def as_principal(self, *documents: Mapping[str, Any], boundary: Mapping[str, Any] | None = None) -> dict[str, str]:
        """Return ``environment()`` with the credentials of a new role: IAM authorizes each of its calls.

        Args:
            documents: the role's policies.
            boundary: its permissions boundary. Default: none.
        """
        iam, name = self.client("iam"), f"caller-{secrets.token_hex(4)}"
        partition = self.client("sts").get_caller_identity()["Arn"].split(":")[1]
        trust = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"AWS": self.account_id}}
        limited = {}
        if boundary is not None:
            created = iam.create_policy(
                PolicyName=name, Path=inventory.PRINCIPALS_PATH, PolicyDocument=json.dumps(boundary)
            )
            limited["PermissionsBoundary"] = created["Policy"]["Arn"]
        iam.create_role(
            RoleName=name,
            Path=inventory.PRINCIPALS_PATH,
            AssumeRolePolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [trust]}),
            **limited,
        )
        for number, document in enumerate(documents):
            text = json.dumps(document, separators=(",", ":"))
            iam.put_role_policy(RoleName=name, PolicyName=f"policy-{number}", PolicyDocument=text)
        arn = f"arn:{partition}:iam::{self.account_id}:role{inventory.PRINCIPALS_PATH}{name}"
        session = self.client("sts").assume_role(RoleArn=arn, RoleSessionName=name)["Credentials"]
        return {
            **self.environment(),
            "AWS_ACCESS_KEY_ID": session["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": session["SecretAccessKey"],
            "AWS_SESSION_TOKEN": session["SessionToken"],
        }

    def permissions(self) -> list[Permission]:
        """Return the permissions that calls of principals have needed so far, each once, whether they had them."""
        return [Permission(**fields) for fields in self._control("GET", PERMISSIONS_PATH)["permissions"]]

    def client(self, service: str, *, region: str | None = None) -> Any:
        """Return a boto3 client that reaches the stand-in only, whatever this process's environment says."""
        return self._session.client(
            service, region_name=region or self.region, endpoint_url=self.endpoint_url, config=Config(proxies={})
        )

    def inventory(self, *, region: str | None = None) -> list[str]:
        """Return type and id of each resource, ``AWS::EC2::VPC vpc-…``, except a fresh account's defaults."""
        return inventory.list_resources(partial(self.client, region=region), self.account_id)

    def interrupt(self, *, at: int = 1, kind: Kind = "refused", call: str = "") -> None:
        """Fail call number ``at`` of the calls that change resources, counted from 1 and from now.

        Args:
            at: its number.
            kind: refused, done while its answer is lost, or done while its answer and all later ones come late.
            call: counts only calls with this in their names, for example ``ec2 CreateVpc``.
        """
        self._control("PUT", PATH, {"at": at, "kind": kind, "call": call})

    def refuse(self, call: str, *, code: str, message: str = "refused on purpose", times: int = 1) -> None:
        """Answer the next calls of this name with an error, whether they change something or not.

        Args:
            call: part of the name, for example ``sagemaker ListClusterNodes``.
            code: AWS's error code, for example ``ThrottlingException``.
            message: AWS's words.
            times: how many calls fail. A later ``refuse`` of the same call replaces it; 0 ends it.
        """
        self._control("PUT", REFUSAL_PATH, {"call": call, "code": code, "message": message, "times": times})

    def fail(self, cluster: str, *, status: str, message: str = "", node: str = "") -> None:
        """Keep a cluster, or one of its nodes, in a state of failure.

        Args:
            cluster: its name.
            status: AWS's, such as ``Failed``, ``RollingBack`` or, of a node, ``Failure``; empty ends the failure.
            message: AWS's words.
            node: instance id. Default: the cluster itself.

        Raises:
            AwsStandInError: there is no such cluster or node.
        """
        self._change_cluster(FAULT_PATH, {"cluster": cluster, "node": node, "status": status, "message": message})

    def add_event(
        self,
        cluster: str,
        description: str,
        *,
        metadata: Mapping[str, Any],
        level: Literal["Info", "Warn", "Error"] = "Error",
        node: str = "",
    ) -> None:
        """Record an event that the stand-in has no cause for, such as a sick slurmdbd.

        Args:
            cluster: its name; only continuous ones list their events.
            description: AWS's words.
            metadata: one member of EventMetadata, for example ``{"Cluster": {"FailureMessage": "..."}}``.
            level: AWS's.
            node: instance id. Default: the cluster itself.

        Raises:
            AwsStandInError: there is no such cluster or node, or the metadata are not AWS's.
        """
        event = {"description": description, "metadata": metadata, "level": level}
        self._change_cluster(EVENT_PATH, {"cluster": cluster, "node": node, **event})

    def _change_cluster(self, path: str, change: Mapping[str, Any]) -> None:
        answer = self._control("PUT", path, change)
        if "unknown" in answer:
            raise AwsStandInError(f"The AWS stand-in has no {answer['unknown']}")
        if "invalid" in answer:
            raise AwsStandInError(answer["invalid"])

    @contextmanager
    def stopped_clock(self) -> Iterator[None]:
        """Stop the account's clock in the block: operations that take ``transition_s`` do not end."""
        self._control("PUT", clock.PATH, {"stopped": True})
        try:
            yield
        finally:
            self._control("PUT", clock.PATH, {"stopped": False})

    def changing_calls(self) -> list[str]:
        """Return the calls that may change something since the last ``interrupt``, or else the start."""
        return list(self._control("GET", PATH)["changing_calls"])

    def _control(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        parts = urlsplit(self.endpoint_url)
        connection = HTTPConnection(parts.hostname or "", parts.port)
        with closing(connection):
            signed = {"Authorization": f"AWS4-HMAC-SHA256 Credential={self._access_key}/"}
            connection.request(method, path, json.dumps(body) if body else None, signed)
            return dict(json.load(connection.getresponse()))

    @cached_property
    def _session(self) -> Any:
        core = botocore.session.Session()
        core.set_config_variable("config_file", str(self._config_file))
        core.set_config_variable("credentials_file", os.devnull)
        core.set_config_variable("profile", "default")
        return boto3.Session(botocore_session=core)

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise AwsStandInError("The AWS stand-in is not running: start() it, or use it in a with block")
        return self._process


def _first_line(stream: IO[str] | None) -> str:
    """Return the first line that the process prints, or "" if it ends or prints no line in time."""
    if stream is None:
        return ""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        return stream.readline().strip() if selector.select(START_TIMEOUT_S) else ""
