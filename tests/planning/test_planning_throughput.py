"""Time of a step."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podwright.planning.accelerator import Accelerator, UnknownAcceleratorError
from podwright.planning.calibration import Calibration, calibration
from podwright.planning.kernels import Kernels
from podwright.planning.layout import Layout
from podwright.planning.model import Model
from podwright.planning.throughput import Speed, speed
from podwright.planning.trainer_software import Software
from podwright_constructs.catalog import InstanceType, cluster_instance_types
from podwright_training.hardware import MEMORY_GB, PEAK_FLOPS, peak_flops

LLAMA, H100, OURS = Model.of("llama3_1_8b"), Accelerator.of("H100"), Software.named("podwright")
KERNELS = Kernels(accelerator=H100, calibration=calibration(), precision="bf16")
NEURON = Software.named("neuron.nki")
WIDTHS = st.integers(1, 256).map(lambda blocks: 64 * blocks)


def step(model: Model = LLAMA, accelerator: Accelerator = H100, software: Software = OURS, **changes: object) -> Speed:
    return speed(model, Layout(**{"gpus": 8, "micro_batch": 2, "sequence": 4096, **changes}), accelerator, software)


@given(WIDTHS, WIDTHS, WIDTHS)
def test_no_product_beats_the_roof(rows, columns, depth):
    """Neither the sustained arithmetic nor the memory's bandwidth is ever exceeded."""
    time = KERNELS.product(rows, columns, depth)
    assert 2 * rows * columns * depth / time <= KERNELS.sustained_flops
    assert 2 * (rows * depth + depth * columns + rows * columns) / time <= KERNELS.memory_bytes_s * (1 + 1e-9)


@given(WIDTHS, WIDTHS, WIDTHS)
def test_larger_products_take_longer(rows, columns, depth):
    """Time grows with every dimension."""
    time = KERNELS.product(rows, columns, depth)
    assert time <= KERNELS.product(rows + 64, columns, depth) * (1 + 1e-9)
    assert time <= KERNELS.product(rows, columns, depth + 64) * (1 + 1e-9)


def test_odd_widths_are_slow():
    """BLOOM's 14,400 over eight ranks is no multiple of 64: its products lose a quarter of their speed."""
    even, odd = KERNELS.product(8192, 1792, 14336), KERNELS.product(8192, 1800, 14400)
    assert odd > 1.25 * even


@given(st.integers(1, 12))
@settings(deadline=None)
def test_parts_add_up(micro_batches):
    """A step takes as long as its parts, and its tokens per second follow from it."""
    took = step(micro_batches=micro_batches)
    assert sum(took.parts.values()) == pytest.approx(took.step_s)
    assert took.tokens_per_s_per_gpu == pytest.approx(micro_batches * 2 * 4096 / took.step_s)
    assert took.low < took.tokens_per_s_per_gpu < took.high


@given(st.integers(1, 8), st.integers(1, 16).map(lambda blocks: 512 * blocks))
@settings(deadline=None)
def test_more_work_takes_longer(micro_batch, sequence):
    """A step takes longer with a larger batch, a longer sequence, more layers, recomputation."""
    base = {"micro_batch": micro_batch, "sequence": sequence}
    time = step(**base).step_s
    assert time < step(**{**base, "micro_batch": micro_batch + 1}).step_s
    assert time < step(**{**base, "sequence": sequence + 512}).step_s
    assert time < step(replace(LLAMA, layers=LLAMA.layers + 1), **base).step_s
    assert time < step(**base, recompute="full").step_s


def test_recomputation_raises_only_what_the_hardware_does():
    """With full recomputation HFU is a third above MFU at short sequences, less for the head that is not repeated."""
    took = step(recompute="full", sequence=512)
    assert 1.28 < took.hardware_flops_utilization / took.model_flops_utilization < 1.34
    plain = step()
    assert plain.hardware_flops_utilization == plain.model_flops_utilization


def test_a_pipeline_bubble_shrinks_with_micro_batches():
    """Idle time is (stages - 1) micro-batches whatever their number, and interleaving divides it."""
    layout = {"gpus": 8, "pipeline": 4, "sharding": "optimizer", "software": NEURON}
    few, many = step(micro_batches=4, **layout), step(micro_batches=32, **layout)
    assert few.parts["pipeline bubble"] == pytest.approx(many.parts["pipeline bubble"])
    assert step(micro_batches=4, virtual_stages=2, **layout).parts["pipeline bubble"] == pytest.approx(
        few.parts["pipeline bubble"] / 2, rel=0.01
    )


def test_slow_networks_show():
    """Fully sharded over four nodes, a tenth of the network bandwidth costs speed; in one node it costs nothing."""
    slow = H100.with_network(node_gb_s=5, gpus_per_node=8)
    assert step(gpus=32, accelerator=slow).tokens_per_s_per_gpu < 0.9 * step(gpus=32).tokens_per_s_per_gpu
    assert step(accelerator=slow).step_s == step().step_s


