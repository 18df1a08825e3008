"""Whatever became of a run's files, its readers finish, or say in one line which file is damaged."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from podwright_testing.mutations import mutated_bytes
from podwright_training.__main__ import main
from podwright_training.commands import report
from podwright_training.errors import UserError
from podwright_training.events import StartEvent
from podwright_training.jobs.log_reader import LogReader
from podwright_training.jobs.spec import JobSpec, Log, Resume, read_written
from podwright_training.json_document import to_values
from podwright_training.report import screen
from podwright_training.report.history import History
from podwright_training.report.page import ReportFigures
from podwright_training.report.time_table import as_markdown
from podwright_training.run_folder import RunFolder, open_for_append

TRAIN = {
    "event": "train", "loss": 5.5, "grad_norm": 1.0, "lr": 1e-3, "tokens_per_s": 9000.0, "step_s": 0.5, "data_s": 0.1,
    "mfu": 0.4, "sequences": 8, "batch_sequences": 8, "epoch": 1.5, "source_tokens": {"web": 8, "code": 9},
    "saving_s": 0.1, "validating_s": 0.0, "first_step_s": 1.0, "lag_s": 0.0, "batch_digest": "0", "log_byte": 12,
    "memory_peak_bytes": 1 << 30,
}  # fmt: skip
EVENTS: list[dict[str, Any]] = [
    {"event": "start", "step": 0, "world_size": 2, "parameters": 1000, "flops_per_token": 6e3, "process_s": 3.0},
    *({**TRAIN, "step": step} for step in range(1, 61)),
    {"event": "validation", "step": 60, "loss": 5.0, "perplexity": 148.0, "tokens": 9, "losses": {"web": 4.0}},
    {"event": "sample", "step": 60, "texts": ["The sea"]},
    {"event": "guard", "step": 61, "policy": "skip", "reason": "spike", "loss": "99", "checkpoint": None},
    {"event": "checkpoint", "step": 60, "path": "x", "seconds": 2.0, "paused_s": 0.1},
    {"event": "start", "step": 60, "world_size": 1, "parameters": 1000},
    {**TRAIN, "step": 61},
    {"event": "membership", "step": 60, "cause": "on a", "host": "a", "lost_steps": 3, "waiting_s": 2.0},
    {"event": "offender", "host": "a", "times": 3},
    {"event": "straggler", "step": 61, "rank": 0, "host": "a", "lag_s": 1.0, "step_s": 2.0},
    {"event": "mixture", "step": 61, "from_sequence": 480, "weights": {"web": 2.0}, "added": ["web"], "removed": []},
    {
        "event": "read", "step": 61, "source_sequences": {"web": 488}, "source_documents": {"web": 90},
        "source_tokens": {"web": 62464}, "source_epochs": {"web": 0.5},
    },
    {"event": "end", "step": 61, "reason": "max_steps", "saving_s": 1.0},
]  # fmt: skip
EVENTS = [{**event, "time": 1.7e9 + number} for number, event in enumerate(EVENTS)]
NUMBERS = st.sampled_from([0, -1, 1, 2**63, 10**30, 10**400, 1e308, -1e308, 0.5, math.nan, math.inf, -math.inf])
WORDS = st.sampled_from(["", "x", "1", "\ud800", "\0", "\x1b[2J", "\u2028", "é" * 9]) | st.text(max_size=5)
SCALARS = st.none() | st.booleans() | NUMBERS | WORDS
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3), max_leaves=5
)
NAMES = sorted({name for event in EVENTS for name in event})


@st.composite
def lines(draw: st.DrawFn, event: dict[str, Any]) -> bytes:
    """Draw the line of an event after an accident."""
    accident = draw(st.sampled_from(["value", "value", "value", "missing", "more", "twice", "cut", "bytes", "nested"]))
    name, value = draw(st.sampled_from(sorted(event))), draw(VALUES)
    if accident == "value":
        event = {**event, name: value}
    elif accident == "missing":
        event = {key: each for key, each in event.items() if key != name}
    elif accident == "more":
        event = {**event, draw(st.sampled_from(NAMES) | WORDS): value}
    text = json.dumps(event)
    if accident == "twice":
        text = f"{text[:-1]}, {json.dumps(name)}: {json.dumps(value)}}}"
    elif accident == "nested":
        text = "[" * draw(st.sampled_from([3, 100_000]))
    data = text.encode()
    if accident == "cut":
        return data[: draw(st.integers(0, len(data)))]
    if accident == "bytes":
        place = draw(st.integers(0, len(data)))
        return data[:place] + draw(st.binary(max_size=4)) + data[place:]
    return data


@st.composite
def metrics(draw: st.DrawFn) -> bytes:
    """Draw a file of metrics of which some lines are damaged."""
    any_line, last_lines, last = st.integers(0, len(EVENTS) - 1), st.integers(60, len(EVENTS) - 1), len(EVENTS) - 1
    damaged = draw(st.sets(any_line | last_lines | st.just(last), min_size=1, max_size=6))
    content = [
        draw(lines(event)) if number in damaged else json.dumps(event).encode() for number, event in enumerate(EVENTS)
    ]
    return b"\n".join(content) + draw(st.sampled_from([b"\n", b"", b"\n\n\0\n"]))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Return the folder of a run."""
    folder = RunFolder(tmp_path_factory.mktemp("run"))
    folder.config.write_text(yaml.safe_dump({"max_context_width": 128, "max_steps": 100}))
    return folder


