"""Nothing that is printed to a terminal is wider than it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podwright import cli, terminal
from podwright.checkout import ROOT
from podwright.terminal import _room, fit
from podwright_testing.terminal import Terminal
from podwright_training import terminal as of_trainer

# What each command prints without AWS: help, answers, findings, and errors with what to do.
COMMANDS = """
check
check long.yaml
check --run run.yaml
check --live
check absent.yaml
check --strickt
explain
explain --run
explain --codes
explain cluster
explain vpc-dns
explain cluster.yaml
explain lustre.capacity
plan --model llama3_1_8b --instance ml.p5.48xlarge --nodes 4 --tokens 100B
plan --model llama3_2_1b --instance ml.g5.12xlarge --nodes 2 --search
plan --model llama3_1_405b --instance ml.g5.12xlarge
plan --model llama3_2_1b --deadline 3d
plan --model llama3_2_1b --minimum
plan --model llama
plan --run absent.yaml
init new.yaml --yes --model llama3_2_1b --tokens 5B
init new2.yaml --yes --region us-west-9 --instance-type ml.p5.48xlarg
outputs
drift
scale workers 4
scale workers many
status
doctor
nodes list
nodes lst
jobs
logs 12
connect
destroy
teardown
policy controller
rehearse --hosts debian13
reherse
"""
JSON = ("check --json", "plan --model llama3_2_1b --instance ml.g5.12xlarge --json", "explain lustre --json", "schema")
PROGRAM = """
import contextlib, sys
from podwright.cli import main
for line in sys.argv[1].splitlines():
    print(f"$ {line}" if len(line) < 50 else "$")
    with contextlib.suppress(SystemExit):
        main(line.split())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a good file, one with a mistake at the end of a long line, and a run."""
    folder = tmp_path_factory.mktemp("narrow")
    text = (ROOT / "cluster.yaml").read_text(encoding="utf-8")
    (folder / "cluster.yaml").write_text(text)
    long_list = ", ".join(f"'10.{number}.0.0/16'" for number in range(20))
    (folder / "long.yaml").write_text(f"{text}\ntags: {{a: b, c: [{long_list}], {'d' * 40}: {'e' * 300}}}\n")
    (folder / "run.yaml").write_text("preset: llama3_1_70b\ntrain_batch_size: 64\n")
    return folder


def printed(folder: Path, lines: str, columns: int) -> str:
    """Return what commands print to a terminal, on a machine without AWS credentials."""
    without = {name: value for name, value in os.environ.items() if not name.startswith("AWS_") and name != "COLUMNS"}
    environment = {**without, "HOME": str(folder), "AWS_EC2_METADATA_DISABLED": "true"}
    words = [sys.executable, "-c", PROGRAM, lines]
    with Terminal(words, columns=columns, cwd=folder, environment=environment) as terminal:
        assert terminal.wait() == 0, terminal.text
        return terminal.text


@pytest.mark.slow
@pytest.mark.parametrize("columns", [60, 80])
def test_every_command_fits(folder: Path, columns: int) -> None:
    """Help, answers and errors of all commands have no line over the width, but for words that are wider alone."""
    helps = "".join(f"{command.name} --help\n" for command in cli.all_commands())
    text = printed(folder, f"{helps}{COMMANDS}", columns)
    wide = [line for line in text.splitlines() if len(line) > columns and len(line.split()) > 1]
    assert wide == []
    assert text.count("\n$") > 60
    assert "Traceback" not in text
    caret = next(line for line in text.splitlines() if line.strip(" ^") == "" and "^^^" in line)
    assert len(caret) <= columns


def test_both_programs_fit_alike() -> None:
    """The trainer, which is installed without podwright too, has the same module."""
    assert Path(terminal.__file__).read_bytes() == Path(of_trainer.__file__).read_bytes()


def test_documents_keep_their_lines(folder: Path) -> None:
    """A document is on a terminal as it is in a pipe: a line break within a text would not be JSON."""
    for line in JSON:
        assert json.loads(printed(folder, line, 40).partition("\n")[2])


@given(st.lists(st.text("ab 日\t", max_size=30)), st.integers(8, 80))
@settings(deadline=None)
def test_no_word_is_lost(words: list[str], width: int) -> None:
    """A line keeps its words in order; only a word that is wider than the terminal goes over its width."""
    line = " ".join(words).replace("\t", "  ")
    fitted = fit(line, width)
    assert fitted.split() == line.split()
    assert all(_room(each) <= width or len(each.split()) < 2 for each in fitted.split("\n"))


def test_colours_take_no_room() -> None:
    """Escape sequences of colours and links are not counted."""
    line = f"\x1b[1;31merror\x1b[0m {'a' * 20} \x1b]8;;https://example.com\x1b\\link\x1b]8;;\x1b\\"
    assert fit(line, 31) == line
    assert fit(line, 30).count("\n") == 1


def test_columns_stay_below_each_other() -> None:
    """A second column goes on below itself; a sentence is indented."""
    assert fit("key    what it is for", 17) == "key    what it is\n       for"
    assert fit("  what it is for you", 16) == "  what it is for\n    you"
