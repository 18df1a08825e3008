"""``podwright deploy``: show price and changes, run the kit, follow resources and boots, end with the next commands."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

from podwright.aws_session import Session, deployer_session
from podwright.check.account import Account
from podwright.check.load import load
from podwright.config_file import add_file, with_file
from podwright.diagram.stack_resources import read
from podwright.errors import OperationError
from podwright.json_document import JsonObject
from podwright.list_prices import MONTH_H
from podwright.operations.account import hyperpod
from podwright.operations.account.failures import cause_of_deployment
from podwright.operations.deployment import planned_changes
from podwright.operations.deployment.align import align_stack
from podwright.operations.deployment.boots import followed
from podwright.operations.deployment.deployed_stacks import DeployedStack, stacks
from podwright.operations.deployment.kit import OUTPUT, Kit, find_program
from podwright.operations.deployment.loss_guard import refuse_kept, refuse_losses
from podwright.operations.deployment.outputs import Outputs, outputs
from podwright.operations.deployment.planned_changes import CREATE, REPLACE, UPDATE, Change
from podwright.operations.deployment.recovery import forget, noted, recover
from podwright.operations.deployment.terraform import TerraformError
from podwright.operations.output import confirm, print_document
from podwright.operations.target import add_examples, add_profile
from podwright.resource_types import CLUSTER
from podwright_common.command_line import add_json, add_yes
from podwright_common.exit_status import FAILED, OK

if TYPE_CHECKING:
    from podwright.diagram.parts import Diagram
    from podwright.settings.root import Settings

PARTS = ("foundation", "cluster")
# Nodes refuse `submit` until they have the user's key.
AUTHORIZE = "podwright ssh-config --write --authorize ~/.ssh/id_ed25519.pub"
SKIP_SYNTH, APPROVED = "--skip-synth", "--auto-approve"
ALONE = "--ignore-missing-stack-dependencies"

CLOUD_CONTROL = "Cloud Control"  # The API that creates clusters: each error of a cluster names it.
FRAMES = str.maketrans("│╷╵", "   ")  # Terraform draws frames around errors.
# What cdktf prints of Terraform: ``STACK  aws_vpc.NAME: Creation complete after 2s [id=vpc-1]``.
_DONE = re.compile(
    r"(?P<address>\w+\.\w+)(?: \(deposed object \w+\))?: "
    r"(?P<verb>Creation|Modifications|Destruction) complete after (?P<time>\w+)(?: \[id=(?P<id>.*)\])?"
)
_DENIED = re.compile(r"not authorized to perform: (?P<action>[\w-]+:\w+)")
# AWS answers this for a resource that exists and that no state lists.
_EXISTS = re.compile(r"EntityAlreadyExists|AlreadyExistsException|BucketAlreadyOwnedByYou")
_WORDS = {"Creation": "created", "Modifications": "updated", "Destruction": "destroyed"}


@dataclass(frozen=True, kw_only=True)
class DeployPreview(JsonObject):
    """The document of `podwright deploy --dry-run --json`."""

    schema: Literal["podwright.deploy/1"] = "podwright.deploy/1"
    cluster: str
    region: str
    changes: list[Change]
    usd_per_hour: float = field(metadata={"digits": 4})
    nodes_usd_per_hour: float = field(metadata={"digits": 4})
    kept_usd_per_month: float = field(metadata={"digits": 2})
    """Cost of the resources that stay when the cluster is destroyed and the foundation kept."""
    unpriced: list[str]


@dataclass(frozen=True, kw_only=True)
class Deploy(DeployPreview):
    """The document of `podwright deploy --json`; with `--dry-run` the last three keys are missing."""

    seconds: int = 0
    outputs: Outputs = field(default_factory=dict)
    next: list[str] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add FILE, --only, --profile, --yes, --json, --dry-run and --replace."""
    add_kit_arguments(parser)
    parser.add_argument("--dry-run", action="store_true", help="show price and changes, without deploying")
    help_ = "allow replacing or destroying this resource, which ends jobs or loses data; may be repeated"
    parser.add_argument("--replace", action="append", default=[], metavar="PATH", help=help_)
    add_examples(
        parser, "podwright deploy", "podwright deploy --only cluster --yes", "podwright deploy --dry-run --json"
    )


