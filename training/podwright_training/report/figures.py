"""Describe the figures of a report, and draw them with matplotlib; the page draws the same ones in the browser."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from podwright_training.events import CheckpointEvent, GuardEvent, MetricsEvent
from podwright_training.report.curve import Forecast, buckets, forecast, judge, smooth_run
from podwright_training.report.event_log import TrainEvents
from podwright_training.report.history import History, elapsed_hours

POINTS = 1000  # A screen has as many columns; a longer curve shows range and mean of neighbouring steps.
GIB = 2**30
TICKS = 200  # At most as many checkpoints are marked.
SPIKES_MARKED = 20
BLUE, RED, GREEN, GREY, ORANGE, PURPLE = "#1f5fa8", "#c8443a", "#4a8f5c", "#777777", "#c77c11", "#7a4fa3"
MARKED = (
    ("restart", GREY, "restart from a checkpoint"),
    ("guard", RED, "guard stepped in"),
    ("spike", ORANGE, "spike"),
)
RUN_COLOURS = (BLUE, RED, GREEN, ORANGE, PURPLE, GREY)
AXES = {"step": "step", "tokens": "tokens", "hours": "hours since the start, waits included"}

Column = list[float | None]
Table = dict[str, Column]  # columns of one length, among them those of AXES that are known


@dataclass(frozen=True)
class Line:
    """One curve of a figure."""

    label: str
    table: str
    column: str
    colour: str
    style: str = "line"  # line, faint, dashed, points
    right: bool = False  # belongs to the right axis
    band: bool = False  # fill between the columns <column>_low and <column>_high


@dataclass(frozen=True)
class Figure:
    """Curves over steps, tokens or hours."""

    name: str  # Its files have this name.
    title: str
    left_label: str  # The label has the unit.
    lines: tuple[Line, ...]
    right: str = ""
    log: bool = False


@dataclass(frozen=True)
class Mark:
    """A moment of the run, marked in every figure."""

    at: dict[str, float | None]
    kind: str  # restart, guard, spike: a line; checkpoint: a tick
    text: str


LOSS = Figure(
    "loss",
    "Loss",
    "loss, nats per token",
    (
        Line("training loss, each step", "train", "loss", BLUE, "faint", band=True),
        Line("training loss, smoothed", "train", "smoothed", BLUE),
        Line("validation loss", "validation", "loss", RED, "points"),
        Line("forecast, 90 % band", "forecast", "loss", PURPLE, "dashed", band=True),
        Line("learning rate, right axis", "train", "lr", GREEN, right=True),
    ),
    right="learning rate",
)
SPEED = Figure(
    "throughput",
    "Throughput",
    "tokens per second",
    (
        Line("tokens per second", "train", "tokens_per_s", BLUE, band=True),
        Line("MFU, right axis", "train", "mfu_percent", ORANGE, right=True),
    ),
    right="MFU, %",
)
GRADIENT = Figure(
    "gradient",
    "Gradient norm before clipping",
    "norm",
    (Line("gradient norm", "train", "grad_norm", PURPLE, band=True),),
    log=True,
)
TIME = Figure(
    "step-time",
    "Time of a step",
    "seconds",
    (
        Line("step", "train", "step_s", BLUE),
        Line("of it waiting for data", "train", "data_s", ORANGE),
        Line("slowest rank behind the median", "train", "lag_s", RED),
    ),
)
MEMORY = Figure(
    "memory",
    "Memory of the first rank",
    "GiB",
    (
        Line("peak", "train", "memory_peak_gib", BLUE),
        Line("reserved by the allocator", "train", "memory_reserved_gib", GREY),
    ),
)
MARKER_COLOURS = (ORANGE, GREEN, PURPLE, GREY)
SOURCES = "sources"  # the table of tokens by source
SETS = "validation sets"  # the table of losses on datasets of validation_datasets
VALIDATION_LINES = 3  # The lines of LOSS up to the validation loss.
OF_ONE_RUN = (LOSS, SPEED, GRADIENT, TIME, MEMORY)


def tables(history: History) -> dict[str, Table]:
    """Return the columns that the figures of a run draw."""
    columns = _train_columns(history)
    train: Table = {name: [] for name in columns}
    for name in ("loss", "tokens_per_s", "grad_norm"):
        train[f"{name}_low"], train[f"{name}_high"] = [], []
    for part in buckets(len(history.train), POINTS):
        for name, values in columns.items():
            values_with_number = [value for value in values[part] if value is not None]
            if name in AXES:
                train[name].append(values_with_number[-1] if values_with_number else None)
                continue
            train[name].append(_brief(fmean(values_with_number)) if values_with_number else None)
            if f"{name}_low" in train:
                train[f"{name}_low"].append(_brief(min(values_with_number)) if values_with_number else None)
                train[f"{name}_high"].append(_brief(max(values_with_number)) if values_with_number else None)
    validation = [
        (_locate(history, event.step, event), event.loss) for event in history.validation if math.isfinite(event.loss)
    ]
    tables_by_name: dict[str, Table] = {
        "train": train,
        "validation": {
            **{axis: [at[axis] for at, _ in validation] for axis in AXES},
            "loss": [_brief(loss) for _, loss in validation],
        },
    }
    if validation_sets(history):
        tables_by_name[SETS] = _sets_table(history)
    if sources_of(history):
        tables_by_name[SOURCES] = _sources_table(history)
    ahead = forecast_of(history)
    return {**tables_by_name, "forecast": _forecast_table(history, ahead)} if ahead else tables_by_name


def sources_of(history: History) -> list[str]:
    """Return the names of a mixture's sources."""
    return list(history.train[-1].source_tokens or ())


