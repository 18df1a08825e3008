"""Compare the planner's predictions with published measurements, or predict a table of other trainers' runs.

    python bench/planner.py [--in-sample]
    python bench/planner.py --rows IN.csv --out OUT.csv

Smallest: python bench/planner.py --in-sample

Every source group is predicted with constants fitted to the other groups only (leave one source out). Print errors
by group and the goals missed. Data: ``bench/data/published_throughput.csv``, sources in its last columns. With
``--rows`` and ``--out``, write a table in those columns with the predictions appended; all columns are optional but
model, seq_len, accel, gpus and framework.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import calibrate
import consistency
from published.constants import constants as all_constants
from published.table import predict, predict_file
from published.table_row import ROW_ERRORS, ParsedRow, parse_row

from podwright.planning.calibration import Calibration
from podwright.planning.cluster_hardware import Hardware
from podwright.planning.layout import Layout, Recompute
from podwright.planning.memory import memory
from podwright.planning.model import Model
from podwright.planning.plan_text import candidates_table
from podwright.planning.search import best, layouts
from podwright.planning.throughput import speed
from podwright.planning.trainer_software import Software

TABLE = Path(__file__).parent / "data" / "published_throughput.csv"
# Constants that a group's own figures decided; without that group the defaults stand.
OWN_CONSTANTS = {
    "litgpt-finetune": ("logit_bytes.litgpt-finetune",),
    "mbridge-recompute": ("kept.megatron-core",),
}
SPARE = 0.06  # share of memory that a recommendation leaves free
HELD = 0.9  # share of measured speeds that the stated range is to hold
GOALS = (  # of errors' 90th percentiles
    ("memory, 90th percentile", "memory", 0.15),
    ("tokens/s, 90th percentile", "speed", 0.25),
)
FOUND_GOAL = 8 / 9  # of the runs that ran out of memory
REFUSED_GOAL = 0.05  # of the runs that ran


def main() -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--in-sample",
        action="store_true",
        help="use the product's own constants, fitted to all groups; seconds, not minutes",
    )
    parser.add_argument("--rows", type=Path, metavar="IN.csv", help="predict each row of this table; needs --out")
    parser.add_argument("--out", type=Path, metavar="OUT.csv", help="write the table with its predictions here")
    arguments = parser.parse_args()
    if bool(arguments.rows) != bool(arguments.out):
        parser.error("give --rows IN.csv and --out OUT.csv together")
    if arguments.rows:
        _predict_file(parser, arguments.rows, arguments.out)
        return
    with TABLE.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    predictions = [
        (row, predict(row, constants=constants))
        for row, constants in _with_constants(rows, in_sample=arguments.in_sample)
    ]
    errors = {
        "speed": _errors(predictions, "tok_s_gpu", "pred_tok_s_gpu"),
        "memory": _errors(predictions, "peak_mem", "pred_peak_mem_gb"),
    }
    for kind, title in (("speed", "tokens/s/GPU"), ("memory", "peak memory")):
        _print_errors(title, errors[kind])
    fits = _print_fits(predictions)
    held = _print_range(errors["speed"])
    _print_far(predictions)
    _print_conventions(rows)
    _print_contradictions(rows)
    _print_refused(predictions)
    _print_seed_run()
    _print_trainium(predictions)
    _print_minimum_platforms()
    _print_search()
    print("\ngoals")
    for title, kind, goal in GOALS:
        reached = _quantile([abs(error) for group in errors[kind].values() for error in group], 0.9)
        _print_goal(title, reached, f"at most {100 * goal:.0f} %", met=reached <= goal)
    _print_goal("speeds within the range", held, f"at least {100 * HELD:.0f} %", met=held >= HELD)
    _print_goal(
        "found of those out of memory", fits.found, f"at least {100 * FOUND_GOAL:.0f} %", met=fits.found >= FOUND_GOAL
    )
    _print_goal(
        "refused of those that ran",
        fits.refused,
        f"at most {100 * REFUSED_GOAL:.0f} %",
        met=fits.refused <= REFUSED_GOAL,
    )


def _predict_file(parser: argparse.ArgumentParser, rows: Path, out: Path) -> None:
    try:
        count = predict_file(rows, out)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        parser.error(f"{rows} is not a CSV file in UTF-8: {error}")
    print(f"{out}: predicted {count} rows. For a row without prediction, the column note has the reason")


def _print_goal(title: str, reached: float, goal: str, *, met: bool) -> None:
    print(f"  {title:30s} {100 * reached:5.1f} %  goal {goal}  {'met' if met else 'MISSED'}")


def _with_constants(
    rows: Sequence[Mapping[str, str]], *, in_sample: bool
) -> Iterable[tuple[Mapping[str, str], Calibration]]:
    if in_sample:
        return [(row, all_constants()) for row in rows]
    measured = calibrate.read(TABLE)
    by_group = {}
    for group in dict.fromkeys(row["group"] for row in rows):
        print(f"fitting without {group} …", flush=True)
        known = {
            name: value for name, value in all_constants().values.items() if name not in OWN_CONSTANTS.get(group, ())
        }
        others = [row for row in measured if row.group != group]
        if len(others) == len(measured):
            by_group[group] = Calibration(known)
            continue
        by_group[group] = Calibration({**known, **calibrate.fit(others, Calibration(known))})
    return [(row, by_group[row["group"]]) for row in rows]


def _errors(
    predictions: Iterable[tuple[Mapping[str, str], Mapping[str, str]]], column: str, predicted_column: str
) -> dict[str, list[float]]:
    """Return the relative errors of a column's predictions by group."""
    errors = defaultdict(list)
    for row, predicted in predictions:
        if row[column] and predicted[predicted_column]:
            errors[row["group"]].append(float(predicted[predicted_column]) / float(row[column]) - 1)
    return errors


