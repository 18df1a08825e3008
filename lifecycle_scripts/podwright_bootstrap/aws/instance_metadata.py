"""The instance's metadata, IMDSv2: the instance's identity, and the credentials of its role.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/configuring-instance-metadata-service.html
"""

from __future__ import annotations

import os
import urllib.request
from http.client import HTTPException
from typing import Dict, Optional

# AWS's own variables: programs of this node look there too.
DISABLED = "AWS_EC2_METADATA_DISABLED"
ENDPOINT_VARIABLE = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
ENDPOINT = "http://169.254.169.254"
TOKEN_SECONDS = 300
ANSWER_LIMIT_S = 5


def is_disabled() -> bool:
    """Return whether AWS's programs on this node must not use the service."""
    return os.environ.get(DISABLED, "").lower() == "true"


def read(path: str) -> Optional[str]:
    """Return the text below ``/latest/meta-data/``; None while the service does not answer."""
    try:
        token = _ask("PUT", "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_SECONDS)})
        return _ask("GET", f"/latest/meta-data/{path}", {"X-aws-ec2-metadata-token": token})
    except (OSError, HTTPException):
        return None


def _ask(method: str, path: str, headers: Dict[str, str]) -> str:
    endpoint = os.environ.get(ENDPOINT_VARIABLE, ENDPOINT).rstrip("/")
    request = urllib.request.Request(endpoint + path, method=method, headers=headers)  # noqa: S310 (a fixed address)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # it is on this host's link
    with opener.open(request, timeout=ANSWER_LIMIT_S) as answer:
        return str(answer.read().decode())