@contextmanager
def at_most_a_line_about(path: Path) -> Iterator[None]:
    """Let a block end with a user's error only in one line that names the file."""
    try:
        yield
    except UserError as error:
        (line,) = str(error).splitlines()
        named = str(path) in line
        assert named, line


def read_all(run: RunFolder) -> None:
    """Read a run as `report` and `watch` do."""
    history = History.of(run)
    console = Console(file=StringIO(), width=80)
    console.print(screen.render(history, width=80, usd_per_hour=3.0))
    console.file.getvalue().encode()
    for usd_per_hour in (None, 3.0):
        report._page([run], [history], usd_per_hour=usd_per_hour).encode()
        as_markdown([history], usd_per_hour=usd_per_hour).encode()
    ReportFigures.of([history, history]).to_json()
    json.dumps(to_values(history.goodput.document(3.0)))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(content=metrics())
def test_damaged_metrics_are_read_or_named(run: RunFolder, content: bytes) -> None:
    """Each line that is intact counts, and one that readers cannot use is left out."""
    run.metrics.write_bytes(content)
    with at_most_a_line_about(run.metrics):
        read_all(run)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(content=metrics())
def test_a_log_is_followed_after_damaged_metrics(run: RunFolder, content: bytes) -> None:
    """The steps of another trainer's log go on after whatever the metrics are."""
    run.metrics.write_bytes(content)
    log = Log(patterns={"step": r"^step (\d+)", "loss": r"loss (\S+)"})
    run.job.write_text(JobSpec(command=("a",), log=log).to_json())
    try:
        run.log.write_text("=== program starts\nstep 70 loss 3\n=== program ended with 0\n")
        assert main(["follow", f"--run-dir={run.root}", "--ranks=1", "--from-byte=19"]) == 0
    finally:
        run.job.unlink()


VALID = {
    "perplexity": 20.0,
    "sources": {"web": {"loss": 3.0, "perplexity": 20.0, "bits_per_byte": 1.0, "tokens": 9}},
    "tasks": {"lambada": {"acc": 0.5}},
    "progression": [{"step": 3, "loss": 3.0, "perplexity": 20.0, "bits_per_byte": 1.0, "samples": ["a"]}],
}


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_damaged_evaluation_or_configuration_is_one_line(run: RunFolder, data: st.DataObject) -> None:
    """The page has it, or the message names the file."""
    run.metrics.write_text("".join(json.dumps(event) + "\n" for event in EVENTS))
    content: Any = json.loads(json.dumps(VALID))
    place = content
    while True:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        if not isinstance(place[key], dict | list) or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = data.draw(VALUES)
    run.evaluation.write_text(json.dumps(data.draw(st.just(content) | VALUES)))
    before = run.config.read_text()
    if data.draw(st.booleans()):
        run.config.write_text(json.dumps({data.draw(st.sampled_from(["max_steps", "lr"])): data.draw(VALUES)}))
    try:
        with at_most_a_line_about(run.root):
            read_all(run)
    finally:
        run.evaluation.unlink()
        run.config.write_text(before)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_damaged_job_is_one_line(run: RunFolder, data: st.DataObject) -> None:
    """`watch` shows the run of another trainer, or the message names its job.json."""
    run.metrics.write_text("".join(json.dumps(event) + "\n" for event in EVENTS))
    log = Log(patterns={"step": r"^step (\d+)", "loss": r"loss (\S+)"})
    spec = JobSpec(command=("a",), log=log, resume=Resume(argument=("--resume",)), env={"A": "b"})
    content = mutated_bytes(json.loads(spec.to_json()), Random(data.draw(st.integers())))  # noqa: S311 - not for cryptography
    run.job.write_bytes(content)
    run.log.write_text("=== program starts\nstep 70 loss 3\n=== program ended with 0\n")
    try:
        with at_most_a_line_about(run.job):
            read_all(run)
            LogReader(read_written(run.job), world_size=2)
    finally:
        run.job.unlink()