def _print_errors(title: str, groups: Mapping[str, Sequence[float]]) -> None:
    print(f"\n{title:28s}  rows  median   90th %    bias")
    everything = [error for errors in groups.values() for error in errors]
    for name, errors in [*groups.items(), ("all", everything)]:
        sizes = [abs(error) for error in errors]
        bias = statistics.median(errors)
        print(
            f"  {name:26s}  {len(errors):4d}  {100 * statistics.median(sizes):5.1f} %  "
            f"{100 * _quantile(sizes, 0.9):5.1f} %  {100 * bias:+5.1f} %"
        )


class Fits(NamedTuple):
    """Shares: of the runs that ran out of memory, found; of the runs that ran, refused."""

    found: float
    refused: float


def _print_fits(predictions: Iterable[tuple[Mapping[str, str], Mapping[str, str]]]) -> Fits:
    judged = [
        (row, predicted["pred_fits"] == "yes")
        for row, predicted in predictions
        if row["outcome"] and predicted["pred_fits"]
    ]
    ran = [(row, fits) for row, fits in judged if row["outcome"] == "ok"]
    died = [(row, fits) for row, fits in judged if row["outcome"] != "ok"]
    found, refused = [row for row, fits in died if not fits], [row for row, fits in ran if not fits]
    print(
        f"\nfits or not: {len(found)} of {len(died)} that ran out of memory found, "
        f"{len(refused)} of {len(ran)} that ran refused"
    )
    for row, fits in judged:
        if fits != (row["outcome"] == "ok"):
            print(
                f"  wrong: row {row['row']} {row['model']} on {row['gpus']} {row['accel']}, measured {row['outcome']}"
            )
    return Fits(len(found) / len(died), len(refused) / len(ran))


def _print_range(errors: Mapping[str, Sequence[float]]) -> float:
    """Print and return the share of rows within a range that the other sources' errors decide (split conformal)."""
    inside = []
    for group, own in errors.items():
        width = spread({name: others for name, others in errors.items() if name != group})
        inside += [1 / (1 + width) <= 1 + error <= 1 + width for error in own]
    print(
        f"\nmeasured speed inside the range that the other sources' errors give: "
        f"{100 * sum(inside) / len(inside):.0f} % of {len(inside)} rows, meant to be {100 * HELD:.0f} %; "
        f"with all sources a range is from rate / {1 + spread(errors):.2f} to rate x {1 + spread(errors):.2f}"
    )
    return sum(inside) / len(inside)


