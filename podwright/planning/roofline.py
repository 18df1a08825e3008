"""Draw a roofline as text or SVG: the limits of memory and compute, and the products below them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from podwright.planning.calibration import calibration
from podwright.planning.kernels import Kernels
from podwright.planning.run_plan import Plan

LOWEST, HIGHEST = 0, 4  # powers of ten of FLOPs per byte that are drawn
WIDTH, HEIGHT = 640, 400
MARGIN = 60
BAR_WIDTH = 20  # characters
# Text has a halo over the grid. The dark page's colours are those of the architecture drawing.
STYLE = """<style>
.page{fill:#fff}text{fill:#1c2330;stroke:#fff;stroke-width:3;paint-order:stroke}polyline{fill:none}
.grid{stroke:#d5dae0}.peak{stroke:#999}.roof{stroke:#1f4e79;stroke-width:2}circle{fill:#c0504d}
@media(prefers-color-scheme:dark){.page{fill:#14181f}text{fill:#e6e9ee;stroke:#14181f}
.grid{stroke:#343c48}.roof{stroke:#8dbce6}circle{fill:#e58a86}}
</style>"""
TERA = 12  # power of ten


@dataclass(frozen=True)
class Point:
    """One product: its FLOPs per byte of memory traffic and its predicted FLOP/s."""

    name: str
    intensity: float
    flops_per_s: float


@dataclass(frozen=True)
class Roofline:
    """The limits of an accelerator and the points below them."""

    title: str
    peak_flops: float
    sustained_flops: float
    bytes_per_s: float
    points: tuple[Point, ...]

    def roof(self, intensity: float) -> float:
        """Return the highest FLOP/s at that intensity."""
        return min(self.sustained_flops, intensity * self.bytes_per_s)

    @property
    def ridge(self) -> float:
        """FLOPs per byte above which compute is the limit."""
        return self.sustained_flops / self.bytes_per_s


def roofline(plan: Plan) -> Roofline:
    """Return the roofline of one block's linear layers and the head, forward, at the plan's micro-batch."""
    layout, model = plan.layout, plan.model
    kernels = Kernels(accelerator=plan.hardware.accelerator, calibration=calibration(), precision=layout.precision)
    tokens = float(layout.tokens_per_micro_batch)
    heads = (model.heads + 2 * model.kv_heads) * model.head_dim
    shapes = [
        ("query, key, value", heads, model.hidden_size),
        ("attention output", model.hidden_size, model.heads * model.head_dim),
        ("MLP in", (model.matrices_of_mlp - 1) * model.ffn, model.hidden_size),
        ("MLP out", model.hidden_size, model.ffn),
        ("head", model.vocab, model.hidden_size),
    ]
    return Roofline(
        title=f"{model.name} on {plan.hardware.accelerator.name}, {layout.precision}, {tokens:,.0f} tokens",
        peak_flops=plan.hardware.accelerator.peak_flops(layout.precision),
        sustained_flops=kernels.sustained_flops,
        bytes_per_s=kernels.memory_bytes_s,
        points=tuple(_point(kernels, name, tokens, columns, depth) for name, columns, depth in shapes),
    )


def _point(kernels: Kernels, name: str, rows: float, columns: float, depth: float) -> Point:
    flops = 2 * rows * columns * depth
    traffic = 2 * (rows * depth + depth * columns + rows * columns)
    return Point(name, flops / traffic, flops / kernels.product(rows, columns, depth))


def to_text(chart: Roofline) -> str:
    """Return the points as text bars."""
    sustained = f"sustained {chart.sustained_flops / 1e12:.0f} TFLOP/s"
    lines = [f"Roofline: {chart.title}", f"  {sustained}, ridge at {chart.ridge:.0f} FLOP/byte"]
    for point in chart.points:
        bar = "█" * round(BAR_WIDTH * point.flops_per_s / chart.peak_flops)
        speed = f"{point.flops_per_s / 1e12:7.1f} TFLOP/s"
        lines.append(f"  {point.name:20s} {point.intensity:7.0f} FLOP/byte  {speed}  {bar.ljust(BAR_WIDTH, '·')}")
    return "\n".join(lines)


def to_svg(chart: Roofline) -> str:
    """Return an SVG with logarithmic axes."""
    return _Drawing(chart).svg()


class _Drawing:
    def __init__(self, chart: Roofline) -> None:
        self.chart = chart
        self.top = math.log10(chart.peak_flops) + 0.3
        self.bottom = math.log10(chart.roof(10.0**LOWEST)) - 0.3

    def svg(self) -> str:
        chart = self.chart
        low, high = 10.0**LOWEST, 10.0**HIGHEST
        roof = [(low, chart.roof(low)), (chart.ridge, chart.sustained_flops), (high, chart.sustained_flops)]
        peak = [(low, chart.peak_flops), (high, chart.peak_flops)]
        box = f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="11"'
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {box}>',
            STYLE,
            f'<rect class="page" width="{WIDTH}" height="{HEIGHT}"/>',
            _text(WIDTH / 2, 20, chart.title, anchor="middle"),
            *self._grid(),
            self._line(roof, "roof"),
            self._line(peak, "peak"),
            _text(self._x(low) + 4, self._y(chart.peak_flops) - 4, f"peak {chart.peak_flops / 1e12:.0f} TFLOP/s"),
            _text(MARGIN, MARGIN - 12, "TFLOP/s", anchor="end"),
            _text(WIDTH / 2, HEIGHT - 12, "FLOPs per byte of memory traffic", anchor="middle"),
        ]
        for index, point in enumerate(sorted(chart.points, key=lambda point: point.intensity)):
            parts += self._point(index, point)
        return "\n".join([*parts, "</svg>", ""])

    def _grid(self) -> Iterator[str]:
        """Yield a line and its number for each power of ten."""
        for power in range(LOWEST, HIGHEST + 1):
            yield self._line([(10.0**power, 10.0**self.bottom), (10.0**power, 10.0**self.top)], "grid")
            yield _text(self._x(10.0**power), HEIGHT - MARGIN + 16, f"{10**power:,}", anchor="middle")
        for power in range(math.ceil(self.bottom), math.floor(self.top) + 1):
            yield self._line([(10.0**LOWEST, 10.0**power), (10.0**HIGHEST, 10.0**power)], "grid")
            yield _text(MARGIN - 6, self._y(10.0**power) + 4, f"{10.0 ** (power - TERA):,g}", anchor="end")

    def _point(self, index: int, point: Point) -> list[str]:
        across = self._x(min(max(point.intensity, 10.0**LOWEST), 10.0**HIGHEST))
        label = f"{index + 1}: {point.name}, {point.flops_per_s / 1e12:.0f} TFLOP/s at {point.intensity:.0f} FLOP/byte"
        return [
            f'<circle cx="{across:.1f}" cy="{self._y(point.flops_per_s):.1f}" r="4"/>',
            _text(across, self._y(point.flops_per_s) + 16 + 12 * (index % 3), str(index + 1), anchor="middle"),
            _text(WIDTH / 2 - 40, HEIGHT - MARGIN - 14 * (len(self.chart.points) - index), label),
        ]

    def _line(self, points: Sequence[tuple[float, float]], kind: str) -> str:
        path = " ".join(f"{self._x(intensity):.1f},{self._y(flops):.1f}" for intensity, flops in points)
        return f'<polyline class="{kind}" points="{path}"/>'

    def _x(self, intensity: float) -> float:
        return MARGIN + (math.log10(intensity) - LOWEST) / (HIGHEST - LOWEST) * (WIDTH - 2 * MARGIN)

    def _y(self, flops: float) -> float:
        return HEIGHT - MARGIN - (math.log10(flops) - self.bottom) / (self.top - self.bottom) * (HEIGHT - 2 * MARGIN)


def _text(across: float, up: float, words: str, *, anchor: str = "start") -> str:
    return f'<text x="{across:.1f}" y="{up:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
