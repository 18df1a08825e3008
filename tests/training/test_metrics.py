"""Time, late ranks and noise scale are measured, and sinks get the metrics."""

import json
import math
import re
import sys
import time
from itertools import count
from types import SimpleNamespace
from typing import ClassVar, get_type_hints

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from podwright_bootstrap.collectors import training as collector
from podwright_training.config.train_config import TrainConfig
from podwright_training.events import (
    EVENTS,
    CheckpointEvent,
    StartEvent,
    StepEvent,
    TrainEvent,
    ValidationEvent,
    event_of,
    written_fields,
)
from podwright_training.loop import step_timer
from podwright_training.loop.metrics import Metrics, batch_hash
from podwright_training.loop.noise_scale import NoiseScale
from podwright_training.loop.profile import Profile
from podwright_training.loop.sinks import open_sinks, problems, wandb_id
from podwright_training.loop.step_timer import StepTimer
from podwright_training.run_folder import RunFolder


def test_the_rank_that_the_others_wait_for_is_named(monkeypatch):
    """It is the one whose time alone exceeds the median by a part of the step that is worth a look."""
    clock = count(step=0.1)
    monkeypatch.setattr(step_timer, "perf_counter", lambda: next(clock))
    timer = StepTimer(4)
    for _ in range(2):
        with timer.step():
            pass
        timer.add_alone_us(torch.tensor([1000, 1200, 90_000, 1100]))
    timing = timer.timing()
    assert timing.slowest_rank == 2
    assert timing.lag_s == pytest.approx(0.08885)
    assert timing.straggles


def test_the_time_a_rank_spends_alone_counts_once():
    """Waiting for data and updating weights count, what lies between does not, and each second counts once."""
    timer = StepTimer(1)
    with timer.step():
        with timer.data():
            time.sleep(0.02)
        time.sleep(0.05)
        with timer.update():
            time.sleep(0.01)
    alone_us = timer.take_alone_us()
    timing = timer.timing()
    assert 30_000 <= alone_us < timing.step_s * 1e6 - 50_000 + 1000
    assert 0.02 <= timing.data_s <= alone_us / 1e6
    assert timer.take_alone_us() == 0


def test_a_trace_of_the_steps_asked_for(tmp_path):
    """It is written when the last of them ends, and holds what they did and nothing before."""
    trace = Profile(range(2, 4), tmp_path / "traces" / "rank-0.json")
    for number, size in enumerate((5, 6, 7), start=1):
        with trace.step(number):
            torch.ones(size).cumsum(0) if number == 1 else torch.ones(size).sort()
    names = {event["name"] for event in json.loads((tmp_path / "traces" / "rank-0.json").read_text())["traceEvents"]}
    assert "aten::sort" in names
    assert "aten::cumsum" not in names


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.integers(1, 10**6), st.integers(2, 64))
def test_the_noise_scale_is_the_ratio_of_variance_to_signal(signal, variance, small_tokens, ratio):
    """Squared norms as they are expected of batches of two sizes give the ratio, however often they are seen."""
    assume(variance / small_tokens > 1e-6 * signal)  # or rounding hides it
    scale = NoiseScale()
    for _ in range(3):
        found = scale.update(
            small=signal + variance / small_tokens,
            large=signal + variance / small_tokens / ratio,
            small_tokens=small_tokens,
            large_tokens=ratio * small_tokens,
        )
        assert found is None or found == pytest.approx(variance / signal, rel=1e-3)
    assert variance / small_tokens > 1e6 * signal or found is not None


def test_no_noise_scale_where_noise_hides_the_signal():
    """A small batch whose gradient is no larger than the large one's shows no noise."""
    assert NoiseScale().update(small=1.0, large=1.0, small_tokens=10, large_tokens=20) is None


def test_a_batch_has_one_digest_however_it_is_divided():
    """The hash of a batch is the sum of its parts' hashes modulo 2**64, in any order."""
    tokens_BT = torch.arange(24).reshape(4, 6)
    parts = batch_hash(tokens_BT[2:]) + batch_hash(tokens_BT[:2])
    assert (parts - batch_hash(tokens_BT)) % 2**64 == 0
    assert batch_hash(tokens_BT) != batch_hash(tokens_BT + 1)


def test_a_sink_whose_package_is_missing_is_reported_before_the_run(monkeypatch):
    """One line for each that was asked for, none for the others."""
    monkeypatch.setattr("sys.path", [])
    assert list(problems(TrainConfig(), is_first_rank=True)) == []
    assert [line.split(":")[0] for line in problems(TrainConfig(wandb=True, tensorboard=True), is_first_rank=True)] == [
        "tensorboard = 1",
        "wandb = 1",
    ]