def _print_far(predictions: Iterable[tuple[Mapping[str, str], Mapping[str, str]]]) -> None:
    """Print how many speeds are off by more than the goal, by source, mixtures of experts apart."""
    ((_, _, goal),) = (item for item in GOALS if item[1] == "speed")
    far: Counter[str] = Counter()
    for row, predicted in predictions:
        if row["tok_s_gpu"] and predicted["pred_tok_s_gpu"]:
            error = float(predicted["pred_tok_s_gpu"]) / float(row["tok_s_gpu"]) - 1
            kind = "mixtures" if parse_row(row).model.experts else "dense models"
            far[f"{kind} of {row['group']}"] += abs(error) > goal
    counts = ", ".join(f"{count} {name}" for name, count in far.most_common() if count)
    print(f"\noff by more than {100 * goal:.0f} %: {far.total()} speeds: {counts}")


def spread(errors: Mapping[str, Sequence[float]]) -> float:
    """Return the relative error that nine of ten rows of a source keep to, every source weighing the same.

    A new run comes from a source of its own, so sources, not rows, are what is drawn.
    """
    sizes = sorted((abs(math.log(1 + error)), 1 / len(own)) for own in errors.values() for error in own)
    reached = 0.0
    for size, weight in sizes:
        reached += weight
        if reached >= HELD * len(errors):
            return math.exp(size) - 1
    raise ValueError("no errors to learn from")


def _print_conventions(rows: Iterable[Mapping[str, str]]) -> None:
    """Recompute each printed FLOP/s from the printed tokens/s by the convention the table names."""
    found = defaultdict(list)
    for row, case in _understood(rows):
        recounted = consistency.recount(row, case)
        if recounted:
            found[recounted.convention, row["group"]].append(recounted)
    print("\nFLOP/s recomputed from tokens/s: rows, within 1 %, with the printed rate's rounding, worst")
    for (name, group), items in found.items():
        worst = max((item.error for item in items), key=abs)
        print(
            f"  {name[:70]:70s}  {group:17s} {len(items):4d} {_close(items):4d} {_explained(items):4d} "
            f"{100 * worst:+5.1f} %"
        )
    every = [item for items in found.values() for item in items]
    print(f"  together {_close(every)} of {len(every)} within 1 %, {_explained(every)} with rounding")


def _close(items: Iterable[consistency.Recount]) -> int:
    return sum(abs(item.error) <= consistency.CLOSE for item in items)


def _explained(items: Iterable[consistency.Recount]) -> int:
    return sum(item.explained for item in items)


def _print_contradictions(rows: Iterable[Mapping[str, str]]) -> None:
    print("\nrows that contradict themselves (they count in every figure above)")
    for row, case in _understood(rows):
        for sentence in consistency.contradictions(row, case):
            print(f"  row {row['row']:>3s} {row['model']} on {row['gpus']} {row['accel']}: {sentence}")


def _understood(rows: Iterable[Mapping[str, str]]) -> Iterable[tuple[Mapping[str, str], ParsedRow]]:
    for row in rows:
        try:
            yield row, parse_row(row)
        except ROW_ERRORS:
            continue


def _print_refused(predictions: Iterable[tuple[Mapping[str, str], Mapping[str, str]]]) -> None:
    reasons: defaultdict[tuple[str, str], int] = defaultdict(int)
    for row, predicted in predictions:
        if not predicted["pred_fits"]:
            reasons[row["group"], predicted["note"]] += 1
    print(f"\nnot predicted: {sum(reasons.values())} rows")
    for (group, note), count in reasons.items():
        print(f"  {count:3d}  {group}: {note}")