def validation_sets(history: History) -> list[str]:
    """Return the names of the datasets that the run validates on besides the validation split."""
    return list(history.validation[-1].losses or ()) if history.validation else []


def with_sets(figure: Figure, history: History) -> Figure:
    """Return the figure of the loss with the losses on these datasets."""
    names = validation_sets(history)
    colours = (MARKER_COLOURS[number % len(MARKER_COLOURS)] for number in range(len(names)))
    added = [
        Line(f"validation loss, {name}", SETS, f"on {name}", colour, "points")
        for name, colour in zip(names, colours, strict=True)
    ]
    return replace(figure, lines=(*figure.lines[:VALIDATION_LINES], *added, *figure.lines[VALIDATION_LINES:]))


def by_source(history: History) -> Iterator[Figure]:
    """Yield the figure of a mixture's sources."""
    if names := sources_of(history):
        colours = (RUN_COLOURS[number % len(RUN_COLOURS)] for number in range(len(names)))
        lines = (Line(name, SOURCES, f"of {name}", colour) for name, colour in zip(names, colours, strict=True))
        yield Figure("sources", "Tokens seen by source", "tokens", tuple(lines))


def marks(history: History) -> list[Mark]:
    """Return restarts, interventions of the guard, spikes of the loss, and checkpoints."""
    restarts = [
        Mark(
            _locate(history, restart.resumed_after),
            "restart",
            f"restart on {restart.world_size} rank{'' if restart.world_size == 1 else 's'}",
        )
        for restart in history.restarts
    ]
    guards = [
        Mark(_locate(history, event.step), "guard", f"{event.reason or ''}: {event.policy or ''}")
        for event in history.notable
        if isinstance(event, GuardEvent)
    ]
    spikes = [Mark(_locate(history, step), "spike", "spike") for step in spikes_of(history)]
    saved = sorted({event.step for event in history.notable if isinstance(event, CheckpointEvent)})
    checkpoints = [
        Mark(_locate(history, saved[part.stop - 1]), "checkpoint", "") for part in buckets(len(saved), TICKS)
    ]
    return [*restarts, *guards, *spikes, *checkpoints]


def spikes_of(history: History) -> list[int]:
    """Return the first steps of the first spikes that the guard did not mark."""
    guarded = {event.step for event in history.notable if isinstance(event, GuardEvent)}
    spikes = judge(*_steps_and_losses(history)).spikes
    return [step for step in spikes if step not in guarded][:SPIKES_MARKED]


def forecast_of(history: History) -> Forecast | None:
    """Return the forecast up to ``max_steps``; None for a run that has reached it."""
    until = history.config.get("max_steps")
    steps, losses = _steps_and_losses(history)
    return forecast(steps, losses, until=int(until)) if until and history.end is None else None


