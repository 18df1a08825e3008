"""AWS's error codes by meaning, botocore's errors of credentials, and the permission that a call needs.

https://docs.aws.amazon.com/sagemaker/latest/APIReference/CommonErrors.html, and the services' own spellings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DENIED = frozenset({"AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "NotAuthorized", "403"})
EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired"})
UNKNOWN_IDENTITY = frozenset(
    {
        "AuthFailure",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)
THROTTLED = frozenset(
    {
        "RequestLimitExceeded",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "TooManyRequestsException",
    }
)
ABSENT = frozenset(
    {
        "404",
        "DBInstanceNotFound",
        "FileSystemNotFound",
        "InvalidVpcID.NotFound",
        "NatGatewayNotFound",
        "NoSuchBucket",
        "NoSuchEntity",
        "NoSuchKey",
        "NoSuchTagSet",
        "NotFound",
        "NotFoundException",
        "ResourceNotFound",
        "ResourceNotFoundException",
    }
)
NO_CREDENTIALS = frozenset(  # botocore's classes: no call was sent
    {
        "CredentialRetrievalError",
        "NoAuthTokenError",
        "NoCredentialsError",
        "PartialCredentialsError",
        "SSOError",
        "TokenRetrievalError",
    }
)
SIGN_IN = "sign in with `aws sso login`, or set AWS_PROFILE or access keys, until `aws sts get-caller-identity` answers"

# Where IAM's prefix or action is not the service's or operation's own name.
_PREFIXES = {"service-quotas": "servicequotas", "resourcegroupstaggingapi": "tag"}
_ACTIONS = {
    "budgets:DescribeBudget": "budgets:ViewBudget",
    "s3:ListBuckets": "s3:ListAllMyBuckets",
    "s3:HeadObject": "s3:GetObject",
    "s3:HeadBucket": "s3:ListBucket",
    "s3:ListObjectsV2": "s3:ListBucket",
    "s3:ListObjectVersions": "s3:ListBucketVersions",
}


def no_credentials(error: Exception) -> str:
    """Return a few words on missing credentials, or an empty string for an error of another kind."""
    kinds = [kind.__name__ for kind in type(error).__mro__]
    if not NO_CREDENTIALS.intersection(kinds):
        return ""
    reason = "" if "NoCredentialsError" in kinds else f": {' '.join(str(error).split()).rstrip('.')}"
    return f"no AWS credentials{reason}"


def action(service: str, operation: str) -> str:
    """Return the permission in IAM's words that an operation needs, such as ``sagemaker:DescribeCluster``.

    Args:
        service: boto3's name of the service.
        operation: the API's name of the operation.
    """
    name = f"{_PREFIXES.get(service, service)}:{operation}"
    return _ACTIONS.get(name, name)


def throttled(called: str, response: Mapping[str, Any]) -> tuple[str, str]:
    """Return message and hint for a call that AWS throttled in every attempt.

    Args:
        called: the call's permission, by ``action``.
        response: botocore's of the last attempt.
    """
    attempts = response.get("ResponseMetadata", {}).get("RetryAttempts", 0) + 1
    text = f"AWS throttled {called} ({response['Error']['Code']}) in all {attempts} attempts"
    return text, "wait a minute; AWS_MAX_ATTEMPTS sets the number of attempts"
