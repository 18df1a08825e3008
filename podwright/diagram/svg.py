"""A diagram as SVG, for a screen or a phone, alone or in a page: no script, no font, no external files."""

from __future__ import annotations

from html import escape
from textwrap import wrap
from typing import NamedTuple

from podwright.diagram.parts import Box, Diagram, Part
from podwright.diagram.text_diagram import cost, heading, total, words

LINE, GAP, HEAD = 17, 12, 30
MIDDLE = 270  # between the VPC and the account, where connections are labelled
LETTER = 7  # The width of an average letter, in pixels.
STYLE = """text{font:13px system-ui,sans-serif;fill:#1f2933}.head{font-weight:600}
.small,.price{font-size:12px;fill:#52606d}
.price,.near{text-anchor:end}.way{font-size:12px;fill:#2b6496}.label,.near{font-size:12px;paint-order:stroke;stroke:#fff;stroke-width:4px}
.frame{fill:#f5f7fa;stroke:#7b8794}.subnet{fill:#e6f0fa;stroke:#3e7cb1}.card{fill:#fff;stroke:#9aa5b1}
.existing{stroke-dasharray:5 4}.flow{fill:none;stroke:#3e7cb1;stroke-width:1.5}.page{fill:#fff}
@media(prefers-color-scheme:dark){text{fill:#e6e9ee}.small,.price{fill:#aab4c2}.way{fill:#8dbce6}.label,.near{stroke:#14181f}
.page{fill:#14181f}.frame{fill:#1c222b;stroke:#667488}.subnet{fill:#1d2c3b}.card{fill:#232a34;stroke:#667488}}"""


class Measures(NamedTuple):
    """Widths of the drawing's parts."""

    card: int
    margin: int
    is_narrow: bool = False  # one column; cards name their connections

    @property
    def letters(self) -> int:
        """Return the letters of a line on a card."""
        return (self.card - 16) // LETTER

    @property
    def head_letters(self) -> int:
        """Return the letters of a line above cards, which is bold."""
        return (self.card + GAP) // (LETTER + 1)


WIDE, NARROW = Measures(430, 20), Measures(336, 8, is_narrow=True)
PHONE = "<style>.narrow{display:none}@media(max-width:700px){.wide{display:none}.narrow{display:block}}</style>"


def svg(diagram: Diagram, layout: Measures = WIDE) -> str:
    """A drawing of the VPC with its subnets at the left, other resources at the right, connections between them.

    A narrow one has the account below, 400 pixels wide.
    """
    canvas = _Canvas(diagram, layout)
    content = "\n".join(canvas.elements)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {canvas.width} {canvas.height}" '
        f'width="{canvas.width}" height="{canvas.height}" class="{"narrow" if layout.is_narrow else "wide"}" '
        f'role="img" aria-label="{escape(diagram.name)}">\n'
        f"<style>{STYLE}</style>\n"
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#3e7cb1"/></marker></defs>\n'
        f'<rect class="page" width="100%" height="100%"/>\n{content}\n</svg>\n'
    )


def narrow_svg(diagram: Diagram) -> str:
    """The drawing for a phone."""
    return svg(diagram, NARROW)


def html(diagram: Diagram) -> str:
    """A page with the drawing that suits the window, and beneath it the costs by part."""
    rows = "\n".join(
        f"<tr><td>{escape(heading(box))}</td><td>{escape(words(part))}</td><td>{cost(part)}</td></tr>"
        for box in diagram.boxes
        for part in box.parts
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"/><title>{escape(diagram.name)}</title>\n'
        '<meta name="viewport" content="width=device-width"/>\n'
        f"{PHONE}\n"
        "<style>:root{color-scheme:light dark}body{font:14px system-ui,sans-serif;margin:auto;padding:.5em"
        ";max-width:79em}svg{max-width:100%;height:auto}table{overflow-wrap:anywhere}"
        "td,th{padding:2px 12px 2px 0;text-align:left}td:last-child,th:last-child{text-align:right}"
        f"</style></head>\n<body><h1>{escape(diagram.name)}</h1>\n{svg(diagram)}{narrow_svg(diagram)}"
        f"<table><tr><th>where</th><th>what</th><th>USD/h</th></tr>\n{rows}</table>\n"
        f"<p>{escape(total(diagram))}</p></body></html>\n"
    )


class _Frame(NamedTuple):
    x: float
    y: float
    width: float
    height: float


