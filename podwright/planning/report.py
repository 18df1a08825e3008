"""Render a plan as text with bars, for a terminal."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap

from podwright.planning.cost import Cost
from podwright.planning.memory import error_share
from podwright.planning.plan import Plan
from podwright.planning.scaling import EPOCH
from podwright.planning.search import Candidate, Offer
from podwright.planning.units import GB, format_count, format_duration
from podwright_common.terminal import columns

COLUMNS = 80  # Reports are no wider, also on a wide terminal.
BAR_WIDTH, SHARE_WIDTH = 60, 28
MARGINS = 3  # The bar has two spaces before it, and the mark of the capacity.
_FILLS = "█▓▒░▚▞▤▥▧▨"


def render(plan: Plan, *, how: str = "", beyond: Sequence[str] = ()) -> str:
    """Return all sections of a plan.

    Args:
        plan: The plan.
        how: How to run it (``how_to_run``), empty if that is said elsewhere.
        beyond: Limits that it does not keep, such as a deadline.
    """
    sections = [*_answer(plan, beyond), _heading(plan), _memory(plan), _speed(plan)]
    if plan.fits:
        sections.append(_checkpoints_in_memory(plan))
    if plan.cost and plan.tokens:
        sections += [_time_and_cost(plan.tokens, plan.cost), _loss(plan)]
    sections.append("\n".join([*([how] if how else []), "cluster.yaml:", plan.settings()]).rstrip())
    return "\n\n".join("\n".join(map(_within_columns, section.splitlines())) for section in sections)


def _answer(plan: Plan, beyond: Sequence[str]) -> Iterator[str]:
    """Yield the answers to the first questions: why it does not fit, or how long it takes and its cost."""
    if not plan.fits:
        yield f"DOES NOT FIT: {plan.sentence()}"
    elif beyond:
        yield f"Fits the memory, but {', and '.join(beyond)}"
    elif plan.cost and plan.tokens:
        tokens, took = format_count(plan.tokens), format_duration(plan.cost.hours * 3600)
        price = "" if plan.cost.total_usd is None else f" and {plan.cost.total_usd:,.0f} USD"
        yield f"Fits: {tokens} tokens take {took}{price}, as predicted below"


def how_to_run(submit: Sequence[str], obstacles: Sequence[str], *, subject: str = "it") -> str:
    """Return the command that runs a plan.

    Args:
        submit: Words of the command.
        obstacles: Reasons against it; then they are returned instead.
        subject: The plan, in words.
    """
    refused = "\n".join(_within_columns(f"No command to run {subject}: {reason}") for reason in obstacles)
    return refused or _folded(f"To run {subject}:", submit)


def to_spare() -> str:
    """Return the share of a run's memory that proposals leave free: ``13 % to spare``."""
    return f"{100 * error_share():.0f} % to spare"


def memory_bar(items: Mapping[str, float], capacity_gb: float) -> str:
    """Return a stacked bar of the items over the capacity, with a legend."""
    width = min(BAR_WIDTH, columns(at_most=COLUMNS) - MARGINS)
    scale = width / max(capacity_gb, sum(items.values()))
    shown = [(name, size) for name, size in items.items() if size * scale >= 0.5 or size >= 0.01]  # noqa: PLR2004 - others round to 0
    bar = "".join(_FILLS[index % len(_FILLS)] * round(size * scale) for index, (_, size) in enumerate(shown))
    limit = round(capacity_gb * scale)
    bar = bar.ljust(width, "·")
    legend = "\n".join(
        f"  {_FILLS[index % len(_FILLS)]} {name.replace('_', ' '):28s} {size:8.2f} GB"
        for index, (name, size) in enumerate(shown)
    )
    return f"  {bar[:limit]}|{bar[limit:]}\n{legend}"


def candidates_table(candidates: Sequence[Candidate]) -> str:
    """Return a table of layouts, one per line."""
    lines = ["  tokens/s/GPU  MFU  GB/GPU TP PP CP EP sharding   micro-batch recompute trainer"]
    for item in candidates:
        layout = item.layout
        sharding = f"{layout.sharding}{f'/{layout.shards}' if layout.shards else ''}"
        lines.append(
            f"  {item.speed.tokens_per_s_per_gpu:12,.0f} {100 * item.speed.model_flops_utilization:3.0f}%  "
            f"{item.memory.peak_gb:6.1f} "
            f"{layout.tensor:2d} {layout.pipeline:2d} {layout.context:2d} {layout.expert:2d} {sharding:10s} "
            f"{layout.micro_batch:4d} x {layout.micro_batches:<4d} {layout.recompute:9s} "
            f"{'yes' if item.supported else 'no'}"
        )
    return "\n".join(lines)


def offers_table(offers: Sequence[Offer]) -> str:
    """Return a table of clusters, one per line."""
    lines = ["  model           cluster                       time     USD tokens/s/GPU GB/GPU"]
    for item in offers:
        cluster = f"{item.hardware.nodes} x {item.hardware.instance.name}"
        lines.append(
            f"  {item.model.name:15s} {cluster:24s} {format_duration(item.cost.hours * 3600):>9s} "
            f"{item.cost.total_usd or 0:7,.0f} "
            f"{item.candidate.speed.tokens_per_s_per_gpu:12,.0f} {item.candidate.memory.peak_gb:6.1f}"
        )
    return "\n".join(lines)


