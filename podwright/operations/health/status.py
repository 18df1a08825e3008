"""``podwright status``: show a cluster's state, nodes, file systems, cost and the likely causes of failures."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Literal

from podwright.diagram import prices
from podwright.errors import ArgumentError, AwsError
from podwright.json_document import JsonObject
from podwright.operations.account.failures import Cause
from podwright.operations.account.fsx import FileSystem
from podwright.operations.health.keys import quit_key
from podwright.operations.health.overview import Event, GroupState, Overview, overview
from podwright.operations.health.topology import JobNode
from podwright.operations.jobs import jobs as job_table
from podwright.operations.jobs.slurm_jobs import JOB_ID, Job
from podwright.operations.nodes.nodes import NodeDocument
from podwright.operations.output import Column, age, console, print_document, state, table
from podwright.operations.target import Target, add_examples, add_target_arguments, target

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

WATCH_S = 10
PLAN_ENDS_SOON_DAYS = 7
NODES_SHOWN = 24  # A larger cluster's table has only the nodes that do not run.
GROUPS = (
    Column("GROUP"),
    Column("ROLE", rank=3),
    Column("TYPE", rank=2),
    Column("NODES", right=True),
    Column("STATE"),
    Column("$/H", rank=1, right=True),
    Column("IMAGE", rank=4),
    Column("SOFTWARE", rank=5),
)
NODES = (
    Column("NODE"),
    Column("GROUP"),
    Column("STATE"),
    Column("INSTANCE ID", rank=1),
    Column("ZONE", rank=3),
    Column("UP", rank=2, right=True),
    Column("IMAGE", rank=4),
    Column("MESSAGE", rank=5),
)
FILE_SYSTEMS = (
    Column("FILE SYSTEM"),
    Column("KIND", rank=3),
    Column("STATE", rank=2),
    Column("CAPACITY", right=True),
    Column("USED", right=True),
    Column("$/H", rank=1, right=True),
)
OTHERS = (Column("OTHER"), Column("KIND"), Column("DETAIL", rank=2), Column("$/H", rank=1, right=True))
JOB_NODES = (Column("RANK", right=True), Column("NODE"), Column("LEAF"))
EVENTS = (Column("EVENT", rank=2), Column("LEVEL"), Column("RESOURCE", rank=1), Column("DESCRIPTION"))


@dataclass(frozen=True)
class _Group(JsonObject):
    """An instance group."""

    name: str
    role: str
    partition: str | None
    instance_type: str
    current_count: int
    target_count: int
    status: str
    node_statuses: dict[str, int]
    operations: dict[str, int]
    """Operations in progress, with the number of their nodes."""
    usd_per_hour: float | None
    training_plan_arn: str | None
    plan_ends_at: datetime | None
    """When AWS takes the nodes of its training plan back."""
    image_version: str
    image_status: str
    software_update_status: str


@dataclass(frozen=True)
class _NodeWithZone(NodeDocument):
    zone: str


@dataclass(frozen=True)
class _OtherResource(JsonObject):
    """A part beside nodes and file systems: a NAT gateway, an endpoint, the accounting database."""

    kind: str
    id: str
    detail: str
    usd_per_hour: float | None


@dataclass(frozen=True, kw_only=True)
class Status(JsonObject):
    """The document of `podwright status --json`."""

    schema: Literal["podwright.status/1"] = "podwright.status/1"
    cluster: str
    arn: str
    region: str
    status: str
    """SageMaker's."""
    healthy: bool
    failure_message: str | None
    created_at: datetime | None
    usd_per_hour: float = field(metadata={"digits": 4})
    """Without what `unpriced` lists."""
    unpriced: tuple[str, ...]
    groups: list[_Group]
    nodes: list[_NodeWithZone]
    file_systems: tuple[FileSystem, ...]
    other_resources: list[_OtherResource] = field(metadata={"key": "others"})
    events: tuple[Event, ...]
    jobs: tuple[Job, ...] | None
    """null without `--jobs`."""
    job_nodes: tuple[JobNode, ...] | None
    """null without `--job`."""
    topology: tuple[str, ...]
    """Nodes that Slurm's topology lacks or still names; empty without `--jobs` and `--job`."""
    drift: tuple[str, ...]
    """What the settings file has otherwise."""
    causes: tuple[Cause, ...]
    missing: tuple[str, ...]
    """What was not read, and why."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the cluster, --watch, --jobs, --job and --wait."""
    add_target_arguments(parser)
    parser.add_argument(
        "--watch",
        nargs="?",
        type=_seconds,
        const=WATCH_S,
        metavar="SECONDS",
        help=f"redraw every SECONDS ({WATCH_S} if left out) until q or Ctrl-C",
    )
    parser.add_argument("--jobs", action="store_true", help="also show Slurm's jobs, which the controller lists")
    parser.add_argument(
        "--job", type=_job_id, metavar="JOB", help="also show the leaf switch or block of each node of a job, by rank"
    )
    parser.add_argument(
        "--wait", action="store_true", help="first wait until the cluster is InService with all its nodes, or Failed"
    )
    add_examples(
        parser,
        "podwright status",
        "podwright status --watch --jobs",
        "podwright status --job 12",
        "podwright status --wait --json",
    )


