"""``podwright-train import-checkpoint``: convert another trainer's checkpoint, with its optimizer's states."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from podwright_common.command_line import add_json
from podwright_training.command_result import print_result
from podwright_training.config import sources
from podwright_training.errors import UserError
from podwright_training.run_folder import writable

FORMATS = ("torchtitan", "megatron")


@dataclass(frozen=True)
class ImportedCheckpoint:
    """The document of `podwright-train import-checkpoint --json`."""

    checkpoint: Path
    step: int
    tokens_seen: int | None
    differences: list[str]
    not_compared: str | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``podwright-train import-checkpoint``, then one per option of ``TrainConfig``."""
    group = parser.add_argument_group("import", "The options below describe the model and the optimizer of the run.")
    group.add_argument("--from", dest="format", choices=FORMATS, required=True, help="trainer that wrote it")
    group.add_argument("--source", required=True, metavar="FOLDER", help="the checkpoint: step-1000 or iter_0001000")
    group.add_argument("--output", required=True, metavar="FOLDER", help="folder for the checkpoint, for --init-from")
    add_json(group)
    sources.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Write the checkpoint into the folder; return the status."""
    config = sources.load(args)
    from podwright_training.checkpoint import megatron_import, torchtitan_import  # seconds

    convert = (megatron_import if args.format == "megatron" else torchtitan_import).import_checkpoint
    output = Path(args.output)
    with writable(output, flag="--output"), _readable(Path(args.source)):
        converted = convert(Path(args.source), output, config)
    document = ImportedCheckpoint(
        converted.path,
        converted.step,
        converted.tokens_seen,
        differences=converted.differences,
        not_compared=converted.not_compared,
    )
    print_result(args, _text(args, document), document)
    return 0


@contextmanager
def _readable(source: Path) -> Iterator[None]:
    """Read a checkpoint within the context; an error of the system that is about it becomes one line."""
    try:
        yield
    except OSError as error:
        if error.filename and Path(str(error.filename)).is_relative_to(source):
            raise UserError(f"--source: cannot read {error.filename}: {error.strerror}") from error
        raise


def _text(args: argparse.Namespace, imported: ImportedCheckpoint) -> str:
    tokens = "" if imported.tokens_seen is None else f", {imported.tokens_seen:,} tokens"
    return "\n".join(
        [
            f"{args.source} → {imported.checkpoint} (step {imported.step}{tokens})",
            *(f"differs: {difference}" for difference in imported.differences),
            *([f"not compared: {imported.not_compared}"] if imported.not_compared else []),
            "not moved: the position in the data and the random states; the run reads its data from the beginning",
            f"next: podwright-train train --init-from {args.output} --init-state all …",
        ]
    )
