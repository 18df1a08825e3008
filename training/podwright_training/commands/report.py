"""``podwright-train report``: write the loss curve and a summary page from the run folder.

A restarted run wrote some steps twice: the last event of a step counts, as training continued from it.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import yaml

from podwright_training.errors import UserError
from podwright_training.run_folder import RunFolder, write_atomically

FIGURE = "loss"
PAGE = "report.md"
SMOOTHING_STEPS = 50  # time constant of the smoothed curve; of short runs a fortieth, or it lags behind
BLUE, RED, GREEN, GREY = "#1f5fa8", "#c8443a", "#4a8f5c", "#555555"
CONFIGURED = (
    "preset", "model_type", "hidden_size", "num_layers", "num_heads", "num_key_value_heads", "intermediate_size",
    "vocab_size", "max_context_width", "train_batch_size", "max_steps", "lr", "sharding_strategy", "bf16", "dataset",
    "tokenizer",
)  # fmt: skip


class ReportError(UserError):
    """The run has nothing to report yet."""


@dataclass(frozen=True)
class Restart:
    """Start after the first one."""

    stopped_after: int  # the last step logged before
    resumed_after: int  # the step of the checkpoint it resumed from
    world_size: int


@dataclass(frozen=True)
class History:
    """Events that count, in the order of steps."""

    starts: list[dict[str, Any]]
    restarts: list[Restart]
    train: list[dict[str, Any]]
    validation: list[dict[str, Any]]
    end: dict[str, Any] | None

    @classmethod
    def of(cls, folder: RunFolder) -> History:
        """Read the metrics; raise ``ReportError`` if no step was logged."""
        events = list(folder.events())
        train = _last_per_step(events, "train")
        if not train:
            raise ReportError(f"{folder.metrics} has no training step yet: has the job started? See {folder.log}")
        return cls(
            starts=[event for event in events if event["event"] == "start"],
            restarts=list(_restarts(events)),
            train=train,
            validation=_last_per_step(events, "validation"),
            end=next((event for event in reversed(events) if event["event"] == "end"), None),
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``podwright-train report``."""
    parser.add_argument("--run_dir", type=Path, required=True, help="folder of the run, finished or not")


def run(args: argparse.Namespace) -> int:
    """Write figure and page; return the exit status."""
    folder = RunFolder(args.run_dir)
    history = History.of(folder)
    folder.report.mkdir(parents=True, exist_ok=True)
    for suffix in ("svg", "png"):
        draw(history, folder.report / f"{FIGURE}.{suffix}", title=folder.root.absolute().name)
    write_atomically(folder.report / PAGE, page(folder, history))
    print(f"{folder.report / PAGE}\n{folder.report / FIGURE}.svg, .png")
    return 0


def smooth(values: Sequence[float], time_constant: float) -> list[float]:
    """Return the exponential moving average with Adam's bias correction (arXiv:1412.6980 section 3)."""
    decay = math.exp(-1 / time_constant)
    average, weight, smoothed = 0.0, 0.0, []
    for value in values:
        average = decay * average + (1 - decay) * value
        weight = decay * weight + (1 - decay)
        smoothed.append(average / weight)
    return smoothed


def draw(history: History, path: Path, *, title: str) -> None:
    """Draw the loss curve: steps, smoothed, validation, restarts; the learning rate on the right axis."""
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
        figure.savefig(
            temporary, format=path.suffix[1:], dpi=150, metadata={"Date": None} if path.suffix == ".svg" else {}
        )
    temporary.replace(path)


def page(folder: RunFolder, history: History) -> str:
    """Render the report in Markdown."""
    sections = [
        f"# {folder.root.absolute().name}",
        _verdict(history),
        f"![Loss over steps]({FIGURE}.svg)",
        _table(("", "first", "last"), _progress(history)),
        "## Speed",
        _table(("", ""), _speed(folder, history)),
        "## Restarts",
        _table(("stopped after step", "resumed after step", "ranks"), map(astuple, history.restarts))
        if history.restarts
        else "None.",
    ]
    if folder.config.exists():
        config = yaml.safe_load(folder.config.read_text())
        sections += ["## Configuration", _table(("", ""), ((key, config[key]) for key in CONFIGURED if key in config))]
    if folder.samples.exists():
        sections += ["## Samples", f"```text\n{folder.samples.read_text().rstrip()}\n```"]
    return "\n\n".join(sections) + "\n"


