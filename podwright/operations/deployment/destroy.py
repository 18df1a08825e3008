"""``podwright destroy``: list deleted and kept resources and their cost; run the kit; list the remaining resources."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from podwright.aws_session import Session
from podwright.config_file import with_file
from podwright.diagram import prices
from podwright.errors import ArgumentError
from podwright.list_prices import MONTH_H
from podwright.operations.account.bucket import Contents, empty
from podwright.operations.account.inventory import inventory
from podwright.operations.deployment.deploy import (
    ALONE,
    APPROVED,
    PARTS,
    SKIP_SYNTH,
    add_kit_arguments,
    locked_stacks,
    resource_lines,
    speaker,
)
from podwright.operations.deployment.deployed_stacks import (
    STATE_OWNER,
    DeployedStack,
    attributes_in,
    dependencies_in,
    stacks,
)
from podwright.operations.deployment.kit import Kit
from podwright.operations.deployment.recovery import forget, recover
from podwright.operations.deployment.teardown import Teardown, print_inventory
from podwright.operations.deployment.terraform import TerraformError
from podwright.operations.output import confirm, print_document
from podwright.operations.target import add_examples
from podwright.settings import names
from podwright_common.exit_status import FAILED, OK

if TYPE_CHECKING:
    from podwright.settings.root import Settings

FSX = "aws_fsx_"  # Begins the types of file systems and of what is in them, such as volumes with files.
BUCKET_CONSTRUCTS = ("bucket/", "key/")  # A kept bucket keeps its key, which reading its objects needs.
FILE_SYSTEMS = {"aws_fsx_lustre_file_system": "lustre", "aws_fsx_openzfs_file_system": "openzfs"}
DATABASE = "aws_db_instance"
DELETING = {"destroy", "backup"}  # Only these values of on_destroy in the present file let a file system go.
DEPLOY_FIRST = "run `podwright deploy --only foundation` first, or use --only cluster"


@dataclass(frozen=True, kw_only=True)
class Destroy(Teardown):
    """The document of `podwright destroy --json`: the remaining resources."""

    schema: Literal["podwright.destroy/1"] = "podwright.destroy/1"  # type: ignore[assignment]
    kept_bucket: bool | str | None
    kept_file_systems: list[str]
    """Ids of file systems that stay in Terraform's state, with their network."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add FILE, --only, --profile, --yes, --json, --empty-bucket and --delete-file-systems."""
    add_kit_arguments(parser)
    help_ = "also delete objects that podwright did not upload. Default: keep the bucket"
    parser.add_argument("--empty-bucket", action="store_true", help=help_)
    help_ = "also delete file systems with on_destroy: retain, with all their files. Default: keep them"
    parser.add_argument("--delete-file-systems", action="store_true", help=help_)
    everything = "podwright destroy --empty-bucket --delete-file-systems --yes"
    add_examples(parser, "podwright destroy --only cluster", everything)


def run(options: argparse.Namespace) -> int:
    """Destroy the stacks of a settings file.

    Raises:
        PodwrightError: something retained is in the way, the kit fails, or AWS refuses.
    """
    return destroy_stacks(options, command=with_file("destroy", options.file))


def destroy_stacks(options: argparse.Namespace, *, command: str) -> int:
    """Destroy the stacks of a settings file for a command, whose name an interrupted user reads as the next step.

    Raises:
        PodwrightError: something retained is in the way, the kit fails, or AWS refuses.
    """
    with locked_stacks(command, options) as (settings, kit, session):
        return _destroy(options, settings, kit, session)