def drawable(figures: Iterable[Figure], data: Mapping[str, Table]) -> Iterator[Figure]:
    """Yield the figures that have a curve, without the curves that have no value (of MFU or memory on a CPU)."""
    for figure in figures:
        lines = tuple(line for line in figure.lines if _has_values(data, line))
        if lines:
            right = figure.right if any(line.right for line in lines) else ""
            yield Figure(figure.name, figure.title, figure.left_label, lines, right, figure.log)


def comparison(names: Sequence[str], data: Mapping[str, Table]) -> list[Figure]:
    """Return the figures that compare runs, whose tables are called ``<number>/<table>``."""
    colours = [RUN_COLOURS[number % len(RUN_COLOURS)] for number in range(len(names))]

    def line_per_run(table: str, column: str, style: str = "line", suffix: str = "") -> tuple[Line, ...]:
        return tuple(
            Line(f"{name}{suffix}", f"{number}/{table}", column, colours[number], style)
            for number, name in enumerate(names)
        )

    loss = (*line_per_run("train", "smoothed"), *line_per_run("validation", "loss", "points", ", validation"))
    figures = (
        Figure("loss", "Loss, smoothed", "loss, nats per token", loss),
        Figure("throughput", "Throughput", "tokens per second", line_per_run("train", "tokens_per_s")),
        Figure("gradient", "Gradient norm before clipping", "norm", line_per_run("train", "grad_norm"), log=True),
    )
    return list(drawable(figures, data))


def draw(figure: Figure, data: Mapping[str, Table], folder: Path, *, moments: Sequence[Mark], title: str) -> None:
    """Draw a figure over steps as ``<folder>/<name>.svg`` and ``.png``; the same data gives the same bytes."""
    import matplotlib as mpl
    from matplotlib.figure import Figure as Canvas

    with mpl.rc_context({"font.size": 11, "svg.hashsalt": "podwright", "axes.spines.top": False}):
        canvas = Canvas(figsize=(10, 5.6), layout="constrained")
        axes = canvas.add_subplot()
        right = axes.twinx() if figure.right else None
        for line in figure.lines:
            _plot(right if line.right and right else axes, data[line.table], line)
        _mark(axes, moments)
        axes.set(xlabel="step", ylabel=figure.left_label, yscale="log" if figure.log else "linear")
        axes.set_title(f"{title}: {figure.title.lower()}", loc="left", fontweight="bold", parse_math=False)
        axes.set_xlim(left=0)
        axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
        if right:
            right.set_ylabel(figure.right)
            right.set_ylim(bottom=0)
        handles = [handle for side in (axes, right) if side for handle in side.get_legend_handles_labels()[0]]
        for text in axes.legend(handles=handles, loc="upper right", frameon=False).get_texts():
            text.set_parse_math(False)  # names of runs and sources may have dollar signs
        for suffix, metadata in (("svg", {"Date": None}), ("png", {})):
            temporary = folder / f".{figure.name}.{suffix}"
            canvas.savefig(temporary, format=suffix, dpi=150, metadata=metadata)
            temporary.replace(folder / f"{figure.name}.{suffix}")


def _mark(axes: Any, moments: Sequence[Mark]) -> None:
    for kind, colour, label in MARKED:
        steps = [mark.at["step"] for mark in moments if mark.kind == kind and mark.at["step"] is not None]
        for number, step in enumerate(steps):
            text = label if number == 0 else None  # one entry of the legend for all
            axes.axvline(step, color=colour, linestyle=(0, (4, 3)), linewidth=1.2, label=text)
    saved = [mark.at["step"] for mark in moments if mark.kind == "checkpoint"]
    if saved:
        bottom = axes.get_xaxis_transform()  # heights of the whole axis
        axes.plot(saved, [0.01] * len(saved), "|", color=GREY, markersize=9, transform=bottom, label="checkpoint")


