"""The report shows what happened, restarts included."""

import json
import math
import random
from argparse import Namespace
from xml.etree import ElementTree as ET

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from podwright_training.commands import report
from podwright_training.commands.report import History, ReportError, smooth
from podwright_training.run_folder import RunFolder


def train(step, ranks=2):
    """An event as the trainer writes it: the loss falls from 7.6 towards 3."""
    noise = random.Random(step).gauss(0, 0.12)  # noqa: S311 - not for cryptography
    return {
        "event": "train", "step": step, "loss": 3 + 4.6 * math.exp(-step / 60) + noise, "grad_norm": 1.0,
        "lr": 2e-3 * min(step / 20, 0.5 + 0.5 * math.cos(math.pi * step / 300)), "tokens_per_s": 9000.0 + step,
        "step_s": 0.4, "data_s": 0.01, "batch_digest": "0",
        "batch_sequences": 4 * ranks, "sequences": 4 * (2 * step + 2 * min(step, 100)),
    }  # fmt: skip


def validation(step):
    """An event as the trainer writes it."""
    loss = 3.1 + 4.6 * math.exp(-step / 60)
    return {"event": "validation", "step": step, "loss": loss, "perplexity": math.exp(loss), "tokens": 4096}


def start(step, world_size):
    """An event as the trainer writes it."""
    resumed_from = f"checkpoints/step-{step:08d}" if step else None
    names = {"job_id": "7", "parameters": 4_200_000, "resumed_from": resumed_from}
    return {"event": "start", "step": step, "world_size": world_size, **names}


@pytest.fixture
def folder(tmp_path):
    """A run of 300 steps: killed after step 137, resumed from step 100 with fewer ranks."""
    run = RunFolder(tmp_path / "tiny")
    run.root.mkdir()
    first = [start(0, 4)]
    for step in range(1, 138):
        first += [{**train(step, ranks=4), "loss": 99.0} if step > 100 else train(step, ranks=4)]
        first += [validation(step)] if step % 50 == 0 else []
    second = [start(100, 2)]
    for step in range(101, 301):
        second += [train(step), *([validation(step)] if step % 50 == 0 else [])]
    end = {"event": "end", "step": 300, "reason": "max_steps"}
    run.metrics.write_text("".join(json.dumps(event) + "\n" for event in [*first, *second, end]))
    config = {"preset": "tiny", "train_batch_size": 4, "max_context_width": 128, "lr": 2e-3}
    run.config.write_text(yaml.safe_dump(config))
    run.samples.write_text("The index is used.\n")
    return run


def test_the_last_word_on_a_step_counts(folder):
    """Steps that were done twice are shown as the run that went on did them."""
    history = History.of(folder)
    assert [event["step"] for event in history.train] == list(range(1, 301))
    assert max(event["loss"] for event in history.train) < 10
    assert [event["step"] for event in history.validation] == [50, 100, 150, 200, 250, 300]


def test_page(folder, capsys):
    """The page has the figures, the restart, the configuration and the samples, and points to the figure."""
    assert report.run(Namespace(run_dir=folder.root)) == 0
    assert "report.md" in capsys.readouterr().out
    lines = (folder.report / "report.md").read_text().splitlines()
    assert "Ended after step 300: max_steps." in lines
    assert "![Loss over steps](loss.svg)" in lines
    assert f"| training loss | {train(1)['loss']:.4f} | {train(300)['loss']:.4f} |" in lines
    row = f"| validation perplexity | {validation(50)['perplexity']:.4f} | {validation(300)['perplexity']:.4f} |"
    assert row in lines
    assert "| tokens per second | 9,150 |" in lines
    assert "| 137 | 100 | 2 |" in lines
    assert "| tokens per step | 1,024 |" in lines
    assert "| tokens seen | 409,600 |" in lines
    assert "| preset | tiny |" in lines
    assert "The index is used." in lines


def test_figure(folder):
    """The figure is a picture and a drawing with every curve named, the same each time."""
    report.run(Namespace(run_dir=folder.root))
    drawing = (folder.report / "loss.svg").read_bytes()
    assert (folder.report / "loss.png").read_bytes().startswith(b"\x89PNG")
    ET.fromstring(drawing)  # noqa: S314 - our own file
    for name in ("each step", "smoothed", "validation loss", "restart from a checkpoint", "learning rate"):
        assert name.encode() in drawing
    report.run(Namespace(run_dir=folder.root))
    assert (folder.report / "loss.svg").read_bytes() == drawing
    assert sorted(path.name for path in folder.report.iterdir()) == ["loss.png", "loss.svg", "report.md"]


def test_unfinished_run(tmp_path):
    """A run that is still going on, with nothing but steps, has a report too."""
    run = RunFolder(tmp_path)
    run.metrics.write_text("".join(json.dumps(event) + "\n" for event in [start(0, 1), train(1), train(2)]) + '{"ev')
    report.run(Namespace(run_dir=tmp_path))
    text = (run.report / "report.md").read_text()
    assert "Not finished: the last step logged is 2." in text
    assert "## Restarts\n\nNone.\n" in text


def test_nothing_to_report(tmp_path):
    """A run without a step says where to look."""
    with pytest.raises(ReportError, match=r"has no training step yet.*See .*train\.log"):
        History.of(RunFolder(tmp_path))


@given(values=st.lists(st.floats(-1e3, 1e3), min_size=1), time_constant=st.floats(0.5, 100))
def test_smoothing(values, time_constant):
    """The smoothed curve begins where the curve begins, stays within its range, and of a constant is the constant."""
    smoothed = smooth(values, time_constant)
    assert smoothed[0] == pytest.approx(values[0], abs=1e-9)
    assert all(min(values) - 1e-6 <= value <= max(values) + 1e-6 for value in smoothed)
    assert smooth([2.5] * 5, time_constant) == pytest.approx([2.5] * 5)
