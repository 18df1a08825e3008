"""An AWS session: boto3 clients with one setting of timeouts and attempts, and errors in one line."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any, Protocol

from podwright.errors import OperationError

if TYPE_CHECKING:
    import boto3


ATTEMPTS = 6  # In adaptive mode boto3 waits up to 1, 2, 4, 8 and 16 s between them.
CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 5, 30  # boto3's own are a minute each.


@dataclass(frozen=True)
class RoleOfSession:
    """A role that a session assumes."""

    arn: str
    session_name: str
    external_id: str | None = None


class Session:
    """Clients of one account in one region, with the user's own credentials or a role that they may assume.

    boto3 is imported by the first call. ``AWS_ENDPOINT_URL``, ``AWS_MAX_ATTEMPTS`` and boto3's other variables apply.

    Args:
        region: AWS's name of it. Default: ``AWS_REGION``, then the profile's.
        profile: name in AWS's configuration files. Default: ``AWS_PROFILE``, then boto3's order.
        role: the role of all calls. Default: none.
    """

    def __init__(
        self, *, region: str | None = None, profile: str | None = None, role: RoleOfSession | None = None
    ) -> None:
        self._role = role
        self._given_region = region or os.environ.get("AWS_REGION")
        self.profile = profile
        self.client = cache(self._client)

    @cached_property
    def region(self) -> str:
        """The region of all calls.

        Raises:
            ArgumentError: nothing names one, or there is no such profile.
        """
        from botocore.exceptions import NoRegionError

        with self.translated("sagemaker"):
            if not self._boto3.region_name:
                raise NoRegionError
        return str(self._boto3.region_name)

    def require_answer(self) -> None:
        """Ask AWS for the caller's identity before Terraform does: a problem is then one line, and known in a second.

        Raises:
            OperationError: as ``call``.
        """
        _ = self.account_id

    @cached_property
    def account_id(self) -> str:
        """The account of the credentials.

        Raises:
            OperationError: as ``call``.
        """
        return str(self.call("sts", "get_caller_identity")["Account"])

    def call(self, service: str, operation: str, **arguments: Any) -> Mapping[str, Any]:
        """Call an operation by boto3's name and return its answer, the first page of a list.

        Raises:
            OperationError: the call failed; the message has the missing permission or setting.
        """
        with self.translated(service):
            answer: Mapping[str, Any] = getattr(self.client(service), operation)(**arguments)
            return answer

    def items(self, service: str, operation: str, key: str, **arguments: Any) -> Iterator[Any]:
        """Yield the items of all pages of a list; ``key`` is the answer's member that has them.

        Raises:
            OperationError: as ``call``.
        """
        with self.translated(service):
            for page in self.client(service).get_paginator(operation).paginate(**arguments):
                yield from page.get(key, ())

    def call_all_pages(self, service: str, operation: str, **arguments: Any) -> Mapping[str, Any]:
        """Call an operation by boto3's name and return its answer, with all pages of a list.

        Raises:
            OperationError: as ``call``.
        """
        with self.translated(service):
            client = self.client(service)
            if not client.can_paginate(operation):
                return self.call(service, operation, **arguments)
            return dict(client.get_paginator(operation).paginate(**arguments).build_full_result())

    @contextmanager
    def translated(self, service: str) -> Iterator[None]:
        """Raise an ``OperationError`` for every error of botocore in the block."""
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.parsers import ResponseParserError

        try:
            yield
        except (ClientError, BotoCoreError, ResponseParserError) as error:
            raise self._refusal(error, service) from error

    def _refusal(self, error: Any, service: str) -> OperationError:
        from podwright.aws_refusals import refusal

        return refusal(error, service=service, region=self._given_region or "this region")

    def _client(self, service: str) -> Any:
        """Return boto3's client of a service; use it within ``translated``.

        It makes ``AWS_MAX_ATTEMPTS`` attempts, ``ATTEMPTS`` by default, and waits between them.
        https://docs.aws.amazon.com/sdkref/latest/guide/feature-retry-behavior.html
        """
        from botocore.config import Config  # Importing it takes 0.1 s.

        retries: dict[str, Any] = {"mode": "adaptive"}
        # boto3 has no public access to the variable.
        if self._boto3._session.get_config_variable("max_attempts") is None:  # noqa: SLF001
            retries["total_max_attempts"] = ATTEMPTS
        config = Config(connect_timeout=CONNECT_TIMEOUT_S, read_timeout=READ_TIMEOUT_S, retries=retries)
        client = self._boto3.client(service, region_name=self.region, config=config)
        client.meta.events.register("after-call", _require_aws)
        return client

    @cached_property
    def _boto3(self) -> boto3.Session:
        import boto3  # it takes 0.2 s to import

        session = boto3.Session(region_name=self._given_region, profile_name=self.profile)
        return _assuming(self._role, session) if self._role else session


def _assuming(role: RoleOfSession, session: boto3.Session) -> boto3.Session:
    """Return a session with a role's credentials, which are asked for again before they expire.

    Raises:
        NoCredentialsError: there are none to assume it with.
    """
    import boto3
    import botocore.session
    from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials
    from botocore.exceptions import NoCredentialsError

    source = session.get_credentials()
    if source is None:
        raise NoCredentialsError
    arguments = {"RoleSessionName": role.session_name}
    if role.external_id:
        arguments["ExternalId"] = role.external_id
    core = botocore.session.get_session()
    core.set_config_variable("region", session.region_name)
    fetcher = AssumeRoleCredentialFetcher(
        partial(core.create_client, region_name=session.region_name), source, role.arn, extra_args=arguments
    )
    core._credentials = DeferredRefreshableCredentials(  # noqa: SLF001 -- boto3 takes a role from its files alone
        method="assume-role", refresh_using=fetcher.fetch_credentials
    )
    return boto3.Session(botocore_session=core, region_name=session.region_name)


def _require_aws(parsed: Mapping[str, Any], **_: Any) -> None:
    """Refuse an answer that AWS did not give: botocore takes the page of a proxy for one without members.

    Raises:
        ResponseParserError: it is another server's.
    """
    from botocore.parsers import ResponseParserError

    if not parsed.keys() - {"ResponseMetadata"} and "RequestId" not in parsed.get("ResponseMetadata", {}):
        raise ResponseParserError("it has neither members nor a request id")


class DeployerRole(Protocol):
    """The section ``assume_role`` of settings."""

    @property
    def role_arn(self) -> str:
        """ARN of the role."""

    @property
    def session_name(self) -> str:
        """Name of the session in CloudTrail."""

    @property
    def external_id(self) -> str | None:
        """External id in the role's trust policy."""


class DeployerSettings(Protocol):
    """Settings that say who deploys where."""

    @property
    def region(self) -> str:
        """AWS's name of the region."""

    @property
    def assume_role(self) -> DeployerRole | None:
        """The role, or ``None`` for the user's own credentials."""


def deployer_session(settings: DeployerSettings, *, profile: str | None = None) -> Session:
    """Return a session in the cluster's region, with the role that the settings name, as Terraform assumes it.

    Args:
        settings: of the cluster.
        profile: name in AWS's configuration files. Default: ``AWS_PROFILE``, then boto3's order.
    """
    return Session(region=settings.region, profile=profile, role=deployer_role(settings))


def deployer_role(settings: DeployerSettings) -> RoleOfSession | None:
    """Return the role that the settings name, if any."""
    assumed = settings.assume_role
    return RoleOfSession(assumed.role_arn, assumed.session_name, assumed.external_id) if assumed else None
