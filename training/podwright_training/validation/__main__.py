"""Run one part of the validation: ``job`` in the batch script, the others as its Slurm steps."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from podwright_training.validation.steps import ALL_REDUCE, JOB, NODE, READ


def main(words: Sequence[str] | None = None) -> int:
    """Run the part that the arguments name; return the exit status."""
    args = _parser().parse_args(words)
    if args.part == JOB:
        from podwright_training.validation.job import measure

        measure(args.folder, file_mib=args.file_mib, max_rounds=args.rounds)
    elif args.part == NODE:
        from podwright_training.validation.node import write_report

        write_report(args.folder, file_mib=args.file_mib)
    elif args.part == READ:
        from podwright_training.validation.files import write_read_speed

        write_read_speed(args.folder)
    else:
        from podwright_training.validation.all_reduce import write_speed

        write_speed(args.folder, name=args.name, port=args.port)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="podwright_training.validation", description=__doc__)
    parts = parser.add_subparsers(dest="part", required=True)
    for name in (JOB, NODE, READ, ALL_REDUCE):
        part = parts.add_parser(name)
        part.add_argument("--folder", type=Path, required=True)
        if name in {JOB, NODE}:
            part.add_argument("--file-mib", type=int, required=True)
        if name == JOB:
            part.add_argument("--rounds", type=int, help="largest number of rounds [all pairs meet]")
        if name == ALL_REDUCE:
            part.add_argument("--name", required=True)
            part.add_argument("--port", type=int, required=True)
    return parser


if __name__ == "__main__":
    sys.exit(main())
