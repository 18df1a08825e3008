"""A roofline: what the memory and the arithmetic of an accelerator allow, and where a model's products lie. Terminal and SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from podwright.planning.calibration import calibration
from podwright.planning.kernels import Kernels
from podwright.planning.plan import Plan

LOWEST, HIGHEST = 0, 4  # powers of ten of FLOPs per byte that are drawn
WIDTH, HEIGHT = 640, 400
MARGIN = 60


@dataclass(frozen=True)
class Point:
    """One kind of work: its FLOPs per byte of memory traffic and the FLOP/s it is predicted to reach."""

    name: str
    intensity: float
    flops_per_s: float


@dataclass(frozen=True)
class Roofline:
    """The roofs and the points below them."""

    title: str
    peak_flops: float
    sustained_flops: float
    bytes_per_s: float
    points: tuple[Point, ...]

    def roof(self, intensity: float) -> float:
        """The most FLOP/s at that intensity."""
        return min(self.sustained_flops, intensity * self.bytes_per_s)

    @property
    def ridge(self) -> float:
        """FLOPs per byte above which arithmetic is the limit."""
        return self.sustained_flops / self.bytes_per_s


def roofline(plan: Plan) -> Roofline:
    """The linear layers of one block and the head, forward, at the plan's micro-batch."""
    layout, model = plan.layout, plan.model
    kernels = Kernels(accelerator=plan.cluster.accelerator, calibration=calibration(), precision=layout.precision)
    tokens = float(layout.tokens_per_micro_batch)
    heads = (model.heads + 2 * model.kv_heads) * model.head_dim
    shapes = [
        ("query, key, value", heads, model.hidden),
        ("attention output", model.hidden, model.heads * model.head_dim),
        ("MLP in", (model.matrices_of_mlp - 1) * model.ffn, model.hidden),
        ("MLP out", model.hidden, model.ffn),
        ("head", model.vocab, model.hidden),
    ]
    return Roofline(
        title=f"{model.name} on {plan.cluster.accelerator.name}, {layout.precision}, {layout.tokens_per_micro_batch} tokens",
        peak_flops=plan.cluster.accelerator.peak_flops(layout.precision),
        sustained_flops=kernels.sustained_flops,
        bytes_per_s=kernels.memory_bytes_s,
        points=tuple(_point(kernels, name, tokens, columns, depth) for name, columns, depth in shapes),
    )


def _point(kernels: Kernels, name: str, rows: float, columns: float, depth: float) -> Point:
    flops = 2 * rows * columns * depth
    traffic = 2 * (rows * depth + depth * columns + rows * columns)
    return Point(name, flops / traffic, flops / kernels.product(rows, columns, depth))


def to_text(chart: Roofline) -> str:
    """The points as bars below their roof."""
    lines = [f"Roofline: {chart.title}; sustained {chart.sustained_flops / 1e12:.0f} TFLOP/s, ridge at {chart.ridge:.0f} FLOP/byte"]
    for point in chart.points:
        share = point.flops_per_s / chart.peak_flops
        bar = "█" * round(40 * share)
        lines.append(f"  {point.name:20s} {point.intensity:7.0f} FLOP/byte  {point.flops_per_s / 1e12:7.1f} TFLOP/s  {bar.ljust(40, '·')}")
    return "\n".join(lines)


def to_svg(chart: Roofline) -> str:
    """A picture, both axes logarithmic."""
    top = math.log10(chart.peak_flops) + 0.3
    bottom = math.log10(chart.roof(10.0**LOWEST)) - 0.3

    def x(intensity: float) -> float:
        return MARGIN + (math.log10(intensity) - LOWEST) / (HIGHEST - LOWEST) * (WIDTH - 2 * MARGIN)

    def y(flops: float) -> float:
        return HEIGHT - MARGIN - (math.log10(flops) - bottom) / (top - bottom) * (HEIGHT - 2 * MARGIN)

    roof = [(10.0**LOWEST, chart.roof(10.0**LOWEST)), (chart.ridge, chart.sustained_flops), (10.0**HIGHEST, chart.sustained_flops)]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{WIDTH / 2}" y="20" text-anchor="middle" font-size="14">{escape(chart.title)}</text>',
        _polyline([(x(intensity), y(flops)) for intensity, flops in roof], "#1f4e79", 2),
        _polyline([(x(10.0**LOWEST), y(chart.peak_flops)), (x(10.0**HIGHEST), y(chart.peak_flops))], "#999", 1),
        f'<text x="{x(10.0**LOWEST) + 4}" y="{y(chart.peak_flops) - 4}" fill="#666">peak {chart.peak_flops / 1e12:.0f} TFLOP/s</text>',
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 12}" text-anchor="middle">FLOPs per byte of memory traffic</text>',
    ]
    for power in range(LOWEST, HIGHEST + 1):
        parts.append(f'<text x="{x(10.0**power)}" y="{HEIGHT - MARGIN + 16}" text-anchor="middle">{10**power}</text>')
    for index, point in enumerate(chart.points):
        across, up = x(min(max(point.intensity, 10.0**LOWEST), 10.0**HIGHEST)), y(point.flops_per_s)
        label = f"{point.name} {point.flops_per_s / 1e12:.0f}"
        parts.append(f'<circle cx="{across:.1f}" cy="{up:.1f}" r="4" fill="#c0504d"/>')
        parts.append(f'<text x="{MARGIN + 10}" y="{HEIGHT - MARGIN - 14 * (index + 1)}">{escape(label)} TFLOP/s at {point.intensity:.0f}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _polyline(points: Sequence[tuple[float, float]], colour: str, width: int) -> str:
    path = " ".join(f"{across:.1f},{up:.1f}" for across, up in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"/>'
