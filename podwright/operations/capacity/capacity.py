"""``podwright capacity``: training plans that can be bought, with price, move and the time of a run.

It reads AWS and buys nothing: it prints the commands that do.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from podwright.aws_session import Session, deployer_role
from podwright.config_file import add_file, config_path
from podwright.errors import ArgumentError, OperationError
from podwright.json_document import JsonObject
from podwright.operations.output import Column, print_document, print_table
from podwright.operations.target import add_examples, add_profile
from podwright_common.command_line import add_json, positive_count
from podwright_common.exit_status import FAILED, OK

if TYPE_CHECKING:
    from podwright.operations.capacity.offerings import Extension, Offering
    from podwright.planning.run_hours import Run, RunHours
    from podwright.settings.root import Settings

COLUMNS = (
    *(Column("#", right=True), Column("type"), Column("nodes", right=True), Column("zone"), Column("start")),
    *(Column("hours", right=True), Column("fee", right=True), Column("per node-hour", right=True)),
    *(Column("on demand", rank=1, right=True), Column("run", rank=2, right=True), Column("move", rank=3)),
)
DAY_H = 24
USUAL_DAYS = 7
LONGEST_NAME = 64  # https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_CreateTrainingPlan.html
# https://docs.aws.amazon.com/sagemaker/latest/dg/search-training-plan-offerings.html
SOLD = "AWS sells 1, 2, 4, 8, 16, 32 or 64 nodes for 1 to 182 days"
MAX_HOURS = 87_600  # https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_SearchTrainingPlanOfferings.html


@dataclass(frozen=True, kw_only=True)
class _MoveNeeded(JsonObject):
    """A move of the cluster to the offering's zone."""

    command: str
    """With the ARN that buying the plan returns."""
    data_gib: int
    """Capacity of the file systems that podwright created: backups carry what they hold."""
    transfer_usd_at_most: float
    """For copies of backups in another region."""


@dataclass(frozen=True, kw_only=True)
class _OfferedPlan(JsonObject):
    """A training plan that can be bought."""

    id: str
    region: str
    zones: list[str]
    """Names, which differ between accounts."""
    zone_ids: list[str]
    instance_type: str
    nodes: int
    ultraserver_type: str | None
    """null for single instances."""
    starts_at: datetime | None
    ends_at: datetime | None
    hours: float
    upfront_fee: float | None
    currency: str
    fee_per_node_hour: float | None
    list_usd_per_node_hour: float | None
    """EC2's on-demand price; null if EC2 publishes none."""
    run_hours: float | None
    """What the planner predicts for --run with its failures; null without a run, or with run_problem."""
    run_problem: str | None
    """Why there is no prediction."""
    run_ends_in_time: bool | None
    move: _MoveNeeded | None
    """null where the cluster is in the zone, without a settings file, or if the zone is not known."""
    buy: str
    """The command that buys it."""


@dataclass(frozen=True, kw_only=True)
class _OfferedExtension(JsonObject):
    """Time that can be added to a training plan of the settings file."""

    id: str
    region: str
    training_plan_arn: str
    starts_at: datetime | None
    ends_at: datetime | None
    hours: float
    upfront_fee: float | None
    currency: str
    buy: str
    """The command that buys it."""