def _last_per_step(events: Iterable[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    by_step = {event["step"]: event for event in events if event["event"] == kind}
    return [by_step[step] for step in sorted(by_step)]


def _restarts(events: Iterable[dict[str, Any]]) -> Iterator[Restart]:
    step: int | None = None  # none before the first start
    for event in events:
        if event["event"] == "start":
            if step is not None:
                yield Restart(stopped_after=step, resumed_after=event["step"], world_size=event["world_size"])
            step = event["step"]
        elif event["event"] == "train":
            step = event["step"]


def _draw_loss(axes: Any, history: History) -> None:
    steps = [event["step"] for event in history.train]
    losses = [event["loss"] for event in history.train]
    axes.plot(steps, losses, color=BLUE, alpha=0.3, linewidth=1, label="training loss, each step")
    axes.plot(steps, _smoothed(losses), color=BLUE, linewidth=2.2, label="training loss, smoothed")
    if history.validation:
        axes.plot(
            [event["step"] for event in history.validation],
            [event["loss"] for event in history.validation],
            "o",
            color=RED,
            markersize=7,
            markeredgecolor="white",
            clip_on=False,  # the last one lies on the frame
            zorder=5,
            label="validation loss",
        )
    for number, restart in enumerate(history.restarts):
        label = "restart from a checkpoint" if number == 0 else None
        axes.axvline(restart.resumed_after, color=GREY, linestyle=(0, (4, 3)), linewidth=1.2, label=label)
    axes.plot([], [], color=GREEN, linewidth=1.2, alpha=0.6, label="learning rate, right axis")  # for the legend
    axes.set_xlabel("step")
    axes.set_ylabel("loss, nats per token")
    axes.set_xlim(0, max(steps[-1], 1))
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)


def _draw_learning_rate(axes: Any, history: History) -> None:
    axes.plot(
        [event["step"] for event in history.train],
        [event["lr"] for event in history.train],
        color=GREEN,
        linewidth=1.2,
        alpha=0.6,
    )
    axes.set_ylabel("learning rate", color=GREEN)
    axes.tick_params(axis="y", colors=GREEN)
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3), useMathText=True)
    axes.set_ylim(bottom=0)


def _smoothed(losses: Sequence[float]) -> list[float]:
    return smooth(losses, min(SMOOTHING_STEPS, max(1.0, len(losses) / 40)))


def _verdict(history: History) -> str:
    step = history.train[-1]["step"]
    if history.end is None:
        return f"Not finished: the last step logged is {step}."
    return f"Ended after step {history.end['step']}: {history.end['reason']}."


def _progress(history: History) -> Iterator[tuple[object, ...]]:
    """Return rows of name, first, last."""
    first, last = history.train[0], history.train[-1]
    smoothed = _smoothed([event["loss"] for event in history.train])
    yield "step", first["step"], last["step"]
    yield "training loss", f"{first['loss']:.4f}", f"{last['loss']:.4f}"
    yield "training loss, smoothed", f"{smoothed[0]:.4f}", f"{smoothed[-1]:.4f}"
    if history.validation:
        first, last = history.validation[0], history.validation[-1]
        yield f"validation loss (steps {first['step']}, {last['step']})", f"{first['loss']:.4f}", f"{last['loss']:.4f}"
        yield "validation perplexity", f"{first['perplexity']:.4f}", f"{last['perplexity']:.4f}"


def _speed(folder: RunFolder, history: History) -> Iterator[tuple[object, ...]]:
    """Return rows of name, value; medians, as starts and saves distort a mean."""
    start = history.starts[-1]
    yield "parameters", f"{start['parameters']:,}"
    yield "ranks", start["world_size"]
    yield "tokens per second", f"{_median(history, 'tokens_per_s'):,.0f}"
    yield "seconds per step", f"{_median(history, 'step_s'):.3f}"
    yield "of them waiting for data", f"{_median(history, 'data_s'):.3f}"
    if folder.config.exists():
        config = yaml.safe_load(folder.config.read_text())
        width = config["max_context_width"]
        last = history.train[-1]
        yield "tokens per step", f"{last['batch_sequences'] * width:,}"
        yield "tokens seen", f"{last['sequences'] * width:,}"


def _median(history: History, key: str) -> float:
    return statistics.median(float(event[key]) for event in history.train)


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)
