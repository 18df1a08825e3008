"""Make boto3's clients: one setting of timeouts and attempts for every command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import boto3

ATTEMPTS = 6  # In adaptive mode boto3 waits up to 1, 2, 4, 8 and 16 s between them.
CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 5, 30  # boto3's own are a minute each.


def client(session: boto3.Session, service: str, *, region: str) -> Any:
    """Return a client that makes ``AWS_MAX_ATTEMPTS`` attempts, ``ATTEMPTS`` by default, and waits between them.

    https://docs.aws.amazon.com/sdkref/latest/guide/feature-retry-behavior.html
    """
    from botocore.config import Config  # noqa: PLC0415 — importing it takes 0.1 s.

    retries: dict[str, Any] = {"mode": "adaptive"}
    if session._session.get_config_variable("max_attempts") is None:  # noqa: SLF001 — boto3 has no public access to it.
        retries["total_max_attempts"] = ATTEMPTS
    config = Config(connect_timeout=CONNECT_TIMEOUT_S, read_timeout=READ_TIMEOUT_S, retries=retries)
    return session.client(service, region_name=region, config=config)