def _destroy(options: argparse.Namespace, settings: Settings, kit: Kit, session: Session) -> int:
    say = speaker(quiet=options.json)
    try:
        recover(settings, kit.folder, say)
    except TerraformError as error:  # It cannot plan these settings; what the states list can go all the same.
        say(f"not looked for: {error}")
    destruction = Destruction.of(
        settings,
        kit,
        session,
        only=options.only,
        empty_bucket=options.empty_bucket,
        delete_file_systems=options.delete_file_systems,
    )
    say(destruction.text())
    place = f"{settings.name} in {settings.region} of account {session.account_id}"
    if not confirm(f"Destroy {place}?", yes=options.yes):
        return FAILED
    follow = resource_lines(destruction.stacks.values(), say)
    if destruction.resources["cluster"]:
        kit.run("destroy", names.cluster_stack(settings.name), SKIP_SYNTH, APPROVED, on_line=follow)
    if destruction.kept_file_systems:
        _destroy_around(destruction, session, follow)
    elif destruction.resources["foundation"]:
        with destruction.stacks["foundation"].released(FILE_SYSTEMS):
            _settle_bucket(destruction, session)
            kit.run("destroy", names.foundation_stack(settings.name), SKIP_SYNTH, APPROVED, ALONE, on_line=follow)
    if options.only is None:
        forget(settings, kit.folder)
    remaining_resources = inventory(session, settings.name)
    if options.json:
        kept_file_systems = [item["id"] for item in destruction.kept_file_systems.values()]
        print_document(
            Destroy.of(remaining_resources, kept_bucket=destruction.kept_bucket, kept_file_systems=kept_file_systems)
        )
    else:
        if destruction.kept_file_systems:
            print(_next_deployment(settings, destruction.kept_file_systems))
        elif destruction.kept_bucket:
            print("`podwright adopt --apply` takes the bucket into a new deployment: run it before `podwright deploy`")
        print_inventory(remaining_resources)
    return OK


