"""Compare the columns of each published row with each other: FLOP/s against tokens/s, layout against accelerators.

Used by planner.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from published.flops import CONVENTIONS, convention
from published.table_row import ParsedRow

CLOSE = 0.01  # what rounding to three digits explains
SAME_RUN = 0.03  # between figures that a source printed with two digits
SAME_SHAPE = 0.05  # between a size in a model's name and the sum of its parts
UNSAID = ("", "as the paper")  # conventions that a table does not name


@dataclass(frozen=True)
class Recount:
    """Printed FLOP/s recomputed from printed tokens/s; ``rounding`` is what the printed rate itself leaves open."""

    convention: str
    error: float
    rounding: float

    @property
    def explained(self) -> bool:
        """Return whether they agree within one per cent and the printed rate's own rounding."""
        return abs(self.error) <= CLOSE + self.rounding


def recount(row: Mapping[str, str], case: ParsedRow) -> Recount | None:
    """The row's FLOP/s by the convention its table names; None if it prints none."""
    printed = row["model_tflops_gpu"] or row["hw_tflops_gpu"]
    if not (printed and row["tok_s_gpu"]) or row["tflops_convention"] in UNSAID:
        return None
    used = convention(row["tflops_convention"], row)
    flops = float(row["tok_s_gpu"]) * used.per_token(case.model, case.layout.sequence)
    return Recount(used.name, flops / 1e12 / float(printed) - 1, _rounding(row))


def contradictions(row: Mapping[str, str], case: ParsedRow) -> Iterator[str]:
    """Sentences, each with the arithmetic, about columns of the row that cannot all be right."""
    value = {name: float(text) for name, text in row.items() if _is_number(text)}
    yield from _layout(value, case)
    yield from _rates(value)
    yield from _utilization(value, case)
    stated, summed = value.get("params_total"), case.model.parameters
    if stated and abs(summed / stated - 1) > SAME_SHAPE:
        shape = f"{case.model.layers} layers of width {case.model.hidden_size}"
        yield f"{shape} have {summed / 1e9:.1f}B parameters, the row says {stated / 1e9:.1f}B"
    found = recount(row, case)
    if found and not found.explained:
        rounding = f"1 % and a rounding of {100 * found.rounding:.1f} %"
        yield f"FLOP/s from tokens/s {100 * found.error:+.1f} %, beyond {rounding}"


def _layout(value: Mapping[str, float], case: ParsedRow) -> Iterator[str]:
    degrees = [value.get(name) for name in ("dp", "tp", "pp")]
    if None in degrees:
        return
    ranks = (value["dp"] * value["tp"] * value["pp"]) * value.get("cp", 1)
    if ranks != case.layout.gpus:
        product = " x ".join(f"{degree:g}" for degree in (value["dp"], value["tp"], value["pp"], value.get("cp", 1)))
        yield f"dp x tp x pp x cp = {product} = {ranks:g} ranks, but the machines have {case.layout.gpus}"


def _rates(value: Mapping[str, float]) -> Iterator[str]:
    rate, total, gpus = (value.get(name) for name in ("tok_s_gpu", "tok_s_total", "gpus"))
    if rate and total and gpus and abs(rate * gpus / total - 1) > CLOSE:
        yield f"{rate:g} tokens/s on each of {gpus:g} are {rate * gpus:g}, the row says {total:g}"
    step, batch, sequence = (value.get(name) for name in ("step_s", "gbs_seqs", "seq_len"))
    if total and step and batch and sequence and abs(batch * sequence / step / total - 1) > CLOSE:
        steps = f"{batch:g} sequences of {sequence:g} in {step:g} s"
        yield f"{steps} are {batch * sequence / step:g} tokens/s, not {total:g}"


def _utilization(value: Mapping[str, float], case: ParsedRow) -> Iterator[str]:
    """MFU against tokens/s by the convention that suits it best; which one is seldom said."""
    rate, printed = value.get("tok_s_gpu"), value.get("mfu_pct")
    if not (rate and printed):
        return
    peak = case.accelerator.peak_flops(case.layout.precision) * case.per_gpu
    counted = {
        100 * rate * item.per_token(case.model, case.layout.sequence) / peak
        for item in CONVENTIONS
        if not item.hardware
    }
    nearest = min(counted, key=lambda percent: abs(percent / printed - 1))
    if abs(nearest / printed - 1) > SAME_RUN:
        yield f"{rate:g} tokens/s are {nearest:.1f} % MFU by the nearest convention, the row says {printed:g} %"


def _rounding(row: Mapping[str, str]) -> float:
    """Half a sequence per second where the whole run's rate is a whole number of them."""
    if not row["tok_s_total"]:
        return 0.0
    sequences_per_s = float(row["tok_s_total"]) / float(row["seq_len"])
    return 0.5 / sequences_per_s if sequences_per_s == int(sequences_per_s) else 0.0


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()
