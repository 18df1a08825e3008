"""Search for the best layout, the cheapest cluster for a deadline, and the largest model for a budget."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from podwright.planning.accelerator import Accelerator
from podwright.planning.cluster_hardware import Hardware, accelerated_types
from podwright.planning.cost import Cost, cost, text_gb
from podwright.planning.layout import Layout, LayoutError, Optimizer, Precision, Recompute, check
from podwright.planning.memory import Memory, largest_micro_batch, memory
from podwright.planning.model import Model, model_names
from podwright.planning.on_demand import BASE_REGION
from podwright.planning.throughput import Speed, speed
from podwright.planning.trainer_options import OUR_CHUNK_TOKENS, is_trained_dense, unsupported
from podwright.planning.trainer_software import Sharding, Software
from podwright.planning.units import HOUR_S
from podwright_constructs.catalog import InstanceType
from podwright_training.config.train_config import TrainConfig

MOST_NODES = 64  # No larger cluster is proposed.
_TRIED: tuple[tuple[Recompute, bool], ...] = (("none", False), ("selective", False), ("full", False), ("full", True))


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A layout that surely fits, with its memory and speed."""

    model: Model
    layout: Layout
    memory: Memory
    speed: Speed
    run: TrainConfig | None = None  # The layout is for this run.

    @classmethod
    def of(
        cls,
        model: Model,
        layout: Layout,
        accelerator: Accelerator,
        software: Software,
        run: TrainConfig | None = None,
    ) -> Candidate:
        """Predict memory and speed of a layout."""
        return cls(
            model=model,
            layout=layout,
            memory=memory(model, layout, accelerator, software),
            speed=speed(model, layout, accelerator, software),
            run=run,
        )

    @property
    def supported(self) -> bool:
        """True if podwright-train supports the layout."""
        return not unsupported(self.layout, self.model, self.run)


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A cluster that meets deadline and budget."""

    hardware: Hardware
    model: Model
    candidate: Candidate
    cost: Cost

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON. Units are in the names."""
        return {
            "model": self.model.name,
            "instance_type": self.hardware.instance.name,
            "nodes": self.hardware.nodes,
            "hours": self.cost.hours,
            "usd": self.cost.total_usd,
            "tokens_per_s_per_gpu": self.candidate.speed.tokens_per_s_per_gpu,
            "peak_gb": self.candidate.memory.peak_gb,
            "layout": asdict(self.candidate.layout),
        }


