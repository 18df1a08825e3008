"""``podwright status``: show a cluster's state, nodes, file systems, cost and the likely causes of failures."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from podwright.diagram import prices
from podwright.operations.errors import ArgumentError, AwsError
from podwright.operations.health.keys import quit_key
from podwright.operations.health.overview import GroupState, Overview, overview
from podwright.operations.jobs import jobs as job_table
from podwright.operations.nodes.nodes import to_dict
from podwright.operations.output import Column, age, console, print_json, state, table
from podwright.operations.target import Target, add_examples, add_target_arguments, target

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

WATCH_S = 10
NODES_SHOWN = 24  # of more, only those that do not run
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
EVENTS = (Column("EVENT", rank=2), Column("LEVEL"), Column("RESOURCE", rank=1), Column("DESCRIPTION"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take the cluster, and how often to look."""
    add_target_arguments(parser)
    parser.add_argument(
        "--watch",
        nargs="?",
        type=_seconds,
        const=WATCH_S,
        metavar="SECONDS",
        help=f"redraw every SECONDS ({WATCH_S} if left out) until q or Ctrl-C",
    )
    parser.add_argument("--jobs", action="store_true", help="also Slurm's jobs, from the controller")
    parser.add_argument(
        "--wait", action="store_true", help="first wait until the cluster is InService with all its nodes, or Failed"
    )
    add_examples(parser, "podwright status", "podwright status --watch --jobs", "podwright status --wait --json")


def run(options: argparse.Namespace) -> int:
    """Print the state; return 1 if the cluster or a node has failed."""
    wanted = target(options)
    if options.watch and (options.json or not sys.stdout.isatty()):
        raise ArgumentError("--watch draws on a terminal", "in a pipe, repeat `podwright status --json`")
    if options.watch:
        return _watch(wanted, options.watch, jobs=options.jobs)
    found = (_settled if options.wait else _look)(wanted, jobs=options.jobs)
    if options.json:
        print_json("podwright.status/1", to_document(found))
    else:
        to = console()
        with to.capture() as capture:
            to.print(render(found, width=to.width))
        text = capture.get()
        to.file.write(text if to.is_terminal else "".join(f"{line.rstrip()}\n" for line in text.splitlines()))
    return 0 if found.is_healthy else 1


def render(found: Overview, *, width: int) -> RenderableType:
    """Return the whole screen for a terminal of this width."""
    from rich.console import Group  # --help and --json need no rich

    return Group(_heading(found), *_tables(found, width=width), *_causes(found))


def _screen(found: Overview, looked: str, *, width: int) -> RenderableType:
    """Return the screen of ``--watch``: a terminal cuts the end off, so causes come before tables."""
    from rich.console import Group
    from rich.text import Text

    return Group(_heading(found), Text(looked, style="dim"), *_causes(found), *_tables(found, width=width))


def _causes(found: Overview) -> list[RenderableType]:
    """Return likely causes of failures, differences from the settings file, and calls that failed."""
    from rich.text import Text

    parts: list[RenderableType] = []
    for cause in found.causes:
        parts += [Text(), Text(f"failed: {cause.message}", style="bold red")]
        parts += [Text(f"likely: {cause.cause}"), Text(f"look:   {cause.command}")]
    if found.drift:
        parts += [Text(), Text(f"drift: {'; '.join(found.drift)}: `podwright drift` shows all", style="yellow")]
    return parts + [Text(f"not shown: {line}", style="yellow") for line in found.missing]


def _tables(found: Overview, *, width: int) -> list[RenderableType]:
    """Return groups, nodes, file systems, other costs, jobs and events, each with an empty line before it."""
    from rich.text import Text

    parts: list[RenderableType] = [Text(), table(GROUPS, [_group_row(item) for item in found.groups], width=width)]
    shown = _nodes_shown(found)
    if shown:
        parts += [Text(), table(NODES, shown, width=width)]
    if len(shown) < len(found.nodes):
        others = f"{len(found.nodes) - len(shown)} {'other ' if shown else ''}nodes run"
        parts.append(Text(f"{others}: `podwright nodes list` shows all"))
    if found.file_systems:
        parts += [Text(), table(FILE_SYSTEMS, list(_file_system_rows(found)), width=width)]
    if found.others:
        rows = [(item.id, item.kind, item.detail, _price(item.usd_per_hour)) for item in found.others]
        parts += [Text(), table(OTHERS, rows, width=width)]
    if found.jobs:
        parts += [Text(), table(job_table.COLUMNS, [job_table.row(job) for job in found.jobs], width=width)]
    elif found.jobs is not None:
        parts += [Text(), Text("no jobs")]
    if found.events:
        rows = [(age(event.time) + " ago", event.level, event.resource, event.description) for event in found.events]
        parts += [Text(), table(EVENTS, rows, width=width)]
    return parts


