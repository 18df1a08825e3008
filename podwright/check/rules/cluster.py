"""Rules about the SageMaker cluster itself: name, tags, provisioning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from podwright.check.findings import Finding, error, finding_of, findings_of, warning
from podwright.check.rules.rule import GROUPS, findings_of_section, reads, valid_items
from podwright.settings import names
from podwright.settings.cluster import ClusterSection
from podwright.settings.network import CreatedNetwork, CreatedSubnet, ExistingNetwork
from podwright.settings.operations import CreatedAccounting, CreatedPrometheus
from podwright.settings.root import Settings
from podwright.settings.storage import CreatedLustre, CreatedOpenZfs
from podwright_constructs import checks, facts
from podwright_constructs.problems import Problem


def cluster_name(settings: Settings) -> Iterator[Finding]:
    """The cluster's name is not one that SageMaker accepts."""
    yield from findings_of((), checks.cluster_name_problems("name", settings.name))
    prefix = facts.SECURITY_GROUP_ID_PREFIX
    creates_group = settings.are_valid("network.source") and not isinstance(settings.network, ExistingNetwork)
    if creates_group and settings.name.lower().startswith(prefix):
        hint = f"EC2 refuses a security group whose name begins with {prefix}, and the nodes' group has the cluster's"
        yield error(("name",), f"name: got {settings.name}, need a name that does not begin with {prefix}", hint)


def tag_limits(settings: Settings) -> Iterator[Finding]:
    """Too many tags, keys that AWS or podwright keeps for itself, or text that no tag can hold.

    The number includes the tags that podwright adds to each resource, and the name of those that have one.
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_Tags.html#tag-restrictions
    """
    yield from _number_of_tags(settings)
    for key in settings.tags:
        if key.lower().startswith(names.TAG_PREFIX):
            hint = f"choose another key: `podwright adopt` finds resources by {names.CLUSTER_TAG}"
            yield error(
                ("tags", key),
                f"tags: {key} begins with {names.TAG_PREFIX}, which podwright sets itself",
                hint,
                at_key=True,
            )
    for key, value in settings.tags.items() if isinstance(settings.accounting, CreatedAccounting) else ():
        if (key if key.lower().startswith(facts.RDS_TAG_PREFIX) else value).lower().startswith(facts.RDS_TAG_PREFIX):
            hint = "choose another key or value: the database gets the tags too"
            yield error(("tags", key), f"tags: RDS keeps {facts.RDS_TAG_PREFIX} for itself", hint)
    for problem in checks.cluster_tags(names.cluster_tags(settings)) if settings.are_valid("cluster.own_tags") else ():
        if problem.path[-1] in settings.tags:  # The others have the cluster's name, and the number is checked above.
            yield replace(finding_of(problem.path, problem), at_key=problem.value == problem.path[-1])


NAMED = tuple(f"{section}.source" for section in ("network", "lustre", "openzfs", "accounting", "prometheus"))


def creates_named(settings: Settings) -> bool:
    """Return whether a resource of the foundation has a name as a tag; reads the keys ``NAMED``."""
    created = (CreatedNetwork, CreatedSubnet, CreatedLustre, CreatedOpenZfs, CreatedAccounting, CreatedPrometheus)
    sections = (settings.network, settings.lustre, settings.openzfs, settings.accounting, settings.prometheus)
    return any(isinstance(section, created) for section in sections)


@reads(*NAMED)
def _number_of_tags(settings: Settings) -> Iterator[Finding]:
    added = [names.CLUSTER_TAG, names.CONSTRUCT_PATH_TAG, *([names.NAME_TAG] if creates_named(settings) else ())]
    if len({*settings.tags, *added}) > facts.MAX_RESOURCE_TAGS:
        added = [key for key in added if key not in settings.tags]
        yield error(
            ("tags",),
            f"tags: got {len(settings.tags)} tags, need at most {facts.MAX_RESOURCE_TAGS - len(added)}",
            f"AWS takes {facts.MAX_RESOURCE_TAGS} tags of a resource, and podwright adds {', '.join(added)}",
        )


def provisioning(settings: Settings) -> Iterator[Finding]:
    """A group's key or spot capacity needs continuous provisioning, or several controllers conflict with it."""

    def check(cluster: ClusterSection) -> list[Problem]:
        return checks.cluster_provisioning(cluster.instance_groups, cluster.node_provisioning)

    yield from findings_of_section(settings, ("cluster",), settings.cluster, check)


@reads("cluster.node_provisioning")
def updates_in_batches(settings: Settings) -> Iterator[Finding]:
    """A scheduled update has batches or alarms, which AWS's page keeps for clusters that EKS orchestrates.

    https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-release-ami-update.html
    """
    if settings.cluster.node_provisioning is not None:  # Whether AWS takes batches there is not public.
        return
    for path, group in valid_items(settings, GROUPS, settings.cluster.instance_groups, "name"):
        update = group.scheduled_update
        if update and (update.max_percent or update.max_count or update.rollback_alarms):
            yield warning(
                (*path, "scheduled_update"),
                "scheduled_update: AWS's page keeps batches and alarms for clusters orchestrated by EKS; it may refuse "
                f"the cluster, or update all nodes of {group.name} at once",
                "delete the batches and alarms, or update by hand: `podwright nodes replace --after-jobs`",
            )