class Broken:
    """A sink that fails at its second event, as a package does that is not ours."""

    def __init__(self) -> None:
        self.events = []

    def write(self, event):
        self.events.append(event)
        if len(self.events) > 1:
            raise RuntimeError("run is finished\nmore")


def test_a_sink_that_fails_is_left_out_and_the_run_goes_on(tmp_path, caplog):
    """It is one warning, whatever its package raises; the file and other sinks have every event."""
    first, second = Broken(), Broken()
    second.write = second.events.append
    metrics = Metrics(tmp_path / "metrics.jsonl", active=True, sinks=[first, second])
    for step in range(4):
        metrics.write(StepEvent(step=step))
    assert len(first.events) == 2
    assert len(second.events) == len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 4
    assert caplog.messages == ["metrics: Broken failed (RuntimeError: run is finished) and is off; training continues"]


def test_a_line_has_the_fields_that_were_passed_in_their_order(tmp_path, capsys):
    """A field without a value is null, one that was not passed is absent, and what diverged is null."""
    metrics = Metrics(tmp_path / "metrics.jsonl", active=True)
    metrics.write(TrainEvent(lr=0.5, step=3, loss=float("nan"), mfu=None).with_values(memory_step=None))
    line = (tmp_path / "metrics.jsonl").read_text()
    assert re.fullmatch(
        r'{"event": "train", "time": [\d.]+, "lr": 0.5, "step": 3, "loss": null, "mfu": null, "memory_step": null}\n',
        line,
    )
    assert capsys.readouterr().out.startswith("step 3 | loss nan | ")
    event = event_of(line)
    assert (event.kind, event.step, event.lr, event.mfu) == ("train", 3, 0.5, None)
    assert math.isnan(event.loss)


@pytest.mark.parametrize("event_class", EVENTS, ids=lambda event_class: event_class.kind)
def test_each_event_is_read_as_it_was_written(event_class):
    """Every field of every kind survives a line, and each has a description."""
    hints = get_type_hints(event_class)
    values = {
        each.name: EXAMPLES[str(hints[each.name]).removesuffix(" | None")] for each in written_fields(event_class)
    }
    event = event_class(**values)
    assert event_of(json.dumps(event.to_dict())) == event
    assert all(each.metadata["doc"] for each in written_fields(event_class))


EXAMPLES = {
    "<class 'int'>": 3, "int": 3, "<class 'float'>": 2.5, "float": 2.5, "<class 'str'>": "a", "str": "a",
    "float | str": "2.5", "collections.abc.Sequence[str]": ["a"], "collections.abc.Mapping[str, int]": {"a": 3},
    "collections.abc.Mapping[str, float]": {"a": 0.5},
}  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [
        "", "[1]", "{}", '{"event": 3}', '{"event": "train", "step": 1}', '{"event": "train", "step": "1", "loss": 2}',
        '{"event": "train", "step": 1, "loss": 2, "mfu": NaN}', '{"event": "train", "step": 1.5, "loss": 2}',
        '{"event": "validation", "step": 1, "loss": 2, "perplexity": 0, "tokens": 9}',
        '{"event": "sample", "step": 1, "texts": [3]}', '{"event": "train", "step": 1, "loss": 2, "sequences": -1}',
    ],
)  # fmt: skip
def test_a_damaged_line_is_no_event(line):
    """A line without a required field, or with a value of another type, is left out."""
    assert event_of(line) is None


def test_fields_and_kinds_of_newer_versions_are_tolerated():
    """An unknown field is left out, and an unknown kind is an event with a time."""
    newer = {"event": "validation", "step": 1, "loss": 2.0, "perplexity": None, "tokens": 9, "losses": {"a": None}}
    event = event_of(json.dumps({**newer, "new": {"a": [1]}}))
    assert isinstance(event, ValidationEvent)
    assert math.isnan(event.perplexity)
    assert math.isnan(event.losses["a"])
    assert event_of('{"event": "new", "time": 3.5, "step": "x"}').time == 3.5


def test_nodes_report_fields_that_exist():
    """The collector of training runs, which nodes run without this package, reads fields of a step."""
    assert {name for name, *_ in collector.FIELDS} <= {each.name for each in written_fields(TrainEvent)}


