"""Turn botocore's errors into one line: the call, the reason, and the missing permission or setting."""

from __future__ import annotations

import os
import re

import botocore.session
from botocore import exceptions
from botocore.parsers import ResponseParserError

from podwright.aws_errors import (
    DENIED,
    EXPIRED,
    SIGN_IN,
    THROTTLED,
    UNKNOWN_IDENTITY,
    action,
    no_credentials,
    throttled,
)
from podwright.errors import ArgumentError, AwsError, OperationError
from podwright_common.similar_names import did_you_mean

LIMITS = {"ResourceLimitExceeded", "LimitExceededException", "ServiceQuotaExceededException"}
MAX_REASON = 120  # characters of an answer that is not AWS's: it may be a page
NETWORK = "see whether a proxy (HTTPS_PROXY), a firewall or AWS_ENDPOINT_URL is in the way"

# Errors of botocore that another argument solves: message and hint.
ARGUMENTS = (
    (exceptions.ProfileNotFound, "{text}", "`aws configure list-profiles` lists yours"),
    (exceptions.NoRegionError, "no AWS region", "give --region, or set AWS_REGION"),
    (exceptions.ParamValidationError, "{service} does not take this argument: {text}", ""),
)
_SENTENCE = re.compile(r"(?:User: (?P<who>\S+) is )?not authorized to perform: (?P<action>[\w-]+:\w+)", re.IGNORECASE)
_RESOURCE = re.compile(r"on resource: (?P<resource>\S+)")


def refusal(
    error: exceptions.ClientError | exceptions.BotoCoreError | ResponseParserError, *, service: str, region: str
) -> OperationError:
    """Return the error for the user.

    Args:
        error: what botocore raised.
        service: boto3's name of the service.
        region: of the call.
    """
    if isinstance(error, exceptions.ClientError):
        return _answered(error, service=service, region=region)
    if isinstance(error, ResponseParserError):
        reason = _one_line(str(error))[:MAX_REASON]
        text = f"{service} in {region}: the answer did not come from AWS: {reason}"
        return AwsError(text, NETWORK, code=type(error).__name__)
    return _unanswered(error, service=service, region=region)


def _answered(error: exceptions.ClientError, *, service: str, region: str) -> AwsError:
    code = str(error.response.get("Error", {}).get("Code", ""))
    text = _one_line(error.response.get("Error", {}).get("Message", ""))
    called = action(service, error.operation_name)
    if code in DENIED:
        return _denied(called, text, code)
    if code in EXPIRED:
        return AwsError(f"the session of your AWS credentials has expired ({code})", SIGN_IN, code=code)
    if code in UNKNOWN_IDENTITY:
        hint = f"{SIGN_IN}; a region that the account has not enabled refuses them too"
        return AwsError(f"AWS in {region} does not accept these credentials ({code}: {text})", hint, code=code)
    if code in THROTTLED:
        return AwsError(*throttled(called, error.response), code=code)
    hint = "ask for more in Service Quotas: `podwright check --live` names the quotas" if code in LIMITS else ""
    return AwsError(f"AWS refused {called}: {code}: {text.rstrip('.')}", hint, code=code)


def _denied(called: str, text: str, code: str) -> AwsError:
    """Name the action, the resource and the identity as far as AWS's sentence has them."""
    sentence, resource = _SENTENCE.search(text), _RESOURCE.search(text)
    denied_action = sentence["action"] if sentence else called
    of = f" on {resource['resource']}" if resource else ""
    who = f" to {sentence['who']}" if sentence and sentence["who"] else ""
    hint = "an explicit deny forbids it: ask who manages your policies" if "explicit deny" in text else ""
    return AwsError(
        f"AWS denied {denied_action}{of}{who}",
        hint or f"allow {denied_action} in the policy of your role",
        code=code,
        denied=True,
    )


def _unanswered(error: exceptions.BotoCoreError, *, service: str, region: str) -> OperationError:
    code, text = type(error).__name__, _one_line(str(error)).rstrip(".")
    if missing := no_credentials(error):
        return AwsError(missing, SIGN_IN, code=code)
    misspelt = _misspelt_region(error, service=service, region=region)
    if misspelt:
        return misspelt
    if isinstance(error, exceptions.HTTPClientError | exceptions.ConnectionError):
        return AwsError(f"{service} in {region} does not answer: {text}", NETWORK, code=code)
    for kind, message, hint in ARGUMENTS:
        if isinstance(error, kind):
            return ArgumentError(message.format(service=service, text=text), hint)
    return AwsError(f"the request was not sent: {text}", code=code)


def _misspelt_region(error: exceptions.BotoCoreError, *, service: str, region: str) -> ArgumentError | None:
    """Return the error for a region that botocore does not list, if that may be why AWS did not answer."""
    if os.environ.get("AWS_ENDPOINT_URL") or not isinstance(
        error, exceptions.InvalidRegionError | exceptions.EndpointConnectionError
    ):
        return None
    regions = _regions(service)
    if region in regions:
        return None
    hint = did_you_mean(region, regions) or "`aws account list-regions` lists yours"
    return ArgumentError(f"{service} has no region {region!r}", hint)


def _regions(service: str) -> list[str]:
    """Return the regions of a service in all partitions, as botocore lists them."""
    session = botocore.session.Session()
    partitions = session.get_available_partitions()
    return [name for partition in partitions for name in session.get_available_regions(service, partition)]


def _one_line(text: str) -> str:
    return " ".join(str(text).split())
