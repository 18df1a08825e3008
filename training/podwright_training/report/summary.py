"""Summarise a run in rows of name and value."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone

from podwright_training.events import CheckpointEvent, MetricsEvent, MixtureEvent
from podwright_training.perplexity import perplexity
from podwright_training.report.curve import Verdict, judge, smooth_run
from podwright_training.report.goodput import RunGoodput
from podwright_training.report.history import History, not_a_number

LONGEST = 1e9  # number whose digits are all written
RECENT_STEPS = 200  # The present speed is the median over these.
MANY_EVENTS = 200  # A run's page lists as many events.
CONFIGURED = (
    "preset", "model_type", "hidden_size", "num_layers", "num_heads", "num_key_value_heads", "intermediate_size",
    "vocab_size", "max_context_width", "train_batch_size", "max_steps", "lr", "sharding_strategy", "bf16", "dataset",
    "data_mixture", "tokenizer", "launcher", "command",
)  # fmt: skip

Row = tuple[str, str]
Row4 = tuple[str, ...]
SHOWN_SHARE = 0.001


def verdict(history: History) -> Verdict:
    """Judge the loss curve."""
    if history.not_finite:
        return Verdict("diverged", not_a_number(history.not_finite), [])
    return judge([event.step for event in history.train], [event.loss for event in history.train])


def status(history: History) -> str:
    """Return one sentence on how the run stands."""
    if history.end is None:
        return f"Not finished: the last step logged is {history.last_step}."
    return f"Ended after step {history.end.step}: {history.end.reason}."


def headline(history: History, *, usd_per_hour: float | None = None) -> Iterator[Row]:
    """Return the figures that stand at the top of the page."""
    last_event, recent = history.train[-1], history.train[-RECENT_STEPS:]
    yield "step", f"{history.last_step:,}" + _of(history.config.get("max_steps"))
    tokens = history.tokens(last_event)
    if tokens is not None:
        yield "tokens seen", f"{tokens:,}"
    if last_event.epoch is not None:
        yield "epoch", f"{last_event.epoch:.4g}"
    for name, epochs in (last_event.source_epochs or {}).items():
        yield f"epoch of {name}", f"{epochs:.4g}"
    yield "training loss, smoothed", f"{smooth_run([event.loss for event in history.train])[-1]:.4f}"
    if history.validation:
        yield "validation loss", f"{history.validation[-1].loss:.4f}"
        yield "validation perplexity", brief(history.validation[-1].perplexity)
    yield "tokens per second", f"{median(event.tokens_per_s for event in recent):,.0f}"
    if last_event.mfu is not None:
        yield "MFU", f"{median(event.mfu for event in recent):.1%}"
    hours, remaining_hours = history.hours, hours_left(history)
    if hours is not None:
        yield "hours", f"{hours:.2f}"
    if remaining_hours is not None:
        yield "hours left", f"{remaining_hours:.2f}"
        end = None if history.clock_went_back else _utc(last_event.time, after_s=3600 * remaining_hours)
        if end is not None:
            yield "expected end", f"{end:%Y-%m-%d %H:%M} UTC"
    if usd_per_hour is not None and hours is not None:
        yield from _cost(hours, remaining_hours, tokens, usd_per_hour)


def _cost(hours: float, remaining_hours: float | None, tokens: int | None, usd_per_hour: float) -> Iterator[Row]:
    yield "cost so far", f"${hours * usd_per_hour:,.2f}"
    if tokens:
        yield "cost per million tokens", f"${hours * usd_per_hour / tokens * 1e6:,.4g}"
    if remaining_hours is not None:
        yield "cost at the end", f"${(hours + remaining_hours) * usd_per_hour:,.2f}"


def by_dataset(history: History) -> Iterator[tuple[str, str, str]]:
    """Return name, loss and perplexity of each dataset of the last validation, if it names any."""
    losses = (history.validation[-1].losses or {}) if history.validation else {}
    for name, loss in losses.items():
        yield name, f"{loss:.4f}", brief(perplexity(loss))


def by_source(history: History) -> Iterator[Row4]:
    """Return name, share of the sequences, documents, tokens and epochs of each source up to the last checkpoint."""
    if not history.reads:
        return
    read_event = history.reads[-1]
    total = sum(read_event.source_sequences.values())
    for name, sequences in read_event.source_sequences.items():
        documents, tokens = read_event.source_documents.get(name, 0), read_event.source_tokens.get(name, 0)
        epochs = read_event.source_epochs.get(name, 0.0)
        yield name, f"{sequences / max(total, 1):.1%}", f"{documents:,}", f"{tokens:,}", f"{epochs:.4g}"


def brief(number: float) -> str:
    """Return a number with the four digits that people compare: 2.417, 12.35, 675.2, 12,346."""
    return f"{number:,.{max(0, 3 - math.floor(math.log10(number)))}f}" if 0 < number < LONGEST else f"{number:.4g}"


def hours_left(history: History) -> float | None:
    """Return the hours to ``max_steps`` at the present speed, saves not included; None for a run that has ended."""
    until = history.config.get("max_steps")
    if history.end is not None or not until:
        return None
    step_s = median(event.step_s for event in history.train[-RECENT_STEPS:])
    return float(max(0, until - history.last_step) * step_s / 3600)


def speed(history: History) -> Iterator[Row]:
    """Return rows on speed; medians, as starts and saves distort a mean."""
    start = history.starts[-1] if history.starts else None
    if start:
        if start.parameters:
            yield "parameters", f"{start.parameters:,}"
        yield "ranks", str(start.world_size)
    tokens_per_s = median(event.tokens_per_s for event in history.train)
    yield "tokens per second", f"{tokens_per_s:,.0f}"
    yield "seconds per step", f"{median(event.step_s for event in history.train):.3f}"
    if any(event.data_s is not None for event in history.train):
        yield "of them waiting for data", f"{median(event.data_s for event in history.train):.3f}"
    if start and start.flops_per_token:
        yield "TFLOP/s per rank", f"{start.flops_per_token * tokens_per_s / start.world_size / 1e12:.4g}"
    width, batch_sequences = history.config.get("max_context_width"), history.train[-1].batch_sequences
    if width and batch_sequences is not None:
        yield "tokens per step", f"{batch_sequences * width:,}"
    saves = [event for event in history.notable if isinstance(event, CheckpointEvent)]
    if saves:
        yield "checkpoints", str(len(saves))
        paused = statistics.median(event.paused_s or 0.0 for event in saves)
        yield "seconds that training waits for one", f"{paused:.2f}"


def goodput(accounting: RunGoodput) -> Iterator[Row]:
    """Return the share of the time that made progress, and the causes of the rest."""
    if accounting.share is None:
        return
    yield "goodput", f"{accounting.share:.1%}"
    if accounting.predicted is not None:
        yield "as podwright plan predicts", f"{accounting.predicted:.1%}"


def lost(accounting: RunGoodput) -> str:
    """Return causes of more than a thousandth of the time, the largest first: ``saving 1.2%, restarting 0.4%``."""
    shares = {row.kind: row.share for row in accounting.rows() if row.kind != "productive"}
    largest_shares = sorted(shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{kind} {share:.1%}" for kind, share in largest_shares if share >= SHOWN_SHARE)


def goodput_table(accounting: RunGoodput, *, usd_per_hour: float | None = None) -> tuple[Row4, list[Row4]]:
    """Return the head and the rows of a table of the run's time by kind."""
    head = ("", "seconds", "share", "steps", *([] if usd_per_hour is None else ["USD"]))
    rows = [
        (
            f"{row.kind}: {row.meaning}",
            f"{row.seconds:,.1f}",
            f"{row.share:.1%}",
            "" if row.steps is None else f"{row.steps:,.1f}",
            *([] if row.usd is None else [f"{row.usd:,.2f}"]),
        )
        for row in accounting.rows(usd_per_hour)
    ]
    return head, rows


