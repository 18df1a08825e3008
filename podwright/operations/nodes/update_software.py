"""``podwright update-software``: show image versions, and install SageMaker's newest image on nodes."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from podwright.errors import ArgumentError
from podwright.json_document import JsonObject
from podwright.operations.account.hyperpod import Cluster, InstanceGroup
from podwright.operations.output import Column, confirm, print_document, print_table
from podwright.operations.target import add_examples, add_target_arguments, target
from podwright_bootstrap.contract import CONTROLLER
from podwright_common.command_line import add_yes
from podwright_constructs import facts

UP_TO_DATE = "UpToDate"
CONSEQUENCES = "Root volumes are replaced, lifecycle scripts run again, and jobs on the nodes are requeued."
COLUMNS = (
    Column("GROUP"),
    Column("NODES", right=True),
    Column("IMAGE"),
    Column("RELEASE"),
    Column("NEXT", rank=2),
    Column("STATE"),
    Column("UPDATE", rank=1),
)
_BATCH = re.compile(r"(?P<value>[1-9]\d*)(?P<percent>%?)")


@dataclass(frozen=True)
class _UpdatedGroup(JsonObject):
    name: str
    nodes: int
    image_id: str
    image_version: str
    desired_image_version: str
    image_status: str
    software_update_status: str


@dataclass(frozen=True, kw_only=True)
class UpdateSoftware(JsonObject):
    """The document of `podwright update-software --json`."""

    schema: Literal["podwright.update-software/1"] = "podwright.update-software/1"
    cluster: str
    started: bool
    """False with `--check`."""
    groups: list[_UpdatedGroup]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --group, --check, --release, --image-id, and flags for a rolling update."""
    parser.add_argument(
        "--group", action="append", default=[], metavar="NAME", help="only this group; may be repeated. Default: all"
    )
    parser.add_argument("--check", action="store_true", help="only show versions; status 1 if a group can be updated")
    parser.add_argument("--release", metavar="VERSION", help="SageMaker's release of the image. Default: the newest")
    parser.add_argument("--image-id", type=_image, metavar="AMI", help="your own AMI, or default for SageMaker's")
    rolling = parser.add_argument_group(
        "rolling update", "AWS's page keeps it for clusters orchestrated by EKS: on Slurm AWS may refuse it."
    )
    rolling.add_argument(
        "--batch", type=_batch, metavar="N|N%", help="nodes of a group updated at a time. Default: all at once"
    )
    rolling.add_argument(
        "--pause-s",
        type=_pause,
        metavar="SECONDS",
        help=f"pause between two batches, at most {facts.MAX_UPDATE_WAIT_S} s. Default: 0",
    )
    rolling.add_argument(
        "--rollback-alarm",
        action="append",
        default=[],
        metavar="NAME",
        help="CloudWatch alarm that rolls the update back; may be repeated. Default: no alarm",
    )
    add_yes(parser)
    add_target_arguments(parser)
    add_examples(
        parser,
        "podwright update-software --check",
        "podwright update-software --group workers",
    )


def run(options: argparse.Namespace) -> int:
    """Show versions and, after a yes, update.

    Raises:
        ArgumentError: there is no such group, or a policy without ``--batch``.
        AwsError: AWS refuses or does not answer.
    """
    deployment = deployment_config(options)
    cluster_target = target(options)
    cluster = cluster_target.cluster()
    groups = [cluster.group(name) for name in dict.fromkeys(options.group)] or list(cluster.groups)
    behind = [group for group in groups if group.image_status not in {"", UP_TO_DATE}]
    if not options.json:
        print_table(COLUMNS, [_row(group) for group in groups])
    if options.check:
        if options.json:
            print_document(_document(cluster, groups, started=False))
        return 1 if behind else 0
    if not confirm(_question(cluster, groups, options), yes=options.yes):
        return 1
    cluster_target.session.call(
        "sagemaker", "update_cluster_software", **_request(cluster, groups, options, deployment)
    )
    if options.json:
        print_document(_document(cluster, groups, started=True))
    else:
        print("started: `podwright status --watch` follows it, `podwright status --wait` waits for its end")
    return 0