def run(options: argparse.Namespace) -> int:
    """Print the state; return 1 if the cluster or a node has failed."""
    cluster_target = target(options)
    if options.watch and (options.json or not sys.stdout.isatty()):
        raise ArgumentError("--watch draws on a terminal", "in a pipe, repeat `podwright status --json`")
    if options.watch:
        return _watch(cluster_target, options.watch, jobs=options.jobs, job_id=options.job)
    read = _read_settled if options.wait else _read
    snapshot = read(cluster_target, jobs=options.jobs, job_id=options.job)
    if options.json:
        print_document(document(snapshot))
    else:
        to = console()
        with to.capture() as capture:
            to.print(render(snapshot, width=to.width))
        text = capture.get()
        to.file.write(text if to.is_terminal else "".join(f"{line.rstrip()}\n" for line in text.splitlines()))
    return 0 if snapshot.is_healthy else 1


def render(snapshot: Overview, *, width: int) -> RenderableType:
    """Return the whole screen for a terminal of this width."""
    from rich.console import Group  # --help and --json need no rich

    return Group(_heading(snapshot), *_tables(snapshot, width=width), *_causes(snapshot))


def _screen(snapshot: Overview, update_line: str, *, width: int) -> RenderableType:
    """Return the screen of ``--watch``: a terminal cuts the end off, so causes come before tables."""
    from rich.console import Group
    from rich.text import Text

    return Group(
        _heading(snapshot), Text(update_line, style="dim"), *_causes(snapshot), *_tables(snapshot, width=width)
    )


def _causes(snapshot: Overview) -> list[RenderableType]:
    """Return likely causes of failures, differences from the settings file, and calls that failed."""
    from rich.text import Text

    parts: list[RenderableType] = []
    for cause in snapshot.causes:
        parts += [Text(), Text(f"failed: {cause.message}", style="bold red")]
        parts += [Text(f"likely: {cause.cause}"), Text(f"look:   {cause.command}")]
    if snapshot.drift:
        parts += [Text(), Text(f"drift: {'; '.join(snapshot.drift)}: `podwright drift` shows all", style="yellow")]
    parts += [Text(line, style="yellow") for line in _ending_plans(snapshot)]
    parts += [Text(f"topology: {line}", style="yellow") for line in snapshot.topology]
    return parts + [Text(f"not shown: {line}", style="yellow") for line in snapshot.missing]


