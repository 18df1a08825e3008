"""Run ``podwright plan`` and print its answers."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from podwright.errors import PodwrightError
from podwright.json_document import to_json
from podwright.output_file import write_output
from podwright.planning.accelerator import UnknownAcceleratorError
from podwright.planning.cluster_hardware import Hardware, HardwareError, capacity_block_types
from podwright.planning.launch import LaunchInputs, command, obstacles
from podwright.planning.layout import LayoutError
from podwright.planning.measured import MeasuredError, MeasuredNetwork
from podwright.planning.model import Model, UnknownModelError
from podwright.planning.nxdt_memory import NxdtRunError, predict_file
from podwright.planning.on_demand import BASE_REGION, source_of
from podwright.planning.plan_document import plan_document
from podwright.planning.plan_text import candidates_table, how_to_run, offers_table, render, to_spare
from podwright.planning.roofline import roofline, to_svg, to_text
from podwright.planning.run_plan import Plan, make_plan
from podwright.planning.scaling import cheapest_with_serving, forecast, read_curve
from podwright.planning.search import (
    Candidate,
    best,
    cheapest_cluster,
    default_batch,
    largest_model,
    layouts,
    minimum_nodes,
    pareto,
    trainable_types,
)
from podwright.planning.trainer_options import OUR_SOFTWARE
from podwright.planning.trainer_run import arguments, model_of, total_tokens
from podwright.planning.trainer_software import Software
from podwright.planning.units import (
    DAY_S,
    HOUR_S,
    UnitError,
    format_count,
    format_duration,
    parse_count,
    parse_duration,
    parse_whole,
)
from podwright.settings.regions import REGIONS
from podwright_common.exit_status import FAILED, OK, WRONG_INPUT
from podwright_common.yaml_document import YamlFileError, load_values
from podwright_constructs.catalog import UnknownInstanceTypeError
from podwright_training.config.sources import load_file
from podwright_training.config.train_config import TrainConfig
from podwright_training.errors import ConfigError

SHOWN = 8  # lines of a table
_QUANTITIES = ("nodes", "seq_len", "micro_batch", "accumulate", "tokens", "serve", "budget", "deadline", "usd_per_hour")
_ANSWERS = ("nxdt", "curve", "minimum", "search")  # each is a command's whole answer
_LIMITS = ("budget", "deadline")  # They choose a cluster if none is given, else they are compared with it.
USUAL_SEQUENCE = 2048  # tokens, unless said
_WRONG = (
    *(UnitError, UnknownModelError, UnknownAcceleratorError, UnknownInstanceTypeError, HardwareError, LayoutError),
    ConfigError,
    MeasuredError,
    NxdtRunError,
)


class PlanInputError(PodwrightError, ValueError):
    """The arguments are incomplete or contradict each other. The message says which to give."""


def run(args: argparse.Namespace) -> int:
    """Run the command. Return the exit status: 1 if the plan does not fit or keep its limits, 2 if input is wrong."""
    try:
        return _run(args)
    except (*_WRONG, PlanInputError, FileNotFoundError, IsADirectoryError, PermissionError) as error:
        print(f"podwright plan: {error}", file=sys.stderr)
        return WRONG_INPUT


def _run(args: argparse.Namespace) -> int:
    _check_combination(args)
    if args.nxdt:
        print(json.dumps(predict_file(args.nxdt).to_dict(), indent=2))
        return OK
    if args.file:
        _take_cluster(args)
    chooses = not args.instance and (args.budget or args.deadline)
    if args.measured and (args.curve or args.minimum or chooses):
        raise PlanInputError("--measured describes one instance type: give it with --instance or a cluster.yaml alone")
    run = load_file(args.run) if args.run else None
    if args.curve:
        return _forecast(args, run)
    if chooses:
        return _choose_cluster(args, run)
    if not (args.model or run):
        raise PlanInputError("no model: give --model llama3_1_8b, --run run.yaml, or --budget 5000 --deadline 7d")
    if args.minimum:
        return _minimum(args, run)
    if not args.instance:
        raise PlanInputError("no instance type: give --instance ml.p5.48xlarge --nodes 4, or a cluster.yaml")
    return _plan(args, run)


def _check_combination(args: argparse.Namespace) -> None:
    """Refuse flags without a value, and flags of which one would be ignored."""
    empty = [_flag(name) for name in _QUANTITIES if getattr(args, name) is not None and not getattr(args, name).strip()]
    problems = [f"{', '.join(empty)}: got nothing, need a number"] if empty else []
    answers, limits = ([_flag(name) for name in names if getattr(args, name)] for names in (_ANSWERS, _LIMITS))
    has_cluster = args.instance or args.file
    if len(answers) > 1:
        problems.append(f"{' and '.join(answers)}: give one of them at a time")
    elif answers and limits and not (has_cluster and args.search):
        problems.append(f"{' and '.join(limits)}: give {'it' if len(limits) == 1 else 'them'} without {answers[0]}")
    elif limits and args.nodes and not has_cluster:
        problems.append("--nodes: give it with --instance, or leave it out and the cluster is chosen")
    if args.capacity_block and args.usd_per_hour:
        problems.append("--capacity-block and --usd-per-hour: give one price")
    if args.search and args.json:
        problems.append("--search prints tables: give it without --json")
    for read in (_deadline_s, _budget_usd):
        try:
            read(args)
        except UnitError as error:
            problems.append(str(error))
    if problems:
        raise PlanInputError("\n".join(problems))


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _forecast(args: argparse.Namespace, run: TrainConfig | None) -> int:
    if not (args.tokens and (args.seq_len or run)):
        raise PlanInputError("--curve needs --tokens (where to predict the loss) and the run's --seq-len or --run")
    tokens = parse_count(args.tokens, label="--tokens")
    sequence = _sequence(args, run)
    try:
        text = args.curve.read_text(encoding="utf-8", errors="replace")
        curve = read_curve(text.splitlines(), sequence=sequence)
        prediction = forecast(curve, tokens)
    except ValueError as error:
        raise PlanInputError(f"{args.curve}: {error}") from error
    if args.json:
        print(json.dumps(asdict(prediction), indent=2))
        return OK
    print(
        f"loss at {format_count(tokens)} tokens: {prediction.loss:.3f} "
        f"({prediction.low:.3f} to {prediction.high:.3f}) nats/token\n"
        f"  from {len(curve)} points up to {format_count(curve[-1][0])} tokens: "
        f"{prediction.floor:.3f} + {prediction.scale:.4g} / tokens^{prediction.exponent:.3f}"
    )
    return OK


def _plan(args: argparse.Namespace, run: TrainConfig | None) -> int:
    measured = MeasuredNetwork.read(args.measured) if args.measured else None
    nodes = parse_whole(args.nodes or "1", label="--nodes")
    hardware = Hardware(instance_type=args.instance, nodes=nodes, measured=measured, region=_region(args))
    if args.capacity_block and not hardware.capacity_block_usd_per_hour:
        priced_types = ", ".join(capacity_block_types())
        raise PlanInputError(
            f"--capacity-block: no price is known for {args.instance}, only for {priced_types}. Give --usd-per-hour"
        )
    of_run = (
        {**arguments(run, hardware), "tokens": total_tokens(run, hardware)} if run else {"sequence": USUAL_SEQUENCE}
    )
    plan = make_plan(_model(args, run), hardware, **{**of_run, **_given(args)})
    if args.svg:
        write_output(args.svg, to_svg(roofline(plan)))
    source = LaunchInputs(
        run=(args.run, run) if run and not args.model else None, dataset=args.dataset, tokenizer=args.tokenizer
    )
    beyond = list(_beyond(args, plan))
    submit, reasons = command(plan, source), [*obstacles(plan, source), *beyond]
    status = OK if plan.fits and not beyond else FAILED
    if args.json:
        print(to_json(plan_document(plan, submit, reasons)))
        return status
    candidates = list(_searched(args, plan, source)) if args.search else []
    trained = best(item for item in candidates if item.supported)
    print(render(plan, how="" if trained else how_to_run(submit, reasons), beyond=beyond))
    print(f"\n{to_text(roofline(plan))}")
    _print_serving(args, plan)
    if args.search:
        _print_search(plan, candidates, trained)
    if trained:
        chosen = plan.laid_out_as(trained[0])
        print(f"\n{how_to_run(command(chosen, source), obstacles(chosen, source), subject='the best of these')}")
    return status


def _beyond(args: argparse.Namespace, plan: Plan) -> Iterator[str]:
    """Yield which of ``--deadline`` and ``--budget`` a plan that fits does not keep.

    Raises:
        PlanInputError: The plan has no time or no price to compare.
    """
    deadline_s, budget = _deadline_s(args), _budget_usd(args)
    if (deadline_s or budget) and not plan.cost:
        raise PlanInputError("--deadline and --budget need --tokens, which set time and cost")
    if budget and plan.cost and plan.cost.total_usd is None:
        raise PlanInputError(f"--budget: EC2 publishes no price of {args.instance}. Give --usd-per-hour")
    if not (plan.fits and plan.cost):
        return
    hours, usd = plan.cost.hours, plan.cost.total_usd or 0.0
    if deadline_s and hours * HOUR_S > deadline_s:
        yield f"takes {format_duration(hours * HOUR_S)}: longer than --deadline {args.deadline}"
    if budget and usd > budget:
        yield f"costs {usd:,.0f} USD: more than --budget {args.budget}"


def _given(args: argparse.Namespace) -> dict[str, Any]:
    """Return the flags that were given, under the names of ``make_plan``'s arguments."""
    flags = {
        "sequence": _optional(args.seq_len, "--seq-len"),
        "micro_batch": _optional(args.micro_batch, "--micro-batch"),
        "micro_batches": _optional(args.accumulate, "--accumulate"),
        "recompute": args.recompute,
        "offload_activations": args.offload_activations or None,
        "offload_optimizer": args.offload_optimizer or None,
        "hybrid": args.hybrid or None,
        "precision": args.precision,
        "optimizer": args.optimizer,
        "tokens": parse_count(args.tokens, label="--tokens") if args.tokens else None,
        "usd_per_node_hour": parse_count(args.usd_per_hour, label="--usd-per-hour") if args.usd_per_hour else None,
        "capacity_block": args.capacity_block or None,
    }
    return {name: value for name, value in flags.items() if value is not None}


