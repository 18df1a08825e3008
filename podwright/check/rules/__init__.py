"""What a settings file must also satisfy, as pure functions from settings to findings.

Arguments of one construct are judged by that construct's own check. A rule's name, with hyphens, is the code of its
findings; its docstring explains the code to users.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from podwright.check.errors import UnansweredError
from podwright.check.findings import Finding, Level
from podwright.check.rules import (
    cluster,
    groups,
    machines,
    mounts,
    nodes,
    operations,
    people,
    programs,
    resources,
)
from podwright.check.rules.rule import Rule, until_unknown_value
from podwright.settings.root import Settings

if TYPE_CHECKING:
    from podwright.check.account import Account  # loads boto3
    from podwright_training.config.train_config import TrainConfig

RunRule = Callable[[Settings, "TrainConfig"], Iterator[Finding]]
LiveRule = Callable[[Settings, "Account"], Iterator[Finding]]

RULES: tuple[Rule, ...] = (
    cluster.known_region,
    cluster.zone_in_region,
    cluster.cluster_name,
    cluster.tag_limits,
    resources.created_network,
    resources.created_subnet,
    resources.existing_network,
    resources.existing_key,
    resources.existing_key_in_region,
    resources.created_bucket,
    resources.existing_bucket,
    resources.created_lustre,
    resources.existing_lustre,
    resources.created_openzfs,
    resources.existing_openzfs,
    resources.existing_file_system_in_region,
    resources.created_role,
    resources.existing_role,
    groups.instance_group,
    groups.compute_partition,
    groups.group_composition,
    groups.multi_head,
    groups.api_slurm,
    groups.spot_head,
    operations.created_accounting,
    operations.accounting_in_network,
    operations.existing_accounting,
    operations.unused_accounting,
    operations.existing_prometheus,
    operations.rights_of_existing_role,
    operations.log_retention,
    operations.notices_address,
    operations.budget_limits,
    operations.session_length,
    operations.s3_state,
    people.names_of_people,
    people.ids_of_people,
    people.groups_of_people,
    people.ssh_keys_of_people,
    people.homes_of_people,
    people.ldap,
    people.ldap_without_internet,
    nodes.nodes_without_scripts,
    nodes.skipped_steps,
    nodes.s3_mounts,
    machines.scratch_path,
    machines.scratch_disks,
    machines.node_limits,
    machines.lustre_efa_connections,
    machines.neuron_nodes,
    programs.unused_docker_access,
    programs.metrics_interval,
    programs.unsent_metrics,
    programs.workspace_endpoint,
    programs.downloads_without_internet,
    cluster.provisioning,
    cluster.placeholders,
    cluster.addresses,
    cluster.openzfs_zones,
    mounts.mount_paths,
    cluster.unused_settings,
    cluster.scratch_key,
)


UNANSWERED = "account-unanswered"
CODES = {UNANSWERED: "AWS did not answer what a rule of `check --live` asked; that rule was not judged."}


def run_rules() -> tuple[RunRule, ...]:
    """Return the rules that also read a training run."""
    from podwright.check.rules.run import run_fits  # noqa: PLC0415 — the planner, which only `--run` needs

    return (run_fits,)


def live_rules() -> tuple[LiveRule, ...]:
    """Return the rules of ``check --live``, which also ask the AWS account."""
    from podwright.check.rules import live  # noqa: PLC0415 — only `--live` needs it

    return live.RULES


def all_rules() -> tuple[Rule | RunRule | LiveRule, ...]:
    """Return every rule, for ``explain``."""
    return (*RULES, *run_rules(), *live_rules())


def apply(settings: Settings, run: TrainConfig | None = None) -> list[Finding]:
    """Apply all rules to the settings; a rule stops at a value that the file gives wrongly."""
    results: list[tuple[Rule | RunRule, Iterator[Finding]]] = [(rule, rule(settings)) for rule in RULES]
    if run:
        results += [(rule, rule(settings, run)) for rule in run_rules()]
    return [replace(finding, code=code(rule)) for rule, found in results for finding in until_unknown_value(found)]


def apply_live(settings: Settings, account: Account) -> list[Finding]:
    """Apply the rules of ``check --live``; each question that AWS leaves unanswered is one finding."""
    found: list[Finding] = []
    unanswered: dict[str, Finding] = {}
    for rule in live_rules():
        try:
            found += [replace(finding, code=code(rule)) for finding in rule(settings, account)]
        except UnansweredError as error:
            level = Level.ERROR if error.fatal else Level.WARNING
            unanswered[str(error)] = Finding(level, UNANSWERED, ("region",), str(error), error.hint)
    return [*unanswered.values(), *found]


def code(rule: Rule | RunRule | LiveRule) -> str:
    """The code of a rule's findings."""
    return rule.__name__.replace("_", "-")
