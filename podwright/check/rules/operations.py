"""Rules about accounting, logs, notices, budget, metrics, sessions and state."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from ipaddress import IPv4Network
from itertools import groupby
from operator import attrgetter
from typing import Any

from podwright.check.findings import Finding, KeyPath, error, findings_of, remark
from podwright.check.rights import rights
from podwright.check.rules.rule import (
    NETWORK_BLOCKS,
    OWN_BUCKET,
    findings_of_arguments,
    reads,
    scripts_in_place_of_ours,
)
from podwright.settings import names
from podwright.settings.arguments import arguments
from podwright.settings.cluster import ApiSlurm
from podwright.settings.network import CreatedNetwork, CreatedSubnet
from podwright.settings.operations import (
    BackendState,
    CreatedAccounting,
    DatabaseAccounting,
    ExistingAccounting,
    ExistingPrometheus,
    NoAccounting,
    S3State,
)
from podwright.settings.regions import looks_like_region, partition_of
from podwright.settings.root import Settings
from podwright.settings.section import Section
from podwright_constructs import checks


def created_accounting(settings: Settings) -> Iterator[Finding]:
    """RDS has no such class or size, or the database's subnets are not in two zones."""
    accounting = settings.accounting
    if isinstance(accounting, CreatedAccounting):
        constants = {"name": "any", "region": None, "key_arn": None}
        yield from findings_of_arguments(
            settings, ("accounting",), accounting, checks.accounting_maria_db, "database_name", **constants
        )


@reads(*NETWORK_BLOCKS, "accounting.subnet_cidrs")
def accounting_in_network(settings: Settings) -> Iterator[Finding]:
    """The database's blocks are outside the created network, or overlap new subnets or each other.

    https://docs.aws.amazon.com/vpc/latest/userguide/subnet-sizing.html
    """
    accounting = settings.accounting
    if not isinstance(accounting, CreatedAccounting) or any(created_accounting(settings)):
        return
    subnet_blocks = _new_subnets(settings.network)
    if subnet_blocks is None:
        return
    network = settings.network
    blocks = [network.cidr, *network.secondary_cidrs] if isinstance(network, CreatedNetwork) else []
    for zone, cidr in accounting.subnet_cidrs.items():
        path = ("accounting", "subnet_cidrs", zone)
        if blocks and not any(IPv4Network(cidr).subnet_of(IPv4Network(block)) for block in blocks):
            within = " or ".join(blocks)
            yield error(
                path, f"subnet_cidrs: {cidr} of {zone} is outside the network, {within}", f"use a block within {within}"
            )
        over = next((block for block in subnet_blocks if IPv4Network(cidr).overlaps(IPv4Network(block))), None)
        if over:
            yield error(path, f"subnet_cidrs: {cidr} of {zone} overlaps the subnet {over}", "use a separate block")
        subnet_blocks.append(cidr)


def _new_subnets(network: Section) -> list[str] | None:
    """Return the blocks of the subnets that are created beside the database's; None if another rule refuses them."""
    if isinstance(network, CreatedNetwork):
        public_blocks = [network.public_subnet_cidr] if network.internet == "nat" else []
        extra_blocks = [subnet.cidr for subnet in network.extra_private_subnets]
        refused = checks.training_network(**arguments(network, "flow_logs"))
        return None if refused else [*public_blocks, network.private_subnet_cidr, *extra_blocks]
    if isinstance(network, CreatedSubnet):
        return None if checks.private_network(**arguments(network)) else [network.private_subnet_cidr]
    return []


def unused_accounting(settings: Settings) -> Iterator[Finding]:
    """Accounting is off, but HyperPod, when it sets Slurm up, keeps accounts on the controller anyway."""
    if isinstance(settings.accounting, NoAccounting) and isinstance(settings.cluster.slurm, ApiSlurm):
        message = "source: none has no effect: with `slurm: {source: api}` HyperPod keeps accounts on the controller"
        yield error(("accounting", "source"), message, "write `source: local`, or delete the section")


def existing_accounting(settings: Settings) -> Iterator[Finding]:
    """The endpoint is not a host name, or the secret's ARN is malformed."""
    if isinstance(settings.accounting, ExistingAccounting):
        check = checks.existing_accounting_database
        yield from findings_of_arguments(settings, ("accounting",), settings.accounting, check, "database_name")