@dataclass(frozen=True, kw_only=True)
class Capacity(JsonObject):
    """The document of `podwright capacity --json`."""

    schema: Literal["podwright.capacity/1"] = "podwright.capacity/1"
    offerings: list[_OfferedPlan]
    """Those that start first come first."""
    extensions: list[_OfferedExtension]
    """Of the plans that the settings file names."""
    not_searched: list[str]
    """Searches that AWS refused, with its reason."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add FILE, what to search for, and --run."""
    add_file(parser, "settings of the cluster that will use the plan. ")
    search_group = parser.add_argument_group("search")
    search_group.add_argument(
        "--instance",
        action="append",
        metavar="TYPE",
        help="instance type; may be repeated. Default: FILE's compute types that AWS reserves, else all such types",
    )
    search_group.add_argument(
        "--nodes", type=positive_count, metavar="N", help="Default: FILE's nodes of the type, else 1"
    )
    search_group.add_argument(
        "--region", action="append", help="may be repeated. Default: FILE's region, else AWS_REGION"
    )
    search_group.add_argument(
        "--zone", action="append", metavar="ID", help="only zones with these ids; may be repeated"
    )
    search_group.add_argument(
        "--duration",
        action="append",
        metavar="TIME",
        help=f"such as 14d; may be repeated. Default: whole days for --run, else {USUAL_DAYS}d",
    )
    search_group.add_argument("--after", type=_date, metavar="DATE", help="earliest start, as 2027-01-31. Default: now")
    search_group.add_argument("--before", type=_date, metavar="DATE", help="latest end. Default: any")
    parser.add_argument("--run", type=Path, metavar="FILE", help="also predict the time of this run.yaml or job.yaml")
    add_profile(parser)
    add_json(parser)
    add_examples(
        parser,
        "podwright capacity --run run.yaml",
        "podwright capacity --instance ml.p5.48xlarge --nodes 4 --region us-east-1 --region us-west-2 --duration 14d",
    )


def run(options: argparse.Namespace) -> int:
    """Print what can be bought; return 1 if AWS offers nothing.

    Raises:
        PodwrightError: an argument or file is wrong, or AWS refuses every search.
    """
    from podwright.check.load import load, load_run_or_job

    settings = load(options.file) if options.file.exists() or options.file != config_path() else None
    training_run = load_run_or_job(options.run) if options.run else None
    searches = _Search(options, settings, training_run)
    plans, refusals = searches.plans()
    longer = searches.extensions(refusals)
    if refusals and not (longer or searches.answered):
        raise refusals[0][1]
    not_searched = [f"{label}: {error}" for label, error in refusals]
    document = Capacity(offerings=plans, extensions=longer, not_searched=not_searched)
    if options.json:
        print_document(document)
    else:
        _print(document, has_run=training_run is not None)
    return OK if plans or longer else FAILED