def _print_serving(args: argparse.Namespace, plan: Plan) -> None:
    if not args.serve:
        return
    if not plan.tokens:
        raise PlanInputError("--serve needs --tokens, which sets the loss to reach")
    served = parse_count(args.serve, label="--serve")
    optimum = cheapest_with_serving(plan.model.active_parameters, plan.tokens, served)
    planned = 6 * plan.model.active_parameters * plan.tokens + 2 * plan.model.active_parameters * served
    print(
        f"\nServing {format_count(served)} tokens: {format_count(optimum.parameters)} parameters on "
        f"{format_count(optimum.tokens)} tokens have "
        f"the same loss and {100 * (1 - optimum.total_flops / planned):.0f} % fewer FLOPs for training plus serving"
    )


def _searched(args: argparse.Namespace, plan: Plan, source: LaunchInputs) -> Iterator[Candidate]:
    """Yield the layouts of ``--search``; a run, and a batch that flags give, keep their sequences per step."""
    hardware, layout = plan.hardware, plan.layout
    batch_is_set = source.run or args.micro_batch or args.accumulate
    yield from layouts(
        plan.model,
        hardware.accelerator,
        Software.named(OUR_SOFTWARE),
        gpus=hardware.gpus,
        sequence=layout.sequence,
        global_batch=layout.global_batch if batch_is_set else default_batch(hardware.gpus, layout.sequence),
        precision=layout.precision,
        optimizer=layout.optimizer,
        run=source.run[1] if source.run else None,
    )


