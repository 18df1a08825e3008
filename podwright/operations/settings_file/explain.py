"""``podwright explain``: describe a key or a finding's code, or draw a file's cluster."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING

from podwright.config_file import config_path
from podwright.operations.output import print_document
from podwright_common.command_line import add_examples, add_json
from podwright_common.exit_status import OK, WRONG_INPUT
from podwright_common.similar_names import did_you_mean

if TYPE_CHECKING:
    from podwright.check.key_descriptions import Key


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add WORD, --codes, --run, --job, --output and --json."""
    parser.add_argument(
        "key",
        nargs="?",
        metavar="WORD",
        help="a key such as lustre.capacity_gib or max_steps, a finding's code such as vpc-dns, or a file to draw. "
        "Default: list all keys of cluster.yaml",
    )
    parser.add_argument("--codes", action="store_true", help="list the codes of findings")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--run", action="store_true", help="explain keys of run.yaml instead of cluster.yaml")
    which.add_argument("--job", action="store_true", help="explain keys of job.yaml instead of cluster.yaml")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="NAME.svg",
        help="draw the file's cluster as .svg, .narrow.svg (400 px wide), .html, .md or .mmd (Mermaid)",
    )  # fmt: skip
    add_json(parser)
    add_examples(
        parser,
        "podwright explain lustre.capacity_gib",
        "podwright explain max_steps",
        "podwright explain --job resume",
        "podwright explain vpc-dns",
        "podwright explain cluster.yaml -o cluster.svg",
    )


def run(options: argparse.Namespace) -> int:
    """Print keys or codes, or draw the file."""
    from podwright.check.checked_settings import codes
    from podwright.check.key_descriptions import job_keys, keys, run_keys

    if options.output or (options.key and _is_file(options.key)):
        return _draw(Path(options.key or config_path()), options.output, as_json=options.json)
    meaning_by_code = codes()
    if options.codes:
        return _print_codes(meaning_by_code, as_json=options.json)
    if options.key in meaning_by_code:
        return _print_code(options.key, meaning_by_code[options.key], as_json=options.json)
    files = (run_keys,) if options.run else (job_keys,) if options.job else (keys, run_keys, job_keys)
    named_keys = list(files[0]()) if options.key is None else _keys_named(options.key, files)
    if not named_keys:
        return _suggest(
            options.key, [*(key.name for keys_of_file in files for key in keys_of_file()), *meaning_by_code]
        )
    return _print_keys(named_keys, as_json=options.json)


def _is_file(word: str) -> bool:
    """Return whether a word names a file: no key ends in .yaml, and a folder ``network`` does not hide that key."""
    return Path(word).suffix in {".yaml", ".yml"} or Path(word).is_file()


def _keys_named(word: str, files: Iterable[Callable[[], Iterator[Key]]]) -> list[Key]:
    """Return the keys that a word names in the first of the files that has one."""
    from podwright.check.key_descriptions import matching

    return next((matches for keys_of_file in files if (matches := matching(keys_of_file(), word))), [])


def _print_keys(keys: Iterable[Key], *, as_json: bool) -> int:
    from podwright.check.key_descriptions import Explain

    if as_json:
        print_document(Explain(keys=list(keys)))
    else:
        print(*keys, sep="\n")
    return OK


def _print_codes(meaning_by_code: dict[str, str], *, as_json: bool) -> int:
    """Print each code with the first line of its meaning; in JSON with all of it."""
    from podwright.check.key_descriptions import Explain

    if as_json:
        print_document(Explain(codes=meaning_by_code))
        return OK
    width = max(map(len, meaning_by_code))
    for code, meaning in sorted(meaning_by_code.items()):
        print(f"{code:{width}}  {meaning.splitlines()[0]}")
    return OK


def _print_code(code: str, meaning: str, *, as_json: bool) -> int:
    from podwright.check.key_descriptions import Explain

    if as_json:
        print_document(Explain(codes={code: meaning}))
    else:
        print(f"{code}\n{indent(meaning, '    ')}")
    return OK


def _suggest(word: str, names: Iterable[str]) -> int:
    """Print the closest keys and codes to a word that is neither."""
    lists = "`podwright explain` lists the keys of cluster.yaml, --run run.yaml's, --job job.yaml's, --codes all codes"
    hint = did_you_mean(word, names, limit=3) or lists
    print(f"podwright: no key or code {word!r}: {hint}", file=sys.stderr)
    return WRONG_INPUT


def _draw(file: Path, output: Path | None, *, as_json: bool) -> int:
    """Write the picture of a file's cluster, or print the cluster as text."""
    from podwright.check.key_descriptions import Explain
    from podwright.check.load import load
    from podwright.diagram.forms import draw
    from podwright.operations.settings_file.synthesis import synthesize

    text = draw(load(file), output, lambda folder: synthesize(file, folder))
    if as_json:
        document = Explain(file=str(file), written=text) if output else Explain(file=str(file), cluster=text)
        print_document(document)
    else:
        print(text)
    return OK