def add_kit_arguments(parser: argparse.ArgumentParser) -> None:
    """Add FILE and the flags that ``deploy`` and ``destroy`` share."""
    add_file(parser)
    parser.add_argument("--only", choices=PARTS, help="work on one stack only. Default: both")
    add_profile(parser)
    add_yes(parser)
    add_json(parser)


def use_profile(name: str | None) -> None:
    """Let Terraform and boto3 use one profile of AWS's configuration."""
    if name:
        os.environ["AWS_PROFILE"] = name


def run(options: argparse.Namespace) -> int:
    """Deploy the stacks of a settings file.

    Raises:
        PodwrightError: the file is wrong, the kit fails, or AWS refuses.
    """
    with locked_stacks(with_file("deploy", options.file), options) as (settings, kit, session):
        return _deploy(options, settings, kit, session)


@contextmanager
def locked_stacks(
    command: str, options: argparse.Namespace, *, needs_program: bool = True
) -> Iterator[tuple[Settings, Kit, Session]]:
    """Synthesize the stacks of a settings file, and let no other command work on them within the context.

    Args:
        command: what the lock says of this command.
        options: the command's arguments, with ``file`` and ``profile``.
        needs_program: whether the command runs the kit's program, so that a missing one is an error before the wait.

    Raises:
        PodwrightError: the file is wrong, AWS refuses, or the stacks belong to another account.
    """
    use_profile(options.profile)
    settings, kit = load(options.file), Kit(options.file, Path.cwd())
    session = deployer_session(settings, profile=options.profile)
    session.require_answer()
    if needs_program:
        find_program()
    with kit.locked(command):
        kit.synthesize()
        for stack in stacks(settings.name, folder=kit.folder).values():
            stack.check_owner(account_id=session.account_id, region=settings.region)
        yield settings, kit, session


def _deploy(options: argparse.Namespace, settings: Settings, kit: Kit, session: Session) -> int:
    say = speaker(quiet=options.json)
    recover(settings, kit.folder, say, apply=not options.dry_run)
    preview = Preview.of(settings, kit, options.only)
    if not options.json:
        print(preview.text())
    if options.dry_run:
        if options.json:
            print_document(preview.document())
        return OK
    if preview.changes_nothing:
        forget(settings, kit.folder)
        _finish(preview, settings, kit, json=options.json, seconds=0.0)
        return OK
    refuse_losses(preview.changes, allowed=options.replace)
    refuse_kept(preview.changes, retaining_keys=_retaining_keys(settings), allowed=options.replace)
    place = f"{settings.name} in {settings.region} of account {session.account_id}"
    if not confirm(f"Deploy {place}?", yes=options.yes):
        return FAILED
    started = time.monotonic()
    nodes = sum(group.count for group in settings.cluster.instance_groups)
    follow = resource_lines(preview.stacks.values(), say)
    with (
        noted(settings, kit.folder),
        followed(session, settings.name, nodes=nodes, on_line=say),
        explained(settings),
    ):
        if preview.waits_for_foundation:
            kit.run("deploy", preview.stacks["foundation"].name, SKIP_SYNTH, APPROVED, ALONE, on_line=follow)
            preview = preview.with_cluster()
            say("\n".join(preview.lines_of("cluster")))
            refuse_losses(
                {"cluster": preview.changes["cluster"]}, allowed=options.replace, deployed="the foundation alone"
            )
        if preview.updates_cluster:
            align_stack(preview.stacks["cluster"], Account(session))
        _open_guard(preview)
        alone = [ALONE] if options.only else []
        kit.run("deploy", *preview.stack_names, SKIP_SYNTH, APPROVED, *alone, on_line=follow)
    if "cluster" in preview.stacks and settings.cluster.node_provisioning:
        for line in missing_nodes(session, settings.name):
            say(line)
    _finish(preview, settings, kit, json=options.json, seconds=time.monotonic() - started)
    return OK


def _retaining_keys(settings: Settings) -> dict[str, str]:
    """Return the keys that keep file systems, by construct path."""
    return {
        f"{section}/file_system": f"{section}.on_destroy"
        for section in ("lustre", "openzfs")
        if getattr(getattr(settings, section), "on_destroy", "") == "retain"
    }


