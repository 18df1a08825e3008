"""Check a settings file in one pass: YAML, keys and types, rules.

``podwright check`` prints the report. All other commands call ``load.py``, which raises an error if the report has one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from inspect import getdoc
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from podwright.aws_session import Session, deployer_session
from podwright.check import document, input_errors, rules, schema_errors
from podwright.check.account import Account
from podwright.check.document import Document
from podwright.check.findings import Finding, has_errors
from podwright.check.incomplete import incomplete
from podwright.settings.root import Settings

if TYPE_CHECKING:
    from podwright.check.rules.run import Run


@dataclass(frozen=True)
class Report:
    """A file's settings and findings; ``settings`` is None if keys or types are wrong."""

    document: Document
    settings: Settings | None
    findings: tuple[Finding, ...]


def check(file: Path, run: Run | None = None) -> Report:
    """Check a settings file, and whether a run fits its cluster.

    Raises:
        UnreadableFileError: there is no such file, or it is not text.
    """
    return check_document(Document.read(file), run)


def check_document(source: Document, run: Run | None = None) -> Report:
    """Check a parsed file; findings are in the order of the file."""
    findings = [*source.findings, *source.secrets()]
    settings = None
    if source.parsed:
        data = {} if source.data is None else source.data
        findings += (templates := list(schema_errors.terraform_templates(source.data)))
        try:
            settings = Settings.model_validate(data).in_folder(source.file.parent)
        except ValidationError as error:
            findings += schema_errors.findings(error)
        if isinstance(data, dict) and not templates:  # a template could stand for anything
            findings += rules.apply(settings or incomplete(data).in_folder(source.file.parent), run)
    return Report(source, settings, _in_order(findings, source))


def check_live(report: Report, session: Session | None = None, run: Run | None = None) -> Report:
    """Add findings of the AWS account to a report; a file with errors is not compared with an account.

    Args:
        report: of the settings file.
        session: the account. Default: that of the default credentials.
        run: a run whose time is compared with the training plans of its nodes.
    """
    if report.settings is None or has_errors(report.findings):
        return report

    account = Account(session or deployer_session(report.settings))
    live_findings = rules.apply_live(report.settings, account, run)
    return replace(report, findings=_in_order([*report.findings, *live_findings], report.document))


def _in_order(findings: Iterable[Finding], source: Document) -> tuple[Finding, ...]:
    located = (_masked(_located(finding, source), source) for finding in findings)
    # A mistake in a mapping that an anchor names is one, however many merge it.
    distinct = {(finding.code, finding.line, finding.column, finding.message): finding for finding in located}
    return tuple(sorted(distinct.values(), key=lambda finding: (finding.line or 0, finding.column or 0)))


def _located(finding: Finding, source: Document) -> Finding:
    """Add the position in the file; mark a value that the file does not set as the default."""
    if finding.line is not None:
        return finding
    at_key = finding.at_key or finding.code in {"unknown-key", "missing-key"}
    position = source.position(finding.path, key=at_key)
    message = finding.message
    if finding.problem and not at_key and not source.has(finding.path):
        message = replace(finding.problem, is_default=True).message
    return replace(finding, message=message, line=position.line, column=position.column, width=position.width)


def _masked(finding: Finding, source: Document) -> Finding:
    """Mask the file's secrets in the texts of a finding."""
    hide = source.without_secrets
    path = tuple(hide(key) if isinstance(key, str) else key for key in finding.path)
    return replace(finding, path=path, message=hide(finding.message), hint=hide(finding.hint))


def codes() -> dict[str, str]:
    """Return every code that a finding can have, with its meaning."""
    of_rules = {rules.code(rule): (getdoc(rule) or "") for rule in rules.all_rules()}
    return {**document.CODES, **input_errors.CODES, **schema_errors.CODES, **rules.CODES, **of_rules}