@pytest.fixture
def wandb(tmp_path, monkeypatch):
    """A package of that name, as the real one is where nobody has logged in."""
    text = """
from types import SimpleNamespace
api = SimpleNamespace(api_key=None)
def setup():
    return SimpleNamespace(settings=SimpleNamespace(mode="online"))
def init(**_):
    raise ConnectionError("no answer")
"""
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "wandb.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    import wandb  # type: ignore[import-not-found, unused-ignore]

    yield wandb
    sys.modules.pop("wandb", None)


def test_a_login_that_is_missing_is_reported_before_the_run(wandb, monkeypatch):
    """Only the first rank needs one, and none does that keeps its metrics here."""
    options = TrainConfig(wandb=True)
    assert "run `wandb login`" in next(problems(options, is_first_rank=True))
    assert list(problems(options, is_first_rank=False)) == []
    wandb.api.api_key = "k" * 40
    assert list(problems(options, is_first_rank=True)) == []
    wandb.api.api_key = None
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert list(problems(options, is_first_rank=True)) == []


def test_the_axis_of_every_metric_is_the_step(wandb, tmp_path):
    """W&B's own count cannot go back, as a resume does; the same run is continued."""
    calls = []

    class Run:
        def define_metric(self, name, step_metric=None):
            calls.append((name, step_metric))

        def log(self, values):
            calls.append(values)

    def init(**options):
        calls.append((options["id"], options["resume"]))
        return Run()

    wandb.init = init
    for step in (7, 5):
        (sink,) = open_sinks(TrainConfig(wandb=True), RunFolder(tmp_path))
        sink.write(TrainEvent(step=step, loss=2.0))
    identity = (wandb_id(RunFolder(tmp_path)), "allow")
    axis = [("step", None), ("*", "step")]
    assert calls == [
        identity, *axis, {"step": 7, "train/loss": 2.0}, identity, *axis, {"step": 5, "train/loss": 2.0}
    ]  # fmt: skip


class SummaryWriter:
    """TensorBoard's writer as its reader sees it: ``purge_step`` removes that step and later ones."""

    scalars: ClassVar[dict[str, list[tuple[int, float]]]] = {}
    closed: ClassVar[list[bool]] = []

    def __init__(self, _log_dir, purge_step=None):
        self.number = len(self.closed)
        self.closed.append(False)
        for name, points in self.scalars.items() if purge_step is not None else ():
            self.scalars[name] = [(step, value) for step, value in points if step < purge_step]

    def add_scalar(self, name, value, step):
        assert not self.closed[self.number]
        self.scalars.setdefault(name, []).append((step, value))

    def flush(self):
        pass

    def close(self):
        self.closed[self.number] = True


def test_tensorboard_draws_each_step_once(monkeypatch, tmp_path):
    """Neither a restart from a checkpoint nor a rollback within a start leaves the steps that are taken again."""
    monkeypatch.setattr(SummaryWriter, "scalars", {})
    monkeypatch.setattr(SummaryWriter, "closed", [])
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=SummaryWriter))
    starts = [(0, [1, 2, 3, 4, 5]), (3, [4, 5, 6, 5, 6, 7])]  # In the second one, step 6 is rolled back to 4.
    for number, (resumed_step, steps) in enumerate(starts):
        (sink,) = open_sinks(TrainConfig(tensorboard=True), RunFolder(tmp_path))
        sink.write(StartEvent(step=resumed_step, world_size=1))
        for place, step in enumerate(steps):
            sink.write(TrainEvent(step=step, loss=100.0 * number + place))
            sink.write(
                CheckpointEvent(step=step - 1, path="checkpoint", seconds=1.0, paused_s=0.0)
            )  # its thread is late
    losses = [(1, 0.0), (2, 1.0), (3, 2.0), (4, 100.0), (5, 103.0), (6, 104.0), (7, 105.0)]
    assert SummaryWriter.scalars["train/loss"] == losses
    assert SummaryWriter.closed.count(False) == len(starts)  # the last of each


@pytest.mark.usefixtures("wandb")
def test_a_sink_that_does_not_open_is_left_out(tmp_path, caplog):
    """W&B's server that does not answer when the ranks have connected ends no run."""
    assert open_sinks(TrainConfig(wandb=True), RunFolder(tmp_path)) == []
    assert caplog.messages == ["metrics: cannot open wandb (no answer); training continues without it"]


def test_equal_names_of_run_folders_have_two_ids(tmp_path):
    """A run of Weights & Biases is resumed by its folder alone: another user's of the same name is another run."""
    ids = []
    for user in ("ada", "bob", "ada"):
        (tmp_path / user / "llama").mkdir(parents=True, exist_ok=True)
        ids.append(wandb_id(RunFolder(tmp_path / user / "llama")))
    assert ids[0] == ids[2] != ids[1]