def name_of_schema(settings: Settings) -> Iterator[Finding]:
    """SageMaker takes no schema of this name, or podwright's scripts set Slurm up, which name it themselves."""
    accounting = settings.accounting
    if not isinstance(accounting, DatabaseAccounting) or accounting.database_name is None:
        return
    yield from findings_of(("accounting",), checks.schema_name(accounting.database_name))
    if settings.are_valid("cluster.slurm.source") and not isinstance(settings.cluster.slurm, ApiSlurm):
        message = "database_name has no effect: only HyperPod takes it, with `slurm: {source: api}`"
        yield error(("accounting", "database_name"), message, "delete it")


def existing_prometheus(settings: Settings) -> Iterator[Finding]:
    """The workspace's ARN or address is malformed."""
    if isinstance(settings.prometheus, ExistingPrometheus):
        yield from findings_of_arguments(settings, ("prometheus",), settings.prometheus, checks.existing_prometheus)


@reads("role.controller_arn", "bucket.source")
def rights_of_existing_role(settings: Settings) -> Iterator[Finding]:
    """A remark: podwright does not change an existing role, and it needs further permissions.

    `check --live` asks IAM which of them it lacks.
    """
    if settings.session and not settings.are_valid("name"):  # The words have it.
        return
    for key, needed in groupby(sorted(rights(settings), key=attrgetter("key")), key=attrgetter("key")):
        listed = list(needed)
        words = "; ".join(dict.fromkeys(right.words for right in listed))
        hint = "add these permissions to the role if it lacks them: `podwright check --live` asks IAM"
        if key == "arn" and any(right.reads_secret for right in listed):
            hint += "; users of every node can use them: better make a role for controllers alone, controller_arn"
        yield remark(("role", key), f"{key}: the existing role also needs {words}", hint)


def log_retention(settings: Settings) -> Iterator[Finding]:
    """CloudWatch does not accept this retention."""
    if settings.logs:
        name = names.log_retention_name("any", "us-west-2")
        yield from findings_of_arguments(settings, ("logs",), settings.logs, checks.cluster_log_group, name=name)


def notices_address(settings: Settings) -> Iterator[Finding]:
    """The notices have neither an address nor a topic, or one of them is malformed."""
    if settings.notices:
        check, path = checks.cluster_notices, ("notices",)
        yield from findings_of_arguments(settings, path, settings.notices, check, "warnings", name="any")


def idle_without_jobs(settings: Settings) -> Iterator[Finding]:
    """No lifecycle script publishes the number of running jobs, so the notice about an idle cluster never comes."""
    if not settings.notices or settings.notices.idle_hours is None:
        return
    path = ("notices", "idle_hours")
    if not settings.has_own_scripts:
        scripts, instead = scripts_in_place_of_ours(settings)
        message = f"idle_hours has no effect: nodes run the scripts of {scripts}, which do not publish the running jobs"
        yield error(path, message, f"delete it, or {instead}")
    elif "running_jobs" in settings.nodes.skip:
        yield error(path, "idle_hours has no effect: nodes.skip leaves running_jobs out", "delete one of both")


def budget_limits(settings: Settings) -> Iterator[Finding]:
    """The budget's amount or address is invalid."""
    if settings.budget:
        yield from findings_of_arguments(settings, ("budget",), settings.budget, checks.cluster_budget, name="any")


def session_length(settings: Settings) -> Iterator[Finding]:
    """Session Manager ends silent sessions after 1 to 60 minutes, and CloudWatch knows certain numbers of days."""
    if settings.session:
        yield from findings_of_arguments(settings, ("session",), settings.session, checks.session_document, name="any")


def s3_state(settings: Settings) -> Iterator[Finding]:
    """The bucket or the key of the state is malformed, or nodes can read the bucket: a state has secrets."""
    state = settings.state
    if not isinstance(state, S3State):
        return
    yield from findings_of(("state",), checks.state_bucket(bucket=state.bucket, key_arn=state.key_arn))
    if state.region is not None and not looks_like_region(state.region):
        message = f"region: got {state.region!r}, need a name like us-west-2"
        yield error(("state", "region"), message, "it is the region of the bucket")
    elif state.region and settings.are_valid("region") and partition_of(state.region) != partition_of(settings.region):
        message = f"region: {state.region} is in another AWS partition than {settings.region}"
        yield error(("state", "region"), message, "credentials work in one partition: use a bucket in the cluster's")
    yield from _readable_bucket(settings, state.bucket, ("state", "bucket"))


