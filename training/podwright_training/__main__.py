"""Run ``podwright-train COMMAND``; only commands that need torch import it, not ``--help``."""

from __future__ import annotations

import argparse
import errno
import gc
import importlib
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from io import TextIOWrapper
from pathlib import Path

from podwright_common.command_line import Parser, add_examples, add_version, unknown_command
from podwright_common.exit_status import DIVERGED, FAILED, INTERRUPTED, WRONG_INPUT
from podwright_common.garbage import skip_last_collections
from podwright_common.terminal import fit_terminals, whole_lines
from podwright_training.code_caches import private_caches_in_use
from podwright_training.errors import DeviceMemoryError, DivergedError, LostRanksError, UserError, report
from podwright_training.private_folder import who_may_change
from podwright_training.run_variables import read_variables, secrets_in, variables_in_use, variables_of_run
from podwright_training.spelling import parse_known

ASKED_BY_SHELL = "_ARGCOMPLETE"  # the variable with which the scripts of `podwright completion` ask what Tab offers
GARBAGE = 100_000, 50, 100  # thresholds of collections: importing torch makes millions of objects, but no garbage
GROUPS = {"tokenizer"}  # commands that have commands of their own: alone, they show their help
WHOLE = {"schema"}  # commands that print JSON
HUB = {"evaluate", "generate", "consolidate", "replay", "tokenize", "tokenizer", "curate"}  # commands with --secrets
COMPUTE = {"train", "join", "dry-run", "evaluate", "generate", "replay"}  # commands whose torch may compile
STORAGE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM}  # the user solves them

COMMANDS = {  # name: (module, summary)
    "train": ("train", "train a model; start it with torchrun for more than one process"),
    "launch": ("launch", "make a run folder and submit its job to Slurm"),
    "claim": ("claim", "say which job trains a run, or claim it for a job of another trainer"),
    "follow": ("follow", "convert another trainer's log to metrics; `launch --job` starts it"),
    "join": ("join", "take part in an elastic run, as one of its hosts; see launch --nodes 2-4"),
    "dry-run": ("dry_run", "count memory and traffic of a large job's step, on one CPU"),
    "consolidate": ("consolidate", "export a checkpoint as a Hugging Face model"),
    "import-checkpoint": ("import_checkpoint", "convert another trainer's checkpoint, with its optimizer's states"),
    "export-checkpoint": (
        "export_checkpoint",
        "convert a checkpoint, with its optimizer's states, for another trainer",
    ),
    "evaluate": ("evaluate", "compute the perplexity of a run's model, or of any other, with transformers"),
    "generate": ("generate", "continue texts with a run's model, or with any other, with transformers"),
    "report": ("report", "write a page on a run, or on several side by side"),
    "watch": ("watch", "follow a run in the terminal: loss, speed, time left, events"),
    "replay": ("replay", "read the batch of a step again and show its documents"),
    "tokenize": ("tokenize", "convert a dataset to token shards, which training reads without tokenizing"),
    "tokenizer": ("tokenizer", "train a byte-level BPE tokenizer on a dataset, or measure how one fits it"),
    "curate": ("curate", "filter and de-duplicate a dataset, and write it as token shards"),
    "schema": ("schema", "print the JSON Schema of run.yaml, for editors, or of a command's JSON"),
    "prepare": ("prepare", "convert text files to a dataset in C4's layout, and train a tokenizer"),
}

EXAMPLES = {
    "train": ("train --preset tiny --run-dir runs/tiny --dataset data", "train --config run.yaml"),
    "launch": (
        "launch --preset llama3_1_8b --nodes 4",
        "launch --run-dir runs/a --nodes 2 -- --config run.yaml",
        "launch --job job.yaml",
    ),
    "claim": ("claim --run-dir runs/a",),
    "follow": ("follow --run-dir runs/a --ranks 16",),
    "join": ("join --config run.yaml --min-nodes 2 --max-nodes 4 --member 0",),
    "dry-run": ("dry-run --preset llama3_1_70b --world-size 256 --memory-gb 80",),
    "consolidate": ("consolidate --run-dir runs/tiny",),
    "import-checkpoint": (
        "import-checkpoint --from torchtitan --source outputs/checkpoint/step-1000 --output start --config run.yaml",
        "import-checkpoint --from megatron --source checkpoints/iter_0001000 --output start --config run.yaml",
    ),
    "export-checkpoint": (
        "export-checkpoint --to torchtitan --run-dir runs/a --output outputs/checkpoint",
        "export-checkpoint --to megatron --run-dir runs/a --output checkpoints",
    ),
    "evaluate": ("evaluate --run-dir runs/tiny", "evaluate --model llama --config runs/tiny/config.yaml"),
    "generate": ("generate --run-dir runs/tiny --max-new-tokens 32",),
    "report": ("report --run-dir runs/tiny", "report --run-dir runs/a runs/b --usd-per-hour 98.32"),
    "watch": ("watch --run-dir runs/tiny",),
    "replay": ("replay --run-dir runs/tiny --step 40 --losses",),
    "tokenize": ("tokenize --dataset data --tokenizer tokenizer --output tokens",),
    "tokenizer": ("tokenizer train --dataset data --output tokenizer",),
    "curate": ("curate --dataset raw --tokenizer tokenizer --output curated",),
    "schema": ("schema > run.schema.json", "schema report"),
    "prepare": ("prepare books.zip --output data",),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    gc.set_threshold(*GARBAGE)
    if argv is None and "RANK" not in os.environ:  # Ranks end the threads of their process groups, in order.
        skip_last_collections()
    arguments = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, TextIOWrapper):  # the name of a file may be no text
        sys.stdout.reconfigure(errors="backslashreplace")
    fit_terminals()
    logging.basicConfig(format="%(levelname)s: %(message)s")
    if ASKED_BY_SHELL in os.environ:
        from argcomplete import autocomplete  # podwright, whose `completion` makes shells ask, needs it too

        autocomplete(_parser(os.environ["COMP_LINE"].split()[1:2]))
    try:
        return _run(arguments)
    except UserError as error:
        if not isinstance(error, DeviceMemoryError):
            report(error)
        return DIVERGED if isinstance(error, DivergedError) else WRONG_INPUT
    except LostRanksError as error:
        report(error)
        return FAILED  # An elastic run starts again, as after any error that is not the user's.
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        return _unwritten(error)


