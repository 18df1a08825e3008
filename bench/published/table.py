"""Predict every row of a table of published configurations."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path

from podwright.planning.calibration import Calibration
from podwright.planning.memory import Memory
from podwright.planning.throughput import Speed
from podwright_common.atomic_file import write_file
from published.flops import convention
from published.memory import memory, reading_gb
from published.speed import speed
from published.table_row import ROW_ERRORS, ParsedRow, parse_row

COLUMNS = (
    "pred_tok_s_gpu",
    "pred_step_s",
    "pred_mfu_pct",
    "pred_peak_mem_gb",
    "pred_fits",
    "pred_low_tok_s_gpu",
    "pred_high_tok_s_gpu",
    "note",
)


def predict_file(source: Path, target: Path) -> int:
    """Write the table with predictions appended. Return the number of predicted rows."""
    with source.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        columns = [*(reader.fieldnames or ()), *COLUMNS]
        rows = [{**row, **predict(row)} for row in reader]
    content = io.StringIO(newline="")
    writer = csv.DictWriter(content, columns, extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    write_file(target, content.getvalue())
    return sum(bool(row["pred_fits"]) for row in rows)


def predict(row: Mapping[str, str], *, constants: Calibration | None = None) -> dict[str, str]:
    """Return the columns to append to one row: all empty, with the reason in ``note``, if it has no prediction."""
    empty = dict.fromkeys(COLUMNS, "")
    row = {name: text.strip() for name, text in row.items() if isinstance(text, str)}  # short lines have no last cells
    try:
        case = parse_row(row)
    except ROW_ERRORS as error:
        return {**empty, "note": " / ".join(str(error).split("\n"))}
    needed = memory(case.model, case.layout, case.accelerator, case.software, constants=constants)
    took = speed(case.model, case.layout, case.accelerator, case.software, constants=constants)
    return {**empty, **_columns(row, case, needed, took)}


def _columns(row: Mapping[str, str], case: ParsedRow, needed: Memory, took: Speed) -> dict[str, str]:
    rate = took.tokens_per_s_per_gpu * case.per_gpu
    used = convention(row.get("tflops_convention", ""), row)
    flops = used.per_token(case.model, case.layout.sequence)
    if used.hardware:
        flops *= 0.75  # MFU does not count what is computed twice
    peak = case.accelerator.peak_flops(case.layout.precision) * case.per_gpu
    gaps = needed.more_gaps_gb if not needed.fits and needed.peak_gb <= needed.capacity_gb else 0.0
    memory_notes = [f"the allocator's gaps may take {gaps:.3g} GB more, as its segments cannot grow"] if gaps else []
    notes = [f"bound by {took.bound_by}", f"MFU counts {used.name}", *memory_notes, *case.assumed]
    return {
        "pred_tok_s_gpu": f"{rate:.5g}",
        "pred_step_s": f"{took.step_s:.5g}" if row.get("gbs_seqs") else "",
        "pred_mfu_pct": f"{100 * rate * flops / peak:.4g}",
        "pred_peak_mem_gb": f"{reading_gb(needed, case.software) * case.per_gpu:.4g}",
        "pred_fits": "yes" if needed.fits else "no",
        "pred_low_tok_s_gpu": f"{took.low * case.per_gpu:.5g}",
        "pred_high_tok_s_gpu": f"{took.high * case.per_gpu:.5g}",
        "note": "; ".join(notes),
    }
