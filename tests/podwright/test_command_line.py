"""Both programs speak one language."""

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from podwright import cli
from podwright_training import __main__ as trainer

PROGRAMS = ("podwright", "podwright_training")


def call(program, *arguments):
    """Run a program."""
    return subprocess.run(
        [sys.executable, "-m", program, *arguments], capture_output=True, text=True, timeout=500, check=False
    )


@pytest.mark.parametrize("program", PROGRAMS)
def test_alone_it_shows_its_commands(program):
    """Without arguments a program prints its help, and has succeeded."""
    alone = call(program)
    assert (alone.returncode, alone.stderr) == (0, "")
    assert alone.stdout == call(program, "--help").stdout


@pytest.mark.parametrize(("program", "name"), [("podwright", "nodes"), ("podwright_training", "tokenizer")])
def test_a_command_alone_shows_its_own_commands(program, name):
    """A command that has commands of its own prints its help, and has succeeded."""
    alone = call(program, name)
    assert (alone.returncode, alone.stderr) == (0, "")
    assert alone.stdout == call(program, name, "--help").stdout


@pytest.mark.parametrize("program", PROGRAMS)
def test_version(program):
    """The version is the distribution's."""
    name, version = call(program, "--version").stdout.split()
    assert name in ("podwright", "podwright-train")
    assert version == "0.1.0"


@pytest.mark.parametrize(
    ("program", "wrong", "close"), [("podwright", "chek", "check"), ("podwright_training", "trian", "train")]
)
def test_a_misspelt_command(program, wrong, close):
    """The closest command is named."""
    answer = call(program, wrong)
    assert answer.returncode == 2
    assert answer.stderr.endswith(f"error: unknown command {wrong}; did you mean {close}?\n")


def test_flags_have_dashes():
    """The help has dashes alone; underscores are taken too."""
    assert not re.search(r"--\w+_", call("podwright_training", "train", "--help").stdout)
    for flag in ("--max-steps", "--max_steps"):
        answer = call("podwright_training", "train", flag, "x")
        assert answer.stderr == "error: max_steps: got x (flag), need a whole number\n"


@pytest.mark.parametrize("given", ["--auto_resume", "--auto-resume", "--no-auto_resume", "--no-auto-resume"])
def test_switches_have_dashes(given, tmp_path):
    """A switch is on or off, however it is spelt."""
    command = ("launch", "--print", "--nodes=1", "--nproc_per_node=1", "--partition=p", "--accelerator=cpu", given)
    answer = call("podwright_training", *command, f"--run-dir={tmp_path}/run", f"--environment={sys.prefix}")
    assert answer.returncode == 0, answer.stderr
    assert ("--auto-resume=1" in answer.stdout) == (not given.startswith("--no"))


def parsers_below(parser):
    """Yield a parser and those of the commands in it."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from parsers_below(below)


def all_parsers():
    """Yield the parser of each command of both programs, as a user's call builds it."""
    for command in cli.all_commands():
        (commands,) = (item for item in cli._parser([command.name])._actions if item.choices)
        yield from parsers_below(commands.choices[command.name])
    for name in trainer.COMMANDS:
        (commands,) = (item for item in trainer._parser([name])._actions if item.choices)
        yield from parsers_below(commands.choices[name])