@dataclass(frozen=True)
class Destruction:
    """The resources to destroy, from the states of the stacks.

    Args:
        settings: The settings of the cluster.
        stacks: The stacks, by ``foundation`` and ``cluster``.
        resources: The resources to destroy, by stack and Terraform address.
        bucket: The name of the foundation's bucket; empty if it has none.
        foreign_objects: The objects that podwright did not upload; None if the bucket goes with all its objects.
        empty_bucket: Whether to delete foreign objects too.
        kept_file_systems: The attributes of file systems that stay, by address.
        dependencies: The addresses of the resources that each resource of the foundation depends on.
    """

    settings: Settings
    stacks: Mapping[str, DeployedStack]
    resources: Mapping[str, Mapping[str, Mapping[str, Any]]]
    bucket: str
    foreign_objects: Contents | None
    empty_bucket: bool
    kept_file_systems: Mapping[str, Mapping[str, Any]]
    dependencies: Mapping[str, frozenset[str]]

    @classmethod
    def of(
        cls,
        settings: Settings,
        kit: Kit,
        session: Session,
        *,
        only: str | None,
        empty_bucket: bool,
        delete_file_systems: bool,
    ) -> Destruction:
        """Read the states, and choose the resources to destroy.

        Raises:
            ArgumentError: The cluster still uses the foundation, its database stays, or a backup is not deployed.
        """
        deployed = stacks(settings.name, folder=kit.folder)
        stored = {part: stack.state() for part, stack in deployed.items()}
        state = {part: attributes_in(stack_state) for part, stack_state in stored.items()}
        if only == "foundation" and state["cluster"]:
            raise ArgumentError(
                f"{settings.name}'s cluster still uses the foundation", "destroy both, or the cluster first"
            )
        chosen = {part: stack_resources if only in {None, part} else {} for part, stack_resources in state.items()}
        _refuse_kept_databases(settings, chosen["foundation"])
        _refuse_undeployed_backups(settings, chosen["foundation"])
        kept_file_systems = {
            address: item
            for address, item in _file_systems(chosen["foundation"]).items()
            if _on_destroy(settings, item) not in DELETING and not delete_file_systems
        }
        bucket_is_retained = settings.bucket.source == "create" and settings.bucket.on_destroy == "retain"
        bucket = next((item["bucket"] for item in chosen["foundation"].values() if item["type"] == "aws_s3_bucket"), "")
        own_prefixes = [f"{prefix}/" for prefix in names.readable_prefixes(settings.name)]
        foreign_objects = Contents(session, bucket, without=own_prefixes) if bucket and bucket_is_retained else None
        dependencies = dependencies_in(stored["foundation"])
        return cls(settings, deployed, chosen, bucket, foreign_objects, empty_bucket, kept_file_systems, dependencies)

    @property
    def kept_bucket(self) -> str:
        """The bucket that stays, because it holds objects that podwright did not upload; empty if no bucket stays."""
        return self.bucket if self.foreign_objects and self.foreign_objects.count and not self.empty_bucket else ""

    def text(self) -> str:
        """Return the resources that are deleted and those that stay."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        kept_addresses = self.needed_addresses()
        for part in PARTS[::-1]:
            if self.resources[part]:
                count = len(self.resources[part]) - (len(kept_addresses) if part == "foundation" else 0)
                yield f"{part}: {count} to destroy"
        for address, item in _file_systems(self.resources["foundation"]).items():
            name = f"{item['id']} ({item['storage_capacity']} GiB)"
            if address in self.kept_file_systems:
                because = _reason_to_keep(self.settings, item)
                yield f"  kept: {name}, {_price(item)}, because {because}; --delete-file-systems deletes it too"
            elif _on_destroy(self.settings, item) == "backup":
                yield f"  with a last backup: {name}"
            else:
                yield f"  with all data: {name}"
        yield from self._database_lines()
        if self.kept_file_systems:
            count = len(kept_addresses) - len(self.kept_file_systems)
            yield f"  kept with the files: {count} resources that they need, such as the network"
        if self.kept_bucket:
            key = " and its key" if any(path.startswith("key/") for path in self._paths("foundation")) else ""
            price = f"{self.foreign_objects.usd_per_month if self.foreign_objects else 0:,.2f} $/month"
            yield f"  kept: bucket {self.bucket}{key}: {self.foreign_objects}, {price}; --empty-bucket deletes them too"
        elif self.foreign_objects and self.foreign_objects.count:
            yield f"  with all objects: bucket {self.bucket}: {self.foreign_objects}"
        if not any(self.resources.values()):
            yield "nothing is deployed from this folder"

    def _database_lines(self) -> Iterator[str]:
        for item in _databases(self.resources["foundation"]):
            name = f"database {item['id']} ({item['allocated_storage']} GiB)"
            yield f"  with a last snapshot: {name}" if _leaves_snapshot(item) else f"  with all data: {name}"

    def _paths(self, part: str) -> dict[str, str]:
        """Return addresses by construct path, without the stack."""
        return {path.partition("/")[2]: address for path, address in self.stacks[part].addresses().items()}

    def needed_addresses(self) -> set[str]:
        """Return the addresses that stay in the state: kept file systems, what is in them or needed, the bucket."""
        resources, paths = self.resources["foundation"], self._paths("foundation").items()
        kept_addresses = self.kept_file_systems.keys()
        if not kept_addresses:
            return set()
        in_them = (address for address in resources if self.dependencies.get(address, frozenset()) & kept_addresses)
        remaining = [*kept_addresses, *(address for address in in_them if resources[address]["type"].startswith(FSX))]
        remaining += [address for path, address in paths if path.startswith(STATE_OWNER)]
        remaining += self.kept_addresses() if self.kept_bucket else []
        needed: set[str] = set()
        while remaining:
            address = remaining.pop()
            if address in resources and address not in needed:
                needed.add(address)
                remaining += self.dependencies.get(address, ())
        return needed

    def kept_addresses(self) -> list[str]:
        """Return the addresses of the kept bucket, its settings and its key."""
        resources, paths = self.resources["foundation"], self._paths("foundation").items()
        return [address for path, address in paths if path.startswith(BUCKET_CONSTRUCTS) and address in resources]


def _settle_bucket(destruction: Destruction, session: Session) -> None:
    """Remove a kept bucket from the state, or empty a bucket that is to be deleted.

    Objects are deleted only after Terraform had the state's lock and planned to destroy: what it refuses stays whole. A
    bucket that the state lists may be gone: AWS does what an interrupted destruction had asked for.
    """
    if destruction.kept_bucket or destruction.foreign_objects is not None:
        destruction.stacks["foundation"].terraform("plan", "-destroy", "-refresh=false", "-input=false", "-no-color")
    if destruction.kept_bucket:
        destruction.stacks["foundation"].terraform("state", "rm", *destruction.kept_addresses())
    elif destruction.foreign_objects is not None and destruction.foreign_objects.exists:
        empty(session, destruction.bucket)


def _destroy_around(destruction: Destruction, session: Session, follow: Callable[[str], None]) -> None:
    """Destroy what neither a kept file system needs nor the bucket with its objects; the rest stays in the state.

    Terraform also destroys whatever depends on a target. Nothing that stays does: it would be a target itself.
    """
    stack, kept_addresses = destruction.stacks["foundation"], destruction.needed_addresses()
    targets = [f"-target={address}" for address in destruction.resources["foundation"] if address not in kept_addresses]
    if not targets:
        return
    if destruction.foreign_objects is not None and destruction.foreign_objects.exists and not destruction.kept_bucket:
        stack.terraform("plan", "-destroy", "-refresh=false", "-input=false", "-no-color", *targets)
        empty(session, destruction.bucket)
    printed = stack.terraform("destroy", APPROVED.removeprefix("-"), "-input=false", "-no-color", *targets)
    for line in printed.splitlines():
        follow(line)


def _file_systems(resources: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the attributes of the file systems among resources, by address."""
    return {address: item for address, item in resources.items() if item["type"] in FILE_SYSTEMS}