def test_offloading_shows_where_the_host_is_slow():
    """Computation hides the way to a fast host; a slow one holds the GPU up."""
    slow = replace(H100, host_gb_s=0.1)
    assert "offloading" not in step(recompute="full", offload_activations=True).parts
    assert step(accelerator=slow, recompute="full", offload_activations=True).bound_by == "offloading"


def test_sharding_inside_machines_helps_slow_networks():
    """Hybrid sharding gathers over fast links and averages once per step."""
    slow = H100.with_network(node_gb_s=5, gpus_per_node=8)
    hybrid, full = (step(gpus=32, accelerator=slow, micro_batches=8, shards=shards) for shards in (8, 0))
    assert hybrid.step_s < full.step_s


@pytest.mark.parametrize("nodes", [2, 16])
def test_collectives_agree_with_measurements(nodes):
    """Large all-reduces reach what nccl-tests measured on p5 machines: 370 to 490 GB/s bus bandwidth."""
    size = 16 * 2**30
    time = 2 * KERNELS.gather(size, 8 * nodes)
    assert 330e9 < 2 * size * (8 * nodes - 1) / (8 * nodes) / time < 490e9


def test_constants_fall_back_on_their_prefix():
    """A constant for one accelerator overrides its generation's, which overrides the general one."""
    constants = Calibration({"matrix": 0.5, "matrix.hopper": 0.6, "matrix.hopper.fp8": 0.7})
    assert [constants("matrix", *rest) for rest in ((), ("hopper", "bf16"), ("hopper", "fp8", "H100"))] == [
        0.5,
        0.6,
        0.7,
    ]
    with pytest.raises(KeyError, match="missing"):
        constants("missing")


@pytest.mark.parametrize("name", MEMORY_GB)
def test_the_dry_run_knows_the_same_memory(name):
    """The trainer's list and the planner's table agree on a GPU's memory."""
    assert Accelerator.of(name).memory_gb == MEMORY_GB[name]


@pytest.mark.parametrize("name", PEAK_FLOPS)
def test_peaks_agree_with_the_trainers(name):
    """MFU in a plan and MFU in a run's metrics count by the same peak."""
    assert Accelerator.of(name).peak_flops("bf16") == PEAK_FLOPS[name]


def test_every_gpu_of_the_catalog_has_a_peak():
    """A run on any GPU that HyperPod offers reports its MFU, by the name that CUDA gives the device."""
    types = [InstanceType.of(name) for name in cluster_instance_types()]
    names = {type_.accelerator_name.replace(" Server", "") for type_ in types if type_.accelerator == "gpu"}
    assert {name: peak_flops(f"NVIDIA {name} X") for name in names if not peak_flops(f"NVIDIA {name} X")} == {}
    assert peak_flops("NVIDIA RTX PRO 6000 Blackwell Server Edition") == 504e12
    assert peak_flops("NVIDIA GB200") == 2.5e15


@pytest.mark.parametrize(("name", "tflops"), [("A100-80GB", 19.5), ("H100-80GB", 67), ("A10G", 35), ("Trainium", 47.5)])
def test_fp32_runs_at_the_rate_of_the_fp32_units(name, tflops):
    """The peak in fp32 is the data sheet's without TF32: a sixteenth of bf16 on an A100, a quarter on Trainium."""
    assert Accelerator.of(name).peak_flops("fp32") == tflops * 1e12
    assert Accelerator.of("Trainium").core().peak_flops("fp32") == 47.5e12 / 2


@pytest.mark.parametrize(
    ("spelt", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-80GB"),
        ("A100-SXM4-80GB", "A100-80GB"),
        ("H100 PCIe", "H100-PCIe"),
        ("trn1-chip", "Trainium"),
        ("AMD Instinct MI250X", "MI250X"),
        ("Google TPU v5p", "TPU v5p"),
    ],
)
def test_accelerators_are_found_however_they_are_spelt(spelt, name):
    """Maker and packaging do not matter."""
    assert Accelerator.of(spelt).name == name


def test_a_stage_waits_for_hidden_states_unless_schedules_interleave():
    """Sent over the network twice a micro-batch, they take at least their size over its bandwidth."""
    layout = {"gpus": 64, "pipeline": 4, "micro_batches": 8}
    exposed = step(**layout).parts["pipeline communication"]
    size = 2 * 4096 * LLAMA.hidden_size * 2
    assert exposed > 8 * 2 * size / (H100.nic_gb_s * 1e9)
    assert "pipeline communication" not in step(**layout, virtual_stages=2).parts


def test_an_unknown_accelerator_offers_similar_ones():
    """A typing error is answered with the name that was meant."""
    with pytest.raises(UnknownAcceleratorError, match="A100"):
        Accelerator.of("A1O0")
