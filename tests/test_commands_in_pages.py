"""Command lines and settings that pages show are real: parsers take them, and each block is run or says why not."""

from __future__ import annotations

import argparse
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from podwright import cli
from podwright.check.document import Document
from podwright.check.report import check_document
from podwright.check.schema_errors import CODES
from podwright.checkout import ROOT
from podwright.settings.root import Settings
from podwright_training import __main__ as trainer
from podwright_training.spelling import as_shown

PAGES = sorted(str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))
RUN = {"docs/tutorial.md": "tests/rehearsal/test_tutorial.py"}  # every command of the page, on a rehearsed cluster
WHY_NOT = {  # a block's first word after `$`, or its language, and why no test runs it as it stands there
    "podwright": "needs a deployed cluster of the reader's; its command line is parsed here",
    "podwright-train": "trains for minutes on the reader's data; its command line is parsed here",
    "make": "CI's own commands; test_documentation.py compares them with the Makefile",
    "torchrun": "trains on the reader's data",
    "git": "clones from the address of the project's metadata; test_release.py compares the two",
    "cd": "goes into the clone",
    "export": "changes the reader's shell",
    "mkdir": "makes the reader's folder",
    "cdktf": "deploys to the reader's account; rehearsals run the same command",
    "jq": "needs the reader's Grafana",
    "aws": "deploys to the reader's account",
    "pip": "installs from a registry",
    "ssh": "needs the reader's cluster",
    "rsync": "needs the reader's cluster",
    "sudo": "runs on a node",
    "journalctl": "runs on a node",
    "source": "changes the reader's shell; test_completion.py runs the completion",
    "python3": "makes an environment for wheels, as tools/try_wheels.py does",
    "python": "a benchmark, minutes long; test_benchmarks.py runs the smallest case",
    "sh": "a script of the reader's",
    "bash": "a script of the reader's",
    "promql": "runs in Grafana",
    "python-code": "an excerpt; tests run the examples in full",
    "yaml": "settings: their shape is checked here",
    "text": "no command",
    "": "no command",
}
_BLOCK = re.compile(r"^( *)```([\w-]*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_PROGRAMS = ("podwright", "podwright-train")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    language: str
    text: str

    def commands(self) -> list[str]:
        """Return the command lines that are typed, continued lines joined, without comments."""
        if self.language == "console":
            joined = re.sub(r"\\\n\s*", " ", self.text)
            return [line.strip()[2:] for line in joined.splitlines() if line.strip().startswith("$ ")]
        return self.text.splitlines() if self.language == "sh" else []


def blocks() -> Iterator[Block]:
    """Yield the fenced blocks of all pages."""
    for page in PAGES:
        for match in _BLOCK.finditer((ROOT / page).read_text(encoding="utf-8")):
            yield Block(page, match[2], re.sub(f"^{match[1]}", "", match[3], flags=re.MULTILINE))


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
        (command,) = [item for item in cli._commands() if item.name == name]
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


def test_every_block_is_run_or_has_a_reason():
    """Every block of commands is run by a test, or says by its program why not; the counts are printed."""
    counts: Counter[str] = Counter()
    unknown = []
    for block in BLOCKS:
        if block.page in RUN:
            assert (ROOT / RUN[block.page]).exists()
            counts[f"run by {RUN[block.page]}"] += 1
            continue
        names = [
            line.split("=")[0] if "=" in line.split()[0] else line.split()[0]
            for line in block.commands()
            if line.split()
        ]
        kind = block.language if block.language != "python" else "python-code"
        for name in names if block.language == "console" else [kind]:
            word = "podwright" if name.isupper() else name
            if word in WHY_NOT:
                counts[f"not run: {word}"] += 1
            else:
                unknown.append((block.page, word))
    print(*(f"{count:4} {what}" for what, count in sorted(counts.items())), sep="\n")
    assert unknown == []
    run = sum(count for what, count in counts.items() if what.startswith("run by"))
    line = (
        f"- **Blocks of commands and settings in the pages**: {run} are run as they stand, {counts.total() - run} are "
        "marked with why not; "
        f"{len(CALLS)} command lines of ours are parsed. `pytest tests/test_commands_in_pages.py -s`"
    )
    recorded = " ".join((ROOT / "docs" / "measured.md").read_text(encoding="utf-8").split())
    assert line in recorded, f"docs/measured.md needs this line: {line}"


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
