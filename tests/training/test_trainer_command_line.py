"""The command line of the trainer: words that it does not know, and errors that are one line."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from podwright_training import __main__ as program
from podwright_training.__main__ import main

LAUNCH = ("launch", "--preset=tiny", "--nodes=1", "--nproc-per-node=1", "--run-dir=/tmp/x", "--print")


FILE, FLAG = "unknown argument run.yaml; did you mean", "unknown flag --lrr; did you mean --lr?"


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (["train", "run.yaml"], [f"{FILE} --config run.yaml?"]),
        (["train", "--compile", "maybe"], ["unknown argument maybe"]),
        (["train", "--bf16", "false", "--", "run.yaml"], ["unknown argument --"]),
        (
            ["train", "more", "--preset=tiny", "--lrr", "3", "run.yaml"],
            ["unknown argument more", FLAG, f"{FILE} --config run.yaml?"],
        ),
        (["dry-run", "--world-size=8", "--preset=tiny", "garbage"], ["unknown argument garbage"]),
        ([*LAUNCH, "run.yaml"], [f"{FILE} -- --config run.yaml?"]),
        ([*LAUNCH, "--", "--lrr", "3", "more"], [FLAG, "unknown argument more"]),
        (
            [*LAUNCH, "--backend=nxdt", "--instance=ml.trn1.32xlarge", "run.yaml"],
            ["--nproc-per-node: leave it out, --backend nxdt has none", f"{FILE} -- --config run.yaml?"],
        ),
    ],
)
def test_stray_words_are_refused(arguments, lines, capsys):
    """All words that no option takes are named at once; the value of an unknown flag is not one of them."""
    assert main(arguments) == 2
    assert capsys.readouterr().err.splitlines() == [f"error: {line}" for line in lines]


@pytest.mark.parametrize(("name", "flags"), [("report", ["--run-dir=x"]), ("schema", [])])
def test_an_unknown_flag_shows_the_usage_of_its_command(name, flags, capsys):
    """Not that of the whole program."""
    with pytest.raises(SystemExit):
        main([name, *flags, "--qqq"])
    errors = capsys.readouterr().err
    assert errors.startswith(f"usage: podwright-train {name} ")
    assert errors.endswith(f"podwright-train {name}: error: unknown argument --qqq\n")


def test_without_accelerators_the_number_of_ranks_is_required(capsys):
    """The message says why; a number that was given is compared with what is allowed."""
    words = [word for word in LAUNCH if not word.startswith("--nproc")]
    assert main(words) == main([*words, "--nproc-per-node=0"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: --nproc-per-node is required: these nodes have no accelerators to count",
        "error: --nproc-per-node: got 0, need at least 1",
    ]


@pytest.mark.parametrize("arguments", [["schema"], ["--version"]])
def test_a_full_disk_is_one_line(arguments):
    """Output that cannot be written ends the command with 1."""
    command = [sys.executable, "-m", "podwright_training", *arguments]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "error: cannot write: No space left on device\n")


def test_a_closed_stdout_is_one_line():
    """A document for which there is no stdout is an error."""
    command = ["bash", "-c", '"$0" -m podwright_training schema >&-', sys.executable]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "error: cannot write: stdout is closed\n")


def test_a_folder_that_nobody_may_write_is_one_line(text_dataset, capsys):
    """The line names the folder; /sys refuses new ones to everybody."""
    where = ["--dataset", str(text_dataset), "--tokenizer", str(text_dataset / "tokenizer")]
    assert main(["tokenize", *where, "--output=/sys/tokens"]) == 1
    assert capsys.readouterr().err.startswith("error: /sys/tokens.partial: ")


@pytest.mark.parametrize(
    ("error", "status"), [(KeyboardInterrupt(), 130), (OSError(errno.EROFS, os.strerror(errno.EROFS), "runs/a"), 1)]
)
def test_an_interrupted_command_has_no_traceback(error, status, monkeypatch, capsys):
    """Ctrl-C is status 130 and silent; the user solves a read-only file system, and what else is wrong is raised."""

    def fail(_arguments):
        raise error

    monkeypatch.setattr(program, "_run", fail)
    assert main(["schema"]) == status
    assert capsys.readouterr().err == ("" if status == 130 else "error: runs/a: Read-only file system\n")


def test_other_errors_of_the_system_are_raised(monkeypatch):
    """They are not the user's."""

    def fail(_arguments):
        raise OSError(errno.EBADF, "bad")

    monkeypatch.setattr(program, "_run", fail)
    with pytest.raises(OSError, match="bad"):
        main(["schema"])


@pytest.mark.slow
def test_ctrl_c_ends_worker_processes_too():
    """The whole process group gets SIGINT, and nobody prints a traceback."""
    words = ["dry-run", "--preset=tiny", "--world-size=8", "--pipeline-parallel=2", "--train-batch-size=2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "podwright_training", *words], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while process.poll() is None and len(children.read_text().split()) < 2:  # a tracker, and a server that forks
            time.sleep(0.1)
        time.sleep(1)
        assert process.poll() is None
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert (process.returncode, errors) == (130, "")
