"""Nothing that is printed to a terminal is wider than it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podwright import cli
from podwright.checkout import ROOT
from podwright_common.terminal import _room, fit, printable
from podwright_testing.terminal import Terminal

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
    """Escape sequences of colours are not counted."""
    line = f"\x1b[1;31merror\x1b[0m {'a' * 20} link"
    assert fit(line, 31) == line
    assert fit(line, 30).count("\n") == 1


def test_columns_stay_below_each_other() -> None:
    """A second column goes on below itself; a sentence is indented."""
    assert fit("key    what it is for", 17) == "key    what it is\n       for"
    assert fit("  what it is for you", 16) == "  what it is for\n    you"


ATTACKS = (
    "\x1b]52;c;cm0gLXJmIH4=\x07",  # into the clipboard: OSC 52
    "\x1b[2J\x1b[H",  # the screen is cleared
    "\x1b[1A\x1b[2Kpodwright: all is well",
    "\x9b2J\x9d52;c;eA==\x9c",  # the same as C1 controls
    "\x1bP1$r0m\x1b\\\x1bc\x1b[6n\x1b[?1049h",
    "\x1b]8;;https://example.com\x1b\\here\x1b]8;;\x1b\\",
    "\x1b[8mhidden\x1b[28m\x1b[7m\x1b[5m\x1b[41m",
    "root\rubuntu",
    "\u202egnp.exe\u2066\u200f\u061c",
    "a\u2028b\x0b\x0c\x08\x7f\udcff",
)
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@given(
    st.text() | st.lists(st.sampled_from(ATTACKS) | st.text("\x1b[]0123456789;mAHJK\r\x9b", max_size=9)).map("".join)
)
def test_nothing_of_a_text_is_obeyed(text: str) -> None:
    """No control character, and nothing that changes the direction of a line, is left; colours may be."""
    assert not OBEYED.search(printable(text))
    assert printable(printable(text)) == printable(text)
    assert not OBEYED.search(COLOUR.sub("", printable(text, colours=True)))
    assert printable("plain é 日本 👩\u200d🚀\t") == "plain é 日本 👩\u200d🚀\t"


def test_colours_of_our_own_are_left() -> None:
    """Colours that the programs print are left, and a colour ends with its line."""
    assert printable("\x1b[1;31merror\x1b[0m", colours=True) == "\x1b[1;31merror\x1b[0m"
    assert printable("\x1b[38;5;9mx", colours=True) == "\x1b[38;5;9mx\x1b[0m"
    assert printable("\x1b[8mx\x1b[0m", colours=True) == "\\x1b[8mx\x1b[0m"


REACHED = """
import sys
from types import SimpleNamespace
from podwright import cli
from podwright.errors import PodwrightError
from podwright.operations.access.remote import Remote
from podwright.operations.jobs import logs
from podwright.operations.output import Column, print_table
cli._set_up()
file, way = sys.argv[1:]
text = open(file, errors="surrogateescape", newline="").read()
node = Remote(None, SimpleNamespace(name="node"), ("sh", "-c", 'eval "$2"', "ssh"))
options = SimpleNamespace(lines=99, json=False)
if way == "log":
    logs._show_file(node, file, options)
elif way == "followed log":
    with cli.whole_lines():
        node.show(f"cat {file}")
elif way == "table":
    print_table((Column("NAME"), Column("REASON")), [["a", text]])
elif way == "error":
    print(PodwrightError(text).render(), file=sys.stderr)
elif way == "traceback":
    raise ValueError(text)
else:
    from rich.live import Live
    from rich.text import Text
    from podwright.operations.output import console
    with Live(console=console(), auto_refresh=False) as live:
        for number in range(3):
            live.update(Text(f"{number} {text}"), refresh=True)
        print(text)
print("end")
sys.stdout.flush()
"""
DRAWING = re.compile(r"\r|\x1b\[[0-9]*[A-DGJK]|\x1b\[H|\x1b\[\?25[hl]")


@pytest.mark.parametrize("way", ["log", "followed log", "table", "error", "traceback", "live"])
def test_texts_of_others_are_not_obeyed_by_a_terminal(tmp_path: Path, way: str) -> None:
    """Whichever way a text comes to the terminal, it draws nothing and writes nothing into the clipboard."""
    file = tmp_path / "text"
    file.write_bytes("".join(f"{text}\n" for text in ATTACKS).encode(errors="surrogateescape") + b"\xff\x1b]0;title\n")
    with Terminal([sys.executable, "-c", REACHED, str(file), way], columns=200, rows=60) as terminal:
        terminal.wait()
        output = terminal.output.replace("\r\n", "\n")
    shown = COLOUR.sub("", DRAWING.sub("", output) if way == "live" else output)
    assert not OBEYED.search(shown), shown
    assert "hidden" in shown
    if way == "live":  # of the moves, none is the text's
        assert r"\x1b[1A\x1b[2Kpodwright" in output
        assert "\x1b[2Kpodwright" not in output


def test_a_log_in_a_pipe_is_raw(tmp_path: Path) -> None:
    """A file or another program gets every byte of a log as it is."""
    file, content = (
        tmp_path / "text",
        "".join(f"{text}\n" for text in ATTACKS).encode(errors="surrogateescape") + b"\xff",
    )
    file.write_bytes(content)
    for way in ("log", "followed log"):
        words = [sys.executable, "-c", REACHED, str(file), way]
        assert subprocess.run(words, capture_output=True, check=True, timeout=500).stdout == content + b"end\n"
