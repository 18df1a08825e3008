"""Render the report as one HTML page that needs no network: uPlot, the data and the styles are in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from podwright_training.json_text import to_json
from podwright_training.report import summary
from podwright_training.report.figures import (
    AXES,
    LOSS,
    OF_ONE_RUN,
    Figure,
    Mark,
    Table,
    by_source,
    comparison,
    drawable,
    marks,
    tables,
    with_sets,
)
from podwright_training.report.history import History

REFRESH_S = 10  # A live page loads itself again so often.


@dataclass(frozen=True)
class ReportFigures:
    """Figures, their data and the moments they mark."""

    figures: list[Figure]
    data: dict[str, Table]
    moments: list[Mark]

    @classmethod
    def of(cls, histories: Sequence[History]) -> ReportFigures:
        """Describe the figures of one run, or of a comparison of several."""
        if len(histories) == 1:
            data = tables(histories[0])
            figures = (with_sets(LOSS, histories[0]), *OF_ONE_RUN[1:], *by_source(histories[0]))
            return cls(list(drawable(figures, data)), data, marks(histories[0]))
        data = {
            f"{number}/{name}": table
            for number, history in enumerate(histories)
            for name, table in tables(history).items()
        }
        return cls(comparison([history.name for history in histories], data), data, [])

    def to_json(self) -> str:
        """Return the data that the page's script draws; safe inside a script element."""
        content = {
            "axes": AXES,
            "figures": [asdict(figure) for figure in self.figures],
            "tables": self.data,
            "marks": [asdict(mark) for mark in self.moments],
        }
        return to_json(content, separators=(",", ":")).replace("<", "\\u003c")


def render(
    histories: Sequence[History],
    *,
    samples: str = "",
    evaluation: dict[str, Any] | None = None,
    usd_per_hour: float | None = None,
    live: bool = False,
) -> str:
    """Return the page of one run, or of several that are compared.

    Args:
        histories: runs; the first gives the page its name.
        samples: text that the model wrote.
        evaluation: result of ``podwright-train evaluate``.
        usd_per_hour: price of all nodes of the run, for its cost.
        live: fetch the page again every ``REFRESH_S`` seconds from where it came.
    """
    drawing = ReportFigures.of(histories)
    template = _environment().get_template("page.html.jinja")
    page: str = template.render(
        title=" and ".join(history.name for history in histories),
        runs=[
            {
                "name": history.name,
                "status": summary.status(history),
                "verdict": summary.verdict(history),
                "headline": list(summary.headline(history, usd_per_hour=usd_per_hour)),
                "speed": list(summary.speed(history)),
                "goodput": summary.goodput_table(history.goodput, usd_per_hour=usd_per_hour),
                "goodput_share": list(summary.goodput(history.goodput)),
                "causes": history.goodput.causes(),
                "sources": list(summary.by_source(history)),
                "validation": list(summary.by_dataset(history)),
                "samples": history.samples,
                "restarts": history.restarts,
                "events": summary.events(history),
                "configuration": summary.configuration(history),
            }
            for history in histories
        ],
        differences=summary.differences(list(histories)) if len(histories) > 1 else [],
        figures=drawing.figures,
        legend=_legend(drawing.moments),
        axes=AXES,
        data=drawing.to_json(),
        brief=summary.brief,
        samples=samples,
        evaluation=evaluation or {},
        refresh_s=REFRESH_S if live else 0,
        script=_text("uplot/uPlot.iife.min.js") + "\n" + _text("page.js"),
        style=_text("uplot/uPlot.min.css") + "\n" + _text("page.css"),
        licence=_text("uplot/LICENSE"),
    )
    return page


def _legend(moments: Sequence[Mark]) -> str:
    kinds = {mark.kind for mark in moments}
    lines = [f"{kind}s" for kind in ("restart", "spike") if kind in kinds]
    lines += ["steps where the guard stepped in"] if "guard" in kinds else []
    sentences = [f"Lines mark {_listed(lines)}."] if lines else []
    return " ".join([*sentences, *(["Ticks mark checkpoints."] if "checkpoint" in kinds else [])])


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _environment() -> Any:
    import jinja2

    loader = jinja2.FunctionLoader(_text)
    return jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)


@cache
def _text(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")