class _Search:
    """All searches of one command.

    Args:
        options: the command's arguments.
        settings: of the cluster that will use the plan, if there is a file.
        training_run: whose time is predicted, if any.
    """

    def __init__(self, options: argparse.Namespace, settings: Settings | None, training_run: Run | None) -> None:
        from podwright.settings.regions import looks_like_region

        self.options, self.settings, self.training_run = options, settings, training_run
        self.answered = False
        self.regions: list[str] = options.region or ([settings.region] if settings else [self._session(None).region])
        if wrong := [region for region in self.regions if not looks_like_region(region)]:
            raise ArgumentError(f"--region: got {', '.join(wrong)}, need a region such as us-west-2")
        self.nodes_by_type = _nodes_by_type(options, settings)
        self.hours_given = [_whole_hours(text) for text in options.duration or ()]
        self.zones = self._zones()

    def plans(self) -> tuple[list[_OfferedPlan], list[tuple[str, OperationError]]]:
        """Return the offerings, and the searches that AWS refused."""
        from podwright.operations.capacity.offerings import Criteria, search

        offerings: list[_OfferedPlan] = []
        refusals: list[tuple[str, OperationError]] = []
        for region, (name, nodes) in product(self.regions, self.nodes_by_type.items()):
            prediction = self._prediction(name, nodes, region)
            for hours in self.hours_given or [_whole_days(prediction.hours)]:
                criteria = Criteria(name, nodes, hours, self.options.after, self.options.before)
                try:
                    region_offerings = list(search(self._session(region), criteria))
                except OperationError as error:
                    refusals.append((f"{nodes} x {name} in {region} for {hours} h", error))
                    continue
                self.answered = True
                offerings += [self._offered(item, prediction) for item in region_offerings if self._is_in_zones(item)]
        return sorted({item.id: item for item in offerings}.values(), key=_order), refusals

    def extensions(self, refusals: list[tuple[str, OperationError]]) -> list[_OfferedExtension]:
        """Return the extensions of the file's plans; searches that AWS refuses are added to ``refusals``."""
        from podwright.operations.capacity.offerings import extensions

        offered_extensions: list[_OfferedExtension] = []
        groups = self.settings.cluster.instance_groups if self.settings else ()
        hours = self.hours_given or [USUAL_DAYS * DAY_H]
        for arn, duration in product(sorted({group.training_plan_arn or "" for group in groups} - {""}), hours):
            try:
                offered_extensions += map(_extension, extensions(self._session(arn.split(":")[3]), arn, duration))
            except OperationError as error:
                refusals.append((f"extensions of {arn}", error))
        return offered_extensions

    def _session(self, region: str | None) -> Session:
        role = deployer_role(self.settings) if self.settings else None
        return Session(region=region, profile=self.options.profile, role=role)

    def _zones(self) -> tuple[str, ...]:
        from podwright.operations.capacity.place import zones_of

        return zones_of(self.settings, self._session(self.settings.region)) if self.settings else ()

    def _is_in_zones(self, offering: Offering) -> bool:
        return not self.options.zone or bool({*offering.zone_ids, *offering.zones} & {*self.options.zone})

    def _prediction(self, instance_type: str, nodes: int, region: str) -> RunHours:
        from podwright.planning.run_hours import RunHours, run_hours

        if self.training_run is None:
            return RunHours(None)
        return run_hours(self.training_run, instance_type, nodes, region)

    def _offered(self, offering: Offering, prediction: RunHours) -> _OfferedPlan:
        from podwright.operations.capacity.place import move_needed
        from podwright.planning.on_demand import on_demand

        move = move_needed(self.settings, self.zones, offering) if self.settings else None
        price = on_demand(offering.instance_type, offering.region)
        unique_end = f"-{offering.id[-8:].strip('-')}"
        name = (self.settings.name if self.settings else "podwright")[: LONGEST_NAME - len(unique_end)] + unique_end
        return _OfferedPlan.of(
            offering,
            zones=list(offering.zones),
            zone_ids=list(offering.zone_ids),
            list_usd_per_node_hour=price.usd_per_hour if price else None,
            run_hours=prediction.hours,
            run_problem=prediction.problem or None,
            run_ends_in_time=None if prediction.hours is None else prediction.hours <= offering.hours,
            move=_MoveNeeded.of(move) if move else None,
            buy=f"aws sagemaker create-training-plan --region {offering.region} --training-plan-name {name} "
            f"--training-plan-offering-id {offering.id}",
        )


def _nodes_by_type(options: argparse.Namespace, settings: Settings | None) -> dict[str, int]:
    """Return the number of nodes to search for by type, in the order of the arguments.

    Raises:
        ArgumentError: AWS sells no training plans of a type, or the nodes fill no UltraServer.
    """
    from podwright.operations.capacity.offerings import ULTRASERVERS
    from podwright_constructs.facts import TRAINING_PLAN_TYPES

    in_file: dict[str, int] = {}
    for group in settings.cluster.instance_groups if settings else ():
        if group.role == "compute" and group.instance_type in TRAINING_PLAN_TYPES:
            in_file[group.instance_type] = in_file.get(group.instance_type, 0) + max(1, group.count)
    types: Sequence[str] = options.instance or list(in_file) or TRAINING_PLAN_TYPES
    if wrong := [name for name in types if name not in TRAINING_PLAN_TYPES]:
        need = f"AWS reserves {', '.join(TRAINING_PLAN_TYPES)} in training plans"
        raise ArgumentError(f"--instance: AWS sells no training plans of {', '.join(wrong)}", need)
    nodes_by_type = {name: options.nodes or in_file.get(name, 1) for name in types}
    for name, ultraservers in ULTRASERVERS.items():
        sizes = sorted(ultraservers.values())
        if name in nodes_by_type and nodes_by_type[name] % sizes[0]:
            if options.nodes or name in in_file:
                nodes_problem = f"--nodes: got {nodes_by_type[name]} of {name}, need a multiple of {sizes[0]}"
                raise ArgumentError(
                    nodes_problem, f"AWS sells whole UltraServers of {' or '.join(map(str, sizes))} nodes"
                )
            nodes_by_type[name] = sizes[0]
    return nodes_by_type


