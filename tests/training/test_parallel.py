"""However a model is divided among ranks, it learns what one process learns.

Run as a script, this file trains a small model: by one rank, or by four in a layout.
"""

import math
import os
import sys
from collections import Counter
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _symmetric_memory as symmetric
from torch.nn import functional

from podwright_training.batch import IGNORED, Batch
from podwright_training.config.train_config import TrainConfig
from podwright_training.device import process_group
from podwright_training.model import DTYPES
from podwright_training.optim import Optimizers
from podwright_training.parallel import ParallelModel
from podwright_training.parallel.pipeline import SCHEDULES
from podwright_training.ranks import Ranks

pytestmark = pytest.mark.slow

RANKS, SEQUENCES, CONTEXT, STEPS = 4, 8, 16, 8
SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_layers": 2,
    "num_heads": 4,
    "num_key_value_heads": 2,
    "max_context_width": CONTEXT,
    "activation_checkpointing": False,
    "reshard_after_forward": "always",  # as a large model
    "bf16": False,
    "device": "cpu",
}
MODELS = {
    "llama": {"loss_chunk_tokens": 24, "z_loss": 1e-3},
    "deep": {"num_layers": 4},
    "recomputed": {"activation_checkpointing": True, "vocab_size": 97},  # ranks cannot divide the head
    "tied": {"tie_word_embeddings": True, "qk_norm": True},
    "window": {"model_type": "mistral", "sliding_window": 5},
    "mixtral": {"model_type": "mixtral", "num_local_experts": 4},
    "balanced": {"model_type": "mixtral", "num_local_experts": 4, "router_aux_loss_coef": 0.5},
    "balanced in pieces": {
        "model_type": "mixtral",
        "num_local_experts": 4,
        "router_aux_loss_coef": 0.5,
        "gradient_accumulation_steps": 2,
    },
    "shared experts": {
        "model_type": "glm4_moe",
        "num_local_experts": 4,
        "n_shared_experts": 1,
        "router_bias_speed": 0.01,
        "gradient_accumulation_steps": 2,
    },
    "float8": {"bf16": True, "float8": True, "hidden_size": 64, "num_key_value_heads": 4, "intermediate_size": 64},
    "mixtral in pieces": {
        "model_type": "mixtral",
        "num_local_experts": 4,
        "gradient_accumulation_steps": 2,
        "activation_checkpointing": True,
    },
}
HYBRID = {"sharding_strategy": "hybrid", "data_replicas": 2}
LAYOUTS = {  # what four ranks do with a model
    "overlapped tensor 2 x shards 2": ("tied", {"tensor_parallel": 2, "compile": True, "async_tensor_parallel": True}),
    "full": ("llama", {}),
    "at once": ("recomputed", {"reshard_after_forward": "auto"}),
    "at once, hybrid, accumulating": (
        "tied",
        {"reshard_after_forward": "auto", "gradient_accumulation_steps": 2, **HYBRID},
    ),
    "hybrid": ("llama", HYBRID),
    "whole gradients, hybrid": (
        "tied",
        {"accumulated_gradients": "whole", "gradient_accumulation_steps": 2, **HYBRID},
    ),
    "cpu offload, accumulating": ("llama", {"cpu_offload": True, "gradient_accumulation_steps": 2}),
    "tensor 2 x shards 2": ("llama", {"tensor_parallel": 2}),
    "replicas 2 x tensor 2": ("tied", {"tensor_parallel": 2, **HYBRID}),
    "context 4": ("llama", {"context_parallel": 4}),
    "context 2 x shards 2": ("window", {"context_parallel": 2}),
    "context 2 x tensor 2": ("recomputed", {"context_parallel": 2, "tensor_parallel": 2}),
    "pipeline 4": ("deep", {"pipeline_parallel": 4, "pipeline_micro_batches": 4}),
    "pipeline 2 x tensor 2": (
        "llama",
        {"pipeline_parallel": 2, "pipeline_micro_batches": 2, "tensor_parallel": 2},
    ),
    "pipeline 2 x shards 2, tied": ("tied", {"pipeline_parallel": 2, "pipeline_micro_batches": 2}),
    "pipeline 2 x context 2": ("window", {"pipeline_parallel": 2, "pipeline_micro_batches": 2, "context_parallel": 2}),
    "pipeline 2 x shards 2, gathered once": (
        "llama",
        {"pipeline_parallel": 2, "pipeline_micro_batches": 4, "reshard_after_forward": "auto"},
    ),
    "pipeline 2 x shards 2, whole gradients": (
        "llama",
        {"pipeline_parallel": 2, "pipeline_micro_batches": 4, "accumulated_gradients": "whole"},
    ),
    "pipeline 2 x replicas 2": ("llama", {"pipeline_parallel": 2, "pipeline_micro_batches": 4, **HYBRID}),
    "interleaved pipeline 2 x replicas 2, tied": (
        "tied",
        {
            "pipeline_parallel": 2,
            "pipeline_schedule": "interleaved_1f1b",
            "pipeline_micro_batches": 4,
            "reshard_after_forward": "auto",
            **HYBRID,
        },
    ),
    "interleaved pipeline 2 x shards 2": (
        "deep",
        {
            "pipeline_parallel": 2,
            "pipeline_schedule": "interleaved_1f1b",
            "gradient_accumulation_steps": 2,
            "reshard_after_forward": "auto",
        },
    ),
    "zero-bubble pipeline 2 x shards 2": (
        "deep",
        {
            "pipeline_parallel": 2,
            "pipeline_schedule": "zero_bubble",
            "pipeline_micro_batches": 2,
            "reshard_after_forward": "never",
        },
    ),
    "zero-bubble pipeline 2 x tensor 2, recomputed": (
        "deep",
        {
            "pipeline_parallel": 2,
            "pipeline_schedule": "zero_bubble",
            "pipeline_micro_batches": 4,
            "tensor_parallel": 2,
            "reshard_after_forward": "never",
            "activation_checkpointing": True,
        },
    ),
    "zero-bubble pipeline of a mixture, recomputed": (
        "balanced in pieces",
        {
            "pipeline_parallel": 2,
            "pipeline_schedule": "zero_bubble_v",
            "pipeline_micro_batches": 2,
            "gradient_accumulation_steps": 1,
            "reshard_after_forward": "never",
            "activation_checkpointing": True,
        },
    ),
    "zero-bubble pipeline in a V 2 x shards 2": (
        "deep",
        {
            "pipeline_parallel": 2,
            "pipeline_schedule": "zero_bubble_v",
            "pipeline_micro_batches": 4,
            "reshard_after_forward": "auto",
        },
    ),
    "pipeline of embedding, blocks and head": (
        "llama",
        {"pipeline_parallel": 4, "pipeline_micro_batches": 4},
    ),
    "float8, tensor 2 x shards 2": ("float8", {"tensor_parallel": 2}),
    "shards 4 of a mixture": ("balanced", {}),
    "replicas 2 of a mixture, accumulating": ("balanced in pieces", HYBRID),
    "context 2 x tensor 2 of a mixture": ("balanced", {"context_parallel": 2, "tensor_parallel": 2}),
    "pipeline 2 of a mixture": (
        "balanced in pieces",
        {"pipeline_parallel": 2, "pipeline_micro_batches": 2, "gradient_accumulation_steps": 1},
    ),
    "experts 4": ("mixtral", {"expert_parallel": 4}),
    "experts 2 at once": ("mixtral", {"expert_parallel": 2, "reshard_after_forward": "auto"}),
    "experts 2 x shards 2 x tensor 2": ("mixtral", {"expert_parallel": 2, "tensor_parallel": 2}),
    "shared experts 2 x shards 2 x tensor 2": ("shared experts", {"expert_parallel": 2, "tensor_parallel": 2}),
    "shared experts 2 x pipeline 2": (
        "shared experts",
        {
            "expert_parallel": 2,
            "pipeline_parallel": 2,
            "pipeline_micro_batches": 2,
            "gradient_accumulation_steps": 1,
        },
    ),
    "experts 2 hybrid, accumulating": ("mixtral in pieces", {"expert_parallel": 2, **HYBRID}),
    "experts 2 x pipeline 2": (
        "mixtral in pieces",
        {
            "expert_parallel": 2,
            "pipeline_parallel": 2,
            "pipeline_micro_batches": 2,
            "gradient_accumulation_steps": 1,
        },
    ),
}


