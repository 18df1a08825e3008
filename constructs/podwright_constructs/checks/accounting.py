"""What RDS or SageMaker would refuse of an accounting database."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Network

from podwright_constructs import facts
from podwright_constructs.checks.bucket import ON_DESTROY
from podwright_constructs.checks.words import is_reference, matches, one_of
from podwright_constructs.problems import Problem


def existing_accounting_database(*, endpoint: str, secret_arn: str, port: int = facts.MYSQL_PORT) -> list[Problem]:
    """Problems of how a database that exists is reached."""
    allowed_arn = "an ARN like arn:aws:secretsmanager:us-west-2:123456789012:secret:NAME"
    problems = [
        *matches("endpoint", endpoint, facts.ACCOUNTING_DATABASE_ENDPOINT_PATTERN, "a host name, without port"),
        *matches("secret_arn", secret_arn, facts.SECRET_ARN_PATTERN, allowed_arn),
    ]
    if not 1 <= port <= facts.MAX_PORT:
        problems.append(Problem("port", port, f"1 to {facts.MAX_PORT}"))
    return problems


def accounting_maria_db(
    *,
    name: str,
    subnet_cidrs: Mapping[str, str],
    instance_class: str,
    storage_gib: int,
    key_arn: str | None,
    on_destroy: str,
) -> list[Problem]:
    """Problems of a database to be created."""
    allowed_name = "1 to 63 lower-case letters, digits and single hyphens, beginning with a letter, no hyphen last"
    problems = [
        *matches("name", name, facts.DATABASE_NAME_PATTERN, allowed_name),
        *matches("instance_class", instance_class, facts.DATABASE_CLASS_PATTERN, "a class like db.t4g.medium"),
        *_subnets(subnet_cidrs),
    ]
    least, most = facts.MIN_DATABASE_STORAGE_GIB, facts.MAX_DATABASE_STORAGE_GIB
    if not least <= storage_gib <= most:
        problems.append(Problem("storage_gib", storage_gib, f"{least} to {most}"))
    if key_arn is not None:
        problems += matches("key_arn", key_arn, facts.KEY_ARN_PATTERN, "an ARN like arn:aws:kms:…:key/…")
    if on_destroy not in ON_DESTROY:
        problems.append(Problem("on_destroy", on_destroy, one_of(ON_DESTROY)))
    return problems


def _subnets(cidrs: Mapping[str, str]) -> list[Problem]:
    problems = []
    if len(cidrs) < facts.MIN_DATABASE_ZONES:
        hint = "RDS wants a second zone to go to."
        problems.append(Problem("subnet_cidrs", f"{len(cidrs)} zones", f"at least {facts.MIN_DATABASE_ZONES}", hint))
    for zone, cidr in cidrs.items():
        allowed = "ids of zones, like usw2-az1"
        problems += [
            Problem("subnet_cidrs", zone, allowed)
            for _ in matches("zone", zone, facts.AVAILABILITY_ZONE_ID_PATTERN, allowed)
        ]
        if not is_reference(cidr) and not _is_block(cidr):
            problems.append(Problem(f"subnet_cidrs.{zone}", cidr, f"an IPv4 block of {facts.VPC_PREFIX_TEXT}"))
    return problems


def _is_block(cidr: str) -> bool:
    try:
        network = IPv4Network(cidr)
    except ValueError:
        return False
    return facts.MIN_CIDR_PREFIX_LENGTH <= network.prefixlen <= facts.MAX_CIDR_PREFIX_LENGTH
