"""``podwright scale``: set the number of nodes of an instance group, in cluster.yaml or through the API."""

from __future__ import annotations

import argparse
import codecs
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from podwright.check.document import Document
from podwright.check.findings import has_errors
from podwright.check.input_errors import InvalidSettingsError
from podwright.diagram import prices
from podwright.errors import ArgumentError, OperationError
from podwright.json_document import JsonObject
from podwright.operations.account.hyperpod import suggestion
from podwright.operations.deployment.deployed_stacks import stacks
from podwright.operations.deployment.kit import Kit
from podwright.operations.deployment.planned_changes import Change, planned, summary
from podwright.operations.nodes.group_request import group_request
from podwright.operations.output import confirm, print_document
from podwright.operations.target import Target, add_examples, add_target_arguments, target
from podwright.output_file import place_of
from podwright_bootstrap.contract import CONTROLLER
from podwright_common.atomic_file import write_file
from podwright_common.exit_status import FAILED, OK
from podwright_constructs import facts

if TYPE_CHECKING:
    from podwright.settings.root import Settings

GROUPS = ("cluster", "instance_groups")  # The path of the groups in cluster.yaml.


@dataclass(frozen=True, kw_only=True)
class Scaling(JsonObject):
    """The document of `podwright scale --json`."""

    schema: Literal["podwright.scale/1"] = "podwright.scale/1"
    cluster: str
    group: str
    before: int
    after: int
    usd_per_hour_before: float | None
    usd_per_hour_after: float | None
    prices: str
    """Whose prices they are."""
    file: str | None
    """The settings file that was changed; null where AWS was."""
    line: int | None
    changes: list[dict[str, Any]] | None
    """Terraform's planned changes; null where nothing was deployed from this folder."""

    def text(self) -> str:
        """Return the change in one line."""
        price = f"{_price(self.usd_per_hour_before)} -> {_price(self.usd_per_hour_after)} $/h ({self.prices})"
        return f"{self.group}: {self.before} -> {self.after} nodes, {price}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add GROUP, N and --yes."""
    parser.add_argument("group", metavar="GROUP", help="name of the instance group")
    parser.add_argument("count", type=_count, metavar="N", help="number of nodes; 0 keeps the group without nodes")
    parser.add_argument("--yes", action="store_true", help="do not ask before a change in AWS")
    add_target_arguments(parser)
    add_examples(parser, "podwright scale workers 4", "podwright scale workers 0 --cluster not-from-podwright --yes")


def run(options: argparse.Namespace) -> int:
    """Edit cluster.yaml, or update a cluster that has none here.

    Raises:
        ArgumentError: there is no such group.
        InvalidSettingsError: the file with the new number has errors; it stays as it was.
        FolderBusyError: another command deploys from this folder; the file stays as it was.
        TerraformError: Terraform cannot plan the file with the new number; it stays as it was.
        AwsError: AWS refuses or does not answer.
    """
    cluster_target = target(options)
    return _in_file(options, cluster_target.file) if cluster_target.file else _in_aws(options, cluster_target)


def _in_file(options: argparse.Namespace, file: Path) -> int:
    source = Document.read(file)
    path = (*GROUPS, _index(source, options.group), "count")
    before = _checked(source).cluster.instance_groups[_index(source, options.group)]
    text = source.text_with(path, str(options.count))
    edited = Document.parse(text, file=file)
    settings = _checked(edited)
    after = settings.cluster.instance_groups[_index(edited, options.group)]
    changes = _write(settings, source, text)
    scaling = Scaling(
        cluster=settings.name,
        group=after.name,
        before=before.count,
        after=after.count,
        usd_per_hour_before=prices.nodes(before.instance_type, before.count, before.volume_gib, region=settings.region),
        usd_per_hour_after=prices.nodes(after.instance_type, after.count, after.volume_gib, region=settings.region),
        prices=prices.label(settings.region, [after.instance_type]),
        file=str(file),
        line=edited.position(path).line,
        changes=None if changes is None else [change.to_dict() for change in changes],
    )
    if options.json:
        print_document(scaling)
        return OK
    print(f"{file}:{scaling.line}: {scaling.text()}")
    if changes is not None:
        print("\n".join([f"cluster: {summary(changes)}", *(f"  {change.line()}" for change in changes)]))
    if scaling.after < scaling.before:
        print("AWS chooses the nodes to delete: to choose yourself, run `podwright nodes delete` first")
    if changes != []:
        print("next: `podwright deploy --only cluster`")
    return OK


