"""The rehearsal in plain words."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest

from podwright import cli
from podwright.check.checked_settings import check
from podwright.config_file import CONFIG_VARIABLE
from podwright_rehearsal import command
from podwright_rehearsal.run import operator, story
from podwright_rehearsal.run.hosting import KINDS
from podwright_rehearsal.run.progress import JsonProgress, Progress
from podwright_rehearsal.run.rehearsal import TRAINING_STEPS, steps
from podwright_training.run_folder import RunFolder

WIDTH = 120  # of a sentence


def test_each_step_has_a_sentence() -> None:
    """Each step of each kind of hosts says what happens and what it is on AWS; no sentence is of no step."""
    assert {name for hosts in KINDS.values() for name in steps(hosts)} == set(story.SENTENCES)
    assert all(". On AWS: " in sentence and len(sentence) <= WIDTH for sentence in story.SENTENCES.values())


@pytest.mark.parametrize("kind", [Progress, JsonProgress])
def test_the_sentence_comes_before_the_step(kind: type[Progress]) -> None:
    """A step that begins is explained, in lines and in JSON; the time of all steps is said before."""
    shown = kind(["submit"], out=StringIO())
    shown.foretell("about 4 minutes")
    with shown.step("submit"):
        pass
    first, began, ended = shown.out.getvalue().splitlines()  # type: ignore[attr-defined]
    assert "1 steps; this takes about 4 minutes" in first
    assert story.SENTENCES["submit"] in began
    assert "submit" in ended


def test_without_a_training_program_no_job_is_rehearsed(tmp_path: Path) -> None:
    """The steps about a job and its model are left out for all hosts, and no line names a report."""
    for hosts in KINDS.values():
        assert set(steps(hosts)) - set(steps(hosts, trains=False)) == set(TRAINING_STEPS) & set(steps(hosts))
        assert {"deploy", "look back", "destroy"} < set(steps(hosts, trains=False))
    rows = dict(story.after(Path("cluster.yaml"), None, tmp_path, is_example=False))
    assert rows["open"] == f"{tmp_path}  the logs"
    assert "trained" not in rows["you saw"]


def test_the_time_is_that_of_the_last_rehearsal(tmp_path: Path) -> None:
    """The first rehearsal takes as long as usual, each other one as long as the last one here."""
    assert story.before(tmp_path) == f"about {story.USUAL}"
    story.remember(tmp_path, "236 s")
    assert story.before(tmp_path) == "about 236 s, as the last one here"


def test_another_terminal_finds_the_rehearsal(tmp_path: Path) -> None:
    """The variables are read as they were written, by whoever may read the file: its owner."""
    variables = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "PATH": "/a folder:/usr/bin", "EMPTY": "", "QUOTE": "it's"}
    assert operator.read(tmp_path) is None
    assert operator.write(tmp_path, variables).stat().st_mode & 0o077 == 0
    assert operator.read(tmp_path) == variables


def test_a_shell_needs_a_rehearsal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a rehearsal that stays up, and with a node but not the word shell, one line says what to do."""
    monkeypatch.setattr(command, "KINDS", {})
    assert cli.main(["rehearse", "shell", "controller"]) == 2
    assert capsys.readouterr().err == (
        "podwright: no rehearsal is up: start one in another terminal: podwright rehearse --keep\n"
    )
    assert cli.main(["rehearse", "cluster.yaml", "controller"]) == 2
    assert "podwright rehearse shell NODE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--hosts debian-12 --flat", "--hosts debian-12 and --flat: give one of them"),
        ("--profile 2026-04 --flat", "--profile 2026-04: flat hosts have no files of the service"),
        ("--profile 2026-04 --hosts flat", "--profile 2026-04: flat hosts have no files of the service"),
        ("shell --profile 2026-04", "shell: give it without --profile"),
        ("--clean --keep", "--clean: give it without --keep"),
        ("nope --clean --json", "--clean: give it without nope, --json"),
        ("shell --compute-nodes 2", "shell: give it without --compute-nodes"),
        ("a.yaml node --clean --hosts debian-12 --flat", "--flat: give one of them; --clean: give it without a.yaml, "),
    ],
)
def test_contradictions_are_refused(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Arguments of which one would be ignored are one line, all at once, and nothing starts."""
    assert cli.main(["rehearse", *words.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.parametrize("variable", ["", "night.yaml"])
def test_without_a_file_an_example_is_rehearsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variable: str
) -> None:
    """In an empty folder the bundled example is rehearsed, which stderr names; a file that is named is the user's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(CONFIG_VARIABLE, variable)
    found = command.file_to_rehearse()
    assert found == (Path(variable) if variable else command.EXAMPLE)
    assert (f"no cluster.yaml in this folder, so an example is rehearsed: {found}" in capsys.readouterr().err) is (
        not variable
    )
    assert check(command.EXAMPLE).findings == ()
    (tmp_path / "cluster.yaml").write_text("name: mine\n", encoding="utf-8")
    monkeypatch.delenv(CONFIG_VARIABLE)
    assert command.file_to_rehearse() == Path("cluster.yaml")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("is_example", "command_of_next"), [(True, "podwright init"), (False, "podwright check --live")]
)
def test_the_next_command_suits(tmp_path: Path, is_example: bool, command_of_next: str) -> None:  # noqa: FBT001
    """After the example the next command writes a file of one's own; after one's own it asks the account."""
    rows = dict(story.after(Path("cluster.yaml"), RunFolder(tmp_path), tmp_path, is_example=is_example))
    assert rows["next"].splitlines()[1].startswith(command_of_next)