def missing_nodes(session: Session, name: str) -> Iterator[str]:
    """Yield a line for each group that lacks nodes; a continuously provisioned cluster is InService without them."""
    try:
        cluster = hyperpod.find(session, name)
    except OperationError as error:
        yield f"nodes not counted: {error}"
        return
    for group in cluster.groups:
        if group.current_count < group.target_count:
            yield (
                f"{group.name} has {group.current_count} of {group.target_count} nodes, and SageMaker keeps trying: "
                "`podwright status --wait` waits for the rest, `podwright status` shows why they are missing"
            )


def _open_guard(preview: Preview) -> None:
    """Let Terraform replace the cluster if that is planned; the next guard records the new cluster's arguments."""
    if any(change.kind == CLUSTER and change.verb == REPLACE for change in preview.changes.get("cluster") or ()):
        preview.stacks["cluster"].forget_guards()


@contextmanager
def explained(settings: Settings) -> Iterator[None]:
    """Add a denied permission, or the likely cause of a failure and where to look, to the error of the CDK command.

    Raises:
        OperationError: The command's error, with the explanation.
    """
    try:
        yield
    except OperationError as error:
        plain = " ".join(str(error).translate(FRAMES).split())
        if denied := _DENIED.search(plain):
            hint = f"allow {denied['action']}: `podwright policy deployer` prints all that deploying needs"
            raise OperationError(str(error), hint) from error
        if _EXISTS.search(plain):
            hint = "if an interrupted deployment made it: `podwright adopt` lists what no state has, --apply takes it"
            raise OperationError(str(error), hint) from error
        likely_cause = cause_of_deployment(plain, name=settings.name, region=settings.region)
        if likely_cause is None or CLOUD_CONTROL not in plain:
            raise
        raise OperationError(f"{error}\nlikely: {likely_cause.cause}\nlook:   {likely_cause.command}") from error


@dataclass(frozen=True)
class Preview:
    """Changes and price of a deployment, by stack; the changes of a cluster that cannot be planned yet are None."""

    settings: Settings
    stacks: dict[str, DeployedStack]
    changes: dict[str, list[Change] | None]
    cluster_diagram: Diagram

    @classmethod
    def of(cls, settings: Settings, kit: Kit, only: str | None) -> Preview:
        """Plan the synthesized stacks."""
        from podwright.diagram.parts import diagram  # --help need not wait for pydantic

        chosen = {
            part: stack for part, stack in stacks(settings.name, folder=kit.folder).items() if only in {None, part}
        }
        return cls(
            settings,
            chosen,
            {part: _planned(stack, is_first=part == PARTS[0] or bool(only)) for part, stack in chosen.items()},
            diagram(settings, read(kit.folder / OUTPUT)),
        )

    @property
    def stack_names(self) -> Sequence[str]:
        """The names of the stacks, in the order of deployment."""
        return [stack.name for stack in self.stacks.values()]

    @property
    def changes_nothing(self) -> bool:
        """Return whether every stack is already as the settings describe it."""
        return all(change == [] for change in self.changes.values())

    @property
    def waits_for_foundation(self) -> bool:
        """Return whether the cluster can be planned only after the foundation's additions are deployed."""
        return self.changes.get("cluster", ()) is None

    def with_cluster(self) -> Preview:
        """Return the preview with the cluster's changes, after the foundation is deployed.

        Raises:
            TerraformError: Terraform cannot plan it.
        """
        return replace(self, changes={**self.changes, "cluster": planned_changes.planned(self.stacks["cluster"])})

    @property
    def creates(self) -> bool:
        """Return whether the deployment creates a resource."""
        return any(change.verb == CREATE for stack_changes in self.changes.values() for change in stack_changes or ())

    @property
    def updates_cluster(self) -> bool:
        """Return whether the cluster is updated in place, for which the state needs its groups in AWS's order."""
        return any(change.kind == CLUSTER and change.verb == UPDATE for change in self.changes.get("cluster") or ())

    @property
    def usd_per_hour(self) -> float:
        """The price of all resources."""
        return self.cluster_diagram.usd_per_hour

    @property
    def nodes_usd_per_hour(self) -> float:
        """The price of the nodes."""
        return sum(
            part.usd_per_hour or 0.0 for part in self.cluster_diagram.parts if part.address.startswith(f"{CLUSTER}.")
        )

    @property
    def kept_usd_per_month(self) -> float:
        """The price of all resources but the nodes, for a month."""
        return (self.usd_per_hour - self.nodes_usd_per_hour) * MONTH_H

    def text(self) -> str:
        """Return the preview for a terminal."""
        from podwright.diagram.text_diagram import total
        from podwright.planning.on_demand import BASE_REGION

        lines = [f"{self.settings.name} in {self.settings.region}"]
        lines += [line for part in self.changes for line in self.lines_of(part)]
        usd_per_hour_without_nodes = self.usd_per_hour - self.nodes_usd_per_hour
        without = f"{usd_per_hour_without_nodes:,.2f} USD/h of it without the nodes, at {BASE_REGION}'s prices"
        month = (
            f"{self.kept_usd_per_month:,.0f} USD a month, also when the cluster is destroyed and the foundation kept"
        )
        return "\n".join([*lines, f"cost: {total(self.cluster_diagram)}", f"  {without}: {month}"])

    def lines_of(self, part: str) -> list[str]:
        """Return the changes of a part for a terminal."""
        stack_changes = self.changes[part]
        if stack_changes is None:
            return [f"{part}: planned after the foundation is deployed, and refused if that plan ends jobs"]
        return [
            f"{part}: {planned_changes.summary(stack_changes)}",
            *(f"  {change.line()}" for change in stack_changes),
        ]

    def document(self) -> DeployPreview:
        """Return the preview for ``--json``."""
        return DeployPreview.of(self, **self._document_values())

    def deployed(self, *, seconds: float, stack_outputs: Outputs, following: list[str]) -> Deploy:
        """Return the document of the finished deployment."""
        values = self._document_values()
        return Deploy.of(self, **values, seconds=round(seconds), outputs=stack_outputs, next=following)

    def _document_values(self) -> dict[str, Any]:
        return {
            "cluster": self.settings.name,
            "region": self.settings.region,
            "changes": [change for stack_changes in self.changes.values() for change in stack_changes or ()],
            "unpriced": list(self.cluster_diagram.unpriced),
        }