def _ending_plans(snapshot: Overview) -> Iterator[str]:
    """Yield a line for each group whose training plan ends soon, with the commands that prolong it."""
    for item in snapshot.groups:
        if item.plan_ends_at and (item.plan_ends_at - datetime.now(timezone.utc)).days < PLAN_ENDS_SOON_DAYS:
            yield (
                f"plan: AWS takes the nodes of {item.group.name} back at {item.plan_ends_at:%Y-%m-%d %H:%M %Z}: "
                "`aws sagemaker search-training-plan-offerings --training-plan-arn "
                f"{item.group.training_plan_arn}` lists extensions, `aws sagemaker extend-training-plan` buys one"
            )


def _tables(snapshot: Overview, *, width: int) -> list[RenderableType]:
    """Return groups, nodes, file systems, other costs, jobs and events, each with an empty line before it."""
    from rich.text import Text

    parts: list[RenderableType] = [Text(), table(GROUPS, [_group_row(item) for item in snapshot.groups], width=width)]
    shown = _nodes_shown(snapshot)
    if shown:
        parts += [Text(), table(NODES, shown, width=width)]
    if len(shown) < len(snapshot.nodes):
        running_line = f"{len(snapshot.nodes) - len(shown)} {'other ' if shown else ''}nodes run"
        parts.append(Text(f"{running_line}: `podwright nodes list` shows all"))
    if snapshot.file_systems:
        parts += [Text(), table(FILE_SYSTEMS, list(_file_system_rows(snapshot)), width=width)]
    if snapshot.other_resources:
        rows = [(item.id, item.kind, item.detail, _price(item.usd_per_hour)) for item in snapshot.other_resources]
        parts += [Text(), table(OTHERS, rows, width=width)]
    if snapshot.jobs:
        parts += [Text(), table(job_table.COLUMNS, [job_table.row(job) for job in snapshot.jobs], width=width)]
    elif snapshot.jobs is not None:
        parts += [Text(), Text("no jobs")]
    if snapshot.job_nodes:
        places = [(str(item.rank), item.node, item.leaf) for item in snapshot.job_nodes]
        parts += [Text(), table(JOB_NODES, places, width=width)]
    elif snapshot.job_nodes is not None:
        parts += [Text(), Text("the job has no nodes yet")]
    if snapshot.events:
        rows = [
            (
                age(event.time) + " ago",
                event.level,
                event.resource,
                " ".join(filter(None, [event.description, event.failure])),
            )
            for event in snapshot.events
        ]
        parts += [Text(), table(EVENTS, rows, width=width)]
    return parts


def document(snapshot: Overview) -> Status:
    """Return the state as ``--json`` prints it."""
    cluster = snapshot.cluster
    groups = [
        _Group.of(
            item.group,
            node_statuses=item.statuses,
            operations=item.operations,
            usd_per_hour=item.usd_per_hour,
            plan_ends_at=item.plan_ends_at,
        )
        for item in snapshot.groups
    ]
    return Status.of(
        snapshot,
        cluster=cluster.name,
        arn=cluster.arn,
        region=cluster.region,
        status=cluster.status,
        healthy=snapshot.is_healthy,
        failure_message=cluster.failure_message,
        created_at=cluster.created_at,
        groups=groups,
        nodes=[_NodeWithZone.of(node, zone=snapshot.zones.get(node.instance_id, "")) for node in snapshot.nodes],
        other_resources=[_OtherResource.of(item) for item in snapshot.other_resources],
    )


def _read(cluster_target: Target, *, jobs: bool, job_id: str | None) -> Overview:
    return overview(cluster_target.session, cluster_target.name, jobs=jobs, job_id=job_id, file=cluster_target.file)


