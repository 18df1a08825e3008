"""Rules about software of the nodes: containers, metrics, downloads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress

from podwright import checkout
from podwright.check.findings import Finding, error, warning
from podwright.check.rules.rule import GROUPS, OWN_SCRIPTS, reads
from podwright.check.secrets import masked
from podwright.settings.network import CreatedNetwork
from podwright.settings.operations import DatabaseAccounting, NoPrometheus
from podwright.settings.root import Settings
from podwright.settings.section import Section
from podwright_bootstrap.features import MAX_INTERVAL_S, MIN_INTERVAL_S
from podwright_constructs import checks
from podwright_constructs.catalog import InstanceType, UnknownInstanceTypeError

WORKSPACE_ENDPOINT, SECRETS_ENDPOINT, NOTICES_ENDPOINT = "aps-workspaces", "secretsmanager", "sns"
_USER_INFO = re.compile(r"(?<=://)[^\s/]*@")  # the user, password or token of a package index in its URL


def unused_docker_access(settings: Settings) -> Iterator[Finding]:
    """Docker access is on, but Docker is off."""
    containers = settings.nodes.containers
    if containers and containers.docker_for_job_user and not containers.docker:
        path = ("nodes", "containers", "docker_for_job_user")
        yield error(path, "docker_for_job_user has no effect without docker", "delete the line, or set docker: true")


def unused_image_cache(settings: Settings) -> Iterator[Finding]:
    """Image layers are to be shared, but Enroot is off."""
    containers = settings.nodes.containers
    if containers and containers.shared_cache and not containers.enroot:
        path = ("nodes", "containers", "shared_cache")
        yield error(path, "shared_cache has no effect without enroot", "delete the line, or set enroot: true")


@reads("training.requirements", "training.source")
def training_requirements(settings: Settings) -> Iterator[Finding]:
    """The file of training.requirements is missing, has packages without hashes, or other versions than the trainer."""
    requirements, path = settings.training.requirements, ("training", "requirements")
    if not requirements:
        return
    from podwright.training_lock import compile_command, read_added  # noqa: PLC0415 — few files need them
    from podwright_bootstrap.software.requirements import problems_of_added  # noqa: PLC0415

    if settings.training.source == "none":
        yield error(
            path, "requirements has no effect without a training environment", "delete it, or set source: bundled"
        )
        return
    compile_it = compile_command(requirements)
    try:
        text = read_added(settings.path(requirements))
    except (OSError, UnicodeDecodeError) as failure:
        reason = failure.strerror if isinstance(failure, OSError) else "not a text"
        yield error(path, f"{requirements}: {reason}", f"write it: {compile_it}")
        return
    shown_text = masked(_USER_INFO.sub("***@", text))  # Messages repeat lines of the file.
    for problem in problems_of_added(checkout.REQUIREMENTS_LOCK.read_text(encoding="utf-8"), shown_text):
        yield error(path, f"{requirements}: {problem}", f"write it again: {compile_it}")


@reads("nodes.containers.enroot")
def unpinned_downloads(settings: Settings) -> Iterator[Finding]:
    """Nodes may need a program of which podwright has no checksum for their processors."""
    containers = settings.nodes.containers
    if containers is None or not containers.enroot:  # all others have one for both
        return
    from podwright_bootstrap.software import downloads  # noqa: PLC0415 — half of the bootstrap, for a few files

    manifest = downloads.manifest()
    for index, group in enumerate(settings.cluster.instance_groups):
        with suppress(UnknownInstanceTypeError):
            machine = InstanceType.of(group.instance_type).machine
            lacks = [name for name in downloads.ENROOT if machine not in manifest[name]]
            if lacks and group.role != "controller":
                message = f"{group.instance_type}: podwright has no checksum of {', '.join(lacks)} for {machine}"
                hint = "use an image that has Enroot (image_id), or `containers: {enroot: false}`"
                yield warning((*GROUPS, index, "instance_type"), message, hint)


def metrics_interval(settings: Settings) -> Iterator[Finding]:
    """The interval is shorter than exporters need to answer, or so long that graphs have gaps."""
    observability = settings.nodes.observability
    if observability and not MIN_INTERVAL_S <= observability.interval_s <= MAX_INTERVAL_S:
        path = ("nodes", "observability", "interval_s")
        yield error(path, f"interval_s: got {observability.interval_s}, need {MIN_INTERVAL_S} to {MAX_INTERVAL_S}", "")


@reads(*OWN_SCRIPTS, "nodes.observability")
def unsent_metrics(settings: Settings) -> Iterator[Finding]:
    """A workspace is configured, but no node sends metrics to it."""
    if (
        settings.has_own_scripts
        and not isinstance(settings.prometheus, NoPrometheus)
        and settings.nodes.observability is None
    ):
        hint = "let nodes send metrics: `nodes: {observability: {}}`"
        yield warning(("prometheus", "source"), "source: no node sends metrics to the workspace", hint)


def workspace_endpoint(settings: Settings) -> Iterator[Finding]:
    """Nodes without internet need an endpoint to reach the workspace."""
    network = settings.network
    sends = settings.nodes.observability is not None and not isinstance(settings.prometheus, NoPrometheus)
    if sends and _lacks_endpoint(network, WORKSPACE_ENDPOINT):
        message = "endpoints: nodes without internet have no route to the workspace"
        yield error(("network", "endpoints"), message, f"add {WORKSPACE_ENDPOINT}")


@reads("network.endpoints", "accounting.source")
def secret_endpoint(settings: Settings) -> Iterator[Finding]:
    """Controllers without internet need an endpoint of Secrets Manager to read the database's password.

    https://docs.aws.amazon.com/secretsmanager/latest/userguide/vpc-endpoint-overview.html
    """
    if isinstance(settings.accounting, DatabaseAccounting) and _lacks_endpoint(settings.network, SECRETS_ENDPOINT):
        message = "endpoints: controllers without internet have no route to the secret of the accounting database"
        yield error(("network", "endpoints"), message, f"add {SECRETS_ENDPOINT}")


@reads("network.endpoints", "notices", "cluster.instance_groups.count", "cluster.instance_groups.role", *OWN_SCRIPTS)
def notices_endpoint(settings: Settings) -> Iterator[Finding]:
    """Several controllers without internet need an endpoint of SNS to report which of them took over.

    https://docs.aws.amazon.com/sns/latest/dg/sns-internetwork-traffic-privacy.html
    """
    publishes = settings.notices is not None and checks.controllers(settings.cluster.instance_groups) > 1
    if publishes and settings.has_own_scripts and _lacks_endpoint(settings.network, NOTICES_ENDPOINT):
        message = "endpoints: controllers without internet have no route to the topic of the notices"
        yield error(("network", "endpoints"), message, f"add {NOTICES_ENDPOINT}")


def _lacks_endpoint(network: Section, service: str) -> bool:
    """Return whether nodes of a network reach a service neither through the internet nor through an endpoint."""
    return isinstance(network, CreatedNetwork) and network.internet == "none" and service not in network.endpoints


@reads("training.source", "nodes.downloads.source", "cluster.instance_groups.image_id")
def downloads_without_internet(settings: Settings) -> Iterator[Finding]:
    """Nodes without internet need programs or packages from it; a warning if every group has an image of yours."""
    network, nodes = settings.network, settings.nodes
    bundled = nodes.downloads is not None and nodes.downloads.source == "bundle"
    needed = settings.training.source != "none" or nodes.containers or nodes.observability
    if isinstance(network, CreatedNetwork) and network.internet == "none" and needed and not bundled:
        message = "internet: got none, but nodes download programs and packages from the internet"
        hint = "use `nodes: {downloads: {source: bundle}}`, and `podwright bundle --upload` before the cluster starts"
        images = {group.image_id for group in settings.cluster.instance_groups}
        report = error if images & {None, "default"} else warning  # An image of yours may have them, or a mirror.
        yield report(("network", "internet"), message, hint)
