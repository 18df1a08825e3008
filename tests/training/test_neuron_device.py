"""The trainer on a device named ``neuron``, which PyTorch knows by its PrivateUse1: neither a CPU nor CUDA."""

import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from podwright.checkout import CACHE, ROOT
from podwright_rehearsal.hosts.kept_folder import build_once
from podwright_testing.metrics import logged
from podwright_training.run_folder import RunFolder

STAND_IN = Path(__file__).parent / "torchneuron"
TORCH = Path(torch.__file__).parent
WITH_TORCH = (
    *(f"-I{TORCH / 'include' / part}" for part in ("", "torch/csrc/api/include")),
    *(f"-L{TORCH / 'lib'}", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{TORCH / 'lib'}"),
)


@pytest.fixture(scope="module")
def environment():
    """Variables with which Python finds the device's ``torch_neuronx``, built once."""
    if torch.accelerator.is_available():
        pytest.skip("this machine has an accelerator, and PyTorch takes one kind")
    if not shutil.which("g++"):
        pytest.skip("a device of its own needs g++")
    source = STAND_IN / "device.cpp"
    build_once(
        CACHE / "podwright" / "neuron-device", f"{torch.__version__}\n{source.read_text()}", partial(build, source)
    )
    library = CACHE / "podwright" / "neuron-device" / "device.so"
    paths = os.pathsep.join(map(str, (STAND_IN, ROOT, ROOT / "common", ROOT / "training")))
    return {**os.environ, "NEURON_STAND_IN": str(library), "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}


def build(source, folder):
    """Compile the device into a library in a folder."""
    output = folder / "device.so"
    command = ["g++", "-O0", "-std=c++20", "-shared", "-fPIC", source, "-o", output, *WITH_TORCH]
    subprocess.run(command, check=True)


LAYER = """
import json, sys, torch
from pathlib import Path
from podwright_training import device, neuron
from podwright_training.ranks import Ranks

found = {}
neuron.PRODUCT_NAME = Path(sys.argv[1])
neuron.PRODUCT_NAME.write_text("trn2.48xlarge")
ranks = Ranks(rank=1, world_size=4, local_rank=1, local_world_size=4)
found["problems"] = [device.device_problem(ranks, wish) for wish in ("auto", "neuron", "cpu")]
found["too many"] = device.device_problem(Ranks(local_world_size=5, world_size=5), "neuron")
found["other"] = device.device_problem(ranks, "cuda")
own = device.device_of(ranks, "auto")
found["device"] = str(own)
found["backend"] = device.backend_of(own)
device.use(own)
found["index"] = torch.accelerator.current_device_index()
x = torch.ones(2**20, device="neuron")
found["on"] = str(x.device)
del x
torch.get_device_module(own).synchronize()
found["peak"] = device.peak_memory_bytes(own)
found["flops"] = device.job_peak_flops(own, ranks)
found["slow"] = device.slow_precision(ranks, "neuron", "bf16")
torch.manual_seed(7)
first = torch.randn(3, device=own)
state = torch.get_device_module(own).get_rng_state()
second = torch.randn(3, device=own)
torch.get_device_module(own).set_rng_state(state)
found["again"] = bool((torch.randn(3, device=own) == second).all())
torch.manual_seed(7)
found["seeded"] = bool((torch.randn(3, device=own) == first).all() and not (first == second).all())
print(json.dumps(found))
"""


def test_the_device_layer_asks_the_device_itself(environment, tmp_path):
    """Its kind, place, memory, peak, backends and random numbers are those of the device of this rank."""
    command = [sys.executable, "-c", LAYER, tmp_path / "product_name"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["problems"] == [None, None, None]
    assert found["too many"] == "5 ranks on this host, but 4 neuron devices"
    assert found["other"].startswith("device = cuda: this machine has no CUDA device")
    assert (found["device"], found["on"], found["index"]) == ("neuron:1", "neuron:1", 1)
    assert found["backend"] == "cpu:gloo,neuron:neuron"
    assert found["peak"] == [2**22, 2**22]
    assert found["flops"] == 667e12
    assert found["slow"] is None
    assert found["again"]
    assert found["seeded"]


def train(environment, flags):
    """Run the trainer in two processes of its own; return its output."""
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [sys.executable, "-m", *torchrun, "-m", "podwright_training", "train", *flags]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def curve(folder):
    """Losses and norms of all steps, and the validation's loss, by step."""
    events = logged(RunFolder(folder))
    return {
        (event["event"], event["step"]): [event["loss"], event.get("grad_norm", 0.0)]
        for event in events
        if event["event"] in ("train", "validation")
    }


@pytest.mark.slow
def test_a_run_on_the_device_has_the_losses_of_a_cpu(environment, tiny_flags, call_ranks, tmp_path):
    """Shards, batches, optimizer and checkpoints of two ranks are their devices', also after they resume."""
    options = {"attention": "sdpa", "loss_chunk_tokens": 64, "checkpoint_freq": 2, "validation_freq": 4}
    for steps in (2, 4):
        train(environment, tiny_flags(tmp_path / "neuron", device="neuron", max_steps=steps, **options))
        status, output = call_ranks(2, "train", *tiny_flags(tmp_path / "cpu", device="cpu", max_steps=steps, **options))
        assert status == 0, output
    there, here = curve(tmp_path / "neuron"), curve(tmp_path / "cpu")
    assert len(there) == 6
    assert there == {step: pytest.approx(values, rel=1e-4) for step, values in here.items()}
    (first, *_) = logged(RunFolder(tmp_path / "neuron"), "train")
    assert first["memory_reserved_bytes"] > 0
    states = [torch.load(path, weights_only=True) for path in (tmp_path / "neuron").glob("**/rng-*.pt")]
    assert states
    assert all(state.keys() == {"cpu", "neuron"} for state in states)
