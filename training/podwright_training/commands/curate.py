"""``podwright-train curate``: filter and de-duplicate a dataset, and write it as token shards.

The same settings write the same bytes. An interrupted command continues where it stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from podwright_common.command_line import add_json
from podwright_common.drawing import drawing_console
from podwright_training.command_result import print_result
from podwright_training.commands.tokenize import train_on_shards
from podwright_training.config.train_config import TrainConfig
from podwright_training.curation.settings import DEFAULT_FILTERS, FILTERS, MOST_TASKS, CurationSettings
from podwright_training.curation.thresholds import named_values, thresholds_in
from podwright_training.data.bad_data import DataError
from podwright_training.errors import ConfigError
from podwright_training.run_variables import add_secrets_flag, secrets_in
from podwright_training.spelling import flag

if TYPE_CHECKING:
    from podwright_training.curation.stages import Curation

REFRESH_S = 0.5


@dataclass(frozen=True)
class CuratedDataset:
    """The document of `podwright-train curate --json`.

    Attributes:
        output: Folder of the dataset.
        manifest: Content of its ``manifest.json``.
    """

    output: Path
    manifest: dict[str, Any]


@dataclass(frozen=True)
class SubmittedCuration:
    """The document of `podwright-train curate --partition P --json`.

    Attributes:
        output: Folder that the jobs will create.
        job: Slurm's id of the last job.
        logs: Folder of the jobs' logs.
    """

    output: Path
    job: str
    logs: Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``podwright-train curate``; those named as the trainer's have the same meaning."""
    settings, defaults = CurationSettings(dataset="", tokenizer=""), TrainConfig()
    parser.add_argument("--dataset", required=True, help="folder, s3:// prefix or name on the hub; its training split")
    for name in ("dataset_config_name", "text_column"):
        parser.add_argument(
            flag(name), default=getattr(defaults, name), help=f"same as train's. Default: {getattr(defaults, name)}"
        )
    parser.add_argument("--tokenizer", required=True, help="folder, or name on the hub")
    parser.add_argument(
        "--add-bos", action=argparse.BooleanOptionalAction, default=settings.add_bos, help="same as train's"
    )
    parser.add_argument("--output", type=Path, required=True, help="folder to create, for train's --dataset")
    parser.add_argument(
        "--filters", nargs="*", default=list(DEFAULT_FILTERS), metavar="NAME",
        help=f"quality filters, by language, from {' '.join(FILTERS)}. Default: {' '.join(DEFAULT_FILTERS)}",
    )  # fmt: skip
    parser.add_argument(
        "--thresholds", nargs="+", action="extend", default=[], metavar="NAME=NUMBER",
        help="thresholds of the filters, as max_symbol_word_ratio=0.2, and language_threshold. Default: as published",
    )  # fmt: skip
    parser.add_argument(
        "--decontaminate", nargs="+", action="extend", default=[], metavar="NAME=DATASET",
        help="remove documents that share words with these evaluation sets: file, folder, s3:// prefix or name on the "
        "hub. Default: none",
    )  # fmt: skip
    parser.add_argument(
        "--evaluation-columns", nargs="+", default=list(settings.evaluation_columns), metavar="NAME",
        help=f"columns of their texts. Default: {' '.join(settings.evaluation_columns)}",
    )  # fmt: skip
    parser.add_argument(
        "--decontamination-words", type=int, default=settings.decontamination_words, metavar="N",
        help=f"consecutive words that a document may not share with them. Default: {settings.decontamination_words}",
    )  # fmt: skip
    parser.add_argument(
        "--languages",
        nargs="+",
        action="extend",
        default=[],
        metavar="CODE",
        help="languages to keep, such as en de; code: source code. Default: all",
    )
    parser.add_argument("--mask-personal", action="store_true", help="replace email and public IP addresses")
    parser.add_argument("--keep-exact", action="store_true", help="keep documents whose text occurred before")
    parser.add_argument("--keep-near", action="store_true", help="keep documents that almost equal another")
    parser.add_argument(
        "--buckets",
        type=int,
        default=settings.buckets,
        help=f"MinHash buckets; more buckets find less similar pairs. Default: {settings.buckets}",
    )
    parser.add_argument(
        "--validation-fraction", type=float, default=settings.validation_fraction,
        help=f"fraction of the documents to hold out. Default: {settings.validation_fraction}",
    )  # fmt: skip
    parser.add_argument("--tasks", type=int, help=f"number of tasks. Default: one per file, at most {MOST_TASKS}")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="tasks at a time. Default: one per CPU")
    for name, bad in (("max_bad_records", "broken records"), ("max_bad_shards", "damaged files")):
        limit = getattr(settings, name)
        text = f"{bad} that a task skips before it stops. Default: {limit}"
        parser.add_argument(flag(name), type=int, default=limit, help=text)
    add_secrets_flag(parser)
    add_json(parser)
    slurm = parser.add_argument_group("Slurm")
    slurm.add_argument("--partition", help="partition to submit the tasks to, as jobs. Default: run them here")
    slurm.add_argument("--time", default="24:00:00", help="time limit of a task. Default: 24:00:00")
    slurm.add_argument("--memory-gib", type=int, default=4, help="memory of a task in GiB. Default: 4")