@pytest.fixture(scope="module")
def record(tmp_path_factory, run_ranks):
    """Returns what a model did in one process, or a layout on four ranks."""

    @cache
    def record(name):
        folder = tmp_path_factory.mktemp("run")
        run_ranks(__file__, folder, name, ranks=RANKS if name in LAYOUTS else 1)
        return torch.load(folder / "record.pt")

    return record


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_learns_what_one_process_learns(record, name):
    """8 steps of AdamW, half of them with document masks; between them an evaluation and likeliest next tokens."""
    alone, divided = record(LAYOUTS[name][0]), record(name)
    assert len(alone["losses"]) == STEPS
    assert alone["losses"][-1] < alone["losses"][0] - 0.2
    if name.startswith("float8"):  # rounded to three bits of mantissa, on each rank in its own part of a row
        assert divided["losses"] == pytest.approx(alone["losses"], abs=0.02)
        assert divided["norms"] == pytest.approx(alone["norms"], rel=0.05)
        return
    assert divided["losses"] == pytest.approx(alone["losses"], abs=1e-5)
    assert divided["norms"] == pytest.approx(alone["norms"], rel=1e-4)
    assert divided["evaluation"] == pytest.approx(alone["evaluation"], rel=1e-6)
    assert divided["next"] == alone["next"]


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_has_the_whole_models_parameters(record, name):
    """Together the ranks have every parameter by its name, in its whole shape: a checkpoint fits every layout."""
    assert record(name)["shapes"] == record(LAYOUTS[name][0])["shapes"]