def _run(arguments: list[str]) -> int:
    """Parse the arguments and run their command; return its exit status."""
    parser = _parser(arguments[:1])
    if not arguments:
        parser.print_help()
        return 0
    if len(arguments) == 1 and arguments[0] in GROUPS:
        arguments.append("--help")
    if not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
        parser.error(unknown_command(arguments[0], COMMANDS))
    args, unknown = parse_known(parser, arguments)
    if unknown and not hasattr(args, "unknown_words"):
        parser.refuse(unknown[0], arguments)
    args.unknown_words = unknown
    is_whole = _is_whole(args, arguments[0])
    if is_whole and sys.stdout is None:
        raise UserError("cannot write: stdout is closed")
    caches = private_caches_in_use() if arguments[0] in COMPUTE else nullcontext()
    variables = variables_in_use(_variables(args)) if arguments[0] in HUB else nullcontext()
    with caches, variables, whole_lines() if is_whole else nullcontext():
        status: int = args.command(args)
    if sys.stdout is not None:
        sys.stdout.flush()
    return status


def _variables(args: argparse.Namespace) -> dict[str, str]:
    """Return the variables of a command that may ask the hub: those of --secrets, and of the run that it reads."""
    secrets = read_variables({}, secrets_in(args.secrets))
    run_dir = getattr(args, "run_dir", None)
    if run_dir is None:
        return secrets
    from podwright_training.config.sources import load_run
    from podwright_training.run_folder import RunFolder

    folder = RunFolder(Path(run_dir))
    with suppress(UserError):  # The command reads it, too, and says what is wrong.
        config = load_run(folder)
        if not config.env and not config.secrets:
            return secrets
        if reason := who_may_change(folder.config):
            report(
                UserError(
                    f"{folder.root}: {reason}, so the run's env and secrets are ignored, which could send your secrets "
                    "elsewhere; pass the files that this command needs: --secrets 'HF_TOKEN=FILE'"
                ),
                level="warning",
            )
            return secrets
        return variables_of_run(config.env, {} if args.secrets else config.secrets) | secrets
    return secrets


def _unwritten(error: OSError) -> int:
    """Return the status of a command that could not read or write a file; raise errors that name none."""
    is_unread = isinstance(error, BrokenPipeError)  # `podwright-train prepare … | head`
    if not is_unread and error.errno not in STORAGE and error.filename is None:
        raise error
    if not is_unread:
        report(UserError(f"{error.filename or 'cannot write'}: {error.strerror}"))
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:  # Python would try once more at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED


def _is_whole(args: argparse.Namespace, name: str) -> bool:
    """Return whether a command's output is for programs: a document, or a script."""
    return name in WHOLE or any(getattr(args, flag, False) for flag in ("json", "print_only"))


def _parser(named: Sequence[str]) -> Parser:
    """Build the parser; only a command that is named adds its arguments."""
    parser = Parser(prog="podwright-train", description="Pre-train a language model and use it.")
    add_version(parser, _version)
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, (_, summary) in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=summary, description=summary)
        if name in named:
            _add(subparser, name)
    return parser


def _add(subparser: argparse.ArgumentParser, name: str) -> None:
    """Give a command's parser its arguments and examples."""
    command = importlib.import_module(f"podwright_training.commands.{COMMANDS[name][0]}")
    command.add_arguments(subparser)
    subparser.set_defaults(command=command.run)
    add_examples(subparser, *(f"podwright-train {example}" for example in EXAMPLES[name]))


def _version() -> str:
    from podwright_training.code_version import package_version

    return package_version()


if __name__ == "__main__":
    sys.exit(main())
