"""Parts of the dry run that need no run: what it refuses, its recorder, and the planner's operations in float8."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable

import pytest
import torch

from podwright.planning.cluster_hardware import Hardware
from podwright.planning.kernels import Kernels
from podwright.planning.trainer_run import plan_run
from podwright_training.config import sources
from podwright_training.config.train_config import TrainConfig
from podwright_training.dry_run.device_memory import ACTIVATIONS, LOGITS, WORKING
from podwright_training.dry_run.recorder import Recorder
from podwright_training.model import Experts, LlamaForCausalLM, configure
from podwright_training.model.float8 import Float8Linear

SIZES = "--num-layers 4 --hidden-width 256 --num-heads 8 --num-key-value-heads 4 --max-context-width 128"


def test_a_job_that_cannot_start_is_refused(training_errors: Callable[..., str]) -> None:
    """Sizes that do not divide the model, and numbers of ranks that do not fit together, are named."""
    assert "num_heads 8 is not divisible by tensor_parallel 3" in training_errors(
        f"--world-size 24 {SIZES} --tensor-parallel 3"
    )
    assert "--world-size: got 12, need a multiple of --ranks-per-node 8" in training_errors(f"--world-size 12 {SIZES}")
    assert "--rank: got 16, need all-kinds or 0 to 15" in training_errors(f"--world-size 16 {SIZES} --rank 16")
    assert "got 12,800,000,000,000 tokens, need at most 100,000,000" in training_errors(
        f"--world-size 16 {SIZES} --train-batch-size 100000000000"
    )


@pytest.mark.parametrize("memory", ["nan", "-5", "0", "inf"])
def test_a_memory_that_no_peak_exceeds_is_refused(training_errors: Callable[..., str], memory: str) -> None:
    """A memory that says nothing is a wrong argument: the answer would always be that it fits."""
    with pytest.raises(SystemExit, match="2"):
        training_errors(f"--world-size 16 {SIZES} --memory-gb={memory}")


@pytest.fixture
def training_errors(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    from podwright_training.__main__ import main

    def errors(flags: str) -> str:
        assert main(["dry-run", *flags.split()]) == 2
        return capsys.readouterr().err

    return errors


def test_the_peak_counts_what_lives_at_once() -> None:
    """Storages count once, from their allocation until the last tensor on them is gone."""
    recorder = Recorder("cpu", {}, words=7)
    with recorder.watching():
        before = torch.empty(1000)
        with recorder.recording():
            large = torch.empty(500)
            view = large.view(50, 10)
            del large
            logits = torch.empty(3, 7)
            del view, logits
            late = torch.empty(10)
    peak = recorder.memory.peak()
    assert peak[WORKING] == 4 * (1000 + 500)
    assert peak[LOGITS] == 4 * 3 * 7
    assert len(before) + len(late) == 1010


X, MASK, TIMES = torch.arange(6.0), torch.arange(6) < 3, torch.arange(6)


@pytest.mark.parametrize(
    ("ask", "waits"),
    [
        (lambda: X.sum().item(), 1),
        (lambda: torch.equal(X, X), 1),
        (lambda: torch.bincount(TIMES), 1),
        (lambda: torch.bincount(TIMES, minlength=9), 1),
        (lambda: torch.repeat_interleave(X, TIMES), 1),
        (lambda: torch.repeat_interleave(X, TIMES, output_size=15), 0),
        (lambda: torch.repeat_interleave(X, 2), 0),
        (MASK.nonzero, 1),
        (lambda: X.masked_select(MASK), 1),
        (lambda: torch.unique(TIMES), 1),
        (lambda: torch.unique_consecutive(TIMES), 1),
        (lambda: X[MASK], 1),
        (lambda: X.clone().index_put_((MASK,), X[:3]), 1),
        (lambda: X[TIMES], 0),
        (lambda: X.where(MASK, X), 0),
    ],
)
def test_what_needs_values_waits_for_the_device(ask: Callable[[], object], waits: int) -> None:
    """Values that the host reads, and results whose size depends on values: it cannot launch what follows."""
    recorder = Recorder("cpu", {}, words=7)
    with recorder.watching(), recorder.recording():
        ask()
    assert sum(recorder.waits.values()) == waits


@pytest.mark.parametrize(
    ("copy", "waits"),
    [
        (lambda there, here: there.copy_(here), 1),
        (lambda there, here: there.copy_(here, non_blocking=True), 1),
        (lambda there, here: there.copy_(here.pin_memory().view(3), non_blocking=True), 0),
        (lambda there, here: there.copy_(here.pin_memory()), 1),
        (lambda there, _: there.copy_(there + 1), 0),
        (lambda _, here: here.copy_(here + 1), 0),
        (lambda _, here: here.to("meta"), 1),
        (lambda _, here: here.to("meta", non_blocking=True), 1),
        (lambda _, here: here.pin_memory().to("meta", non_blocking=True), 0),
        (lambda _, here: here.expand(2, 3)[:, 1:].pin_memory().to("meta", non_blocking=True), 1),
        (lambda _, here: here.expand(2, 3)[:, 1:].contiguous().pin_memory().to("meta", non_blocking=True), 0),
    ],
)
def test_a_copy_between_devices_waits_unless_it_need_not(copy: Callable[..., object], waits: int) -> None:
    """The host need not wait only for pinned memory that is contiguous, in a new tensor or one that exists."""
    recorder = Recorder("meta", {}, words=7)
    there, here = torch.empty(3, device="meta"), torch.ones(3)
    with recorder.watching(), recorder.recording():
        copy(there, here)
    assert sum(recorder.waits.values()) == waits


def test_what_backward_frees_was_kept_for_it() -> None:
    """Memory from the forward pass that backward frees counts as activations."""
    recorder = Recorder("cpu", {}, words=7)
    weight = torch.ones(100, requires_grad=True)
    with recorder.watching(), recorder.recording():
        torch.autograd.backward(weight.exp().exp().exp().exp().sum())
    assert recorder.memory.peak()[ACTIVATIONS] >= 4 * 2 * 100


@pytest.mark.parametrize(
    "flags",
    [
        "--preset llama3_2_1b",
        "--preset qwen3_8b --activation-checkpointing-mode selective",
        "--preset mixtral_8x7b",
        "--preset qwen3_30b_a3b",
        "--model-type glm4_moe --num-local-experts 8 --n-shared-experts 2",
    ],
)
def test_the_planner_knows_which_products_are_in_float8(monkeypatch: pytest.MonkeyPatch, flags: str) -> None:
    """Per token of a block and the head, the planner has the model's operations in each precision."""
    parser = argparse.ArgumentParser()
    sources.add_arguments(parser)
    options = sources.load(parser.parse_args([*flags.split(), "--float8", "--precision", "bf16", "--num-layers", "1"]))
    counted = _products(options)
    planned: Counter[str] = Counter()
    time = Kernels.product

    def product(kernels: Kernels, rows: float, columns: float, depth: float, *, groups: float = 1) -> float:
        planned[kernels.precision] += round(2 * rows * columns * depth * groups)
        return time(kernels, rows, columns, depth, groups=groups)

    monkeypatch.setattr(Kernels, "product", product)
    plan = plan_run(options, Hardware(instance_type="ml.p5.48xlarge", nodes=1))
    tokens = plan.layout.tokens_per_micro_batch
    assert {name: flops / tokens for name, flops in planned.items()} == pytest.approx(counted)


def _products(options: TrainConfig) -> dict[str, float]:
    """Return the operations per token of forward and backward, by precision, from the modules of the model."""
    with torch.device("meta"):
        whole = LlamaForCausalLM(options.model)
    configure(whole, options, "cuda")
    shape = options.model
    found = Counter({"bf16": 3 * 2.0 * shape.vocab_size * shape.hidden_size})  # the head
    for module in whole.modules():
        if isinstance(module, Float8Linear):
            found["fp8"] += 2 * 2 * module.weight.numel()
            found["bf16"] += 2 * module.weight.numel()
        elif isinstance(module, torch.nn.Linear):
            found["bf16"] += 3 * 2 * module.weight.numel()
        elif isinstance(module, Experts) and shape.num_local_experts:
            size = module.gate_up_proj.numel() + module.down_proj.numel()
            found["bf16"] += 3 * 2 * size * shape.num_experts_per_tok / shape.num_local_experts
    return dict(found)