def _planned(stack: DeployedStack, *, is_first: bool) -> list[Change] | None:
    """Return a stack's changes; None for a deployed cluster if its foundation has to change first."""
    try:
        return planned_changes.planned(stack)
    except TerraformError:
        if is_first:
            raise
        return None


def speaker(*, quiet: bool) -> Callable[[str], None]:
    """Return a function that prints whole lines from several threads; to stderr under ``--json``."""
    lock = Lock()

    def say(line: str) -> None:
        with lock:
            print(line, file=sys.stderr if quiet else sys.stdout, flush=True)

    return say


def resource_lines(deployed: Iterable[DeployedStack], say: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that reads the kit's output and prints one line for each finished resource."""
    paths = {address: path.partition("/")[2] for stack in deployed for path, address in stack.addresses().items()}

    def follow(line: str) -> None:
        done = _DONE.search(line)
        if done:
            name = " ".join(filter(None, [paths.get(done["address"], done["address"]), done["id"]]))
            say(f"{_WORDS[done['verb']]:<9} {name} ({done['time']})")

    return follow


def _finish(preview: Preview, settings: Settings, kit: Kit, *, json: bool, seconds: float) -> None:
    stack_outputs = outputs(settings.name, folder=kit.folder) if preview.stacks.keys() == set(PARTS) else {}
    following = next_commands(settings)
    if json:
        print_document(preview.deployed(seconds=seconds, stack_outputs=stack_outputs, following=following))
        return
    if seconds:
        print(f"deployed in {seconds / 60:.0f} min" if seconds > 90 else f"deployed in {seconds:.0f} s")  # noqa: PLR2004 -- below, minutes say little
    if settings.state.source == "local" and preview.creates:
        print(
            "state: terraform.*.tfstate in this folder alone; `podwright state` moves it to S3, in case this folder is "
            "lost"
        )
    print("next:\n" + "\n".join(f"  {command}" for command in following))


def next_commands(settings: Settings) -> list[str]:
    """Return the commands to run after a deployment."""
    nodes = sum(group.count for group in settings.cluster.instance_groups if group.partition)
    can_train = settings.training.source == "bundled" and nodes and Path("run.yaml").exists()
    train = [AUTHORIZE, f"podwright submit run.yaml --nodes {nodes}"] if can_train else []
    return ["podwright status", "podwright connect", *train]