def _heading(plan: Plan) -> str:
    hardware, layout = plan.hardware, plan.layout
    sharding = f"states over {layout.sharding_ranks} ranks" if layout.sharding == "full" else layout.sharding
    return (
        f"{plan.model.name}: {plan.model.parameters:,} parameters on {hardware.nodes} x {hardware.instance.name} = "
        f"{hardware.gpus} {hardware.accelerator.name}\n"
        f"{_network(plan)}"
        f"{layout.micro_batches} x {layout.micro_batch} sequences of {layout.sequence:,} tokens per GPU and step "
        f"({format_count(layout.tokens_per_step)} tokens a step), {layout.precision}, recompute {layout.recompute}, "
        f"{sharding}"
    )


def _network(plan: Plan) -> str:
    measured = plan.hardware.measured
    return f"network as measured: {measured.pair_bus_gb_s:.3g} GB/s in an all-reduce of two nodes\n" if measured else ""


def _memory(plan: Plan) -> str:
    needed = plan.memory
    verdict = f"{abs(needed.headroom_gb):.1f} GB {'free' if plan.fits else 'too much'}"
    if plan.fits and not needed.fits_surely:
        verdict += f", and it may need {needed.error_gb:.1f} GB more"
    largest = f"largest micro-batch: {plan.largest_micro_batch}" if plan.largest_micro_batch else "no micro-batch fits"
    more = f"with {to_spare()}, {largest}"
    return (
        f"Memory per GPU: {needed.peak_gb:.1f} of {needed.capacity_gb:.1f} GB, {verdict}; {more}\n"
        f"{memory_bar(needed.items(), needed.capacity_gb)}"
    )


def _speed(plan: Plan) -> str:
    took, peak = plan.speed, plan.hardware.accelerator.peak_bf16_tflops
    rate = f"{took.tokens_per_s_per_gpu:,.0f} tokens/s/GPU ({took.low:,.0f} to {took.high:,.0f})"
    mfu = f"MFU {100 * took.model_flops_utilization:.1f} % (PaLM: 6 N + 12 L a d s, not causal)"
    hfu = f"HFU {100 * took.hardware_flops_utilization:.1f} %"
    lines = [
        f"Speed: {rate}, {plan.tokens_per_second:,.0f} in all",
        f"  a step takes {format_duration(took.step_s)}, bound by {took.bound_by}",
        f"  {mfu}, {hfu}",
        f"    of {peak:g} TFLOP/s bf16",
    ]
    for name, seconds in sorted(took.parts.items(), key=lambda item: -item[1]):
        share = seconds / took.step_s
        bar = "█" * round(SHARE_WIDTH * share)
        lines.append(f"  {name:28s} {format_duration(seconds):>10s}  {100 * share:5.1f} %  {bar}".rstrip())
    return "\n".join(lines)


def _time_and_cost(tokens: float, cost: Cost) -> str:
    stops = cost.failures
    between = format_duration(stops.hours_between * 3600)
    took = f"a checkpoint takes {format_duration(stops.checkpoint_s)}, a restart {format_duration(stops.restart_s)}"
    lines = [
        f"{format_count(tokens)} tokens take {format_duration(cost.hours * 3600)}, failures included",
        f"  one failure every {between}, {100 * stops.goodput:.1f} % of the time makes progress",
        f"  save every {format_duration(stops.interval_s)}: {took}",
    ]
    lines += [f"  {name:28s} {dollars:12,.0f} USD" for name, dollars in cost.usd.items()]
    total = f"{cost.total_usd:,.0f} USD" if cost.total_usd is not None else "unknown: give --usd-per-hour"
    lines.append(f"  total {total} ({cost.price_note}), {cost.kwh:,.0f} kWh")
    return "\n".join(lines)


def _checkpoints_in_memory(plan: Plan) -> str:
    tier = plan.memory_tier
    need, share = tier.need, 100 * tier.pause_s / plan.speed.step_s
    verdict = "fits" if tier.fits else "does not fit: use more nodes, or none"
    sent, took = need.sent_bytes / GB, format_duration(tier.send_s)
    folder, node, goodput = need.folder_bytes / GB, need.host_bytes / GB, 100 * tier.failures.goodput
    return "\n".join(
        [
            f"Checkpoints in memory (memory_checkpoint_freq): {need.rank_bytes / GB:.2f} GB per rank",
            f"  a node needs {folder:.1f} GB in /dev/shm, {node:.1f} of {tier.node_gb:,.0f} GB in all: {verdict}",
            *([f"  {sent:.1f} GB to the next node take {took} in the background"] if sent else []),
            f"  training waits {format_duration(tier.pause_s)}, {share:.1f} % of a step",
            f"  best every {tier.interval_steps} steps (auto): {goodput:.1f} % of the time makes progress",
        ]
    )


def _loss(plan: Plan) -> str:
    ratio = (plan.tokens or 0) / plan.model.active_parameters
    return (
        f"Loss about {plan.loss:.2f} +- {2 * EPOCH.standard_error:.2f} nats/token ({EPOCH.name}, MassiveText; "
        f"other data has another floor)\n"
        f"  {ratio:.0f} tokens per parameter; the best use of these FLOPs is "
        f"{format_count(plan.optimal_parameters or 0)} parameters "
        f"on {format_count(plan.optimal_tokens or 0)} tokens"
    )


def _folded(title: str, command: Sequence[str]) -> str:
    """Return a command on as many lines as it needs, each but the last with a backslash at its end."""
    lines, width = [title], columns(at_most=COLUMNS)
    for word in map(shlex.quote, command):
        if len(f"{lines[-1]} {word} \\") > width:
            lines.append("   ")
        lines[-1] += f" {word}"
    return " \\\n".join(lines)


def _within_columns(line: str) -> str:
    """Break a longer line between words; further lines are indented."""
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    width = columns(at_most=COLUMNS)
    broken = wrap(line, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)
    return "\n".join(broken) if len(line) > width else line
