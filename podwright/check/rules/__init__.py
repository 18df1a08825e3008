"""What a settings file must also satisfy, as pure functions from settings to findings.

Arguments of one construct are judged by that construct's own check. A rule's name, with hyphens, is the code of its
findings; its docstring explains the code to users.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from podwright.check.findings import Finding, Level
from podwright.check.rules import (
    cluster,
    groups,
    live,
    machines,
    mounts,
    nodes,
    operations,
    people,
    programs,
    resources,
)
from podwright.check.rules.rule import Rule, judged
from podwright.check.rules.run import run_fits
from podwright.check.unanswered import UnansweredError
from podwright.settings.root import Settings
from podwright_training.config.train_config import TrainConfig

if TYPE_CHECKING:
    from podwright.check.account import Account  # loads boto3

RunRule = Callable[[Settings, TrainConfig], Iterator[Finding]]

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
RUN_RULES: tuple[RunRule, ...] = (run_fits,)
ALL_RULES: tuple[Rule | RunRule | live.Live, ...] = (*RULES, *RUN_RULES, *live.RULES)


def broken(settings: Settings, run: TrainConfig | None = None) -> list[Finding]:
    """What the settings break, rule by rule; a rule that needs a value which the file gives wrongly is left out."""
    judgements: list[tuple[Rule | RunRule, Iterator[Finding]]] = [(rule, rule(settings)) for rule in RULES]
    if run:
        judgements += [(rule, rule(settings, run)) for rule in RUN_RULES]
    return [replace(finding, code=code(rule)) for rule, findings in judgements for finding in judged(findings)]


def refused(settings: Settings, account: Account) -> list[Finding]:
    """What the account would refuse, rule by rule; what it does not answer is said once, and other rules go on."""
    found: list[Finding] = []
    unanswered: dict[str, Finding] = {}
    for rule in live.RULES:
        try:
            found += [replace(finding, code=code(rule)) for finding in rule(settings, account)]
        except UnansweredError as error:
            level = Level.ERROR if error.fatal else Level.WARNING
            unanswered[str(error)] = Finding(level, UNANSWERED, ("region",), str(error), error.hint)
    return [*unanswered.values(), *found]


def code(rule: Rule | RunRule | live.Live) -> str:
    """The code of a rule's findings."""
    return rule.__name__.replace("_", "-")
