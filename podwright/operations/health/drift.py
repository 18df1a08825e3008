"""``podwright drift``: compare AWS with Terraform's state and with cluster.yaml. AWS is not changed."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from typing import Literal

from podwright.check.document import Document
from podwright.check.findings import Finding, FindingDocument, Level, summary, write
from podwright.config_file import add_file
from podwright.json_document import JsonObject
from podwright.operations.deployment.deploy import locked_stacks
from podwright.operations.deployment.deployed_stacks import stacks
from podwright.operations.health.differences import Plans, findings_of_cluster, findings_of_stack
from podwright.operations.output import print_document
from podwright.operations.target import add_examples, add_profile
from podwright_common.command_line import add_json
from podwright_common.exit_status import FAILED, OK


@dataclass(frozen=True, kw_only=True)
class Drift(JsonObject):
    """The document of `podwright drift --json`."""

    schema: Literal["podwright.drift/1"] = "podwright.drift/1"
    cluster: str
    findings: list[FindingDocument]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add FILE, --profile and --json."""
    add_file(parser)
    add_profile(parser)
    add_json(parser)
    add_examples(parser, "podwright drift", "podwright drift --json | jq '.findings[].message'")


def run(options: argparse.Namespace) -> int:
    """Report every difference; return 1 if there is one.

    Raises:
        PodwrightError: the file is wrong, nothing was deployed from this folder, or AWS does not answer.
    """
    findings: list[Finding] = []
    with locked_stacks("drift", options, needs_program=False) as (settings, kit, session):
        for part, stack in stacks(settings.name, folder=kit.folder).items():
            plans = Plans.of(part, stack)
            findings += [*findings_of_stack(plans, session), *findings_of_cluster(settings, plans, session)]
    document = Document.read(options.file)
    findings = [_located(finding, document) for finding in findings]
    if options.json:
        print_document(Drift(cluster=settings.name, findings=[finding.document() for finding in findings]))
    else:
        write(findings, file=options.file, text=document.shown, stream=sys.stdout)
        print(f"{settings.name}: {summary(findings) or 'AWS, the state and the settings agree'}")
    return FAILED if any(finding.level is not Level.INFO for finding in findings) else OK


def _located(finding: Finding, document: Document) -> Finding:
    """Add the line of a finding about a key of the file."""
    if not document.has(finding.path):
        return finding
    position = document.position(finding.path, key=False)
    return replace(finding, line=position.line, column=position.column, width=position.width)
