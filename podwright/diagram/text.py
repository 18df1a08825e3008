"""A diagram as text for a terminal, and as Markdown for a wiki."""

from __future__ import annotations

from textwrap import wrap

from podwright.diagram.parts import Box, Diagram, Part
from podwright.planning.on_demand import BASE_REGION
from podwright_common.terminal import columns

MAX_COLUMNS, PRICE_WIDTH = 80, 10
MIN_USD_PER_HOUR = 0.01  # Smaller prices are shown as `below 0.01`.
OTHER_PRICES = f"All but nodes has the prices of {BASE_REGION}."


def in_lines(diagram: Diagram) -> str:
    """Return the diagram as text: the parts of each box with their cost, then the connections."""
    lines = [diagram.name]
    for box in diagram.boxes:
        lines += ["", heading(box), *(line for part in box.parts for line in _part(part))]
    lines += ["", "Connections", *(f"  {flow.source} -> {flow.target}: {flow.label}" for flow in diagram.flows)]
    return "\n".join([*lines, "", *_wrapped(total(diagram), columns(at_most=MAX_COLUMNS)), OTHER_PRICES])


def markdown(diagram: Diagram) -> str:
    """Return the diagram as Markdown: a table of the parts and one of the connections."""
    lines = [f"# {diagram.name}", "", "| where | what | USD/h |", "|---|---|---:|"]
    for box in diagram.boxes:
        lines += [f"| **{heading(box)}** | | |", *(f"| | {words(part)} | {cost(part)} |" for part in box.parts)]
    lines += ["", total(diagram), OTHER_PRICES, "", "| from | to | how |", "|---|---|---|"]
    lines += [f"| {flow.source} | {flow.target} | {flow.label} |" for flow in diagram.flows]
    return "\n".join(lines) + "\n"


def heading(box: Box) -> str:
    """Return the title of a box; a box of existing resources is marked as the user's."""
    return f"{box.title} (yours)" if box.is_existing else box.title


def words(part: Part) -> str:
    """Return kind, name and detail of a part on one line."""
    text = " ".join(filter(None, [f"{part.kind}: {part.name}", part.detail and f"({part.detail})"]))
    return f"{text} (yours)" if part.is_existing else text


def cost(part: Part) -> str:
    """Return the price of a part in dollars per hour; empty if only its use costs money."""
    if part.usd_per_hour is None:
        return "unknown"
    if 0 < part.usd_per_hour < MIN_USD_PER_HOUR:
        return f"below {MIN_USD_PER_HOUR}"
    return f"{part.usd_per_hour:,.2f}" if part.usd_per_hour else ""


def total(diagram: Diagram) -> str:
    """Return the sum, with its label and the parts whose price is unknown."""
    text = f"{diagram.usd_per_hour:,.2f} USD/h ({diagram.price_label}; traffic, requests and backups come on top)"
    if diagram.unpriced:
        text += f"; unknown, and not in the sum: the price of {', '.join(diagram.unpriced)}"
    return text


def _part(part: Part) -> list[str]:
    width = columns(at_most=MAX_COLUMNS) - PRICE_WIDTH
    first_line, *continuation_lines = _wrapped(f"  {words(part)}", width)
    return [f"{first_line:{width}}{cost(part):>{PRICE_WIDTH}}".rstrip(), *continuation_lines]


def _wrapped(line: str, width: int) -> list[str]:
    return wrap(line, max(1, width), subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
