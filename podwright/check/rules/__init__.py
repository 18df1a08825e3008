"""Rules of a settings file beyond keys and types: pure functions from settings to findings.

Each construct checks its own arguments; rules call those checks and add what the whole file knows. A rule's name, with
hyphens, is the code of its findings; its docstring explains the code to users.

``RULES`` lists the rules in one tuple. ``live.py`` and ``live_network.py`` have those that need AWS's answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from podwright.check.account import Account
from podwright.check.findings import Finding, Level
from podwright.check.rules import (
    addresses,
    cluster,
    file_systems,
    groups,
    hardware,
    mounts,
    nodes,
    operations,
    partitions,
    permissions,
    placeholders,
    region,
    resources,
    slurm,
    software,
    unused,
    users,
)
from podwright.check.rules.rule import Rule
from podwright.check.rules.run import job_costs, job_fits, run_fits
from podwright.errors import AwsError, OperationError
from podwright.settings.root import Settings

if TYPE_CHECKING:
    from podwright.check.rules.run import Run

RunRule = Callable[[Settings, "Run"], Iterator[Finding]]
LiveRule = Callable[[Settings, "Account"], Iterator[Finding]]
LiveRunRule = Callable[[Settings, "Account", "Run"], Iterator[Finding]]
AnyRule: TypeAlias = "Rule | RunRule | LiveRule | LiveRunRule"

RULES: tuple[Rule, ...] = (
    region.known_region,
    region.zone_in_region,
    cluster.cluster_name,
    cluster.tag_limits,
    resources.created_network,
    resources.blocks_of_network,
    resources.created_subnet,
    resources.existing_network,
    resources.existing_key,
    resources.created_bucket,
    resources.existing_bucket,
    resources.created_lustre,
    resources.existing_lustre,
    resources.created_openzfs,
    resources.existing_openzfs,
    region.existing_file_system_in_region,
    region.arns_in_region,
    resources.created_role,
    resources.existing_role,
    resources.account_of_deployment,
    resources.role_of_deployment,
    resources.ignored_tags,
    resources.arns_of_one_account,
    groups.instance_group,
    groups.compute_partition,
    groups.group_composition,
    groups.types_with_bundle,
    groups.extra_security_groups,
    groups.multi_head,
    groups.api_slurm,
    groups.existing_scripts,
    groups.training_without_scripts,
    groups.spot_head,
    groups.controller_accelerator,
    partitions.type_of_plan,
    partitions.machine_of_image,
    partitions.mixed_partition,
    permissions.takeover_by_jobs,
    permissions.state_read_by_jobs,
    permissions.secrets_read_by_jobs,
    permissions.roles_beside_existing,
    operations.created_accounting,
    operations.accounting_in_network,
    operations.existing_accounting,
    operations.name_of_schema,
    operations.unused_accounting,
    operations.existing_prometheus,
    operations.rights_of_existing_role,
    operations.log_retention,
    operations.notices_address,
    operations.idle_without_jobs,
    operations.budget_limits,
    operations.session_length,
    operations.s3_state,
    operations.backend_state,
    slurm.slurm_policy,
    slurm.accounts_of_directory,
    users.names_of_people,
    users.ids_of_people,
    users.groups_of_people,
    users.ssh_keys_of_people,
    users.homes_of_people,
    users.named_users,
    users.source_of_slurm,
    users.role_of_login_nodes,
    users.controller_logins,
    users.ldap,
    users.ldap_without_internet,
    nodes.nodes_without_scripts,
    nodes.managed_partitions,
    nodes.skipped_steps,
    nodes.s3_mounts,
    nodes.hooks,
    nodes.remediation,
    nodes.resumed_jobs,
    hardware.scratch_path,
    hardware.scratch_disks,
    hardware.node_limits,
    hardware.lustre_efa_connections,
    hardware.neuron_nodes,
    hardware.trainium_nodes,
    hardware.ultraserver_nodes,
    hardware.ultraserver_capacity,
    software.unused_docker_access,
    software.unused_image_cache,
    software.training_requirements,
    software.unpinned_downloads,
    software.metrics_interval,
    software.unsent_metrics,
    software.workspace_endpoint,
    software.secret_endpoint,
    software.notices_endpoint,
    software.downloads_without_internet,
    cluster.provisioning,
    cluster.updates_in_batches,
    placeholders.placeholders,
    addresses.addresses,
    file_systems.openzfs_zones,
    mounts.mount_paths,
    unused.unused_settings,
    file_systems.other_network,
    file_systems.scratch_key,
    file_systems.root_squash,
)


UNANSWERED = "account-unanswered"
CODES = {UNANSWERED: "AWS did not answer a question of a `check --live` rule, so the rule has no result."}


def run_rules() -> tuple[RunRule, ...]:
    """Return the rules that also read a training run, or another trainer's job."""
    return (run_fits, job_fits, job_costs)


def live_rules() -> tuple[LiveRule, ...]:
    """Return the rules of ``check --live``, which also ask the AWS account."""
    from podwright.check.rules import live  # noqa: PLC0415 — only `--live` needs it

    return live.RULES


def live_run_rules() -> tuple[LiveRunRule, ...]:
    """Return the rules of ``check --live --run``, which compare a run with answers of the account."""
    from podwright.check.rules import live_plans  # noqa: PLC0415 — only `--live` needs it

    return (live_plans.run_within_plan,)


def all_rules() -> tuple[AnyRule, ...]:
    """Return every rule, for ``explain``."""
    return (*RULES, *run_rules(), *live_rules(), *live_run_rules())


def apply(settings: Settings, run: Run | None = None) -> list[Finding]:
    """Apply all rules to the settings; of a wrong key the file's own error is enough."""
    results: list[tuple[Rule | RunRule, Iterator[Finding]]] = [(rule, rule(settings)) for rule in RULES]
    if run:
        results += [(rule, rule(settings, run)) for rule in run_rules()]
    return [
        replace(finding, code=code(rule))
        for rule, rule_findings in results
        for finding in rule_findings
        if not settings.is_wrong(finding.path)
    ]


def apply_live(settings: Settings, account: Account, run: Run | None = None) -> list[Finding]:
    """Apply the rules of ``check --live``; each question that AWS leaves unanswered is one finding."""
    findings: list[Finding] = []
    unanswered: dict[str, Finding] = {}
    results: list[tuple[AnyRule, Iterator[Finding]]] = [(rule, rule(settings, account)) for rule in live_rules()]
    if run:
        results += [(rule, rule(settings, account, run)) for rule in live_run_rules()]
    for rule, rule_findings in results:
        try:
            findings += [replace(finding, code=code(rule)) for finding in rule_findings]
        except OperationError as error:
            level, hint = Level.ERROR, error.hint
            if isinstance(error, AwsError) and error.denied:  # Other questions may be allowed.
                level, hint = Level.WARNING, f"{hint}, or check by hand: `podwright explain {code(rule)}` says how"
            unanswered[str(error)] = Finding(level, UNANSWERED, ("region",), str(error), hint)
    return [*unanswered.values(), *findings]


def code(rule: AnyRule) -> str:
    """Return the code of a rule's findings."""
    return rule.__name__.replace("_", "-")