def deployment_config(options: argparse.Namespace) -> dict[str, Any]:
    """Return UpdateClusterSoftware's DeploymentConfig; empty where no policy is asked for.

    Raises:
        ArgumentError: a pause or an alarm without a batch size.
    """
    policy = [f"--{name}" for name in ("pause-s", "rollback-alarm") if getattr(options, name.replace("-", "_"))]
    if options.batch is None:
        if policy:
            raise ArgumentError(f"{' and '.join(policy)} need --batch", "give --batch, such as --batch 25%")
        return {}
    config: dict[str, Any] = {"RollingUpdatePolicy": {"MaximumBatchSize": options.batch}}
    if options.pause_s:
        config["WaitIntervalInSeconds"] = options.pause_s
    if options.rollback_alarm:
        config["AutoRollbackConfiguration"] = [{"AlarmName": name} for name in options.rollback_alarm]
    return config


def _request(
    cluster: Cluster, groups: Sequence[InstanceGroup], options: argparse.Namespace, deployment: dict[str, Any]
) -> dict[str, Any]:
    release = {"ImageReleaseVersion": options.release} if options.release else {}
    request: dict[str, Any] = {"ClusterName": cluster.arn}
    if options.group or release:
        request["InstanceGroups"] = [{"InstanceGroupName": group.name, **release} for group in groups]
    if deployment:
        request["DeploymentConfig"] = deployment
    if options.image_id:
        request["ImageId"] = options.image_id
    return request


def _question(cluster: Cluster, groups: Sequence[InstanceGroup], options: argparse.Namespace) -> str:
    count = sum(group.current_count for group in groups)
    image = options.image_id or (f"release {options.release}" if options.release else "SageMaker's newest image")
    question = f"Install {image} on {count} nodes of {', '.join(group.name for group in groups)} of {cluster.name}?"
    heads = [group.name for group in groups if group.role == CONTROLLER]
    stop = f" No job starts while {' and '.join(heads)} is updated." if heads else ""
    return f"{question} {CONSEQUENCES}{stop}"


def _row(group: InstanceGroup) -> tuple[str, ...]:
    return (
        group.name,
        str(group.current_count),
        group.description.get("CurrentImageId", "?"),
        group.image_version or "?",
        group.description.get("DesiredImageReleaseVersion", ""),
        group.image_status or "?",
        group.software_update_status,
    )


def _document(cluster: Cluster, groups: Sequence[InstanceGroup], *, started: bool) -> UpdateSoftware:
    updated_groups = [
        _UpdatedGroup.of(
            group,
            nodes=group.current_count,
            image_id=group.description.get("CurrentImageId", ""),
            desired_image_version=group.description.get("DesiredImageReleaseVersion", ""),
        )
        for group in groups
    ]
    return UpdateSoftware(cluster=cluster.name, started=started, groups=updated_groups)


def _batch(text: str) -> dict[str, object]:
    """Parse a number of nodes or a percentage into AWS's CapacitySizeConfig."""
    match = _BATCH.fullmatch(text)
    value = int(match["value"]) if match else 0
    if match is None or (match["percent"] and value > 100):  # noqa: PLR2004 - per cent
        raise argparse.ArgumentTypeError(f"got {text}, need a number of nodes such as 4, or a percentage such as 25%")
    return {"Type": "CAPACITY_PERCENTAGE" if match["percent"] else "INSTANCE_COUNT", "Value": value}


def _pause(text: str) -> int:
    if not text.isdecimal() or int(text) > facts.MAX_UPDATE_WAIT_S:
        raise argparse.ArgumentTypeError(f"got {text}, need whole seconds from 0 to {facts.MAX_UPDATE_WAIT_S}")
    return int(text)


def _image(text: str) -> str:
    if not facts.IMAGE_ID_PATTERN.fullmatch(text):
        raise argparse.ArgumentTypeError(f"got {text}, need ami-… or default")
    return text
