"""``podwright-train consolidate``: export checkpoints for transformers, a few megabytes of weights in memory."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from podwright_common.command_line import add_json
from podwright_common.drawing import drawing_console
from podwright_training.command_result import print_document, print_result
from podwright_training.config.export_options import DTYPES, SHARD_GB, ExportOptions
from podwright_training.config.sources import load_run
from podwright_training.errors import UserError
from podwright_training.run_claim import Claim, Owner, OwnerKind
from podwright_training.run_folder import RunFolder, writable
from podwright_training.run_variables import add_secrets_flag


@dataclass(frozen=True)
class ExportedModel:
    """A checkpoint, and the folder of its Hugging Face model."""

    checkpoint: Path
    model: Path


@dataclass(frozen=True)
class Consolidation:
    """The document of `podwright-train consolidate --json`."""

    exported: list[ExportedModel]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``podwright-train consolidate``."""
    parser.add_argument("--run-dir", required=True, help="folder of the run")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--step", type=int, help="step of the checkpoint to export. Default: the newest")
    which.add_argument(
        "--all-checkpoints",
        action="store_true",
        help="export all checkpoints that are not yet in the run's folder hf-steps",
    )
    parser.add_argument(
        "--average",
        type=int,
        default=1,
        metavar="N",
        help="export the mean weights of that checkpoint and the N - 1 kept before it. Default: 1",
    )
    parser.add_argument(
        "--merge-with",
        nargs="+",
        default=[],
        metavar="RUN_DIR",
        help="average it with the newest checkpoint of each of these runs, which must have the same model "
        "(arXiv:2203.05482)",
    )
    parser.add_argument("--ema", action="store_true", help="export the moving average of the weights (ema_decay)")
    parser.add_argument("--dtype", choices=DTYPES, default="fp32", help="dtype of the exported weights. Default: fp32")
    parser.add_argument(
        "--max-shard-gb", type=float, default=SHARD_GB, help=f"largest weights file. Default: {SHARD_GB}"
    )
    add_secrets_flag(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Write ``<run_dir>/hf``, replacing an older one when complete, or ``<run_dir>/hf-steps``; return the status."""
    from podwright_training.checkpoint import export, step_folder  # seconds

    folder, export_options = (
        RunFolder(Path(args.run_dir)),
        ExportOptions(ema=args.ema, dtype=args.dtype, average=args.average, max_shard_gb=args.max_shard_gb),
    )
    if not args.max_shard_gb > 0:
        raise UserError(f"got --max-shard-gb {args.max_shard_gb}, need a number above 0")
    if args.average < 1:
        raise UserError(f"got --average {args.average}, need at least 1")
    if args.average > 1 and args.all_checkpoints:
        raise UserError("--average and --all-checkpoints: got both, need one; --step N --average exports one mean")
    if args.merge_with and (args.average > 1 or args.all_checkpoints):
        raise UserError("--merge-with takes one checkpoint of each run: leave out --average and --all-checkpoints")
    merged_runs = [RunFolder(Path(run_dir)) for run_dir in args.merge_with]
    if not args.all_checkpoints:
        source = consolidate(folder, export_options, step=args.step, merge_with=merged_runs)
        print_result(args, f"{source} → {folder.hf}", Consolidation([ExportedModel(source, folder.hf)]))
        return 0
    exported = []
    for path in reversed(step_folder.intact(load_run(folder).checkpoints)):
        target = folder.hf_steps / path.name
        if export.is_exported(path, target, export_options):
            _say(args, f"{target} is there")
            continue
        _export(folder, path, target, export_options)
        _say(args, f"{path} → {target}")
        exported.append(ExportedModel(path, target))
    if args.json:
        print_document(Consolidation(exported))
    return 0


def _say(args: argparse.Namespace, line: str) -> None:
    """Print a line of progress at once, unless ``--json`` prints a document at the end."""
    if not args.json:
        print(line)


def consolidate(
    folder: RunFolder,
    export_options: ExportOptions | None = None,
    *,
    step: int | None = None,
    merge_with: Sequence[RunFolder] = (),
) -> Path:
    """Write ``folder.hf`` from a checkpoint, the newest by default, and return that checkpoint.

    With ``merge_with`` the weights are the mean of it and of those runs' newest checkpoints.

    Raises:
        UserError: There is no run or checkpoint, it is damaged, it has no moving average, or a run to merge with has
            another model or tokenizer.
    """
    from podwright_training.checkpoint import step_folder

    path = step_folder.find(load_run(folder).checkpoints, step)
    _export(folder, path, folder.hf, export_options or ExportOptions(), merged=_newest_alike(folder, path, merge_with))
    return path


def _newest_alike(folder: RunFolder, path: Path, other_runs: Sequence[RunFolder]) -> list[Path]:
    """Return the newest checkpoints of other runs, all of the same model and tokenizer."""
    from podwright_training.checkpoint import step_folder, trainer_state

    newest, problems = [], []
    tokenizer, model = trainer_state.tokenizer_digest(path), trainer_state.model_config(path)
    for other_run in other_runs:
        config = load_run(other_run)
        newest.append(step_folder.find(config.checkpoints))
        differences = model.differences(trainer_state.model_config(newest[-1]), may_scale=False)
        if trainer_state.adds_bos(newest[-1]) != trainer_state.adds_bos(path):
            differences.append(f"add_bos {config.add_bos} there, {load_run(folder).add_bos} here")
        elif trainer_state.tokenizer_digest(newest[-1]) != tokenizer:
            differences.append(f"tokenizer {config.tokenizer} there, {load_run(folder).tokenizer} here, which differ")
        problems += [f"--merge-with {other_run.root}: {difference}" for difference in differences]
    if problems:
        raise UserError("\n".join(problems))
    return newest


def _export(
    folder: RunFolder, path: Path, target: Path, export_options: ExportOptions, *, merged: Sequence[Path] = ()
) -> None:
    from podwright_training.checkpoint import export
    from podwright_training.model_card import model_card

    config = load_run(folder)
    averaged_with = [*merged, *_earlier(path, export_options.average)]
    card = model_card(folder, path, config, averaged_with=averaged_with)
    claim = Claim(
        folder.claims / target.name,
        f"model {target}",
        Owner.of_this_process(OwnerKind.EXPORT),
        alternative="start again later",
    )
    with writable(folder.root), claim, _progress(path, export.total_bytes(path, export_options)) as advance:
        export.export(path, target, config, export_options, averaged_with=averaged_with, card=card, on_bytes=advance)


def _earlier(path: Path, average: int) -> list[Path]:
    """Return the checkpoints to average with this one, newest first."""
    from podwright_training.checkpoint import step_folder, trainer_state

    if average == 1:
        return []
    earlier = [checkpoint for checkpoint in step_folder.intact(path.parent) if checkpoint.name < path.name]
    if len(earlier) < average - 1:
        steps = [str(trainer_state.read_state(checkpoint).step) for checkpoint in reversed([path, *earlier])]
        count_text = f"is 1 (step {steps[0]})" if len(steps) == 1 else f"are {len(steps)} (steps {', '.join(steps)})"
        raise UserError(
            f"--average {average} needs {average} checkpoints up to step {steps[-1]}, there {count_text}: train with a "
            "higher keep_checkpoints, or with keep_every"
        )
    return earlier[: average - 1]


@contextmanager
def _progress(path: Path, total_bytes: int) -> Iterator[Callable[[int], object]]:
    """Show on a terminal how many bytes are written."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = drawing_console(sys.stderr)
    remaining_time = TimeRemainingColumn(elapsed_when_finished=True)
    columns = (TextColumn(path.name), BarColumn(), DownloadColumn(), TransferSpeedColumn(), remaining_time)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(path.name, total=total_bytes)
        yield lambda count: progress.advance(task, count)