def events(history: History) -> list[tuple[str, str, str]]:
    """Return time, event and text of all that happened but steps and saves; of very many the last ones."""
    rows = [
        (_when(event), event.kind, _text(event)) for event in history.notable if not isinstance(event, CheckpointEvent)
    ]
    omitted = len(rows) - MANY_EVENTS
    return [("", "…", f"{omitted:,} earlier events"), *rows[-MANY_EVENTS:]] if omitted > 0 else rows


def configuration(history: History) -> list[Row]:
    """Return the options that characterize the run."""
    config = history.config
    keys = [key for key in CONFIGURED if key != "dataset" or not config.get("data_mixture")]
    return [(key, str(config[key])) for key in keys if config.get(key) is not None]


def differences(histories: list[History]) -> list[tuple[str, ...]]:
    """Return the options that differ between runs, each with its value in every run."""
    keys = sorted({key for history in histories for key in history.config} - {"run_dir", "checkpoint_dir"})
    rows = ((key, *(str(history.config.get(key, "")) for history in histories)) for key in keys)
    return [row for row in rows if len(set(row[1:])) > 1]


def median(values: Iterable[float | None]) -> float:
    """Return the median of a metric of several steps, without those that lack it; 0 if all do."""
    return statistics.median([value for value in values if value is not None] or [0.0])


def _of(total: object) -> str:
    return f" of {total:,}" if isinstance(total, int) else ""


def _when(event: MetricsEvent) -> str:
    time = _utc(event.time)
    return "" if time is None else f"{time:%Y-%m-%d %H:%M:%S} UTC"


def _utc(time: float | None, *, after_s: float = 0.0) -> datetime | None:
    """Return the date of a time in seconds since 1970; None if it is missing or out of range."""
    try:
        return None if time is None else datetime.fromtimestamp(time + after_s, timezone.utc)
    except (ValueError, OverflowError, OSError):  # Dates end with the year 9999.
        return None


def _text(event: MetricsEvent) -> str:
    shown = {
        key: value
        for key, value in event.values().items()
        if key not in ("config", "batch_digest", "flops_convention")
        and value not in (None, [])
        and (not isinstance(value, dict) or isinstance(event, MixtureEvent))
    }
    return ", ".join(f"{key} {_brief(value)}" for key, value in shown.items())


def _brief(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    if isinstance(value, dict):
        return " ".join(f"{name}={_brief(item)}" for name, item in value.items())
    return f"{value:.6g}" if isinstance(value, float) else str(value)