def layouts(
    model: Model,
    accelerator: Accelerator,
    software: Software,
    *,
    gpus: int,
    sequence: int,
    global_batch: int,
    precision: Precision = "bf16",
    optimizer: Optimizer = "adamw",
    run: TrainConfig | None = None,
) -> Iterator[Candidate]:
    """Yield the layouts of ``run`` that surely fit, unsorted.

    For each split into tensor, pipeline, context and expert parallelism and each way to shard, the least
    recomputation with which the micro-batches of 1, 2, 4, … up to the largest that fits are tried: more recomputation
    only pays where it makes room.
    """
    for split in _splits(model, accelerator, gpus=gpus, sequence=sequence, precision=precision):
        base = replace(split, optimizer=optimizer)
        data = base.data
        if global_batch % data:
            continue
        per_rank = global_batch // data
        for recompute, offload in _TRIED:
            layout = replace(base, recompute=recompute, offload_activations=offload, micro_batches=per_rank)
            largest = largest_micro_batch(
                model, replace(layout, micro_batches=max(1, per_rank)), accelerator, software, at_most=min(per_rank, 64)
            )
            for micro_batch in _powers_of_two(largest):
                if per_rank % micro_batch:
                    continue
                sized = replace(layout, micro_batch=micro_batch, micro_batches=per_rank // micro_batch)
                if memory(model, sized, accelerator, software).fits_surely:
                    yield Candidate.of(model, sized, accelerator, software, run)
            if largest >= min(per_rank, 8):
                break


def best(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Sort by speed, fastest first."""
    return sorted(candidates, key=lambda item: -item.speed.tokens_per_s_per_gpu)


def pareto(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return the Pareto front of speed and memory, fastest first."""
    front: list[Candidate] = []
    for item in best(candidates):
        if not front or item.memory.peak_gb < front[-1].memory.peak_gb:
            front.append(item)
    return front


def cheapest_cluster(
    model: Model,
    software: Software,
    *,
    tokens: float,
    sequence: int,
    deadline_s: float,
    budget_usd: float | None = None,
    instance_types: Iterable[str] | None = None,
    region: str = BASE_REGION,
) -> list[Offer]:
    """Return clusters of 1 to 64 nodes that finish within deadline and budget, cheapest first.

    Only layouts that podwright-train supports are considered.
    """
    offers = []
    for name in instance_types or trainable_types():
        for nodes in _powers_of_two(MOST_NODES):
            hardware = Hardware(instance_type=name, nodes=nodes, region=region)
            if hardware.usd_per_hour is None:
                break
            seconds = _least_seconds(hardware, model, tokens)
            if budget_usd is not None and seconds / HOUR_S * hardware.usd_per_hour > budget_usd:
                break
            if seconds > deadline_s:
                continue
            candidate = offer(hardware, model, software, tokens=tokens, sequence=sequence)
            if candidate is None or candidate.cost.hours * HOUR_S > deadline_s:
                continue
            if budget_usd is None or (candidate.cost.total_usd or 0) <= budget_usd:
                offers.append(candidate)
            break  # more nodes of this type cost more
    return sorted(offers, key=lambda item: item.cost.total_usd or 0)


def proposed(offers: Sequence[Offer]) -> Offer:
    """Return the offer to take: the one with the lowest price per hour whose total is no more than the cheapest's.

    Two totals that differ less than the planner's error are alike. So the limit is what the cheapest costs if
    it is as slow as nine of ten published runs are at most. Of those within it, few dollars per hour lose least while
    nodes boot, wait or repeat steps.
    """
    cheapest = offers[0]
    likely = cheapest.candidate.speed
    limit = (cheapest.cost.total_usd or 0) * likely.tokens_per_s_per_gpu / likely.low
    alike = [item for item in offers if (item.cost.total_usd or 0) <= limit]
    return min(alike, key=lambda item: (item.hardware.usd_per_hour or 0, item.cost.total_usd or 0))


def _least_seconds(hardware: Hardware, model: Model, tokens: float) -> float:
    """Return the time of the run's FLOPs at 80 % of the peak, to skip clusters that are too slow."""
    flops = 3 * model.matrix_flops_per_token * tokens
    return flops / (0.8 * hardware.accelerator.peak_flops("bf16") * hardware.gpus)


def trainable_types() -> tuple[str, ...]:
    """Return the instance types with CUDA GPUs."""
    return tuple(name for name in accelerated_types() if InstanceType.of(name).accelerator == "gpu")


def largest_model(
    software: Software,
    *,
    budget_usd: float,
    deadline_s: float,
    sequence: int,
    tokens_per_parameter: float = 20.0,
    region: str = BASE_REGION,
) -> list[Offer]:
    """Return offers for the largest published dense model that can be trained within budget and deadline."""
    models = sorted({Model.of(name) for name in model_names()}, key=lambda model: -model.parameters)
    for model in models:
        if not is_trained_dense(model):
            continue
        offers = cheapest_cluster(
            model,
            software,
            tokens=tokens_per_parameter * model.parameters,
            sequence=sequence,
            deadline_s=deadline_s,
            budget_usd=budget_usd,
            region=region,
        )
        if offers:
            return offers
    return []


def minimum_nodes(
    model: Model, instance_type: str, software: Software, *, sequence: int, at_most: int = MOST_NODES
) -> Candidate | None:
    """Return the fewest nodes that surely hold the model.

    With one sequence per GPU, full recomputation, and the inputs of blocks in host memory.
    """
    for nodes in range(1, at_most + 1):
        hardware = Hardware(instance_type=instance_type, nodes=nodes)
        layout = Layout(
            gpus=hardware.gpus, micro_batch=1, sequence=sequence, recompute="full", offload_activations=True,
            loss_chunk_tokens=OUR_CHUNK_TOKENS,
        )  # fmt: skip
        if memory(model, layout, hardware.accelerator, software).fits_surely:
            return Candidate.of(model, layout, hardware.accelerator, software)
    return None


def offer(
    hardware: Hardware,
    model: Model,
    software: Software,
    *,
    tokens: float,
    sequence: int,
    global_batch: int | None = None,
) -> Offer | None:
    """Return the fastest layout that podwright-train supports, with its cost, or None if nothing surely fits."""
    batch = global_batch or default_batch(hardware.gpus, sequence)
    shown = [
        item
        for item in _sharded_only(model, hardware, software, sequence=sequence, global_batch=batch)
        if item.memory.fits_surely
    ]
    if not shown:
        return None
    fastest = best(shown)[0]
    seconds = tokens / (fastest.speed.tokens_per_s_per_gpu * hardware.gpus)
    return Offer(
        hardware=hardware,
        model=model,
        candidate=fastest,
        cost=cost(hardware, seconds=seconds, parameters=model.parameters, dataset_gb=text_gb(tokens)),
    )


def default_batch(gpus: int, sequence: int) -> int:
    """Return the sequences per step: about a million tokens, and a multiple of the ranks."""
    return gpus * max(1, round(1_048_576 / sequence / gpus))


def _sharded_only(
    model: Model, hardware: Hardware, software: Software, *, sequence: int, global_batch: int
) -> Iterator[Candidate]:
    per_rank = max(1, global_batch // hardware.gpus)
    node = hardware.instance.accelerator_count
    for shards in (0, node) if hardware.nodes > 1 and node > 1 else (0,):
        for recompute, offload in _TRIED:
            layout = Layout(
                gpus=hardware.gpus,
                micro_batch=1,
                micro_batches=per_rank,
                sequence=sequence,
                shards=shards,
                recompute=recompute,
                offload_activations=offload,
                loss_chunk_tokens=OUR_CHUNK_TOKENS,
            )
            largest = largest_micro_batch(model, layout, hardware.accelerator, software, at_most=min(per_rank, 64))
            for micro_batch in {largest, *_powers_of_two(largest)}:
                if micro_batch and per_rank % micro_batch == 0:
                    sized = replace(layout, micro_batch=micro_batch, micro_batches=per_rank // micro_batch)
                    yield Candidate.of(model, sized, hardware.accelerator, software)


def _splits(
    model: Model, accelerator: Accelerator, *, gpus: int, sequence: int, precision: Precision
) -> Iterator[Layout]:
    """Yield layouts that work, with one sequence per micro-batch.

    Tensor parallelism stays within a node.
    """
    domain = min(8, accelerator.link_domain, gpus)
    for tensor in _powers_of_two(domain):
        for pipeline in _powers_of_two(min(16, gpus // tensor, model.layers)):
            for context in _powers_of_two(min(8, gpus // tensor // pipeline) if sequence >= 32768 else 1):  # noqa: PLR2004 - long sequences
                for expert in _powers_of_two(
                    min(64, model.experts, gpus // tensor // pipeline) if model.experts else 1
                ):
                    for sharding, shards in _shardings(gpus, tensor * pipeline * context, domain, pipeline):
                        layout = Layout(
                            gpus=gpus, micro_batch=1, sequence=sequence, tensor=tensor, pipeline=pipeline,
                            virtual_stages=max(1, min(5, model.layers // pipeline // 4)) if pipeline > 1 else 1,
                            context=context, expert=expert, sharding=sharding, shards=shards, precision=precision,
                            loss_chunk_tokens=OUR_CHUNK_TOKENS,
                        )  # fmt: skip
                        try:
                            check(layout, model)
                        except LayoutError:
                            continue
                        yield layout


def _shardings(gpus: int, used: int, domain: int, pipeline: int) -> Iterator[tuple[Sharding, int]]:
    data = gpus // used
    yield "optimizer", 0
    if pipeline == 1:
        yield "full", 0
        if data > domain > 1 and used == 1:
            yield "full", domain


def _powers_of_two(largest: int) -> list[int]:
    return [2**power for power in range(max(0, largest).bit_length())]
