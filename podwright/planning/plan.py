"""A plan: one model on one cluster, with what it needs, how fast it is and what it costs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from podwright.planning.cluster import Cluster
from podwright.planning.cost import Cost, cost
from podwright.planning.layout import Layout, Optimizer, Precision, Recompute, check
from podwright.planning.memory import Memory, largest_micro_batch, least_recomputation, memory
from podwright.planning.model import Model
from podwright.planning.scaling import EPOCH
from podwright.planning.search import default_batch
from podwright.planning.software import Software
from podwright.planning.throughput import Speed, speed

OUR_SOFTWARE = "podwright"
OUR_RECOMPUTES: tuple[Recompute, ...] = ("none", "full")  # what the trainer's --activation_checkpointing can be


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The answer; ``cost`` and the losses are None unless the number of tokens was given."""

    model: Model
    cluster: Cluster
    layout: Layout
    memory: Memory
    speed: Speed
    largest_micro_batch: int
    tokens: float | None
    cost: Cost | None
    loss: float | None
    optimal_parameters: float | None
    optimal_tokens: float | None

    @property
    def fits(self) -> bool:
        """Whether it runs at all."""
        return self.memory.fits

    @property
    def tokens_per_second(self) -> float:
        """Of the whole cluster."""
        return self.speed.tokens_per_s_per_gpu * self.cluster.gpus

    def sentence(self) -> str:
        """What a check says about it: ``this run needs 31.2 GB per GPU, an A10G has 23.1: …``."""
        needed, name = self.memory.peak_gb, self.cluster.accelerator.name
        text = f"this run needs {needed:.1f} GB per GPU, an {name} has {self.memory.capacity_gb:.1f}"
        return text if self.fits else f"{text}: {self.remedy()}"

    def remedy(self) -> str:
        """What would make it fit, the gentlest first."""
        if self.largest_micro_batch:
            return f"use --train_batch_size={self.largest_micro_batch}"
        software = Software.named(OUR_SOFTWARE)
        one = replace(self.layout, micro_batch=1)
        recomputed = replace(one, recompute="full")
        offloaded = replace(recomputed, offload_activations=True)
        for layout, words in (
            (recomputed, "use --activation_checkpointing=1"),
            (offloaded, "use --activation_checkpointing=1 --offload_activations=1"),
        ):
            if memory(self.model, layout, self.cluster.accelerator, software).fits:
                return f"{words} --train_batch_size=1"
        for nodes in range(self.cluster.nodes + 1, 65):
            gpus = nodes * self.cluster.instance.accelerator_count
            larger = replace(offloaded, gpus=gpus)
            if memory(self.model, larger, self.cluster.accelerator, software).fits:
                return (
                    f"use {nodes} nodes, with --activation_checkpointing=1 --offload_activations=1 --train_batch_size=1"
                )
        return "shorten the sequence or take accelerators with more memory"

    def flags(self) -> list[str]:
        """Options of ``podwright-train train`` that realise the layout but for what is ``beyond_the_trainer``."""
        layout = self.layout
        return [
            f"--train_batch_size={layout.micro_batch}",
            f"--max_context_width={layout.sequence}",
            f"--activation_checkpointing={int(layout.recompute == 'full')}",
            f"--offload_activations={int(layout.offload_activations)}",
            f"--sharding_strategy={'hybrid' if layout.shards else 'full'}",
            *self._checkpoint_flag(),
        ]

    def beyond_the_trainer(self) -> list[str]:
        """What the layout asks for and ``podwright_training`` does not do yet."""
        layout = self.layout
        asked = {
            "gradient accumulation": layout.micro_batches > 1,
            "tensor parallelism": layout.tensor > 1,
            "pipeline parallelism": layout.pipeline > 1,
            "context parallelism": layout.context > 1,
            "expert parallelism": layout.expert > 1,
            "selective recomputation": layout.recompute not in {"none", "full"},
            "optimizer offload": layout.offload_optimizer,
            "a chunked loss": layout.chunked_loss,
        }
        return [name for name, wanted in asked.items() if wanted]

    def settings(self) -> str:
        """The instance group of ``cluster.yaml`` that realises the cluster."""
        return (
            f"- name: workers\n  role: compute\n  instance_type: {self.cluster.instance.name}\n"
            f"  count: {self.cluster.nodes}\n  partition: gpu\n"
        )

    def checkpoint_steps(self) -> int | None:
        """Steps between checkpoints that lose the least (Young and Daly)."""
        return max(1, round(self.cost.failures.interval_s / self.speed.step_s)) if self.cost else None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; units are in the names."""
        return {
            "model": {
                "name": self.model.name,
                "parameters": self.model.parameters,
                "active_parameters": self.model.active_parameters,
            },
            "cluster": {
                "instance_type": self.cluster.instance.name,
                "nodes": self.cluster.nodes,
                "gpus": self.cluster.gpus,
            },
            "layout": asdict(self.layout),
            "memory_gb": {
                **self.memory.items(),
                "peak": self.memory.peak_gb,
                "capacity": self.memory.capacity_gb,
                "headroom": self.memory.headroom_gb,
            },
            "fits": self.fits,
            "largest_micro_batch": self.largest_micro_batch,
            "speed": {**asdict(self.speed), "bound_by": self.speed.bound_by},
            "tokens": self.tokens,
            "cost": {**asdict(self.cost), "total_usd": self.cost.total_usd} if self.cost else None,
            "checkpoint_freq_steps": self.checkpoint_steps(),
            "predicted_loss_nats_per_token": self.loss,
            "flags": self.flags(),
        }

    def _checkpoint_flag(self) -> list[str]:
        steps = self.checkpoint_steps()
        return [f"--checkpoint_freq={steps}"] if steps else []


def make_plan(
    model: Model,
    cluster: Cluster,
    *,
    sequence: int,
    micro_batch: int | None = None,
    micro_batches: int | None = None,
    recompute: Recompute | None = None,
    offload_activations: bool = False,
    hybrid: bool = False,
    precision: Precision = "bf16",
    optimizer: Optimizer = "adamw",
    tokens: float | None = None,
    usd_per_node_hour: float | None = None,
    software: Software | None = None,
) -> Plan:
    """Plan a run of our trainer: fully sharded, what is not given is chosen.

    Without ``recompute`` the least that fits is taken; without ``micro_batch`` the largest that fits, at most what a
    step of a million tokens needs; without ``micro_batches`` as many as such a step needs.

    Raises:
        LayoutError: the layout is impossible.
    """
    used = software or Software.named(OUR_SOFTWARE)
    accelerator = cluster.accelerator
    per_rank = default_batch(cluster.gpus, sequence) // cluster.gpus
    layout = Layout(
        gpus=cluster.gpus,
        micro_batch=1 if micro_batch is None else micro_batch,
        micro_batches=1 if micro_batches is None else micro_batches,
        sequence=sequence,
        sharding=used.sharding,
        shards=cluster.instance.accelerator_count if hybrid else 0,
        recompute=recompute or ("full" if offload_activations else "none"),
        offload_activations=offload_activations,
        precision=precision,
        optimizer=optimizer,
    )
    check(layout, model)
    if recompute is None:
        layout = least_recomputation(model, layout, accelerator, used, choices=OUR_RECOMPUTES[offload_activations:])
    largest = largest_micro_batch(model, layout, accelerator, used, at_most=256)
    if micro_batch is None:
        layout = replace(layout, micro_batch=max(1, min(largest, per_rank)))
    if micro_batches is None:
        layout = replace(layout, micro_batches=max(1, round(per_rank / layout.micro_batch)))
    return _assemble(model, cluster, layout, used, largest=largest, tokens=tokens, usd_per_node_hour=usd_per_node_hour)


def _assemble(
    model: Model,
    cluster: Cluster,
    layout: Layout,
    software: Software,
    *,
    largest: int,
    tokens: float | None,
    usd_per_node_hour: float | None,
) -> Plan:
    took = speed(model, layout, cluster.accelerator, software)
    flops = 6.0 * model.active_parameters * tokens if tokens else None
    seconds = tokens / (took.tokens_per_s_per_gpu * cluster.gpus) if tokens else None
    return Plan(
        model=model,
        cluster=cluster,
        layout=layout,
        memory=memory(model, layout, cluster.accelerator, software),
        speed=took,
        largest_micro_batch=largest,
        tokens=tokens,
        cost=cost(
            cluster,
            seconds=seconds,
            parameters=model.parameters,
            usd_per_node_hour=usd_per_node_hour,
            dataset_gb=tokens * 4.5 / 1e9 if tokens else 0.0,  # a token of English is about 4.5 bytes
        )
        if seconds
        else None,
        loss=EPOCH.loss(model.active_parameters, tokens) if tokens else None,
        optimal_parameters=EPOCH.optimal_parameters(flops) if flops else None,
        optimal_tokens=EPOCH.optimal_tokens(flops) if flops else None,
    )