def to_document(found: Overview) -> dict[str, object]:
    """Return the state as ``--json`` prints it."""
    return {
        "cluster": found.cluster.name,
        "arn": found.cluster.arn,
        "region": found.cluster.region,
        "status": found.cluster.status,
        "healthy": found.is_healthy,
        "failure_message": found.cluster.failure_message,
        "created_at": found.cluster.created_at,
        "usd_per_hour": round(found.usd_per_hour, 4),
        "unpriced": found.unpriced,
        "groups": [_group_document(item) for item in found.groups],
        "nodes": [{**to_dict(node), "zone": found.zones.get(node.instance_id, "")} for node in found.nodes],
        "file_systems": found.file_systems,
        "others": [
            {"kind": item.kind, "id": item.id, "detail": item.detail, "usd_per_hour": item.usd_per_hour}
            for item in found.others
        ],
        "events": found.events,
        "jobs": found.jobs,
        "drift": found.drift,
        "causes": [cause._asdict() for cause in found.causes],
        "missing": found.missing,
    }


def _look(wanted: Target, *, jobs: bool) -> Overview:
    return overview(wanted.session, wanted.name, jobs=jobs, file=wanted.file)


def _watch(wanted: Target, seconds: float, *, jobs: bool) -> int:
    """Draw until q or Ctrl-C. A call that fails leaves the last screen, with the reason above it."""
    from rich.live import Live

    to = console()
    found = _look(wanted, jobs=jobs)
    failure = ""
    with quit_key() as quit_pressed, Live(console=to, screen=True, auto_refresh=False) as live:
        while True:
            looked = f"{time.strftime('%H:%M:%S')}, every {seconds:g} s; q ends. {failure}"
            live.update(_screen(found, looked, width=to.width), refresh=True)
            if quit_pressed(seconds):
                return 0
            try:
                found, failure = _look(wanted, jobs=jobs), ""
            except AwsError as error:
                failure = f"The last look failed: {error}"


def _settled(wanted: Target, *, jobs: bool) -> Overview:
    """Look until no change is in progress; progress goes to stderr, a line per change."""
    last = ""
    while True:
        found = _look(wanted, jobs=False)
        counts = ", ".join(f"{item.group.name} {_count(item)}" for item in found.groups)
        line = f"{found.cluster.name} is {found.cluster.status}: {counts}"
        if line != last:
            print(line, file=sys.stderr, flush=True)
        if found.is_settled:
            return _look(wanted, jobs=True) if jobs else found
        last = line
        time.sleep(WATCH_S)


def _heading(found: Overview) -> Text:
    from rich.text import Text

    unpriced = f", without {', '.join(found.unpriced)}" if found.unpriced else ""
    based = prices.label(found.cluster.region, [group.instance_type for group in found.cluster.groups])
    return Text.assemble(
        (found.cluster.name, "bold"),
        "  ",
        state(found.cluster.status),
        f"  {found.cluster.region}  up {age(found.cluster.created_at)}\n"
        f"{found.usd_per_hour:.2f} $/h ({based}{unpriced})",
    )


def _count(item: GroupState) -> str:
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
        _count(item),
        ", ".join(counts) or group.status,
        "plan" if group.training_plan_arn else _price(item.usd_per_hour),
        group.image_version,
        " ".join(filter(None, [group.image_status, group.software_update_status])),
    )


def _group_document(item: GroupState) -> dict[str, object]:
    group = item.group
    return {
        "name": group.name,
        "role": group.role,
        "partition": group.partition,
        "instance_type": group.instance_type,
        "current_count": group.current_count,
        "target_count": group.target_count,
        "status": group.status,
        "node_statuses": item.statuses,
        "operations": item.operations,
        "usd_per_hour": item.usd_per_hour,
        "training_plan_arn": group.training_plan_arn,
        "image_version": group.image_version,
        "image_status": group.image_status,
        "software_update_status": group.software_update_status,
    }


def _nodes_shown(found: Overview) -> list[tuple[str, ...]]:
    """Return the rows of all nodes; for large clusters, only of nodes that do not run."""
    few = len(found.nodes) <= NODES_SHOWN
    return [
        (
            node.name,
            f"{node.group}/{node.index}",
            node.status,
            node.instance_id,
            found.zones.get(node.instance_id, ""),
            age(node.launched_at),
            node.image_version,
            node.message,
        )
        for node in found.nodes
        if few or node.status != "Running"
    ]


def _file_system_rows(found: Overview) -> Iterator[tuple[str, ...]]:
    for item in found.file_systems:
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
