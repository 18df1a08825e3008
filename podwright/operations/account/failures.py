"""Known failures of HyperPod clusters: the usual meaning of AWS's message, and the command that shows the evidence.

https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-troubleshooting.html
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from podwright.json_document import JsonObject
from podwright.operations.account.hyperpod import Cluster


@dataclass(frozen=True)
class Cause(JsonObject):
    """A likely cause of a failure."""

    message: str
    """AWS's."""
    cause: str
    command: str
    """Shows the evidence."""


class _Known(NamedTuple):
    pattern: str
    cause: str
    command: str


LOGS = "podwright logs --lifecycle --cluster {name} --region {region}"
CHECK = "podwright check --live"
RULES = "aws ec2 describe-security-group-rules --region {region} --filters Name=group-id,Values={security_groups}"
KNOWN = (
    _Known(
        r"lifecycle (config|script)",
        "the lifecycle script failed on a node, or the node could not read it from S3",
        LOGS,
    ),
    _Known(
        r"insufficient.*capacity|capacity.*(unavailable|not available)",
        "the zone has no such instances now: use the zone of your training plan or reservation, or another zone",
        CHECK,
    ),
    _Known(r"EFA health check", "the security group must let all traffic pass to and from itself, in and out", RULES),
    _Known(
        r"ResourceLimitExceeded|account-level service limit|quota",
        "the account's quota for this instance type's cluster usage, or for all instances, is too low",
        CHECK,
    ),
    _Known(
        r"configuration drift",
        "partitions were edited on the controller, and the strategy managed refuses to overwrite them",
        "podwright explain cluster.slurm.strategy",
    ),
    _Known(
        r"cannot include both a SLURM Orchestrator",
        "the API and provisioning_parameters.json both set Slurm up: keep one of them",
        "aws s3 ls {scripts}/",
    ),
    _Known(
        r"MinInstanceCount|minimum (instance )?count",
        "fewer nodes than min_count started within three hours, so SageMaker rolled the change back",
        CHECK,
    ),
    _Known(
        r"assume.*role|not authorized|AccessDenied",
        "the nodes' role lacks a permission, or SageMaker may not assume it; a new role needs 30 s",
        CHECK,
    ),
    _Known(
        r"free (IP )?address|IP address",
        "the subnet has too few free addresses; EFA instances take one for each network interface",
        CHECK,
    ),
    _Known(
        r"hardware|XID|ECC|NVLink|health check",
        "a hardware fault; node recovery replaces the node, else replace it yourself",
        "podwright nodes replace NODE",
    ),
)
UNKNOWN = "no known cause: read the lifecycle logs and the events"


def causes(cluster: Cluster, messages: Iterable[str]) -> Iterator[Cause]:
    """Yield the likely cause of each different message.

    Args:
        cluster: names what the commands show.
        messages: AWS's, of the cluster, its nodes and events.
    """
    values = {
        "name": cluster.name,
        "region": cluster.region,
        "security_groups": ",".join(cluster.security_group_ids),
        "scripts": next((group.scripts_s3_uri for group in cluster.groups if group.scripts_s3_uri), "s3://BUCKET"),
    }
    for message in dict.fromkeys(filter(None, messages)):
        failure = _known(message)
        cause, command = (failure.cause, failure.command) if failure else (UNKNOWN, LOGS)
        yield Cause(message, cause, command.format(**values))


def cause_of_deployment(text: str, *, name: str, region: str) -> Cause | None:
    """Return the likely cause of a deployment's error, or None if its text is no known failure of a cluster."""
    failure = _known(text)
    if failure is None:
        return None
    values = {"name": name, "region": region, "security_groups": "SECURITY_GROUP", "scripts": "s3://BUCKET"}
    return Cause(text, failure.cause, failure.command.format(**values))


def _known(message: str) -> _Known | None:
    return next((row for row in KNOWN if re.search(row.pattern, message, re.IGNORECASE)), None)