def run(args: argparse.Namespace) -> int:
    """Curate, or submit the jobs that do; return the exit status."""
    thresholds, threshold_problems = thresholds_in(args.thresholds)
    evaluation_sets, set_problems = named_values("decontaminate", args.decontaminate)
    settings = _settings(args, thresholds, evaluation_sets)
    if problems := [*threshold_problems, *set_problems, *settings.problems()]:
        raise ConfigError(problems)
    if args.workers < 1:
        raise ConfigError([f"workers: got {args.workers}, need at least 1"])
    from podwright_training.curation.stages import Curation

    try:
        return _run(Curation.begin(settings, args.output, secrets=secrets_in(args.secrets)), args)
    except OSError as error:
        reason = error.strerror or error
        place = error.filename or f"{args.output}.partial"
        raise DataError(f"cannot read or write {place}: {reason}; start again to continue") from error


def _run(curation: Curation, args: argparse.Namespace) -> int:
    from podwright_training.curation.dataset_manifest import MANIFEST, lines
    from podwright_training.curation.stages import Slurm

    if args.partition:
        slurm = Slurm(partition=args.partition, time=args.time, memory_gib=args.memory_gib, workers=args.workers)
        job = curation.submit(slurm)
        logs = curation.work / "logs"
        text = f"{curation.work}: jobs up to {job} write {args.output}; logs are in {logs}"
        print_result(args, text, SubmittedCuration(args.output, job, logs))
        return 0
    curation.run(workers=args.workers, on_stage=_progress)
    manifest = json.loads((args.output / MANIFEST).read_text())
    shown = list(lines(manifest))
    documents = {split: total["documents"] for split, total in manifest["splits"].items()}
    if not all(documents.values()):
        shown.append(_lacking(documents))
    else:
        shards = [[s["documents"] for s in manifest["shards"] if s["split"] == split] for split in documents]
        shown.append(
            train_on_shards(
                args.output,
                args.tokenizer,
                vocab_size=manifest["vocabulary"],
                documents=shards,
                add_bos=args.add_bos,
            )
        )
    print_result(args, "\n".join(shown), CuratedDataset(args.output, manifest))
    return 0


def _lacking(documents: dict[str, int]) -> str:
    """Return what helps if all documents are in one split."""
    total = sum(documents.values())
    fraction = min(0.5, 2 / total)  # It holds out two documents.
    if documents["train"]:
        return f"training needs validation documents: curate again with --validation-fraction {fraction:.2g} or more"
    if total == 1:
        return "training needs documents of either split: add some to the dataset"
    return f"training needs training documents: curate again with a --validation-fraction near {fraction:.2g}"


def _settings(
    args: argparse.Namespace, thresholds: Mapping[str, float], evaluation_sets: Mapping[str, str]
) -> CurationSettings:
    from podwright_training.data.splits import find_split

    folder = None if args.dataset_config_name.lower() == "none" else args.dataset_config_name
    return CurationSettings(
        dataset=args.dataset,
        dataset_config_name=folder,
        text_column=args.text_column,
        tokenizer=args.tokenizer,
        add_bos=args.add_bos,
        filters=tuple(args.filters),
        thresholds=thresholds,
        languages=tuple(args.languages),
        decontaminate=evaluation_sets,
        evaluation_columns=tuple(args.evaluation_columns),
        decontamination_words=args.decontamination_words,
        mask_personal=args.mask_personal,
        exact=not args.keep_exact,
        near=not args.keep_near,
        buckets=args.buckets,
        validation_fraction=args.validation_fraction,
        tasks=args.tasks or min(len(find_split(args.dataset, folder, "train").names), MOST_TASKS),
        max_bad_records=args.max_bad_records,
        max_bad_shards=args.max_bad_shards,
    )


@contextmanager
def _progress(stage: Any, completions: Path) -> Iterator[None]:
    """Show how many tasks of a stage are complete while it runs."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = drawing_console(sys.stderr)
    columns = (TextColumn(f"{stage.name:16}"), BarColumn(), MofNCompleteColumn(), "tasks", TimeElapsedColumn())
    done = threading.Event()
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(stage.name, total=stage.tasks)

        def follow() -> None:
            while not done.wait(REFRESH_S):
                progress.update(task, completed=_count(completions))

        follower = threading.Thread(target=follow, daemon=True)
        follower.start()
        try:
            yield
        finally:
            done.set()
            follower.join()
            progress.update(task, completed=_count(completions))


def _count(folder: Path) -> int:
    return sum(1 for _ in folder.iterdir()) if folder.is_dir() else 0