def test_products_overlap_with_messages(record):
    """The compiler replaces gathering and scattering by products in pieces: all of forward, half of backward."""
    fused = record("overlapped tensor 2 x shards 2")["fused"]
    forward, backward = fused["forward"], fused["backward"]
    assert forward == [{"fused_all_gather_matmul": 2, "fused_matmul_reduce_scatter": 2}] * len(forward)
    # the gradients of several products are summed before they are scattered
    assert backward == [{"fused_all_gather_matmul": 2}] * len(backward)
    assert len(forward) >= len(backward) >= 1


@pytest.mark.parametrize("schedule", ["1f1b", "zero_bubble_v"])
def test_a_pipeline_takes_a_batch_in_parts(tmp_path, run_ranks, schedule):
    """First one micro-batch, then the rest, as for the noise scale: the gradient is that of the whole batch."""
    run_ranks(__file__, tmp_path, schedule, ranks=2)
    first, *others = torch.load(tmp_path / "record.pt")["norms"]
    assert others == pytest.approx([first] * 4, rel=1e-5)


def take_in_parts(schedule):
    pipeline = {"pipeline_parallel": 2, "pipeline_schedule": schedule, "reshard_after_forward": "auto"}
    options = TrainConfig(**(SMALL | MODELS["deep"] | pipeline | {"train_batch_size": 2}))
    ranks, norms = Ranks(dist.get_rank(), 2, dist.get_rank(), 2), []
    model = ParallelModel(options, ranks, torch.device("cpu"))
    pieces, tokens = [piece(batch(1), number, 4) for number in range(4)], batch(1).counted_tokens
    for first in (4, 1, 4, 1, 3):
        for taken in (pieces[:first], pieces[first:]):
            if taken:
                model.forward_backward(taken, tokens=tokens)
        norms.append(model.clip_grad_norm(1.0).item())
        for _, parameter in model.named_parameters():
            parameter.grad = None
    return {"norms": norms}


@pytest.mark.parametrize(
    ("precision", "tokens"),
    [("bf16", torch.arange(1024).view(64, 16) % 96), ("fp16", torch.zeros(8192, 16, dtype=torch.int64))],
)
def test_routers_with_a_bias_compute_in_fp32(precision, tokens):
    """In a model of 16 bits, scores, bias and load have 32: steps of 0.001 count, and a load of 65,536 is finite."""
    with process_group(Ranks(), torch.device("cpu")):
        options = TrainConfig(**(SMALL | MODELS["shared experts"] | {"precision": precision}))
        model = ParallelModel(options, Ranks(), torch.device("cpu"))
        gate, seen = model.parts[0].model.layers[0].mlp.gate, []
        weight, bias = gate.weight.full_tensor(), 0.5 + 0.001 * torch.arange(4)
        gate.e_score_correction_bias.to_local().detach().copy_(bias)
        gate.register_forward_hook(lambda _gate, given, output: seen.append((*given, *output)))
        model.forward_backward([Batch(tokens, tokens)], tokens=tokens.numel())
        load = gate.e_score_correction_bias.grad.full_tensor()
    ((x_SD, score_SE, _, expert_SA),) = seen
    assert x_SD.dtype == DTYPES[precision]
    torch.testing.assert_close(score_SE, functional.linear(x_SD.float(), weight).sigmoid())
    assert torch.equal(expert_SA, (score_SE + bias).topk(2).indices)
    assert torch.equal(load, torch.bincount(expert_SA.flatten(), minlength=4) - tokens.numel() * 2 / 4)


