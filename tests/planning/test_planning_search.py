"""Search for layouts, clusters and models."""

import argparse
import subprocess
import sys
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podwright.planning.cluster_hardware import Hardware, HardwareError, accelerated_types
from podwright.planning.layout import Layout, check
from podwright.planning.memory import error_share, memory
from podwright.planning.model import Model
from podwright.planning.run_plan import make_plan
from podwright.planning.search import best, cheapest_cluster, largest_model, layouts, minimum_nodes, pareto
from podwright.planning.trainer_options import flags, is_trained_dense, unsupported
from podwright.planning.trainer_run import plan_run
from podwright.planning.trainer_software import Software
from podwright.planning.units import DAY_S
from podwright_constructs.catalog import UnknownInstanceTypeError
from podwright_training.config import parallel_dims, sources
from podwright_training.spelling import as_flag

OURS = Software.named("podwright")


def found(name, *, instance_type="ml.p5.48xlarge", nodes=8, sequence=4096, batch=512):
    hardware = Hardware(instance_type=instance_type, nodes=nodes)
    return list(
        layouts(Model.of(name), hardware.accelerator, OURS, gpus=hardware.gpus, sequence=sequence, global_batch=batch)
    )


@pytest.mark.parametrize("name", ["llama3_1_8b", "llama3_1_70b", "qwen3_30b_a3b"])
def test_every_layout_found_is_possible_and_fits(name):
    """Each divides the cluster, fits the memory and makes the batch that was asked for."""
    candidates = found(name)
    assert candidates
    for item in candidates:
        check(item.layout, Model.of(name))
        assert item.memory.fits
        assert item.layout.global_batch == 512


def test_the_best_is_fastest_and_none_on_the_front_is_beaten():
    """A layout on the front is beaten by no other in both speed and memory."""
    candidates = found("llama3_1_8b")
    fastest = best(candidates)[0]
    assert all(item.speed.tokens_per_s_per_gpu <= fastest.speed.tokens_per_s_per_gpu for item in candidates)
    for kept in pareto(candidates):
        assert not any(
            item.speed.tokens_per_s_per_gpu > kept.speed.tokens_per_s_per_gpu
            and item.memory.peak_gb < kept.memory.peak_gb
            for item in candidates
        )


def test_512_gpus_are_searched_thoroughly():
    """A 70B on 64 machines: tensor and pipeline parallelism of several degrees are looked at."""
    candidates = found("llama3_1_70b", nodes=64, batch=1024)
    assert {item.layout.tensor for item in candidates} >= {2, 4, 8}
    assert len({item.layout.pipeline for item in candidates}) >= 3


def test_the_cheapest_cluster_meets_deadline_and_budget():
    """Offers come cheapest first, in time and inside the budget."""
    offers = cheapest_cluster(
        Model.of("llama3_2_1b"), OURS, tokens=25e9, sequence=4096, deadline_s=7 * DAY_S, budget_usd=5000
    )
    prices = [item.cost.total_usd for item in offers]
    assert prices == sorted(prices)
    assert prices[-1] <= 5000
    assert all(item.cost.hours <= 7 * 24 for item in offers)


def test_more_money_trains_a_larger_model():
    """Ten times the budget buys a larger model, never a smaller one."""
    small, large = (
        largest_model(OURS, budget_usd=budget, deadline_s=14 * DAY_S, sequence=4096) for budget in (5e3, 5e4)
    )
    assert small[0].model.parameters < large[0].model.parameters


@pytest.mark.parametrize(
    ("name", "instance_type", "sequence", "nodes"),
    [
        ("llama2_13b", "ml.g6e.12xlarge", 4096, 2),
        ("llama2_70b", "ml.p5en.48xlarge", 4096, 2),
        ("llama3_1_70b", "ml.p5en.48xlarge", 8192, 2),
    ],
)
def test_minimum_platforms_of_the_reference(name, instance_type, sequence, nodes):
    """The smallest clusters in the reference's README follow from first principles; one node less is not enough."""
    item = minimum_nodes(Model.of(name), instance_type, OURS, sequence=sequence)
    assert item.layout.gpus == nodes * Hardware(instance_type=instance_type, nodes=1).gpus
    assert item.memory.fits_surely


@given(st.sampled_from(accelerated_types()), st.integers(1, 8))
@settings(deadline=None, max_examples=40)
def test_every_instance_type_can_be_planned(instance_type, nodes):
    """Each type of the catalog with an accelerator gives a plan with figures above zero."""
    plan = make_plan(
        Model.of("llama3_2_1b"), Hardware(instance_type=instance_type, nodes=nodes), sequence=2048, tokens=1e9
    )
    assert plan.speed.tokens_per_s_per_gpu > 0
    assert 0 < plan.speed.model_flops_utilization < 1
    assert plan.cost.hours > 0


def test_a_plan_that_does_not_fit_says_what_would():
    """The sentence names need, capacity and a remedy that works."""
    hardware = Hardware(instance_type="ml.g5.12xlarge", nodes=4)
    plan = make_plan(Model.of("llama3_2_1b"), hardware, sequence=8192, micro_batch=3, recompute="none")
    assert not plan.fits
    assert "an A10G has 23.1" in plan.sentence()
    assert plan.remedy() == "use --activation-checkpointing --train-batch-size=1"
    again = make_plan(Model.of("llama3_2_1b"), hardware, sequence=8192, micro_batch=1, recompute="full")
    assert again.memory.fits_surely
    barely = make_plan(Model.of("llama3_2_1b"), hardware, sequence=8192, micro_batch=1, recompute="none")
    assert (barely.fits, barely.memory.fits_surely) == (True, False)
    assert "may need 13 %" in barely.tight()


