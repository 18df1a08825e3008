"""Command lines and settings that pages show are real: parsers take them, and each block is run or says why not.

``podwright_testing.pages`` has the comments that say so.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from textwrap import fill

import pytest

from podwright import cli
from podwright.check.document import Document
from podwright.check.report import check_document
from podwright.check.schema_errors import CODES
from podwright.checkout import ROOT
from podwright.settings.root import Settings
from podwright_testing.pages import COMMANDS, PAGES, blocks, without_comment
from podwright_training import __main__ as trainer
from podwright_training.spelling import as_shown

RUN = {"docs/tutorial.md": "tests/rehearsal/test_tutorial.py"}  # every command of the page, on a rehearsed cluster
RUNNERS = {  # the tests of blocks that say where they run
    "alone": "tests/test_pages_alone.py",
    "apart": "tests/test_pages_alone.py",
    "cluster": RUN["docs/tutorial.md"],
}
OTHERS = {"yaml", "python", "text", "promql", "mermaid", ""}  # languages of blocks without commands
_PROGRAMS = ("podwright", "podwright-train")


BLOCKS = list(blocks())


def invocations(line: str) -> Iterator[list[str]]:
    """Yield each call of a program of ours in a shell line, as its words."""
    lexer = shlex.shlex(
        line.replace("<(", "; ").replace(")", " ") if "<(" in line else line, posix=True, punctuation_chars="|&;<>"
    )
    lexer.whitespace_split, lexer.commenters = True, "#"
    words: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) <= set("|&;<>"):
            while words and "=" in words[0]:  # VARIABLE=value
                words.pop(0)
            if words and words[0] in _PROGRAMS:
                yield words
            words = []
        else:
            words.append(word)


CALLS = sorted({tuple(words) for block in BLOCKS for line in block.commands() for words in invocations(line)})
QUOTED = sorted(
    {
        tuple(words)
        for page in PAGES
        for quoted in re.findall(r"`(podwright(?:-train)? [a-z][^`]*)`", (ROOT / page).read_text(encoding="utf-8"))
        for words in invocations(" ".join(quoted.split()).replace("'", ""))
    }
)


def parser_of(words: tuple[str, ...]) -> argparse.ArgumentParser:
    """Return the parser of a command with its arguments."""
    program, name = words[0], words[1]
    parser = argparse.ArgumentParser(prog=f"{program} {name}", exit_on_error=False, allow_abbrev=False)
    if program == "podwright":
        (command,) = [item for item in cli.all_commands() if item.name == name]
        command.add_arguments(parser)
    else:
        trainer._add(parser, name)
    return parser


@pytest.mark.parametrize("words", CALLS, ids=" ".join)
def test_a_command_line_parses(words, capsys):
    """Each command line that a page shows is taken by the command's own parser."""
    arguments = [word for word in words[2:] if word != "--help"]
    parser = parser_of(words)
    if len(arguments) < len(words) - 2:
        return
    if words[0] == "podwright-train":
        arguments = as_shown(arguments, parser)
    try:
        _, unknown = parser.parse_known_args(arguments)
    except (SystemExit, argparse.ArgumentError) as error:
        pytest.fail(f"{error}: {capsys.readouterr().err}")
    assert unknown == []


def known_flags(parser: argparse.ArgumentParser) -> set[str]:
    """Return all flags of a command and of its own commands."""
    found = {"--help"}
    for action in parser._actions:
        found |= set(action.option_strings)
        if isinstance(action, argparse._SubParsersAction):
            found |= set().union(*(known_flags(below) for below in action.choices.values()))
    return found


@pytest.mark.parametrize("words", QUOTED, ids=" ".join)
def test_a_command_in_a_sentence_exists(words):
    """Each command and flag that a sentence names exists; what the reader fills in may be missing."""
    given = {word.partition("=")[0].replace("_", "-") for word in words[2:] if word.startswith("--")}
    assert given <= known_flags(parser_of(words))


