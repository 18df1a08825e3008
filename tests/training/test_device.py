"""A rank computes on the right device and reports it."""

import os
import platform
import sys

import pytest
import torch

from podwright_training import device, neuron
from podwright_training.errors import UserError
from podwright_training.hardware import neuron_peak_flops
from podwright_training.model.device_compiler import compile_backend
from podwright_training.ranks import Ranks

CPU = torch.device("cpu")


@pytest.mark.parametrize("wish", ["auto", "cpu"])
def test_a_machine_without_accelerators_computes_on_its_cpu(wish):
    """So that the same command runs on a laptop."""
    if torch.accelerator.is_available() and wish == "auto":
        pytest.skip("this machine has an accelerator, which auto takes")
    assert device.device_problem(Ranks(), wish) is None
    assert device.device_of(Ranks(), wish) == CPU


def test_a_missing_accelerator_is_reported():
    """In one line that says what to choose instead."""
    if torch.accelerator.is_available():
        pytest.skip("this machine has an accelerator")
    problem = device.device_problem(Ranks(), "cuda")
    assert "device = cuda: this machine has no CUDA device" in problem
    assert problem.endswith("use --device cpu")


def test_memory_of_a_cpu_is_that_of_the_process():
    """It grows with a tensor that is written to, and nothing is reserved."""
    before, reserved = device.peak_memory_bytes(CPU)
    held = torch.ones(2**26)
    after, _ = device.peak_memory_bytes(CPU)
    assert reserved is None
    assert after >= max(before, held.nbytes)


def test_ranks_of_a_host_share_its_cores(monkeypatch):
    """With an optimizer on the host, each rank has a thread per core of its share, and at least one."""
    found = []
    monkeypatch.setattr(torch, "set_num_threads", found.append)
    cores = len(os.sched_getaffinity(0))
    for local_world_size in (1, cores, 2 * cores):
        device.use_host_cores(Ranks(local_world_size=local_world_size))
    assert found == [cores, 1, 1]


def test_a_cpu_has_one_backend_and_an_accelerator_two():
    """Objects and counts go over gloo, whatever else there is."""
    assert device.backend_of(CPU) == "gloo"
    assert device.backend_of(torch.device("cuda", 0)) == "cpu:gloo,cuda:nccl"


@pytest.mark.parametrize("has", [True, False])
def test_a_precision_without_instructions_is_named(monkeypatch, has):
    """On a CPU that lacks them bf16 is slow, and the remedy is named; fp32 never is."""
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: has)
    hint = device.slow_precision(Ranks(), "cpu", "bf16")
    assert (hint is None) == has
    assert hint is None or hint.endswith("use --precision fp32")
    assert device.slow_precision(Ranks(), "cpu", "fp32") is None


def test_ranks_of_neuron_devices_are_the_cores_that_programs_see(monkeypatch):
    """32 of a trn1.32xlarge, 64 of a trn2.48xlarge with two cores joined, 128 with single ones."""
    monkeypatch.delenv("NEURON_LOGICAL_NC_CONFIG", raising=False)
    assert [16 * neuron.ranks_per_device(name) for name in ("Trainium", "Trainium2", "Trainium3")] == [32, 64, 64]
    assert neuron_peak_flops("Trainium") == 95e12
    assert neuron_peak_flops("Trainium2") == 667e12 / 4
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "1")
    assert 16 * neuron.ranks_per_device("Trainium2") == 128
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "0")
    with pytest.raises(UserError, match="NEURON_LOGICAL_NC_CONFIG: got 0, need 1 or 2"):
        neuron.ranks_per_device("Trainium2")
    assert neuron_peak_flops("unknown") is None


@pytest.mark.parametrize(
    ("instance_type", "python", "system", "message"),
    [
        ("trn1.32xlarge", (3, 12), "Ubuntu 26.04", "needs Trainium2 or Trainium3, and this is Trainium: train on it"),
        ("trn2.48xlarge", (3, 10), "Ubuntu 26.04", "needs Python 3.12 to 3.14, and this is 3.10"),
        ("trn2.48xlarge", (3, 12), "Ubuntu 22.04", "wheels are for Ubuntu 26.04, not Ubuntu 22.04: use a container"),
        ("trn2u.48xlarge", (3, 14), "Ubuntu 26.04", "install torch-neuronx from Neuron's own index"),
    ],
)
def test_a_machine_without_native_neuron_is_reported_in_one_line(
    monkeypatch, tmp_path, instance_type, python, system, message
):
    """Chip, Python and system are compared with what TorchNeuron supports."""
    name, version = system.split()
    monkeypatch.setattr(neuron, "PRODUCT_NAME", tmp_path / "product_name")
    neuron.PRODUCT_NAME.write_text(f"{instance_type}\n")
    monkeypatch.setattr(sys, "version_info", (*python, 0))
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: {"NAME": name, "VERSION_ID": version})
    problem = device.device_problem(Ranks(), "neuron")
    assert problem.startswith("device = neuron: ")
    assert message in problem
    assert "\n" not in problem


def test_blocks_are_compiled_by_the_devices_own_compiler():
    """Neuron's is named as its device is; all others have PyTorch's."""
    assert [compile_backend(name) for name in ("neuron", "cuda", "cpu")] == ["neuron", "inductor", "inductor"]