def backend_state(settings: Settings) -> Iterator[Finding]:
    """The backend of the state is none, has one state for both stacks, or its arguments hold a password.

    https://developer.hashicorp.com/terraform/language/backend
    """
    state = settings.state
    if not isinstance(state, BackendState):
        return
    if not _BACKEND_TYPE.fullmatch(state.type):
        message = f"type: got {state.type!r}, need Terraform's name of a backend"
        yield error(("state", "type"), message, "such as cloud, remote, http, gcs, azurerm, pg or consul")
    elif state.type == "local":
        yield error(("state", "type"), "type: got local, need a backend elsewhere", "write `state: {source: local}`")
    elif state.type in {"cloud", "remote"} and not _names_workspace(state.arguments.get("workspaces")):
        message = "arguments: workspaces has no name, and each stack needs a workspace of its own"
        yield error(("state", "arguments"), message, "add `workspaces: {name: '{stack}-{region}'}`")
    else:
        yield from _backend_arguments(state)
    bucket = state.arguments.get("bucket")
    if state.type == "s3" and isinstance(bucket, str):
        yield from _readable_bucket(settings, bucket, ("state", "arguments", "bucket"))


def _names_workspace(workspaces: object) -> bool:
    return isinstance(workspaces, Mapping) and isinstance(workspaces.get("name"), str)


def _backend_arguments(state: BackendState) -> Iterator[Finding]:
    path: KeyPath = ("state", "arguments")
    words = list(_leaves(state.arguments))
    naming = _STACK_ARGUMENTS.get(state.type)
    if not any("{stack}" in text and (naming is None or ".".join(map(str, key)) in naming) for key, text in words):
        without = f"{' or '.join(naming)} has no" if naming else "none has"
        message = (
            f"arguments: {without} {{stack}}, so both stacks would have one state, and each would delete the other"
        )
        hint = _STACK_HINTS.get(
            state.type, "put {stack}, and {region} if a name is in several, where the state's name is"
        )
        yield error(path, message, hint)
    for key, text in words:
        unknown = sorted(set(_PLACEHOLDER.findall(text)) - {"stack", "region"})
        if unknown:
            yield error((*path, *key), f"{key[-1]}: {{{unknown[0]}}} stands for nothing", "use {stack} or {region}")
        if text and _is_secret(key, text):
            variable = _BACKEND_VARIABLES.get(state.type, {}).get(
                str(key[-1]), "the environment, as the backend's page says"
            )
            message = f"{key[-1]}: Terraform would write it into cdktf.out, and this file is no place for it"
            yield error((*path, *key), message, f"delete it, and put it into {variable}")
    if state.type == "http":
        yield from _http_lock(state.arguments)


def _http_lock(arguments: Mapping[str, Any]) -> Iterator[Finding]:
    """Report a lock that Terraform would never give back: without unlock_address it does not unlock."""
    lock = arguments.get("lock_address")
    if not isinstance(lock, str):
        return
    path: KeyPath = ("state", "arguments", "lock_address")
    if not arguments.get("unlock_address"):
        message = "lock_address: without unlock_address, Terraform never unlocks the state"
        yield error(path, message, "add unlock_address; it is mostly the same as lock_address")
    if _GITLAB.search(lock) and (arguments.get("lock_method"), arguments.get("unlock_method")) != ("POST", "DELETE"):
        message = "lock_address: GitLab locks by POST and unlocks by DELETE"
        yield error(path, message, "add `lock_method: POST` and `unlock_method: DELETE`")