def test_the_table_of_commands_is_whole():
    """docs/cli.md lists each command, in the order of --help, with the page that names it."""
    folder = ROOT / "docs"
    rows = re.findall(r"^\| \[([\w-]+)\]\(([\w/.]*)[^)]*\) \| .* \|$", (folder / "cli.md").read_text(), re.MULTILINE)
    assert [name for name, _ in rows] == [command.name for command in cli.all_commands()]
    for name, page in rows:
        described = (folder / (page or "cli.md")).read_text(encoding="utf-8")
        assert f"podwright {name}" in described, name


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_run_or_says_why_not(page):
    """Before each block of commands a comment has the test that runs it, or the reason why none does."""
    wrong = []
    for block in (block for block in BLOCKS if block.page == page):
        if block.language not in COMMANDS:
            wrong += [f"no language {block.language}"] if block.language not in OTHERS else []
        elif page in RUN:
            wrong += [f"{RUN[page]} runs this page whole: {block.rest}"] if block.way else []
        elif block.way == "run":
            wrong += [f"no runner {block.where}"] if block.where not in RUNNERS else []
        elif block.way == "run by":
            source = (ROOT / block.rest).read_text(encoding="utf-8")
            lines = map(without_comment, block.commands())
            wrong += [f"not in {block.rest}: {line}" for line in lines if line not in source]
        elif block.way != "not run" or not block.rest:
            wrong.append(f"neither `run` nor `not run: REASON` before: {block.text}")
        for named in re.findall(r"\b(?:tests|tools|bench|docs)/[\w/]+\.(?:py|md)", block.rest):
            wrong += [f"no file {named}"] if not (ROOT / named).is_file() else []
    assert wrong == []


def test_the_counts_are_recorded(update: bool):  # noqa: FBT001 — a fixture
    """The numbers of blocks that are run and that are not are in docs/measured.md; --update writes them."""
    typed = [block for block in BLOCKS if block.language in COMMANDS]
    by: Counter[str] = Counter(
        RUN.get(block.page) or RUNNERS.get(block.where) or (block.rest if block.way == "run by" else "not run")
        for block in typed
    )
    print(*(f"{count:4} {what}" for what, count in sorted(by.items())), sep="\n")
    line = (
        f"- **Blocks of commands in the pages**: {by.total() - by['not run']} are run as they stand, "
        f"{by['not run']} are marked in the page with why not; {len(CALLS)} command lines of ours are parsed. "
        "`pytest tests/test_commands_in_pages.py -s`"
    )
    measured = ROOT / "docs" / "measured.md"
    recorded = measured.read_text(encoding="utf-8")
    item = fill(line, width=100, subsequent_indent="  ", break_on_hyphens=False) + "\n"
    if update:
        first_words = re.escape(line.partition(":")[0])
        measured.write_text(re.sub(rf"^{first_words}.*\n(?:  .*\n)*", item, recorded, flags=re.MULTILINE))
        return
    assert item in recorded, f"docs/measured.md needs this, which --update writes here: {item}"


SETTINGS = [block for block in BLOCKS if block.language == "yaml" and block.text.split(":")[0] in Settings.model_fields]


@pytest.mark.parametrize("block", SETTINGS, ids=lambda block: f"{block.page}:{block.text.split()[0]}")
def test_settings_in_pages_have_the_right_shape(block):
    """A part of cluster.yaml that a page shows has keys and values that exist; what it leaves out may be missing."""
    document = Document.parse(block.text, file=Path("cluster.yaml"))
    assert document.findings == ()
    of_shape = set(CODES) - {"missing-key"}
    assert [finding.message for finding in check_document(document).findings if finding.code in of_shape] == []


def test_the_readmes_cluster_is_whole():
    """The settings on the README's first screen can be deployed as they are."""
    (first, *_) = (block.text for block in BLOCKS if (block.page, block.language) == ("README.md", "yaml"))
    assert check_document(Document.parse(first)).findings == ()