def _price(item: Mapping[str, Any]) -> str:
    usd_per_hour = prices.of(item["type"], item)
    return "price unknown" if usd_per_hour is None else f"{usd_per_hour * MONTH_H:,.0f} $/month"


def _databases(resources: Mapping[str, Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the attributes of the databases among resources."""
    return [item for item in resources.values() if item["type"] == DATABASE]


def _leaves_snapshot(database: Mapping[str, Any]) -> bool:
    """Return whether the provider lets RDS make a last snapshot: it reads that from the state."""
    return database.get("skip_final_snapshot") is False


def _refuse_kept_databases(settings: Settings, resources: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse to destroy a foundation whose database stays: it needs the network, and RDS would refuse in the midst.

    Raises:
        ArgumentError: The settings retain the database, or RDS protects it as it was deployed.
    """
    on_destroy = getattr(settings.accounting, "on_destroy", "")
    for item in _databases(resources):
        refused = f"cannot destroy the foundation: database {item['id']} stays, and needs the network"
        if on_destroy == "retain":
            raise ArgumentError(
                f"{refused}: accounting.on_destroy is `retain`",
                "set accounting.on_destroy: destroy and deploy that first, or use --only cluster",
            )
        if item.get("deletion_protection"):
            if on_destroy:
                reason = f"it was deployed with accounting.on_destroy: retain, and `{on_destroy}` is not deployed"
                raise ArgumentError(f"{refused}: {reason}", DEPLOY_FIRST)
            raise ArgumentError(
                f"{refused}: it was deployed with accounting.on_destroy: retain, and the file no longer creates it",
                "write its accounting section again with on_destroy: backup or destroy and deploy that first, or use "
                "--only cluster",
            )


def _refuse_undeployed_backups(settings: Settings, resources: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse to rely on ``on_destroy: backup`` before it is deployed: the provider reads it from the state.

    Raises:
        ArgumentError: A file system or database would be deleted without the backup that the settings ask for.
    """
    undeployed = [
        f"{FILE_SYSTEMS[item['type']]}.on_destroy of {item['id']}"
        for item in _file_systems(resources).values()
        if _on_destroy(settings, item) == "backup" and item.get("skip_final_backup") is not False
    ]
    if getattr(settings.accounting, "on_destroy", "") == "backup":
        without_snapshot = (item for item in _databases(resources) if not _leaves_snapshot(item))
        undeployed += [f"accounting.on_destroy of database {item['id']}" for item in without_snapshot]
    if undeployed:
        raise ArgumentError(
            f"cannot destroy the foundation: `backup` of {' and '.join(undeployed)} is not deployed, so that no backup "
            "would be made",
            DEPLOY_FIRST,
        )


def _on_destroy(settings: Settings, file_system: Mapping[str, Any]) -> str:
    """Return what the settings say of a file system; empty if they create none."""
    return str(getattr(getattr(settings, FILE_SYSTEMS[file_system["type"]]), "on_destroy", ""))


def _reason_to_keep(settings: Settings, file_system: Mapping[str, Any]) -> str:
    section = FILE_SYSTEMS[file_system["type"]]
    on_destroy = _on_destroy(settings, file_system)
    return f"{section}.on_destroy is `{on_destroy}`" if on_destroy else f"the file no longer creates {section}"


def _next_deployment(settings: Settings, kept_file_systems: Mapping[str, Mapping[str, Any]]) -> str:
    """Return what the next deployment does with kept file systems; one that the file omits would be destroyed."""
    file_systems = kept_file_systems.values()
    omitted = sorted({FILE_SYSTEMS[item["type"]] for item in file_systems if not _on_destroy(settings, item)})
    if omitted:
        return (
            f"write {' and '.join(omitted)} with source: create again before `podwright deploy`, to use the kept files"
        )
    return "`podwright deploy` makes the rest again, with the files that were kept"
