"""The settings of the new cluster: the old file with another name, region, zone and training plan."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from podwright.check.checked_settings import check_document
from podwright.check.document import Document
from podwright.check.findings import Finding, KeyPath, Level, has_errors
from podwright.check.input_errors import InvalidSettingsError
from podwright.operations.moving.settings_text import edited
from podwright.settings.root import Settings
from podwright_constructs import facts
from podwright_constructs.problems import dotted

ZONE: KeyPath = ("network", "availability_zone_id")
GROUPS: KeyPath = ("cluster", "instance_groups")
# Ids by what they are bound to: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/resources.html#resource-ids
ZONAL_ID = re.compile(r"subnet-[0-9a-f]+|fs-[0-9a-f]+\..*|db-[0-9A-Z]+")
REGIONAL_ID = re.compile(r"(vpc|sg|nat|rtb|ami|vpce)-[0-9a-f]+")
CODE = "bound-to-place"
_BUCKETS = ("access_log_bucket", "s3_uri")


@dataclass(frozen=True)
class Destination:
    """The zone that a cluster moves to, as the command line names it.

    ``region`` is empty for a move within the region; ``values`` are further values of the new file by their path.
    """

    name: str
    zone: str
    region: str
    training_plan_arn: str
    values: Mapping[KeyPath, str]


@dataclass(frozen=True)
class BoundValue:
    """A value of the old file that is bound to its zone or region, and the new value; empty if it is not given."""

    path: KeyPath
    before: str
    after: str

    def line(self) -> str:
        """Return the change for a terminal."""
        return f"{dotted(self.path)}: {self.before or '(default)'} -> {self.after or '?'}"


@dataclass(frozen=True)
class NewFile:
    """The text of the new settings file, its settings, and every value that differs from the old file's."""

    text: str
    settings: Settings
    bound_values: tuple[BoundValue, ...]


def default_name(settings: Settings, zone: str) -> str:
    """Return a name for the new cluster: the old one and the zone, within SageMaker's limit."""
    stem = re.sub(r"-[a-z0-9]+-az\d+$", "", settings.name)  # An earlier move added a zone.
    return f"{stem[: facts.MAX_CLUSTER_NAME_LENGTH - len(zone) - 1].rstrip('-')}-{zone}"


def new_file(source: Document, settings: Settings, destination: Destination, *, file: Path) -> NewFile:
    """Return the settings file of the new cluster.

    Args:
        source: the old file.
        settings: the settings in the old file.
        destination: the new name, zone and region.
        file: the new file, for messages.

    Raises:
        ArgumentError: a path of ``destination.values`` is not in the file.
        InvalidSettingsError: values that exist only in the old zone or region have no new ones, or the new file has
            other errors; all of them are in it.
    """
    moved_values = _moved_values(settings, destination)
    values = {**moved_values, **destination.values}
    text = edited(source.text, values, file=file)
    parsed = Document.parse(text, file=file)
    moves_region = bool(destination.region) and destination.region != settings.region
    unmoved = [
        bound_value
        for bound_value in _bound_values(source.data, moves_region=moves_region)
        if bound_value.path not in values
    ]
    report = check_document(parsed)
    findings = [*report.findings, *(_finding(bound_value, parsed) for bound_value in unmoved)]
    if report.settings is None or has_errors(findings):
        ordered = sorted(findings, key=lambda finding: (finding.line or 0, finding.column or 0))
        raise InvalidSettingsError(file=file, text=text, findings=tuple(ordered))
    bound_values = tuple(BoundValue(path, _text(source.data, path), value) for path, value in values.items())
    return NewFile(text, report.settings, bound_values)


def _moved_values(settings: Settings, destination: Destination) -> dict[KeyPath, str]:
    """Return the values that the move itself changes."""
    values: dict[KeyPath, str] = {("name",): destination.name}
    if destination.region and destination.region != settings.region:
        values["region",] = destination.region
        state = settings.state
        if state.source == "s3" and state.region is None:  # its default is the cluster's region, and the bucket stays
            values["state", "region"] = settings.region
    if settings.network.source != "existing":
        values[ZONE] = destination.zone
    if destination.training_plan_arn:
        groups = settings.cluster.instance_groups
        planned = [index for index, group in enumerate(groups) if group.training_plan_arn]
        computing = [index for index, group in enumerate(groups) if group.role == "compute"]
        for index in planned or computing:
            path: KeyPath = (*GROUPS, index, "training_plan_arn")
            values[path] = destination.training_plan_arn
    return values


def _bound_values(data: Any, *, moves_region: bool) -> Iterator[BoundValue]:
    """Yield the values that the rules of a settings file cannot know to be of the old zone or region."""
    for path, value in _scalars(data, ()):
        if path[0] == "state":
            continue  # The state does not move.
        in_zone = ZONAL_ID.fullmatch(value) or path[-1] == "training_plan_arn"
        in_region = REGIONAL_ID.fullmatch(value) or path == ("bucket", "name") or path[-1] in _BUCKETS
        in_new_subnet = path == ("network", "private_subnet_cidr") and data["network"].get("source") == "existing_vpc"
        if in_zone or in_new_subnet or (moves_region and in_region):
            yield BoundValue(path, value, "")


def _scalars(data: Any, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    if isinstance(data, str):
        yield path, data
        return
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield from _scalars(value, (*path, key))


def _finding(bound_value: BoundValue, parsed: Document) -> Finding:
    at, name = parsed.position(bound_value.path), dotted(bound_value.path)
    option = "--training-plan ARN" if bound_value.path[-1] == "training_plan_arn" else f"--set '{name}=VALUE'"
    return Finding(
        Level.ERROR,
        CODE,
        bound_value.path,
        f"{bound_value.path[-1]}: {bound_value.before} exists only in the old zone or region",
        f"give the new one: {option}",
        line=at.line,
        column=at.column,
        width=at.width,
    )


def _text(data: Any, path: Sequence[str | int]) -> str:
    """Return the value at a path; empty if the file has no such value."""
    try:
        for key in path:
            data = data[key]
    except (KeyError, IndexError, TypeError):
        return ""
    return data if isinstance(data, str) else ""