def _plot(axes: Any, table: Table, line: Line) -> None:
    nan = math.nan
    x = [nan if value is None else value for value in table["step"]]
    y = [nan if value is None else value for value in table[line.column]]
    if line.band:
        low, high = (
            [nan if value is None else value for value in table[f"{line.column}_{end}"]] for end in ("low", "high")
        )
        axes.fill_between(x, low, high, color=line.colour, alpha=0.15, linewidth=0)
    styles: dict[str, dict[str, Any]] = {
        "line": {"linewidth": 2.0},
        "faint": {"linewidth": 1.0, "alpha": 0.35},
        "dashed": {"linewidth": 1.6, "linestyle": (0, (6, 3))},
        "points": {"linestyle": "", "marker": "o", "markersize": 7, "markeredgecolor": "white", "clip_on": False},
    }
    axes.plot(x, y, color=line.colour, label=line.label, **styles[line.style])


def _train_columns(history: History) -> dict[str, Column]:
    def column(name: str, scale: float = 1.0) -> Column:
        values = _values(history, name)
        return [value * scale if value is not None and math.isfinite(value) else None for value in values]

    return {
        "step": column("step"),
        "tokens": [history.tokens(event) for event in history.train],
        "hours": [_hours(event) for event in history.train],
        "smoothed": list(smooth_run(_steps_and_losses(history)[1])),
        "mfu_percent": column("mfu", 100),
        "memory_peak_gib": column("memory_peak_bytes", 1 / GIB),
        "memory_reserved_gib": column("memory_reserved_bytes", 1 / GIB),
        "loss": column("loss"),
        "lr": column("lr"),
        "grad_norm": column("grad_norm"),
        "tokens_per_s": column("tokens_per_s"),
        "step_s": column("step_s"),
        "data_s": column("data_s"),
        "lag_s": column("lag_s"),
    }


def _values(history: History, name: str) -> list[Any]:
    """Return a field of all training steps."""
    train = history.train
    return train.column(name) if isinstance(train, TrainEvents) else [getattr(event, name) for event in train]


def _sources_table(history: History) -> Table:
    events = [history.train[part.stop - 1] for part in buckets(len(history.train), POINTS)]
    tokens_by_event = [(event, event.source_tokens) for event in events if event.source_tokens]
    located = [_locate(history, event.step, event) for event, _ in tokens_by_event]
    table: Table = {axis: [at[axis] for at in located] for axis in AXES}
    columns = {f"of {name}": [tokens.get(name) for _, tokens in tokens_by_event] for name in sources_of(history)}
    return table | columns


def _sets_table(history: History) -> Table:
    located = [_locate(history, event.step, event) for event in history.validation]
    table: Table = {axis: [at[axis] for at in located] for axis in AXES}
    for name in validation_sets(history):
        losses = [(event.losses or {}).get(name) for event in history.validation]
        table[f"on {name}"] = [None if loss is None or not math.isfinite(loss) else _brief(loss) for loss in losses]
    return table


def _steps_and_losses(history: History) -> tuple[list[int], list[float]]:
    return _values(history, "step"), _values(history, "loss")


def _forecast_table(history: History, ahead: Forecast) -> Table:
    """Continue tokens and hours at their average rate."""
    last_event = history.train[-1]
    per_step = {
        axis: None if value is None else value / last_event.step
        for axis, value in (("tokens", history.tokens(last_event)), ("hours", history.hours))
    }
    return {
        "step": list(ahead.steps),
        **{axis: [None if rate is None else step * rate for step in ahead.steps] for axis, rate in per_step.items()},
        "loss": [_brief(value) for value in ahead.loss],
        "loss_low": [_brief(value) for value in ahead.low],
        "loss_high": [_brief(value) for value in ahead.high],
    }


def _locate(history: History, step: int, located_event: MetricsEvent | None = None) -> dict[str, float | None]:
    """Return where a step lies on each axis, or its own event."""
    index = bisect_left(history.train, step, key=lambda event: event.step)
    event = history.train[min(index, len(history.train) - 1)]
    tokens = 0 if step == 0 else history.tokens(event)
    hours = _hours(located_event) if located_event else None
    return {"step": step, "tokens": tokens, "hours": _hours(event) if hours is None else hours}


def _hours(event: MetricsEvent) -> float | None:
    hours = elapsed_hours(event)
    return None if hours is None else _brief(hours)


def _has_values(data: Mapping[str, Table], line: Line) -> bool:
    return any(value is not None for value in data.get(line.table, {}).get(line.column, ()))


def _brief(value: float) -> float:
    """Return the number with the digits that a picture shows."""
    return float(f"{value:.6g}")
