"""``podwright-train schema``: print the JSON Schema of run.yaml, of job.yaml, or of a command's JSON document."""

from __future__ import annotations

import argparse
import json
from importlib import import_module
from typing import Any

from podwright_training.config.run_schema import run_schema
from podwright_training.errors import UserError
from podwright_training.jobs.job_schema import job_schema
from podwright_training.json_document import document_schema

# Module and name of the documents that a command prints with --json, one or another.
DOCUMENTS = {
    "consolidate": ("commands.consolidate:Consolidation",),
    "curate": ("commands.curate:CuratedDataset", "commands.curate:SubmittedCuration"),
    "dry-run": ("dry_run.rank_step:DryRun",),
    "evaluate": ("evaluation:RunEvaluation", "evaluation:ModelEvaluation"),
    "export-checkpoint": ("commands.export_checkpoint:ExportedCheckpoint",),
    "generate": ("commands.generate:GeneratedTexts",),
    "import-checkpoint": ("commands.import_checkpoint:ImportedCheckpoint",),
    "launch": ("slurm.launched_run:LaunchedRun", "slurm.launched_run:LaunchedNxdtRun"),
    "prepare": ("commands.prepare:PreparedDataset",),
    "replay": ("loop.replayed_batch:ReplayedBatch",),
    "report": ("commands.report:WrittenReport",),
    "tokenize": ("commands.tokenize:TokenizedDataset",),
    "tokenizer": ("commands.tokenizer:TrainedTokenizer", "commands.tokenizer:InspectedTokenizers"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``podwright-train schema``."""
    parser.add_argument(
        "what",
        nargs="?",
        choices=list(DOCUMENTS),
        metavar="COMMAND",
        help=f"print the schema of this command's --json output: {', '.join(DOCUMENTS)}. Default: run.yaml's",
    )
    parser.add_argument("--job", action="store_true", help="print the schema of job.yaml. Default: run.yaml's")


def run(args: argparse.Namespace) -> int:
    """Print the schema.

    Raises:
        UserError: A command and ``--job`` are given.
    """
    if args.what and args.job:
        raise UserError(f"got {args.what} and --job, need one of them")
    of_file = job_schema if args.job else run_schema
    print(json.dumps(schema_of_command(args.what) if args.what else of_file(), indent=1))
    return 0


def schema_of_command(command: str) -> dict[str, Any]:
    """Return the JSON Schema of a command's document."""
    names = (document.split(":") for document in DOCUMENTS[command])
    return document_schema(*(getattr(import_module(f"podwright_training.{module}"), name) for module, name in names))