def train(**choices):
    options = TrainConfig(**(SMALL | choices))
    ranks = Ranks(dist.get_rank(), dist.get_world_size(), dist.get_rank(), dist.get_world_size())
    model = ParallelModel(options, ranks, torch.device("cpu"))
    optimizers = Optimizers(model.named_parameters(), options)
    accumulated = options.gradient_accumulation_steps
    scale = 1.0 if ranks.world_size == 1 else 2.0**12  # changes nothing: in fp32, a power of two rounds nothing
    record = {"losses": [], "norms": [], "shapes": shapes(model)}
    for step in range(STEPS):
        own = share(batch(step % 4), model.data_rank, model.data_size)
        if step == STEPS // 2:
            record["evaluation"] = model.total(model.evaluate(own)).item()
            record["next"] = model.next_tokens(batch(0).tokens_BT, torch.arange(SEQUENCES)).tolist()
            model.finish_evaluation()
        pieces = [piece(own, number, accumulated) for number in range(accumulated)]
        loss = model.forward_backward(pieces, tokens=batch(step % 4).counted_tokens, loss_scale=scale)
        model.unscale_gradient(scale)
        record["losses"].append(model.total(loss).item())
        record["norms"].append(model.clip_grad_norm(1.0).item())
        optimizers.step(lr=6e-3)
    return record


def batch(number):
    """A global batch; every other one has documents, and labels that do not count."""
    tokens = torch.randint(
        SMALL["vocab_size"], (SEQUENCES, CONTEXT + 1), generator=torch.Generator().manual_seed(number)
    )
    positions, labels = None, tokens[:, 1:].clone()
    if number % 2:
        positions = torch.arange(CONTEXT).repeat(SEQUENCES, 1)
        positions[:, 5:] -= 5
        positions[3:, 11:] -= 6
        labels[:, 4] = IGNORED
    return Batch(tokens[:, :-1].contiguous(), labels, positions)


def share(whole, rank, size):
    """Every ``size``-th sequence, as of the trainer: the ranks' first pieces are the first sequences."""
    return Batch(*(None if part is None else part[rank::size].contiguous() for part in parts(whole)))


def piece(own, number, count):
    return Batch(*(None if part is None else part.chunk(count)[number] for part in parts(own)))


def parts(batch):
    return batch.tokens_BT, batch.labels_BT, batch.positions_BT


def shapes(model):
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, {name: tuple(item.shape) for name, item in model.named_parameters()})
    return {name: shape for part in found for name, shape in part.items()}


def train_layout(name):
    model, layout = LAYOUTS[name]
    choices = MODELS[model] | layout
    choices["train_batch_size"] = SEQUENCES // data_size(choices) // choices.get("gradient_accumulation_steps", 1)
    if not choices.get("async_tensor_parallel"):
        return train(**choices)
    overlap = Overlap()
    with overlap.on_cpus():
        return train(**choices) | {"fused": overlap.fused}


class Overlap:
    """PyTorch's pass that puts messages into products, with the plain operations that it replaces on CPUs."""

    def __init__(self):
        self.fused = {"forward": [], "backward": []}  # operations by graph

    @contextmanager
    def on_cpus(self):
        # seconds, which pytest need not spend on collecting
        from functorch.compile import min_cut_rematerialization_partition
        from torch._dynamo.backends.common import aot_autograd
        from torch._inductor.compile_fx import select_decomp_table

        for name in ("fused_all_gather_matmul", "fused_matmul_reduce_scatter"):
            torch.library.impl(symmetric.lib, name, "CPU")(getattr(symmetric, f"_{name}_fallback"))
        compiler = aot_autograd(
            fw_compiler=partial(self._fuse, "forward"),
            bw_compiler=partial(self._fuse, "backward"),
            decompositions=select_decomp_table(),
            partition_fn=partial(min_cut_rematerialization_partition, compiler="inductor"),
        )
        configure = import_module("podwright_training.model.configure")
        with mock.patch.object(configure, "compile_backend", return_value=compiler):
            yield

    def _fuse(self, which, module, _):
        from functorch.compile import make_boxed_func
        from torch._inductor import config as inductor
        from torch._inductor.fx_passes import post_grad
        from torch._inductor.fx_passes.micro_pipeline_tp import micro_pipeline_tp_pass

        assert inductor._micro_pipeline_tp
        post_grad.view_to_reshape(module)
        with mock.patch.object(dist, "is_nccl_available", return_value=True):
            micro_pipeline_tp_pass(module.graph)
        module.recompile()
        names = (str(node.target).split(".") for node in module.graph.nodes)
        self.fused[which].append(dict(Counter(name[1] for name in names if name[0] == "symm_mem")))
        return make_boxed_func(module.forward)


def data_size(choices):
    sharing = ("pipeline_parallel", "context_parallel", "tensor_parallel")
    return RANKS // math.prod(choices.get(name, 1) for name in sharing)


def main(folder, name):
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=ranks)
    if name in SCHEDULES:
        record = take_in_parts(name)
    else:
        record = train_layout(name) if name in LAYOUTS else train(train_batch_size=SEQUENCES, **MODELS[name])
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        torch.save(record, folder / "record.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