def _print_search(plan: Plan, candidates: Sequence[Candidate], trained: Sequence[Candidate]) -> None:
    """Print the layouts found; ``trained`` are those that podwright-train supports, fastest first."""
    if not candidates:
        print(f"\nNo layout on {plan.hardware.gpus} GPUs fits with {to_spare()}\n  --minimum finds the fewest nodes")
        return
    fastest, supported = best(candidates)[:SHOWN], list(trained[:SHOWN])
    print(f"\nBest of {len(candidates)} layouts that fit with {to_spare()}\n{candidates_table(fastest)}")
    if supported and supported != fastest:
        print(f"\nBest that podwright-train supports\n{candidates_table(supported)}")
    else:
        print(f"\npodwright-train supports {'all' if supported else 'none'} of these")
    print(f"\nFastest for its memory\n{candidates_table(pareto(candidates)[:SHOWN])}")


def _minimum(args: argparse.Namespace, run: TrainConfig | None) -> int:
    model, sequence = _model(args, run), _sequence(args, run)
    names = [args.instance] if args.instance else trainable_types()
    offers = {name: minimum_nodes(model, name, Software.named(OUR_SOFTWARE), sequence=sequence) for name in names}
    counts = {
        name: item.layout.gpus // Hardware(instance_type=name, nodes=1).gpus if item else None
        for name, item in offers.items()
    }
    if args.json:
        print(json.dumps(counts, indent=2))
        return OK
    print(f"{model.name}, sequences of {sequence:,} tokens, one per GPU, inputs of blocks offloaded, {to_spare()}")
    for name, item in offers.items():
        if item is None:
            print(f"  {name:24s}    -  does not fit: one block and the logits of one sequence are too large")
            continue
        gb = f"{item.memory.peak_gb:6.1f} of {item.memory.capacity_gb:6.1f} GB per GPU"
        print(f"  {name:24s} {counts[name]:3d} nodes  {gb}")
    return OK


