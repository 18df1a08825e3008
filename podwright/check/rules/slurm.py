"""Rules about accounts, qualities of service, partitions and settings of Slurm."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from podwright.check.findings import Finding, KeyPath, error, warning
from podwright.check.rules.rule import reads
from podwright.settings.operations import NoAccounting
from podwright.settings.root import Settings
from podwright_bootstrap.features import PartitionLimits
from podwright_constructs.checks.words import one_of

PATH: KeyPath = ("nodes", "slurm")
NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
NORMAL = "normal"  # Slurm's own quality of service
RESERVED_ACCOUNTS = frozenset(["root", "default"])  # Slurm's own, and ours for users without another
KEY = re.compile(r"[A-Za-z]+")
# Keys that the service or podwright writes; the service's lines of nodes and partitions among them.
_OWNED = """
clustername slurmctldhost nodename partitionname nodeset include statesavelocation slurmuser authtype prolog epilog
prologflags accountingstoragetype accountingstoragehost accountingstoragebackuphost accountingstorageport
accountingstorageenforce slurmctldport slurmdport slurmctldparameters taskplugin topologyplugin
"""
OWNED = frozenset(_OWNED.split())


def slurm_policy(settings: Settings) -> Iterator[Finding]:
    """An account, a quality of service, a partition or a setting of Slurm is unknown, doubled or not podwright's."""
    policy = settings.nodes.slurm
    if policy is None:
        return
    if (policy.accounts or policy.qos) and isinstance(settings.accounting, NoAccounting):
        yield error(PATH, "accounts and qos need a database", "write `accounting: {source: local}`, or delete them")
    yield from _names("accounts", [account.name for account in policy.accounts], RESERVED_ACCOUNTS)
    yield from _names("qos", [qos.name for qos in policy.qos], frozenset())
    known_qos = partial(_known, settings, "nodes.slurm.qos.name", [NORMAL, *(qos.name for qos in policy.qos)])
    for index, qos in enumerate(policy.qos):
        yield from known_qos((*PATH, "qos", index, "preempts"), qos.preempts)
        if qos.name in qos.preempts:
            yield error(
                (*PATH, "qos", index, "preempts"), f"{qos.name} cannot preempt itself", "delete it from the list"
            )
    known_users = partial(_known, settings, "nodes.users.name", _users(settings))
    for index, account in enumerate(policy.accounts):
        if settings.nodes.ldap is None and settings.are_valid("nodes.ldap"):  # A directory may have further users.
            yield from known_users((*PATH, "accounts", index, "users"), account.users)
        yield from known_qos((*PATH, "accounts", index, "qos"), account.qos)
    known_partitions = partial(_known, settings, "cluster.instance_groups.partition", _partitions(settings))
    accounts = ["default", *(account.name for account in policy.accounts)]
    known_accounts = partial(_known, settings, "nodes.slurm.accounts.name", accounts)
    for index, partition in enumerate(policy.partitions):
        path = (*PATH, "partitions", index)
        yield from known_partitions((*path, "name"), [partition.name])
        yield from known_accounts((*path, "accounts"), partition.accounts)
        yield from known_qos((*path, "qos"), partition.qos)
        if partition.name in [other.name for other in policy.partitions[:index]]:
            yield error((*path, "name"), f"name: {partition.name} is used twice", "write its limits into one item")
        yield from _time_limits(partition, path)
    yield from _numbers(settings)
    yield from _settings(policy.settings)


def _time_limits(partition: PartitionLimits, path: KeyPath) -> Iterator[Finding]:
    longest, usual = partition.max_minutes, partition.default_minutes
    if longest is not None and usual is not None and usual > longest:
        message = f"default_minutes: got {usual}, need at most max_minutes, {longest}"
        yield error((*path, "default_minutes"), message, "Slurm ignores a default that is longer than the limit")


@reads("nodes.slurm.accounts.users")
def accounts_of_directory(settings: Settings) -> Iterator[Finding]:
    """Slurm refuses the jobs of all users of the directory: they are in no account, and a policy requires one."""
    policy = settings.nodes.slurm
    if settings.nodes.ldap is None or policy is None or not (policy.accounts or policy.qos):
        return
    if not {name for account in policy.accounts for name in account.users} - _users(settings):
        yield warning(
            PATH,
            "no account lists a user of nodes.ldap, so Slurm refuses the jobs of all of them",
            "list them in `users` of an account, or run for each: sacctmgr add user NAME account=default",
        )


def _users(settings: Settings) -> set[str]:
    return {"ubuntu", *(user.name for user in settings.nodes.users)}


def _partitions(settings: Settings) -> set[str]:
    groups = settings.cluster.instance_groups
    return {"dev", *(group.partition for group in groups if group.partition)}


def _names(section: str, names: Sequence[str], reserved: frozenset[str]) -> Iterator[Finding]:
    for index, name in enumerate(names):
        path = (*PATH, section, index, "name")
        if not NAME.fullmatch(name) or name in reserved:
            need = "lower-case letters, digits, - and _, at most 32, with a letter first"
            besides = f", and not {' or '.join(sorted(reserved))}" if reserved else ""
            yield error(path, f"name: got {name!r}, need {need}{besides}", "")
        elif name in names[:index]:
            yield error(path, f"name: {name} is used twice", "delete one")


def _known(
    settings: Settings, defining_key: str, defined: Iterable[str], path: KeyPath, names: Iterable[str]
) -> Iterator[Finding]:
    """Report names that are not defined at a key, unless the file's values there are wrong."""
    allowed = sorted({*defined})
    for name in names:
        if name not in allowed and settings.are_valid(defining_key):
            yield error(path, f"{path[-1]}: got {name}, need {one_of(allowed)}", "")


def _numbers(settings: Settings) -> Iterator[Finding]:
    policy = settings.nodes.slurm
    if policy is None:
        return
    for section in ("accounts", "qos", "partitions"):
        for index, item in enumerate(getattr(policy, section)):
            for key, value in item:
                minimum = 0 if key in {"priority", "grace_time_s"} else 1
                if isinstance(value, int) and value < minimum:
                    yield error((*PATH, section, index, key), f"{key}: got {value}, need {minimum} or more", "")


def _settings(settings: dict[str, str]) -> Iterator[Finding]:
    spelt: dict[str, str] = {}
    for key, value in settings.items():
        path = (*PATH, "settings", key)
        if (spelling := spelt.setdefault(key.lower(), key)) != key:
            yield error(
                path,
                f"{key} is the same key as {spelling}",
                "delete one: slurm.conf ignores upper and lower case",
                at_key=True,
            )
        if not KEY.fullmatch(key):
            yield error(
                path, f"settings: got {key!r}, need a key of slurm.conf, which has letters only", "", at_key=True
            )
        elif key.lower() in OWNED:
            yield error(path, f"settings: HyperPod or podwright sets {key}", "delete it", at_key=True)
        elif not value.strip() or not value.isprintable() or "#" in value:
            yield error(path, f"{key}: got {value!r}, need one line without #", "")
