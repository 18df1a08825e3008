"""``podwright drift``: compare AWS with Terraform's state and with cluster.yaml. AWS is not changed."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from podwright.check.document import Document
from podwright.check.findings import Finding, FindingDocument, Level, summary, write
from podwright.check.load import load
from podwright.config_file import add_file
from podwright.json_document import JsonObject
from podwright.operations.account.session import Session
from podwright.operations.deployment.deploy import use_profile
from podwright.operations.deployment.deployed_stacks import stacks
from podwright.operations.deployment.kit import Kit
from podwright.operations.health.differences import Plans, findings_of_cluster, findings_of_stack
from podwright.operations.output import print_document
from podwright.operations.target import add_examples, add_profile
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
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    add_examples(parser, "podwright drift", "podwright drift --json | jq '.findings[].message'")


def run(options: argparse.Namespace) -> int:
    """Report every difference; return 1 if there is one.

    Raises:
        PodwrightError: the file is wrong, nothing was deployed from this folder, or AWS does not answer.
    """
    use_profile(options.profile)
    settings, kit = load(options.file), Kit(options.file, Path.cwd())
    session = Session(region=settings.region, profile=options.profile)
    session.require_answer()
    findings: list[Finding] = []
    with kit.locked("drift"):
        kit.synthesize()
        for part, stack in stacks(settings.name, folder=kit.folder).items():
            stack.check_owner(account_id=session.account_id, region=settings.region)
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
