"""``podwright-train report``: the loss curve as a figure and the run on one page, from the run folder alone.

A run that restarted wrote some steps twice: the last word on a step counts, as the model that goes on came from it.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from podwright_training.run import RunFolder, write_atomically

FIGURE = "loss"
PAGE = "report.md"
SMOOTHING_STEPS = 20  # time constant of the smoothed curve, less for short runs
CONFIGURED = (
    "preset", "model_type", "hidden_width", "num_layers", "num_heads", "num_key_value_heads", "intermediate_size",
    "vocab_size", "max_context_width", "train_batch_size", "max_steps", "lr", "sharding_strategy", "bf16", "dataset",
    "tokenizer",
)  # fmt: skip


class ReportError(ValueError):
    """The run has nothing to report yet."""


@dataclass(frozen=True)
class History:
    """The events that count, in the order of steps."""

    starts: list[dict[str, Any]]
    train: list[dict[str, Any]]
    validation: list[dict[str, Any]]
    end: dict[str, Any] | None

    @classmethod
    def of(cls, folder: RunFolder) -> History:
        """Read the metrics; raises ``ReportError`` if no step was logged."""
        events = list(folder.events())
        train = _last_per_step(event for event in events if event["event"] == "train")
        if not train:
            raise ReportError(f"{folder.metrics} holds no training step yet: has the job started? See {folder.log}")
        return cls(
            starts=[event for event in events if event["event"] == "start"],
            train=train,
            validation=_last_per_step(event for event in events if event["event"] == "validation"),
            end=next((event for event in reversed(events) if event["event"] == "end"), None),
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``podwright-train report``."""
    parser.add_argument("--run_dir", type=Path, required=True, help="folder of the run, finished or not")


def run(args: argparse.Namespace) -> int:
    """Write figure and page; exit status."""
    folder = RunFolder(args.run_dir)
    history = History.of(folder)
    folder.report.mkdir(parents=True, exist_ok=True)
    for suffix in ("svg", "png"):
        draw(history, folder.report / f"{FIGURE}.{suffix}", title=f"{folder.root.absolute().name}")
    write_atomically(folder.report / PAGE, page(folder, history))
    print(f"{folder.report / PAGE}\n{folder.report / FIGURE}.svg, .png")
    return 0


def smooth(values: Sequence[float], time_constant: float) -> list[float]:
    """Exponential moving average, freed from the bias to its start (Adam's correction, arXiv:1412.6980 section 3)."""
    decay = math.exp(-1 / time_constant)
    average, weight, smoothed = 0.0, 0.0, []
    for value in values:
        average = decay * average + (1 - decay) * value
        weight = decay * weight + (1 - decay)
        smoothed.append(average / weight)
    return smoothed


def draw(history: History, path: Path, *, title: str) -> None:
    """The loss curve: each step faint, smoothed, validation, restarts; the learning rate on the right axis."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"font.size": 11, "svg.hashsalt": "podwright", "axes.spines.top": False}):
        figure = Figure(figsize=(10, 5.6), layout="constrained")
        axes = figure.add_subplot()
        _draw_loss(axes, history)
        _draw_learning_rate(axes.twinx(), history)
        axes.set_title(title, loc="left", fontweight="bold")
        axes.legend(loc="upper right", frameon=False)
        temporary = path.with_name(f".{path.name}")
        figure.savefig(temporary, format=path.suffix[1:], dpi=150, metadata={"Date": None} if path.suffix == ".svg" else {})
    temporary.replace(path)


def page(folder: RunFolder, history: History) -> str:
    """The report in Markdown."""
    return "\n".join((
        f"# {folder.root.absolute().name}",
        "",
        _verdict(history),
        "",
        f"![Loss over steps]({FIGURE}.svg)",
        "",
        *_table(("", ""), _figures(folder, history)),
        "",
        *_validation(history),
        *_restarts(history),
        *_configuration(folder),
        *_samples(folder),
    ))  # fmt: skip