def test_chosen_values_fit():
    """Options that are left out are chosen so that the run fits, even if it needs more, and the flags name them."""
    plan = make_plan(Model.of("llama3_1_8b"), Hardware(instance_type="ml.p5.48xlarge", nodes=2), sequence=4096)
    assert plan.memory.capacity_gb >= plan.memory.peak_gb * (1 + error_share())
    assert f"--train-batch-size={plan.layout.micro_batch}" in flags(plan.layout)
    assert memory(plan.model, plan.layout, plan.hardware.accelerator, OURS).peak_gb == plan.memory.peak_gb


@pytest.mark.parametrize(
    ("instance_type", "nodes", "error"),
    [
        ("ml.m5.xlarge", 1, HardwareError),
        ("ml.p5.48xlarge", 0, HardwareError),
        ("ml.p5.47xlarge", 1, UnknownInstanceTypeError),
    ],
)
def test_clusters_that_cannot_train_are_refused(instance_type, nodes, error):
    """A type without accelerator, zero nodes and an unknown type are refused."""
    with pytest.raises(error):
        Hardware(instance_type=instance_type, nodes=nodes)


def test_planning_loads_nothing_heavy():
    """The command needs neither torch nor cdktf nor numpy."""
    heavy = {"torch", "cdktf", "numpy", "boto3"}
    code = f"import sys, podwright.planning.command; print(sorted({heavy} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_layouts_are_made_on_demand():
    """The first layouts come before all are looked at."""
    hardware = Hardware(instance_type="ml.p5.48xlarge", nodes=8)
    stream = layouts(Model.of("llama3_1_8b"), hardware.accelerator, OURS, gpus=64, sequence=4096, global_batch=512)
    assert len(list(islice(stream, 3))) == 3


@pytest.mark.parametrize("name", ["llama3_1_8b", "llama3_2_1b", "mixtral_8x7b"])
def test_what_the_trainer_is_said_to_run_it_accepts(name):
    """The flags of every such layout are options of the trainer, and with them the model can be laid out so."""
    parser = argparse.ArgumentParser()
    sources.add_arguments(parser)
    realised = [item.layout for item in found(name, batch=1024) if item.supported]
    assert {layout.tensor for layout in realised} >= {1, 2}
    assert max(layout.pipeline for layout in realised) > 1
    for layout in realised:
        config = sources.load(parser.parse_args([f"--preset={name}", *flags(layout)]))
        assert not list(parallel_dims.problems(config, world_size=layout.gpus, nodes=8))
        ranks = parallel_dims.ParallelDims.of(config, world_size=layout.gpus, nodes=8)
        assert ranks.data_size == layout.data
        assert ranks.data_size * config.train_batch_size * config.gradient_accumulation_steps == layout.global_batch
        assert config.data_streams % ranks.data_size == 0


def test_what_the_trainer_cannot_run_is_said_in_its_words():
    """Each part of another trainer's layout that is not supported has its message."""
    layout = Layout(gpus=64, micro_batch=1, sequence=4096, tensor=16, sharding="optimizer", offload_optimizer=True)
    reasons = "; ".join(unsupported(layout, Model.of("llama3_1_8b")))
    for words in (
        "optimizer sharding",
        "offloading the optimizer alone",
        "num_key_value_heads 8 is not divisible by tensor_parallel 16",
    ):
        assert words in reasons


@pytest.mark.parametrize(
    "given",
    [
        {"gradient_accumulation_steps": 4, "optimizer": "muon"},
        {"tensor_parallel": 4, "context_parallel": 2, "activation_checkpointing_mode": "selective"},
        {"pipeline_parallel": 4, "pipeline_schedule": "interleaved_1f1b", "train_batch_size": 8, "precision": "fp32"},
        {"sharding_strategy": "hybrid", "data_replicas": 4, "float8": True, "loss_chunk_tokens": 0},
        {"pipeline_parallel": 2, "train_batch_size": 4, "reshard_after_forward": "always"},
        {"pipeline_parallel": 2, "train_batch_size": 4, "accumulated_gradients": "whole"},
        {"preset": "mixtral_8x7b", "expert_parallel": 8, "activation_checkpointing": False},
    ],
)
def test_a_run_comes_back_from_its_plan(given):
    """A run planned for a cluster gives back its own options, and the trainer supports all of them."""
    words = [as_flag(name, value) for name, value in given.items()]
    parser = argparse.ArgumentParser()
    sources.add_arguments(parser)
    config = sources.load(parser.parse_args(["--preset=llama3_1_8b", *words]))
    plan = plan_run(config, Hardware(instance_type="ml.p5.48xlarge", nodes=8))
    parsed = sources.load(parser.parse_args([f"--preset={config.preset}", *flags(plan.layout)]))
    assert {name: getattr(parsed, name) for name in given} == {name: getattr(config, name) for name in given}
    assert plan.unsupported_options() == []
    shares = parallel_dims.ParallelDims.of(config, world_size=64, nodes=8).data_size
    assert plan.tokens == config.max_steps * config.max_context_width * plan.layout.global_batch
    assert plan.layout.data == shares


@pytest.mark.parametrize(
    ("name", "trained"),
    [("llama3_2_1b", True), ("mathstral_7b", True), ("mixtral_8x7b", False), ("llama4_scout", False)],
)
def test_a_budget_buys_dense_models_of_the_trainers_families(name, trained):
    """Offers are for dense models that podwright-train has a family for."""
    assert is_trained_dense(Model.of(name)) is trained