def _print_seed_run() -> None:
    """Compare with 47,000 steps in 56 h on 16 A10G: 1.15B parameters, sequences of 8192, micro-batch 3."""
    steps, hours, left = 47_000, 56.0, 153_000
    hardware, model = Hardware(instance_type="ml.g5.12xlarge", nodes=4), Model.of("seed_1b")
    print(f"\nthe seed's run: {model.parameters:,} parameters on 4 x ml.g5.12xlarge, micro-batch 3, sequence 8192")
    measured = steps * 3 * 8192 / (hours * 3600)
    print(f"  measured {measured:,.0f} tokens/s/GPU = {measured * 16 / 8192:.1f} samples/s")
    cases: dict[str, Recompute] = {"activations kept off the GPU, nothing recomputed": "none", "recomputed too": "full"}
    for words, recompute in cases.items():
        layout = Layout(gpus=16, micro_batch=3, sequence=8192, recompute=recompute, offload_activations=True)
        took = speed(model, layout, hardware.accelerator, Software.named("podwright"))
        needed = memory(model, layout, hardware.accelerator, Software.named("podwright"))
        print(
            f"  predicted {took.tokens_per_s_per_gpu:,.0f} ({took.low:,.0f} to {took.high:,.0f}), "
            f"{100 * (took.tokens_per_s_per_gpu / measured - 1):+.0f} %, "
            f"{needed.peak_gb:.1f} of {needed.capacity_gb:.1f} GB: {words}"
        )
    for words, flops in (
        ("causal, nothing recomputed", model.training_flops_per_token(8192)),
        ("all but the head recomputed", model.training_flops_per_token(8192) * 4 / 3 - 2 * model.embedding),
    ):
        reached = measured * flops / 1e12
        share = 100 * reached / hardware.accelerator.peak_bf16_tflops
        print(f"  the measured rate is {reached:.0f} TFLOP/s = {share:.0f} % of an A10G's peak: {words}")
    print(
        f"  its text hopes for 2.5 more days; at the measured rate the other {left:,} steps take "
        f"{left * hours / steps / 24:.1f} days"
    )


def _print_trainium(predictions: Iterable[tuple[Mapping[str, str], Mapping[str, str]]]) -> None:
    """Print each published row of Trainium and its error.

    Compare with 634 TFLOP/s, printed for Llama 3 8B on one trn1.32xlarge with tensor parallelism over 32 cores.
    """
    print("\nTrainium, row by row: tokens/s a chip measured, predicted with the range, error")
    for row, predicted in predictions:
        if row["accel"].startswith("trn") and row["tok_s_gpu"] and predicted["pred_tok_s_gpu"]:
            measured, rate = float(row["tok_s_gpu"]), float(predicted["pred_tok_s_gpu"])
            low, high = float(predicted["pred_low_tok_s_gpu"]), float(predicted["pred_high_tok_s_gpu"])
            print(
                f"  row {row['row']:>3s} {row['model']:14s} {row['gpus']:>4s} {row['accel']}  {measured:9,.1f}  "
                f"{rate:9,.1f} ({low:,.1f} to {high:,.1f})  {100 * (rate / measured - 1):+4.0f} %"
            )
    hardware, model = Hardware(instance_type="ml.trn1.32xlarge", nodes=1), Model.of("llama3_8b")
    core = hardware.accelerator.core()
    layout = Layout(
        gpus=32, tensor=32, micro_batch=1, micro_batches=16, sequence=8192, sharding="optimizer", recompute="selective"
    )
    took = speed(model, layout, core, Software.named("neuron.nki"))
    needed = memory(model, layout, core, Software.named("neuron.nki"))
    rate = took.tokens_per_s_per_gpu * 32
    print("\nthe Trainium seed: Llama 3 8B, TP 32 on one ml.trn1.32xlarge, sequence 8192, printed 634 TFLOP/s")
    print(
        f"  predicted {rate:,.0f} tokens/s ({took.low * 32:,.0f} to {took.high * 32:,.0f}), "
        f"{needed.peak_gb:.1f} of {needed.capacity_gb:.1f} GB per core, bound by {took.bound_by}"
    )
    for words, causal in (("the causal half of attention", True), ("the whole square", False)):
        flops = model.training_flops_per_token(8192, causal=causal)
        print(
            f"  counting {words}: {rate * flops / 1e12:.0f} TFLOP/s ({100 * (rate * flops / 634e12 - 1):+.0f} %); "
            f"AWS's own run on 32 machines, 767.2 tokens/s a chip, is {767.2 * 16 * flops / 1e12:.0f} a machine"
        )