class _Canvas:
    """Two columns from top to bottom: the VPC, and the account beside it, or below it where it is narrow."""

    def __init__(self, diagram: Diagram, layout: Measures) -> None:
        self._cards: dict[str, _Frame] = {}  # the first of each kind: where connections end
        self._boxes: list[str] = []
        self._content: list[str] = []
        self._layout, margin = layout, layout.margin
        self._ways = diagram.ways
        column = layout.card + 4 * GAP
        bottom = self._heading(diagram.network, margin, margin)
        for box in diagram.subnets:
            bottom = self._draw_box(box, margin + GAP, bottom, "subnet") + GAP
        for part in diagram.network.parts:
            bottom = self._card(part, margin + 2 * GAP, bottom) + GAP
        vpc = _Frame(margin, margin, column, bottom - margin)
        self._boxes.insert(0, _rectangle(vpc, "frame", is_existing=diagram.network.is_existing))
        if layout.is_narrow:
            bottom = self._draw_box(diagram.account, margin + GAP, bottom + GAP, "frame")
            self.width = column + 2 * margin
        else:
            right = margin + column + MIDDLE
            bottom = max(bottom, self._draw_box(diagram.account, right, margin, "frame"))
            self.width = right + layout.card + 2 * GAP + margin
            self._connect()
        lines = wrap(total(diagram), (self.width - 2 * margin) // LETTER)
        for number, line in enumerate(lines):
            self._text(margin, bottom + HEAD + number * LINE, line, "small")
        self.height = bottom + HEAD + len(lines) * LINE + margin

    @property
    def elements(self) -> list[str]:
        """Draw boxes below their contents."""
        return [*self._boxes, *self._content]

    def _draw_box(self, box: Box, x: float, y: float, style: str) -> float:
        """Draw a box with its cards and return its lower edge."""
        bottom = self._heading(box, x, y)
        for part in box.parts:
            bottom = self._card(part, x + GAP, bottom) + GAP
        frame = _Frame(x, y, self._layout.card + 2 * GAP, bottom - y)
        self._boxes.append(_rectangle(frame, style, is_existing=box.is_existing))
        return bottom

    def _card(self, part: Part, x: float, y: float) -> float:
        """A part; gives its lower edge."""
        width, letters = self._layout.card, self._layout.letters
        lines = [*wrap(part.name, letters), *wrap(part.detail, letters)]
        ways = wrap(self._way_to(part), letters)
        frame = _Frame(x, y, width, (len(lines) + len(ways) + 1) * LINE + GAP)
        self._content.append(_rectangle(frame, "card", is_existing=part.is_existing))
        price = f"{cost(part)} USD/h" if part.usd_per_hour else cost(part)
        self._text(x + 8, y + LINE, f"{part.kind} (yours)" if part.is_existing else part.kind, "head")
        self._text(x + width - 8, y + LINE, price, "price")
        for number, line in enumerate([*lines, *ways], 2):
            self._text(x + 8, y + number * LINE, line, "small" if number < len(lines) + 2 else "way")
        self._cards.setdefault(part.kind, frame)
        return y + frame.height

    def _way_to(self, part: Part) -> str:
        """Return the connection of the first card of each kind, where no curve shows it."""
        ways = self._ways.get(part.kind) if self._layout.is_narrow and part.kind not in self._cards else None
        return f"\N{LEFTWARDS ARROW} nodes: {', '.join(ways)}" if ways else ""

    def _connect(self) -> None:
        """Draw one curve from the compute nodes to each target, labelled with its traffic."""
        start = self._cards["Compute"] if "Compute" in self._cards else self._cards["Controller"]
        x, y = start.x + start.width, start.y + start.height / 2
        below, curves = len(self._content), []  # labels lie over all curves
        for number, (target, texts) in enumerate(self._ways.items()):
            end = self._cards[target]
            is_right_of_nodes = end.x > x
            end_x, end_y = end.x if is_right_of_nodes else end.x + end.width, end.y + end.height / 2
            bend = (x + end_x) / 2 if is_right_of_nodes else x + (3 + number) * GAP
            points = f"M{x} {y} C{bend} {y} {bend} {end_y} {end_x} {end_y}"
            curves.append(f'<path class="flow" marker-end="url(#tip)" d="{points}"/>')
            at, style = (end_x - 2 * GAP, "near") if is_right_of_nodes else (x + 7 * GAP, "label")
            self._text(at, end_y - 5, ", ".join(texts), style)
        self._content[below:below] = curves

    def _heading(self, box: Box, x: float, y: float) -> float:
        """Write a box's title into its upper left corner, and return where its content starts."""
        lines = wrap(heading(box), self._layout.head_letters, break_on_hyphens=False)
        for number, line in enumerate(lines):
            self._text(x + GAP, y + 20 + number * LINE, line, "head")
        return y + HEAD + (len(lines) - 1) * LINE

    def _text(self, x: float, y: float, text: str, style: str) -> None:
        if text:
            self._content.append(f'<text class="{style}" x="{x}" y="{y}">{escape(text)}</text>')


def _rectangle(frame: _Frame, style: str, *, is_existing: bool) -> str:
    mark = " existing" if is_existing else ""
    size = f'width="{frame.width}" height="{frame.height}"'
    return f'<rect class="{style}{mark}" x="{frame.x}" y="{frame.y}" {size} rx="5"/>'