def _whole_hours(text: str) -> int:
    """Return a duration in hours, rounded up."""
    from podwright.planning.units import HOUR_S, UnitError, parse_duration

    try:
        hours = math.ceil(parse_duration(text, label="--duration") / HOUR_S)
    except UnitError as error:
        raise ArgumentError(str(error)) from error
    if hours > MAX_HOURS:
        raise ArgumentError(f"--duration: got {text}, AWS searches for at most {MAX_HOURS // DAY_H} days")
    return hours


def _whole_days(hours: float | None) -> int:
    """Return the hours to search for: whole days for a run, else the usual ones."""
    return USUAL_DAYS * DAY_H if hours is None else min(MAX_HOURS, DAY_H * max(1, math.ceil(hours / DAY_H)))


def _date(text: str) -> datetime:
    try:
        date = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"got {text}, need a date such as 2027-01-31 (UTC)") from None
    return date if date.tzinfo else date.replace(tzinfo=timezone.utc)


def _order(offering: _OfferedPlan) -> tuple[float, float, str]:
    starts_at, fee = offering.starts_at, offering.upfront_fee
    return (starts_at.timestamp() if starts_at else math.inf, math.inf if fee is None else fee, offering.id)


def _extension(extension: Extension) -> _OfferedExtension:
    buy = f"aws sagemaker extend-training-plan --region {extension.region} "
    return _OfferedExtension.of(extension, buy=f"{buy}--training-plan-extension-offering-id {extension.id}")


# ---- output --------------------------------------------------------------------------------------


def _print(document: Capacity, *, has_run: bool) -> None:
    """Print the offerings as a table, and below it what to run for each."""
    if document.offerings:
        print_table(COLUMNS, [_row(number, item) for number, item in enumerate(document.offerings, 1)])
        print("fee: paid in advance. on demand: EC2's list price, because HyperPod's own is not public.")
    else:
        print("AWS offers no training plan: try other --instance, --nodes, --region, --duration or --after")
        print(f"{SOLD}; a plan of more nodes than a group has serves it too")
    if has_run:
        problems = {item.run_problem: None for item in document.offerings if item.run_problem}
        for problem in problems:
            print(f"run: not predicted: {problem}")
    for number, item in enumerate(document.offerings, 1):
        print(f"\n{number}. buy: {item.buy}")
        print(f"   then: {_afterwards(item)}")
    for extension in document.extensions:
        print(f"\nextend {extension.training_plan_arn.rpartition('/')[2]} by {extension.hours:g} h", end=" ")
        print(f"to {_time(extension.ends_at)} for {_money(extension.upfront_fee, extension.currency)}: {extension.buy}")
    for line in document.not_searched:
        print(f"not searched: {line}")


def _row(number: int, item: _OfferedPlan) -> list[str]:
    zone = ", ".join(item.zone_ids or item.zones) or "?"
    too_long = ", too long" if item.run_ends_in_time is False else ""
    run_text = "" if item.run_hours is None else f"{item.run_hours:,.0f} h{too_long}"
    move = "" if item.move is None else item.region if "--region" in item.move.command else "zone"
    return [
        *(str(number), item.instance_type, str(item.nodes), f"{item.region} {zone}", _time(item.starts_at)),
        *(f"{item.hours:,.0f}", _money(item.upfront_fee, item.currency)),
        *(_money(item.fee_per_node_hour, item.currency), _money(item.list_usd_per_node_hour, "USD"), run_text, move),
    ]


def _afterwards(item: _OfferedPlan) -> str:
    if item.move is None:
        return "set training_plan_arn of the group to the ARN that it prints, and `podwright deploy`"
    cost = f", at most {item.move.transfer_usd_at_most:,.2f} USD for copies" if item.move.transfer_usd_at_most else ""
    return f"{item.move.command}  # {item.move.data_gib} GiB of file systems by backup and restore{cost}"


def _money(value: float | None, currency: str) -> str:
    return "?" if value is None else f"{value:,.2f} {currency}"


def _time(value: datetime | None) -> str:
    return "?" if value is None else f"{value.astimezone(timezone.utc):%Y-%m-%d %H:%M}"
