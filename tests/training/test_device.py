"""A rank computes on the right device and reports it."""

import os

import pytest
import torch

from podwright_training import device
from podwright_training.ranks import Ranks

CPU = torch.device("cpu")


@pytest.mark.parametrize("wish", ["auto", "cpu"])
def test_a_machine_without_accelerators_computes_on_its_cpu(wish):
    """So that the same command runs on a laptop."""
    if torch.accelerator.is_available() and wish == "auto":
        pytest.skip("this machine has an accelerator, which auto takes")
    assert device.device_problem(Ranks(), wish) is None
    assert device.device_of(Ranks(), wish) == CPU


@pytest.mark.parametrize(("wish", "name"), [("cuda", "CUDA"), ("neuron", "Neuron")])
def test_a_missing_accelerator_is_reported(wish, name):
    """In one line that says what to choose instead."""
    if torch.accelerator.is_available():
        pytest.skip("this machine has an accelerator")
    problem = device.device_problem(Ranks(), wish)
    assert f"device = {wish}: this machine has no {name} device" in problem
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