def test_every_command_speaks_the_language(monkeypatch):
    """Dashes, no abbreviations, an example, and help within 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    wrong = {}
    for parser in all_parsers():
        text = parser.format_help()
        found = {
            "underscores": [flag for item in parser._actions for flag in item.option_strings if "_" in flag],
            "abbreviations": parser.allow_abbrev,
            "example": not re.search("^examples?:$", text, re.MULTILINE) and parser.prog.count(" ") < 2,
            "too wide": [line for line in text.splitlines() if len(line) > 80],
        }
        wrong |= {parser.prog: {what: is_so for what, is_so in found.items() if is_so}} if any(found.values()) else {}
    assert wrong == {}


@pytest.mark.parametrize(
    ("program", "words", "meant"),
    [
        ("podwright", "check --strickt", "--strict"),
        ("podwright", "nodes list --jsn", "--json"),
        ("podwright_training", "report --run-dir runs/a --usd-per-houre 3", "--usd-per-hour"),
        ("podwright_training", "tokenizer inspect t --dataset d --document 3", "--documents"),
    ],
)
def test_a_misspelt_flag(program, words, meant):
    """The closest flag of the command is named."""
    answer = call(program, *words.split())
    assert answer.returncode == 2
    assert answer.stderr.endswith(f"; did you mean {meant}?\n")
    if program == "podwright":
        assert answer.stderr.startswith(f"usage: podwright {words.split()[0]} ")


@pytest.mark.parametrize(
    ("program", "words", "meant"),
    [
        (
            "podwright",
            "rehearse --hosts debian13",
            "got debian13, need debian-13, debian-12, flat; did you mean debian-13",
        ),
        ("podwright", "nodes lst", "got lst, need list, "),
        ("podwright_training", "launch --accelerator gpuu", "got gpuu, need gpu, neuron, cpu; did you mean gpu"),
        ("podwright_training", "consolidate --run-dir a --dtype bf-16", "did you mean bf16"),
    ],
)
def test_a_misspelt_choice(program, words, meant):
    """A value that is no choice is answered with all choices and the closest."""
    answer = call(program, *words.split())
    assert answer.returncode == 2
    assert meant in answer.stderr


def test_explanations_as_json(capsys):
    """Keys and codes are one JSON document, with what the text has."""
    documents = []
    for words in (["lustre.capacity_gib"], ["vpc-dns"], ["--codes"]):
        assert cli.main(["explain", *words, "--json"]) == 0
        documents.append(json.loads(capsys.readouterr().out))
    key, code, codes = documents
    assert key["keys"][0]["name"] == "lustre.capacity_gib"
    assert "whole number" in key["keys"][0]["values"]
    assert code["codes"].items() <= codes["codes"].items()


HEAVY = ("boto3", "botocore", "cdktf", "moto", "pydantic", "rich.console", "torch")
IMPORTED_BY_HELP = """
import contextlib, io, json, sys
from podwright.cli import all_commands, main
slow = {}
for command in all_commands():
    before = set(sys.modules)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main([command.name, "--help"])
    found = set(sys.modules) - before
    slow[command.name] = sorted(found & set(sys.argv[1:]))
print(json.dumps([slow, len(sys.modules)]))
"""


def test_no_help_waits_for_what_it_does_not_need():
    """No command's --help imports a library that takes long, and all together import few modules."""
    answer = subprocess.run(
        [sys.executable, "-c", IMPORTED_BY_HELP, *HEAVY], capture_output=True, text=True, timeout=500, check=True
    )
    slow, modules = json.loads(answer.stdout)
    assert len(slow) > 25
    assert {name: found for name, found in slow.items() if found} == {}
    assert modules - len(slow) < 364, "all commands together, without one module for each: import less at the top"


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_bars_are_letters_where_the_terminal_has_no_others(encoding: str) -> None:
    """An encoding without blocks gets letters, one for each, and no codes."""
    command = [sys.executable, "-m", "podwright", "plan", "--model", "llama3_1_8b", "--instance", "ml.p5.48xlarge"]
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([*command, "--nodes", "1"], env=environment, capture_output=True, check=True)
    assert b"###===" in done.stdout
    assert not re.search(rb"\\[ux]", done.stdout)


def test_a_missing_file_comes_with_the_command_that_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In an empty folder the next step is `podwright init`."""
    monkeypatch.chdir(tmp_path)
    assert cli.main(["check"]) == 2
    assert "cannot read cluster.yaml: No such file or directory: `podwright init` writes" in capsys.readouterr().err
