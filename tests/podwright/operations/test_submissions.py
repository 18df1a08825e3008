"""A file to submit is of one kind, which is decided once and yields the command that the node runs."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from podwright.operations.errors import ArgumentError
from podwright.operations.jobs import submit, upload
from podwright.operations.jobs.submissions import JobSubmission, RunSubmission, ScriptSubmission, submission_of
from podwright_common.command_line import Parser
from podwright_training.jobs import spec

FILES = {
    "run.yaml": "preset: llama3_8b\n",
    "job.yaml": "name: bert\ncommand: train.py\nnodes: 2\n",
    "job.sbatch": "#!/bin/sh\n",
}
LAUNCH = "/env/bin/podwright-train launch --json --run-dir=/runs/a"


def _options(folder: Path, *words: str) -> argparse.Namespace:
    for name, text in FILES.items():
        (folder / name).write_text(text)
    parser = Parser()
    submit.add_arguments(parser)
    return parser.parse_args([f"{folder}/{words[0]}", *words[1:]])


@pytest.mark.parametrize(
    ("words", "kind", "name", "command"),
    [
        (
            ("run.yaml", "--nodes=2", "--launch-arguments=--elastic", "--arguments=--max-steps=9"),
            RunSubmission,
            "run",
            f"{LAUNCH} --nodes=2 --elastic --instance=x -- --config=/runs/a/run.yaml --max-steps=9",
        ),
        (
            ("job.yaml", "--partition=gpu"),
            JobSubmission,
            "bert",
            f"{LAUNCH} --partition=gpu --job=/runs/a/job.yaml",
        ),
        (("job.yaml", "--name=wide"), JobSubmission, "wide", None),
        (
            ("job.sbatch", "--time-limit=5", "--arguments=a b"),
            ScriptSubmission,
            "job",
            "sbatch --parsable --time=5 --job-name=a ./job.sbatch a b",
        ),
    ],
)
def test_a_kind_has_its_command(tmp_path, words, kind, name, command):
    """Flags of the cluster come after the user's; a batch script does not see podwright-train."""
    submission = submission_of(_options(tmp_path, *words))
    assert (type(submission), submission.name, [*submission.argument_problems()]) == (kind, name, [])
    flags = ["--instance=x"] if kind is RunSubmission else []
    assert command in (None, submission.command("a", "/runs/a", "/env", flags))
    assert bool(submission.trainer("/env")) == (kind is not ScriptSubmission)


def test_a_file_is_read_once(tmp_path, monkeypatch):
    """Name, arguments, check against the cluster and command use one reading of job.yaml."""
    reads = []
    for function in (spec.load, spec.is_job):

        def read(file, function=function):
            reads.append(function.__name__)
            return function(file)

        monkeypatch.setattr(spec, function.__name__, read)
    submission = submission_of(_options(tmp_path, "job.yaml"))
    assert submission.name == "bert"
    assert [*submission.argument_problems()] == submission.preflight(None, ()) == []
    submission.command("a", "/runs/a", "/env", [])
    assert reads == ["is_job", "load"]


def test_a_broken_job_is_refused_with_its_place(tmp_path):
    """The message names line and column."""
    options = _options(tmp_path, "job.yaml")
    options.file.write_text("command: train.py\nnodes: many\n")
    with pytest.raises(ArgumentError, match=r"job.yaml:2:8: nodes"):
        submission_of(options)


def test_a_file_system_and_the_record_are_not_sent(tmp_path):
    """Each is named with what to do."""
    (tmp_path / "submission.json").touch()
    assert [*upload.problems([Path("/"), tmp_path / "submission.json"])] == [
        "--send /: cannot send a whole file system; name a file or folder",
        "submission.json: submit writes a file of this name; rename yours",
    ]