def _choose_cluster(args: argparse.Namespace, run: TrainConfig | None) -> int:
    budget, deadline_s = _budget_usd(args), _deadline_s(args) or 30 * DAY_S
    sequence = _sequence(args, run)
    software = Software.named(OUR_SOFTWARE)
    if args.model or run:
        model = _model(args, run)
        tokens = parse_count(args.tokens, label="--tokens") if args.tokens else 20.0 * model.active_parameters
        offers = cheapest_cluster(
            model,
            software,
            tokens=tokens,
            sequence=sequence,
            deadline_s=deadline_s,
            budget_usd=budget,
            region=_region(args),
        )
    elif budget is None:
        raise PlanInputError("--deadline needs --model or --budget")
    else:
        offers = largest_model(
            software, budget_usd=budget, deadline_s=deadline_s, sequence=sequence, region=_region(args)
        )
    if not offers:
        print("no cluster of up to 64 nodes is enough: raise --deadline or --budget, or reduce tokens or model")
        return FAILED
    if args.json:
        print(json.dumps([item.to_dict() for item in offers], indent=2))
        return OK
    shown = offers[:SHOWN]
    prices = source_of(_region(args), [item.hardware.instance.name for item in shown])
    print(offers_table(shown))
    print(f"Prices: EC2 on-demand, {prices}. Default for --tokens: 20 per parameter. Memory: {to_spare()}")
    return OK


# ---- input -----------------------------------------------------------------------------------------------


def _take_cluster(args: argparse.Namespace) -> None:
    """Read instance type and node count from cluster.yaml unless flags give them."""
    cluster = _mapping(args.file).get("cluster")
    groups = cluster.get("instance_groups") if isinstance(cluster, dict) else None
    named = [group for group in groups or () if isinstance(group, dict) and {"instance_type", "count"} <= group.keys()]
    compute = next((group for group in named if group.get("role") == "compute"), None)
    if compute is None:
        raise PlanInputError(
            f"{args.file} has no instance group with role: compute, an instance_type and a count; "
            f"run `podwright check {args.file}` for details"
        )
    args.instance = args.instance or str(compute["instance_type"])
    args.nodes = args.nodes or str(compute["count"])
    args.region = args.region or _mapping(args.file).get("region")


def _region(args: argparse.Namespace) -> str:
    """Return the region whose prices the plan takes.

    Raises:
        PlanInputError: AWS has no such region.
    """
    region = str(args.region or BASE_REGION)
    if region not in REGIONS:
        raise PlanInputError(f"--region: AWS has no region {region}")
    return region


def _model(args: argparse.Namespace, run: TrainConfig | None) -> Model:
    return Model.of(args.model) if args.model or not run else model_of(run)


def _mapping(path: Path) -> dict[str, Any]:
    try:
        content = load_values(path)
    except YamlFileError as error:
        raise PlanInputError(str(error), error.hint) from error
    if content is None:
        raise PlanInputError(f"{path} is empty: `podwright init` writes a first one")
    if not isinstance(content, dict):
        raise PlanInputError(f"{path} must hold `key: value` lines, not {type(content).__name__}")
    return content


def _sequence(args: argparse.Namespace, run: TrainConfig | None) -> int:
    if args.seq_len or not run:
        return _optional(args.seq_len, "--seq-len") or USUAL_SEQUENCE
    return run.max_context_width


def _deadline_s(args: argparse.Namespace) -> float | None:
    return parse_duration(args.deadline, label="--deadline") if args.deadline else None


def _budget_usd(args: argparse.Namespace) -> float | None:
    return parse_count(args.budget, label="--budget") if args.budget else None


def _optional(text: str | None, flag: str) -> int | None:
    return None if text is None else parse_whole(text, label=flag)