def _print_minimum_platforms() -> None:
    """Compare with the clusters that the reference's README lists as large enough.

    It trains every Llama 3 with GPT-NeoX's 50,432 words and an untied head, on 1, 2, 4 … nodes.
    """
    printed = (
        ("llama3_1_8b", "ml.g6e.12xlarge", 8192, 1),
        ("llama3_2_1b", "ml.g5.8xlarge", 8192, 2),
        ("llama3_2_3b", "ml.g5.12xlarge", 8192, 1),
        ("llama2_13b", "ml.g6e.12xlarge", 4096, 2),
        ("llama2_70b", "ml.p5en.48xlarge", 4096, 2),
        ("llama3_1_70b", "ml.p5en.48xlarge", 8192, 2),
        ("llama2_70b", "ml.p5.48xlarge", 4096, 4),
        ("llama3_1_70b", "ml.p5.48xlarge", 8192, 4),
    )
    print(
        f"\nminimum platform: the fewest of 1, 2, 4 … machines that leave {100 * SPARE:.0f} % of a GPU free, "
        "which is our own median error; GB per GPU"
    )
    reproduced = 0
    for name, instance_type, sequence, nodes in printed:
        published = Model.of(name)
        theirs = published if published.vocab == 32_000 else replace(published, vocab=50_432, tied=False)  # noqa: PLR2004
        found, tried = _fewest(theirs, instance_type, sequence)
        reproduced += found == nodes
        print(f"  {name:13s} {instance_type:17s} printed {nodes}, found {found}: {tried}")
        if theirs is not published:
            own, tried = _fewest(published, instance_type, sequence)
            added = (published.parameters - theirs.parameters) / 1e9
            words = f"its own {published.vocab:,} words ({added:+.2f}B parameters, logits 2.5 times as large)"
            print(f"  {'':13s} with {words}: {own}: {tried}")
    print(f"  {reproduced} of {len(printed)} reproduced")


def _fewest(model: Model, instance_type: str, sequence: int) -> tuple[int, str]:
    """Return the fewest nodes, and a text with the memory at each number of nodes tried."""
    tried = []
    for nodes in (1, 2, 4, 8, 16, 32, 64):
        hardware = Hardware(instance_type=instance_type, nodes=nodes)
        layout = Layout(
            gpus=hardware.gpus, micro_batch=1, sequence=sequence, recompute="full", offload_activations=True
        )
        needed = memory(model, layout, hardware.accelerator, Software.named("podwright"))
        states = needed.parameters + needed.gradients + needed.master_weights + needed.optimizer
        free = needed.headroom_gb / needed.capacity_gb
        verdict = "fits" if free >= SPARE else f"only {100 * free:.0f} % free" if free >= 0 else "too large"
        tried.append(
            f"{nodes} x: {states:.0f} of states + {needed.peak_gb - states:.0f} = {needed.peak_gb:.0f} "
            f"of {needed.capacity_gb:.0f}, {verdict}"
        )
        if free >= SPARE:
            return nodes, "; ".join(tried)
    return 0, "; ".join(tried)


def _print_search() -> None:
    """Print the best layouts of two models over 512 H100 and the time of the search."""
    print("\nsearch over 64 x ml.p5.48xlarge = 512 GPUs, goal 2 s")
    hardware, software = Hardware(instance_type="ml.p5.48xlarge", nodes=64), Software.named("podwright")
    for name in ("llama3_1_70b", "deepseek_v3"):
        started = time.perf_counter()
        model = Model.of(name)
        found = list(
            layouts(model, hardware.accelerator, software, gpus=hardware.gpus, sequence=4096, global_batch=2048)
        )
        took = time.perf_counter() - started
        print(f"  {name}: {len(found)} layouts that fit, {took:.2f} s\n{candidates_table(best(found)[:2])}")


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


if __name__ == "__main__":
    main()
