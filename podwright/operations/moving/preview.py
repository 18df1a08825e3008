"""The preview of a move: changes, data and cost, before anything is done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from podwright import list_prices
from podwright.diagram import prices
from podwright.errors import ArgumentError
from podwright.json_document import JsonObject
from podwright.operations.account.fsx import file_system_price
from podwright.operations.moving.backups import MovedFileSystem
from podwright.operations.moving.destination import NewFile
from podwright.settings.root import Settings

# https://docs.aws.amazon.com/fsx/latest/LustreGuide/using-backups-fsx.html
TIME = (
    "the first backup takes minutes to hours (terabytes) while jobs run; the last one stores only what changed "
    "since, while jobs wait"
)


@dataclass(frozen=True)
class _Tie(JsonObject):
    """A key that is another in the new place."""

    key: str
    before: Any
    after: Any


@dataclass(frozen=True)
class _MovedData(JsonObject):
    id: str
    section: Literal["lustre", "openzfs"]
    gib: int


@dataclass(frozen=True)
class MovePreviewDocument(JsonObject):
    """Changes and costs of a move."""

    changes: list[_Tie]
    file_systems: list[_MovedData]
    file_systems_usd_per_hour: float | None
    nodes_usd_per_hour: float | None
    transfer_usd_at_most: float


@dataclass(frozen=True)
class MovePreview:
    """A move's changes, data and prices."""

    old: Settings
    new: NewFile
    data: tuple[MovedFileSystem, ...]

    @classmethod
    def of(cls, old: Settings, new: NewFile, data: Sequence[MovedFileSystem]) -> MovePreview:
        """Return the preview of a move that nothing prevents.

        Raises:
            ArgumentError: data that FSx does not back up, or something that a move does not carry; all are named.
        """
        problems = list(_problems(old, new, data))
        if problems:
            raise ArgumentError("; ".join(problems), "see docs/move.md for what a move carries")
        return cls(old, new, tuple(data))

    @property
    def moves_region(self) -> bool:
        """True if the new cluster is in another region."""
        return self.old.region != self.new.settings.region

    @property
    def data_gib(self) -> int:
        """The capacity of all file systems: backups are at most as large."""
        return sum(item.capacity_gib for item in self.data)

    @property
    def nodes_usd_per_hour(self) -> float | None:
        """The price of the new cluster's nodes; those of a training plan are paid in advance."""
        groups = [group for group in self.new.settings.cluster.instance_groups if not group.training_plan_arn]
        region = self.new.settings.region
        item_prices = [
            prices.nodes(group.instance_type, group.count, group.volume_gib, region=region) for group in groups
        ]
        return None if None in item_prices else sum(item or 0.0 for item in item_prices)

    @property
    def file_systems_usd_per_hour(self) -> float | None:
        """The price of the file systems at one place."""
        item_prices = [file_system_price(item.description) for item in self.data]
        return None if None in item_prices else sum(item or 0.0 for item in item_prices)

    @property
    def transfer_usd(self) -> float:
        """The most that copying backups to another region costs."""
        return self.data_gib * list_prices.REGION_TRANSFER_USD_PER_GB if self.moves_region else 0.0

    def lines(self) -> Iterator[str]:
        """Yield the preview for a terminal."""
        new = self.new.settings
        yield f"{self.old.name} ({self.old.region}) -> {new.name} ({new.region})"
        yield from (f"  {bound_value.line()}" for bound_value in self.new.bound_values)
        for item in self.data:
            yield f"data: {item.section} {item.id}, {item.capacity_gib} GiB, by backup and restore"
        yield f"time: {TIME}"
        both = _usd(self.file_systems_usd_per_hour)
        backups = self.data_gib * list_prices.BACKUP_USD_PER_GIB_MONTH
        yield f"cost: {both} $/h more while both places have file systems, backups at most {backups:,.2f} $/month"
        if self.moves_region:
            yield f"  at most {self.transfer_usd:,.2f} $ once for the copies to {new.region}"
        based = prices.label(new.region, [group.instance_type for group in new.cluster.instance_groups])
        label = f"{_usd(self.nodes_usd_per_hour)} $/h ({based}) without training plans"
        yield f"  nodes, from the step `cluster` on: {label}"

    def document(self) -> MovePreviewDocument:
        """Return the preview for ``--json``."""
        changes = [_Tie(value.line().partition(":")[0], value.before, value.after) for value in self.new.bound_values]
        return MovePreviewDocument.of(
            self,
            changes=changes,
            file_systems=[_MovedData(item.id, item.section, item.capacity_gib) for item in self.data],
            transfer_usd_at_most=self.transfer_usd,
        )


def _problems(old: Settings, new: NewFile, data: Sequence[MovedFileSystem]) -> Iterator[str]:
    sections = {item.section for item in data}
    for section, settings in (("lustre", old.lustre), ("openzfs", old.openzfs)):
        if settings.source == "existing":
            yield f"{section}: a move carries file systems that podwright created, and this one is `source: existing`"
        elif settings.source == "create" and section not in sections:
            yield f"{section} of {old.name} is not in {old.region}: deploy it, or name the right file"
    for item in data:
        linked = item.section == "lustre" and bool(getattr(old.lustre, "data_repositories", ()))
        problem = item.problem(linked=linked)
        if problem:
            yield f"{item.section} {item.id}: {problem}"
    controllers = sum(group.count for group in old.cluster.instance_groups if group.role == "controller")
    if controllers > 1:
        yield f"{controllers} controllers: a move carries the accounts of one"
    if new.settings.name == old.name:
        yield f"the new cluster needs another name than {old.name}"


def _usd(value: float | None) -> str:
    return "?" if value is None else f"{value:,.2f}"
