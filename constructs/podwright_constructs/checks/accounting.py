"""Check the arguments of an accounting database against the limits of RDS and SageMaker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from podwright_constructs import facts, rds_certificates
from podwright_constructs.certificates import are_certificates
from podwright_constructs.checks.words import (
    block_problems,
    choice,
    counted,
    duplicate_problems,
    is_reference,
    key_arn_problems,
    matches,
    resource_id_problems,
    within,
)
from podwright_constructs.problems import Problem

DATABASE_ON_DESTROY = ("retain", "backup", "destroy")


def existing_accounting_database(
    *, endpoint: str, secret_arn: str, port: int = facts.MYSQL_PORT, certificates: str = ""
) -> list[Problem]:
    """Check the endpoint, the secret and the authorities of an existing database."""
    pattern = facts.ACCOUNTING_DATABASE_ENDPOINT_PATTERN
    need_arn = "an ARN like arn:aws:secretsmanager:us-west-2:123456789012:secret:NAME"
    return [
        *(_own_address(endpoint) or matches("endpoint", endpoint, pattern, "a host name without a port")),
        *matches("secret_arn", secret_arn, facts.SECRET_ARN_PATTERN, need_arn),
        *within("port", port, 1, facts.MAX_PORT),
        *_certificates(certificates),
    ]


def _own_address(endpoint: str) -> list[Problem]:
    if endpoint.rstrip(".") != "localhost" and not endpoint.startswith("127."):
        return []
    hint = "For a database on the controller itself write `source: local`."
    return [Problem("unsafe", ("endpoint",), endpoint, "the name of a host that every controller reaches", hint)]


def _certificates(text: str) -> list[Problem]:
    if not text.strip() or is_reference(text) or are_certificates(text):
        return []
    value = "a text of which OpenSSL does not read every block"
    return [Problem("malformed", ("certificates",), value, "certificates in PEM, -----BEGIN CERTIFICATE-----…")]


def accounting_maria_db(
    *,
    name: str,
    region: str | None,
    subnet_cidrs: Mapping[str, str],
    subnet_ids: Sequence[str] = (),
    instance_class: str,
    storage_gib: int,
    key_arn: str | None,
    on_destroy: str,
) -> list[Problem]:
    """Check a new database; ``region`` is None without TLS."""
    need_name = "1 to 63 lower-case letters, digits and single hyphens, beginning with a letter, no hyphen last"
    return [
        *(choice("region", region, sorted(rds_certificates.regions())) if region else []),
        *matches("name", name, facts.DATABASE_NAME_PATTERN, need_name),
        *matches("instance_class", instance_class, facts.DATABASE_CLASS_PATTERN, "a class like db.t4g.medium"),
        *_subnets(subnet_cidrs, subnet_ids),
        *within("storage_gib", storage_gib, facts.MIN_DATABASE_STORAGE_GIB, facts.MAX_DATABASE_STORAGE_GIB),
        *key_arn_problems(key_arn),
        *choice("on_destroy", on_destroy, DATABASE_ON_DESTROY),
    ]


def schema_name(name: str | None, argument: str = "database_name") -> list[Problem]:
    """Check the name of the schema that HyperPod makes in a database."""
    need = "1 to 64 letters, digits, $ and _"
    return [] if name is None else matches(argument, name, facts.SCHEMA_NAME_PATTERN, need)


def _subnets(cidrs: Mapping[str, str], subnet_ids: Sequence[str]) -> list[Problem]:
    if subnet_ids and cidrs:
        hint = "The database is in existing subnets or in new ones."
        return [Problem("conflict", ("subnet_ids",), "subnet_cidrs too", "one of the two", hint)]
    if subnet_ids:
        return _existing_subnets(subnet_ids)
    problems = []
    if len(cidrs) < facts.MIN_DATABASE_ZONES:
        value, hint = counted(len(cidrs), "zone"), "An RDS subnet group spans at least two zones."
        problems.append(Problem("size", ("subnet_cidrs",), value, f"at least {facts.MIN_DATABASE_ZONES}", hint))
    for zone, cidr in cidrs.items():
        problems += matches(("subnet_cidrs", zone), zone, facts.AVAILABILITY_ZONE_ID_PATTERN, "a zone id like usw2-az1")
        problems += block_problems(("subnet_cidrs", zone), cidr)
    return problems


def _existing_subnets(subnet_ids: Sequence[str]) -> list[Problem]:
    problems = list(duplicate_problems("subnet_ids", subnet_ids))
    if len(subnet_ids) < facts.MIN_DATABASE_ZONES:
        value, hint = counted(len(subnet_ids), "subnet"), "An RDS subnet group spans at least two zones."
        problems.append(Problem("size", ("subnet_ids",), value, f"at least {facts.MIN_DATABASE_ZONES}", hint))
    for index, subnet_id in enumerate(subnet_ids):
        problems += resource_id_problems(("subnet_ids", index), subnet_id, "subnet")
    return problems