def _watch(cluster_target: Target, seconds: float, *, jobs: bool, job_id: str | None) -> int:
    """Redraw the screen until q or Ctrl-C; if a call fails, the last screen stays, with the reason above it."""
    from rich.live import Live

    to = console()
    snapshot = _read(cluster_target, jobs=jobs, job_id=job_id)
    failure = ""
    with quit_key() as quit_pressed, Live(console=to, screen=True, auto_refresh=False) as live:
        while True:
            update_line = f"{time.strftime('%H:%M:%S')}, every {seconds:g} s; q ends. {failure}"
            live.update(_screen(snapshot, update_line, width=to.width), refresh=True)
            if quit_pressed(seconds):
                return 0
            try:
                snapshot, failure = _read(cluster_target, jobs=jobs, job_id=job_id), ""
            except AwsError as error:
                failure = f"The last update failed: {error}"


def _read_settled(cluster_target: Target, *, jobs: bool, job_id: str | None) -> Overview:
    """Poll until no change is in progress; each change is a line on stderr."""
    last_line = ""
    while True:
        snapshot = _read(cluster_target, jobs=False, job_id=None)
        counts = ", ".join(f"{item.group.name} {_node_count(item)}" for item in snapshot.groups)
        line = f"{snapshot.cluster.name} is {snapshot.cluster.status}: {counts}"
        if line != last_line:
            print(line, file=sys.stderr, flush=True)
        if snapshot.is_settled:
            return _read(cluster_target, jobs=jobs, job_id=job_id) if jobs or job_id else snapshot
        last_line = line
        time.sleep(WATCH_S)


def _heading(snapshot: Overview) -> Text:
    from rich.text import Text

    unpriced = f", without {', '.join(snapshot.unpriced)}" if snapshot.unpriced else ""
    based = prices.label(snapshot.cluster.region, [group.instance_type for group in snapshot.cluster.groups])
    return Text.assemble(
        (snapshot.cluster.name, "bold"),
        "  ",
        state(snapshot.cluster.status),
        f"  {snapshot.cluster.region}  up {age(snapshot.cluster.created_at)}\n"
        f"{snapshot.usd_per_hour:.2f} $/h ({based}{unpriced})",
    )


def _node_count(item: GroupState) -> str:
    return f"{item.group.current_count}/{item.group.target_count}"


def _price(usd_per_hour: float | None) -> str:
    return "?" if usd_per_hour is None else f"{usd_per_hour:.2f}"


def _group_row(item: GroupState) -> tuple[str, ...]:
    group = item.group
    counts = [f"{count} {status}" for status, count in item.statuses.items()]
    counts += [f"{name} {count}" for name, count in item.operations.items()]
    return (
        group.name,
        group.role,
        group.instance_type,
        _node_count(item),
        ", ".join(counts) or group.status,
        "plan" if group.training_plan_arn else _price(item.usd_per_hour),
        group.image_version,
        " ".join(filter(None, [group.image_status, group.software_update_status])),
    )


def _nodes_shown(snapshot: Overview) -> list[tuple[str, ...]]:
    """Return the rows of all nodes; for large clusters, only of nodes that do not run."""
    few = len(snapshot.nodes) <= NODES_SHOWN
    return [
        (
            node.name,
            f"{node.group}/{node.index}",
            node.status,
            node.instance_id,
            snapshot.zones.get(node.instance_id, ""),
            age(node.launched_at),
            node.image_version,
            node.message,
        )
        for node in snapshot.nodes
        if few or node.status != "Running"
    ]


def _file_system_rows(snapshot: Overview) -> Iterator[tuple[str, ...]]:
    for item in snapshot.file_systems:
        used = "?" if item.used_percent is None else f"{item.used_percent:.0f} %"
        capacity = f"{item.capacity_gib:,} GiB"
        yield item.id, item.kind, item.status, capacity, used, _price(item.usd_per_hour)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0
    if not seconds > 0:
        raise argparse.ArgumentTypeError(f"got {text}, need a number of seconds above 0")
    return seconds


def _job_id(text: str) -> str:
    if not JOB_ID.fullmatch(text):
        raise argparse.ArgumentTypeError(f"got {text}, need the number of a job, such as 12")
    return text
