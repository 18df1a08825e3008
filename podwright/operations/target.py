"""The cluster that a command works on: named by arguments, else by cluster.yaml."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from podwright.aws_session import Session
from podwright.config_file import CONFIG_VARIABLE, config_path
from podwright.errors import ArgumentError
from podwright.operations.account import hyperpod
from podwright.operations.account.hyperpod import Cluster, Node
from podwright_common.command_line import add_examples, add_json

if TYPE_CHECKING:
    from podwright.check.document import Document

__all__ = ["NODE_HELP", "Target", "add_examples", "add_profile", "add_target_arguments", "target"]

NODE_HELP = "Slurm name, instance id, private address, GROUP/INDEX, or controller"


@dataclass(frozen=True)
class Target:
    """A cluster's name, the session to reach it, and its settings file if there is one."""

    name: str
    session: Session
    file: Path | None

    def cluster(self) -> Cluster:
        """Return AWS's description of the cluster.

        Raises:
            ArgumentError: AWS has no cluster of this name.
            AwsError: AWS refuses or does not answer.
        """
        return hyperpod.find(self.session, self.name)

    def nodes(self, described: Cluster, words: Iterable[str] | None = None) -> tuple[Node, ...]:
        """Return the cluster's nodes, or those that the arguments name.

        Raises:
            ArgumentError: a word names no node.
            AwsError: AWS refuses or does not answer.
        """
        existing = hyperpod.nodes(self.session, described)
        return existing if words is None else hyperpod.select(described, existing, words)


def add_target_arguments(parser: argparse.ArgumentParser, *, has_json: bool = True) -> None:
    """Add ``--cluster``, ``--region``, ``--profile`` and, unless the command is a session, ``--json``."""
    group = parser.add_argument_group("cluster")
    group.add_argument("--cluster", metavar="NAME", help=f"Default: the name in ${CONFIG_VARIABLE}, else cluster.yaml")
    group.add_argument("--region", help="Default: cluster.yaml's for its own cluster, else AWS_REGION")
    add_profile(group)
    if has_json:
        add_json(parser)


def add_profile(parser: argparse._ActionsContainer) -> None:
    """Add ``--profile``."""
    parser.add_argument("--profile", help="name in your AWS configuration. Default: AWS_PROFILE")


def target(options: argparse.Namespace) -> Target:
    """Return the cluster that the arguments, or else cluster.yaml, name.

    Raises:
        ArgumentError: neither names one; the message lists those of the region.
        InvalidSettingsError: cluster.yaml has errors and cannot name one; the message has them all.
    """
    file = config_path()
    name, region = _settings(file, is_named=bool(options.cluster))
    is_named = not options.cluster or options.cluster == name
    is_there = not (options.region and region) or options.region == region  # a name may be in several regions
    file_of_it = file if name and is_named and is_there else None
    default = region if is_named else _from_environment(options.profile) or region
    session = Session(region=options.region or default, profile=options.profile)
    cluster_name = options.cluster or name
    if not cluster_name:
        raise ArgumentError(f"no --cluster, and no name in {file}", f"name one: {_existing(session)}")
    return Target(cluster_name, session, file_of_it)


def _settings(file: Path, *, is_named: bool) -> tuple[str, str]:
    """Return the name and region in a settings file, each empty if it is missing.

    Raises:
        InvalidSettingsError: the file is no YAML, or has no name or region, which no argument gives.
    """
    if not file.is_file():
        return "", ""
    from podwright.check.document import Document  # a named cluster needs no YAML

    source = Document.read(file)
    content = source.data if isinstance(source.data, dict) else {}
    name, region = (value if isinstance(value := content.get(key), str) else "" for key in ("name", "region"))
    if not source.parsed or not (is_named or (name and region)):
        _refuse(source)
    return name, region


def _refuse(source: Document) -> None:
    """Raise the findings of a settings file, as ``podwright check`` prints them."""
    from podwright.check.checked_settings import check_document
    from podwright.check.findings import has_errors
    from podwright.check.input_errors import InvalidSettingsError  # a named cluster needs no YAML

    findings = check_document(source).findings
    if has_errors(findings):
        raise InvalidSettingsError(file=source.file, text=source.shown, findings=findings)


def _from_environment(profile: str | None) -> str:
    """Return the region of environment and profile, or an empty string."""
    try:
        return Session(profile=profile).region
    except ArgumentError:
        return ""


def _existing(session: Session) -> str:
    return f"{session.region} has {', '.join(hyperpod.names(session)) or 'no clusters'}"
