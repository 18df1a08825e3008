"""Speed of published runs: experts, graphs, repeated modules and 8 bits as Megatron-Core has them."""

from dataclasses import replace

import pytest
from published.constants import constants
from published.layout import PublishedLayout
from published.software import PublishedSoftware, software_named
from published.speed import speed

from podwright.planning.accelerator import Accelerator
from podwright.planning.model import Model
from podwright.planning.throughput import Speed

LLAMA, H100 = Model.of("llama3_1_8b"), Accelerator.of("H100")
MEGATRON = software_named("megatron-core.26")
EXPERTS = {"gpus": 64, "expert": 8, "micro_batch": 4, "sharding": "optimizer"}


def step(
    model: Model = LLAMA, accelerator: Accelerator = H100, software: PublishedSoftware = MEGATRON, **changes: object
) -> Speed:
    layout = PublishedLayout(**{"gpus": 8, "micro_batch": 2, "sequence": 4096, **changes})
    return speed(model, layout, accelerator, software)


def test_biases_and_clamps_of_experts_cost_time():
    """gpt-oss adds biases and clamps by kernels of their own unless all of a step is one graph of fused kernels."""
    model, fused = Model.of("gpt_oss_120b"), replace(MEGATRON, graphs="all")
    plain = replace(model, bias="none")
    eager = step(model, software=MEGATRON, **EXPERTS).step_s / step(plain, software=MEGATRON, **EXPERTS).step_s
    assert eager > 1.2
    assert step(model, software=fused, **EXPERTS).step_s < 1.02 * step(plain, software=fused, **EXPERTS).step_s


def test_replicas_of_experts_share_few_links():
    """Eight experts a node have their replicas on other nodes: each rank reduces its own through one network card."""
    model = Model.of("gpt_oss_120b")
    apart, near = (
        step(model, software=MEGATRON, **{**EXPERTS, "expert": expert}).parts["gradient communication"]
        for expert in (8, 64)
    )
    whole = model.expert_parameters / 8 * (MEGATRON.weight_bytes + MEGATRON.gradient_bytes)
    least = whole * 7 / 8 / (H100.nic_gb_s * 1e9) * (1 - constants()("overlap_step"))
    assert apart - near > 0.9 * least


def test_graphs_and_overlap_hide_what_experts_wait_for():
    """Graphs spare the host's launches, of which there are more the more experts a rank has; overlap the all-to-all."""
    model = Model.of("qwen3_30b_a3b")
    layout = {**EXPERTS, "micro_batch": 1}

    def waiting(graphs, **changes):
        software = replace(MEGATRON, graphs=graphs)
        parts = step(model, Accelerator.of("B200"), software, **{**layout, "sequence": 1024, **changes}).parts
        return parts.get("waiting for the host", 0.0)

    assert waiting("none") > waiting("parts") > waiting("all") == 0
    assert waiting("none", expert=8) > waiting("none", expert=64)
    hidden, shown = (
        step(model, software=replace(MEGATRON, overlaps_experts=item), **layout).parts["expert communication"]
        for item in (True, False)
    )
    assert hidden < shown / 2


@pytest.mark.parametrize(
    ("name", "module"),
    [("gpt_oss_120b", "moe_act"), ("gpt_oss_120b", "layernorm"), ("deepseek_v3", "mla_up_proj")],
)
def test_small_modules_that_are_repeated_take_their_time(name, module):
    """Each is less than a repetition of all."""
    model = Model.of(name)
    none, small, full = (
        step(model, software=MEGATRON, **EXPERTS, **changes).parts.get("recomputation", 0.0)
        for changes in ({}, {"repeated_modules": (module,)}, {"recompute": "full"})
    )
    assert none == 0 < small < full / 2


def test_casting_to_eight_bits_costs_traffic():
    """In fp8 products are faster, but experts' inputs must be cast first."""
    model, layout = Model.of("qwen3_30b_a3b"), {"gpus": 8, "expert": 8, "sharding": "optimizer", "software": MEGATRON}
    half, quarter = (step(model, precision=precision, **layout).parts for precision in ("bf16", "fp8"))
    assert quarter["products"] < half["products"]
    assert quarter["memory traffic"] > half["memory traffic"]