def _write(settings: Settings, source: Document, text: str) -> list[Change] | None:
    """Write the file once Terraform has planned it; return the plan, None where nothing was deployed from this folder.

    Terraform plans a copy in the same folder, so that the file changes only if the plan succeeds.

    Raises:
        FolderBusyError: another command deploys from this folder.
        PodwrightError: Terraform cannot plan it, or somebody else has edited the file; it is as it was.
    """
    file = source.file
    path = place_of(file)
    mark = codecs.BOM_UTF8 if path.read_bytes().startswith(codecs.BOM_UTF8) else b""
    content, mode = mark + text.encode(), path.stat().st_mode & 0o777
    stack = stacks(settings.name, folder=Path.cwd())["cluster"]
    if not stack.was_initialized:
        write_file(path, content, mode=mode)
        return None
    candidate = file.with_name(f".{file.name}.scale")
    kit = Kit(candidate, Path.cwd())
    with kit.locked("scale"):
        try:
            write_file(candidate, content, mode=mode)
            kit.synthesize()
            changes = planned(stack)
        finally:
            candidate.unlink(missing_ok=True)
        if path.read_bytes() != mark + source.text.encode():
            raise OperationError(f"{file} was edited while Terraform planned it: nothing was written", "scale again")
        write_file(path, content, mode=mode)
    return changes


def _checked(source: Document) -> Settings:
    """Return the settings of a file without errors.

    Raises:
        InvalidSettingsError: it has errors; all of them are in it.
    """
    from podwright.check.checked_settings import check_document  # --help need not wait for pydantic

    report = check_document(source)
    if report.settings is None or has_errors(report.findings):
        raise InvalidSettingsError(file=source.file, text=source.text, findings=report.findings)
    return report.settings


def _in_aws(options: argparse.Namespace, cluster_target: Target) -> int:
    cluster = cluster_target.cluster()
    group = cluster.group(options.group)
    if group.role == CONTROLLER:
        raise ArgumentError(f"{group.name} runs Slurm's controller: its number of nodes stays", "scale another group")
    volumes = [item.get("EbsVolumeConfig", {}) for item in group.description.get("InstanceStorageConfigs", ())]
    volume_gib = sum(volume.get("VolumeSizeInGB", 0) for volume in volumes)
    scaling = Scaling(
        cluster=cluster.name,
        group=group.name,
        before=group.target_count,
        after=options.count,
        usd_per_hour_before=prices.nodes(group.instance_type, group.target_count, volume_gib, region=cluster.region),
        usd_per_hour_after=prices.nodes(group.instance_type, options.count, volume_gib, region=cluster.region),
        prices=prices.label(cluster.region, [group.instance_type]),
        file=None,
        line=None,
        changes=None,
    )
    if scaling.before != scaling.after:
        if not confirm(f"Scale {cluster.name}? {scaling.text()}.", yes=options.yes):
            return FAILED
        request = group_request(cluster_target.session, group, count=options.count)
        cluster_target.session.call("sagemaker", "update_cluster", ClusterName=cluster.arn, InstanceGroups=[request])
    if options.json:
        print_document(scaling)
    else:
        print(f"{cluster.name}: {scaling.text()}")
        print("next: `podwright status --wait` waits until they run")
    return OK


def _index(source: Document, group: str) -> int:
    names = [item["name"] for item in source.data[GROUPS[0]][GROUPS[1]]]
    if group not in names:
        raise ArgumentError(f"{source.file} has no instance group {group!r}", suggestion(group, names))
    return int(names.index(group))


def _price(usd_per_hour: float | None) -> str:
    return "?" if usd_per_hour is None else f"{usd_per_hour:.2f}"


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) > facts.MAX_INSTANCE_COUNT:
        raise argparse.ArgumentTypeError(f"got {text}, need a whole number from 0 to {facts.MAX_INSTANCE_COUNT}")
    return int(text)
