"""``podwright check``: report every problem of a settings file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from podwright.config_file import add_file
from podwright.operations.output import print_document
from podwright_common.command_line import add_examples
from podwright_common.exit_status import FAILED, OK, OUT_OF_REACH


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add FILE, --run, --live, --strict and --json."""
    add_file(parser)
    parser.add_argument("--json", action="store_true", help="print findings as JSON")
    parser.add_argument(
        "--run", type=Path, metavar="FILE", help="also check whether this run.yaml or job.yaml fits the cluster"
    )
    parser.add_argument(
        "--live",
        action="store_true",
        help="also ask your AWS account: quotas, zones, existing resources, hours left of training plans",
    )
    parser.add_argument("--strict", action="store_true", help="fail on warnings too")
    add_examples(parser, "podwright check", "podwright check --live --strict", "podwright check --run run.yaml --json")


def run(options: argparse.Namespace) -> int:
    """Print the findings; return 1 if one fails the check, 3 if AWS did not answer."""
    from podwright.check.checked_settings import check, check_live
    from podwright.check.findings import Level, json_document, summary, write
    from podwright.check.input_errors import InputError
    from podwright.check.load import load_run_or_job
    from podwright.check.rules import UNANSWERED

    try:
        training_run = load_run_or_job(options.run) if options.run else None
        report = check(options.file, training_run)
    except InputError as error:
        if not options.json:
            raise
        print_document(json_document([error.finding()]))
        return error.exit_status
    if options.live:
        report = check_live(report, run=training_run)
    failing_levels = {Level.ERROR, Level.WARNING} if options.strict else {Level.ERROR}
    failing_codes = {finding.code for finding in report.findings if finding.level in failing_levels}
    status = FAILED if failing_codes - {UNANSWERED} else OUT_OF_REACH if failing_codes else OK
    if options.json:
        print_document(json_document(report.findings))
        return status
    write(report.findings, file=options.file, text=report.document.shown, stream=sys.stdout)
    print(f"{options.file}: {summary(report.findings) or 'no problems'}")
    return status