def _leaves(value: object, path: KeyPath = ()) -> Iterator[tuple[KeyPath, str]]:
    """Yield every text and number of the arguments as a text, with its path."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _leaves(item, (*path, index))
    elif isinstance(value, str) or (isinstance(value, int | float) and not isinstance(value, bool)):
        yield path, str(value)


def _is_secret(path: KeyPath, text: str) -> bool:
    if _PASSWORD_WITHIN.search(text):
        return True
    if {"labels", "tags"} & set(path[:-1]):
        return False
    name = str(next((key for key in reversed(path) if isinstance(key, str)), "")).lower()
    if name in _BACKEND_SECRETS:
        return True
    return _SECRET_NAME.search(name) is not None and _HARMLESS_NAME.fullmatch(name) is None


_BACKEND_TYPE = re.compile(r"[a-z][a-z0-9_]*")
_PLACEHOLDER = re.compile(r"\{(\w*)\}")
_GITLAB = re.compile(r"/api/v4/projects/[^/]+/terraform/state/")
_PASSWORD_WITHIN = re.compile(r"://[^/@\s:]*:[^/@\s]+@|\bpassword\s*=\s*\S", re.IGNORECASE)
_BACKEND_SECRETS = frozenset({"client_certificate", "credentials", "http_auth", "secret_id"})
_SECRET_NAME = re.compile(r"key|secret|token|password")
_HARMLESS_NAME = re.compile(
    r"key|workspace_key_prefix|dynamodb_table|secret_suffix|transitive_tag_keys|.*kms.*|(use|skip)_.*|.*_(file|path)s?"
)
_HCP_VARIABLE = {"token": "TF_TOKEN_app_terraform_io, or `terraform login`"}
_BACKEND_VARIABLES = {
    "azurerm": {
        name: f"ARM_{name.upper()}"
        for name in (
            "access_key",
            "client_certificate",
            "client_certificate_password",
            "client_secret",
            "oidc_request_token",
            "oidc_token",
            "sas_token",
        )
    },
    "cloud": _HCP_VARIABLE,
    "consul": {"access_token": "CONSUL_HTTP_TOKEN", "http_auth": "CONSUL_HTTP_AUTH"},
    "cos": {name: f"TENCENTCLOUD_{name.upper()}" for name in ("secret_id", "secret_key", "security_token")},
    "gcs": {
        "access_token": "GOOGLE_OAUTH_ACCESS_TOKEN",
        "credentials": "GOOGLE_CREDENTIALS",
        "encryption_key": "GOOGLE_ENCRYPTION_KEY",
    },
    "http": {
        "address": "TF_HTTP_USERNAME and TF_HTTP_PASSWORD",
        "client_private_key_pem": "TF_HTTP_CLIENT_PRIVATE_KEY_PEM",
        "password": "TF_HTTP_PASSWORD",
    },
    "kubernetes": {"client_key": "KUBE_CLIENT_KEY_DATA", "password": "KUBE_PASSWORD", "token": "KUBE_TOKEN"},
    "oss": {name: f"ALICLOUD_{name.upper()}" for name in ("access_key", "secret_key", "security_token")},
    "pg": {"conn_str": "PG_CONN_STR"},
    "remote": _HCP_VARIABLE,
    "s3": {
        "access_key": "AWS_ACCESS_KEY_ID, or use AWS_PROFILE",
        "secret_key": "AWS_SECRET_ACCESS_KEY, or use AWS_PROFILE",
        "sse_customer_key": "AWS_SSE_CUSTOMER_KEY",
        "token": "AWS_SESSION_TOKEN",
    },
}
# The arguments that name a state, by backend; of another backend, any may.
_STACK_ARGUMENTS = {
    "azurerm": ("key",),
    "cloud": ("workspaces.name",),
    "consul": ("path",),
    "cos": ("key", "prefix"),
    "gcs": ("prefix",),
    "http": ("address",),
    "kubernetes": ("secret_suffix",),
    "oss": ("key", "prefix"),
    "pg": ("schema_name",),
    "remote": ("workspaces.name",),
    "s3": ("key",),
}
_STACK_HINTS = {
    "azurerm": "write such as `key: '{region}/{stack}.tfstate'`",
    "cloud": "write such as `workspaces: {name: '{stack}-{region}'}`",
    "consul": "write such as `path: '{region}/{stack}'`",
    "gcs": "write such as `prefix: '{region}/{stack}'`",
    "http": "write such as `address: 'https://HOST/state/{stack}-{region}'`; lock_address and unlock_address alike",
    "kubernetes": "write such as `secret_suffix: '{stack}-{region}'`",
    "pg": "write such as `schema_name: '{stack}-{region}'`",
    "remote": "write such as `workspaces: {name: '{stack}-{region}'}`",
    "s3": "write such as `key: '{region}/{stack}.tfstate'`",
}


def _readable_bucket(settings: Settings, bucket: str, path: KeyPath) -> Iterator[Finding]:
    """Report a bucket of the state that nodes or their users can read."""
    hint = "use a bucket that only those who deploy can read"
    if settings.are_valid(*OWN_BUCKET) and names.is_own_bucket(settings, bucket):
        yield error(path, f"bucket: {bucket} is the cluster's own bucket", hint)
    for index, mount in enumerate(settings.nodes.s3_mounts):
        if mount.bucket == bucket:
            mounted = ("nodes", "s3_mounts", index, "bucket")
            yield error(mounted, f"bucket: {mount.bucket} holds Terraform's state", hint)
    for index, link in enumerate(getattr(settings.lustre, "data_repositories", ())):
        if link.s3_uri.removeprefix("s3://").split("/")[0] == bucket:
            linked = ("lustre", "data_repositories", index, "s3_uri")
            yield error(linked, f"s3_uri: {bucket} holds Terraform's state", hint)