FILES = ("metrics", "config", "evaluation", "samples", "job")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "socket"])
def test_what_is_no_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, kind: str) -> None:
    """A pipe without a writer does not hang, nor does a device that never ends."""
    run = RunFolder(tmp_path)
    run.metrics.write_text("".join(json.dumps(event) + "\n" for event in EVENTS))
    path: Path = getattr(run, name)
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        subprocess.run([sys.executable, "-c", BIND, path.name], check=True, cwd=tmp_path)
    command = "watch" if name in {"metrics", "config", "job"} else "report"
    assert main([command, f"--run-dir={tmp_path}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.removeprefix("error: cannot read ").startswith((f"{path}: is a {kind}", f"error: {path}: is a {kind}"))


BIND = "import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])"


@pytest.mark.parametrize("flag", ["--config", "--data-mixture", "--sample-prompts"])
@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "bytes"])
def test_inputs_of_train_that_are_no_text_are_one_line(
    tmp_path: Path, tiny_flags: Any, capsys: pytest.CaptureFixture[str], flag: str, kind: str
) -> None:
    """A settings file, a mixture or prompts that are no file, or not UTF-8, are named before anything is read."""
    path = tmp_path / "input.yaml"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.write_bytes(b"preset: \xff\n")
    sample = ["--sample-tokens=2"] if flag == "--sample-prompts" else []
    assert main(["train", *tiny_flags(tmp_path / "run", ranks=1, max_steps=1), f"{flag}={path}", *sample]) in {1, 2}
    reason = "not UTF-8: byte 0xff at 8" if kind == "bytes" else f"is a {kind}, not a regular file"
    lines = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert len(lines) == 1
    assert str(path) in lines[0]
    assert reason in lines[0]


def test_a_pipe_in_place_of_the_metrics_holds_no_training(
    tmp_path: Path, tiny_flags: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would wait for a reader."""
    run = RunFolder(tmp_path / "run")
    run.root.mkdir()
    os.mkfifo(run.metrics)
    assert main(["train", *tiny_flags(run.root, ranks=1, max_steps=1)]) == 2
    assert f"{run.metrics}: is a pipe, not a regular file" in capsys.readouterr().err
    run.add_event(StartEvent(step=0, world_size=1))  # as by an elastic run's agent: a warning


@pytest.mark.parametrize("kind", ["pipe", "pipe with a reader", "device"])
def test_what_is_no_file_is_not_appended_to(tmp_path: Path, kind: str) -> None:
    """Also where opening it would not wait: events that go into a pipe or a device are lost."""
    path, reader = tmp_path / "metrics.jsonl", None
    if kind == "device":
        path.symlink_to("/dev/null")
    else:
        os.mkfifo(path)
    if kind == "pipe with a reader":
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(OSError, match="is no regular file"):
            open_for_append(path)
    finally:
        if reader is not None:
            os.close(reader)


def test_a_name_that_is_no_text_is_printed(tmp_path: Path) -> None:
    """A file's name may be any bytes; in a pipe and on stderr it is written with escapes."""
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(folder)  # noqa: PTH102 - bytes
    (Path(os.fsdecode(folder)) / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in EVENTS))
    words = [sys.executable, "-m", "podwright_training"]
    done = subprocess.run([*words, "watch", b"--run-dir=" + folder], capture_output=True, check=False, timeout=300)
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"caf\xe9" in done.stdout
    words_of_report = [*words, "report", b"--run-dir=" + folder]
    done = subprocess.run(words_of_report, capture_output=True, check=False, timeout=300)
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"caf\udce9" in done.stdout
    assert r"caf\xe9" in (Path(os.fsdecode(folder)) / "report" / "index.html").read_text()
    done = subprocess.run(
        [*words, "report", b"--run-dir=" + folder + b"/none"], capture_output=True, check=False, timeout=300
    )
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    assert rb"caf\udce9" in done.stderr
