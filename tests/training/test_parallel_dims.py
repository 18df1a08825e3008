"""Parallel dimensions divide data and model among hundreds of ranks, or say what does not fit."""

import math
from collections import Counter

import pytest
import torch
import torch.distributed as dist
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from podwright_training.config import parallel_dims
from podwright_training.config.parallel_dims import ParallelDims
from podwright_training.config.sources import load_file
from podwright_training.config.train_config import TrainConfig
from podwright_training.parallel.divide import stages_of
from podwright_training.parallel.meshes import Meshes

SIZES = st.sampled_from([1, 2, 3, 4])


@given(pipeline=SIZES, replicas=SIZES, shards=SIZES, context=SIZES, tensor=SIZES)
def test_every_share_of_the_data_is_read_by_as_many_ranks(pipeline, replicas, shards, context, tensor):
    """Each share has one reader per rank that shares its sequences, and neighbours are among these."""
    here = ParallelDims(pipeline=pipeline, replicas=replicas, shards=shards, context=context, tensor=tensor)
    ranks = range(math.prod((pipeline, replicas, shards, context, tensor)))
    readers = Counter(map(here.data_rank, ranks))
    assert readers == dict.fromkeys(range(replicas * shards), pipeline * context * tensor)
    assert {here.data_rank(rank) for rank in ranks[: context * tensor]} == {0}


@given(blocks=st.integers(1, 130), count=st.integers(1, 132))
def test_stages_are_even_and_have_every_block_once(blocks, count):
    """Stages differ by one block at most, embedding and head counted as one each where blocks do not divide evenly."""
    assume(count <= blocks + 2)
    ranges = [parallel_dims.blocks_of_stage(number, count, blocks) for number in range(count)]
    assert [block for own in ranges for block in own] == list(range(blocks))
    ends = blocks % count != 0
    sizes = [len(own) + ends * ((number == 0) + (number == count - 1)) for number, own in enumerate(ranges)]
    assert max(sizes) - min(sizes) <= 1


def test_the_published_pipeline_of_405b_is_possible():
    """126 blocks on 16 ranks of 8 stages: the first stage is the embedding, the last one the head."""
    sizes = {"num_layers": 126, "hidden_size": 16384, "num_heads": 128, "num_key_value_heads": 8}
    pipeline = {"pipeline_parallel": 16, "pipeline_schedule": "interleaved_1f1b", "pipeline_stages_per_rank": 8}
    options = TrainConfig(**sizes, intermediate_size=53248, train_batch_size=16, tensor_parallel=8, **pipeline)
    assert list(parallel_dims.problems(options, world_size=1024, nodes=128)) == []
    assert [len(parallel_dims.blocks_of_stage(number, 128, 126)) for number in (0, 1, 126, 127)] == [0, 1, 1, 0]


@pytest.mark.parametrize(
    ("choices", "world_size", "words"),
    [
        ({"tensor_parallel": 2, "pipeline_parallel": 2}, 6, "tensor_parallel 2 = 4 does not divide the job's 6 ranks"),
        ({"sharding_strategy": "hybrid", "data_replicas": 3}, 8, "data_replicas 3 does not divide the job's 8 ranks"),
        ({"tensor_parallel": 2}, 1, "tensor_parallel 2 does not divide the job's 1 rank"),
        ({"data_replicas": 2}, 8, "data_replicas 2 needs sharding_strategy hybrid"),
        ({"tensor_parallel": 8}, 8, "num_key_value_heads 4 is not divisible by tensor_parallel 8"),
        ({"tensor_parallel": 4, "intermediate_size": 90}, 4, "intermediate_size 90 is not divisible"),
        ({"context_parallel": 4, "max_context_width": 100}, 4, "max_context_width 100 is not divisible by 8"),
        ({"tensor_parallel": 4, "max_context_width": 102}, 4, "max_context_width 102 is not divisible by 4"),
        (
            {"pipeline_parallel": 2, "pipeline_stages_per_rank": 3},
            2,
            "pipeline_stages_per_rank: got 3, need 1 with pipeline_schedule 1f1b",
        ),
        (
            {"pipeline_parallel": 2, "pipeline_schedule": "zero_bubble_v", "pipeline_stages_per_rank": 4},
            2,
            "pipeline_stages_per_rank: got 4, need 2 with pipeline_schedule zero_bubble_v",
        ),
        (
            {"pipeline_parallel": 8, "pipeline_schedule": "zero_bubble", "train_batch_size": 8},
            8,
            "embedding and head are fewer than the 16 stages of pipeline_parallel 8 with pipeline_schedule zero_b",
        ),
        (
            {"pipeline_parallel": 4, "train_batch_size": 2},
            4,
            "pipeline_micro_batches: got 2 (default: train_batch_size)",
        ),
        (
            {"pipeline_parallel": 4, "train_batch_size": 6, "pipeline_schedule": "interleaved_1f1b"},
            4,
            "need a multiple of pipeline_parallel 4",
        ),
        (
            {"pipeline_parallel": 2, "train_batch_size": 6, "pipeline_micro_batches": 4},
            2,
            "train_batch_size 6 is not divisible by pipeline_micro_batches 4",
        ),
        (
            {"pipeline_parallel": 2, "tie_word_embeddings": True, "pipeline_schedule": "zero_bubble_v"},
            2,
            "tie_word_embeddings does not work with pipeline_schedule zero_bubble_v",
        ),
        (
            {"pipeline_parallel": 2, "pipeline_schedule": "zero_bubble", "reshard_after_forward": "always"},
            2,
            "reshard_after_forward always does not work with pipeline_schedule zero_bubble",
        ),
        (
            {"pipeline_parallel": 2, "pipeline_schedule": "zero_bubble", "compile": True},
            2,
            "compile does not work with pipeline_schedule zero_bubble",
        ),
        (
            {
                "pipeline_parallel": 2,
                "pipeline_schedule": "zero_bubble",
                "activation_checkpointing_mode": "selective",
            },
            2,
            "activation_checkpointing_mode selective does not work with pipeline_schedule zero_bubble",
        ),
        (
            {"pipeline_parallel": 2, "pipeline_schedule": "zero_bubble", "offload_activations": True},
            2,
            "offload_activations does not work with pipeline_schedule zero_bubble",
        ),
        ({"expert_parallel": 2}, 2, "expert_parallel 2 does not divide a model without experts"),
        ({"async_tensor_parallel": True, "compile": True}, 2, "async_tensor_parallel needs tensor_parallel 2 or more"),
        (
            {"async_tensor_parallel": True, "tensor_parallel": 2, "compile": False},
            2,
            "async_tensor_parallel needs compile",
        ),
        (
            {"async_tensor_parallel": True, "tensor_parallel": 2, "compile": True, "float8": True},
            2,
            "async_tensor_parallel does not work with float8",
        ),
        ({"model_type": "mixtral", "num_local_experts": 6, "expert_parallel": 4}, 4, "num_local_experts 6"),
        ({"model_type": "mixtral", "num_local_experts": 6, "expert_parallel": 3}, 4, "the 4 ranks of one copy"),
    ],
)
def test_parallel_dims_that_do_not_fit_are_one_line(choices, world_size, words):
    """The message has the value and what it must divide, without a process group."""
    values = {"num_layers": 8, "num_heads": 8, "num_key_value_heads": 4, "hidden_size": 96, "intermediate_size": 96}
    (problem,) = parallel_dims.problems(TrainConfig(**(values | choices)), world_size=world_size, nodes=1)
    assert words in problem


def test_all_problems_of_the_parallel_dims_are_reported():
    """A line for each."""
    options = TrainConfig(num_layers=1, num_heads=6, tensor_parallel=4, pipeline_parallel=4, expert_parallel=3)
    assert len(list(parallel_dims.problems(options, world_size=16, nodes=2))) == 6


@pytest.fixture
def rank_of_512():
    """Makes this process one of 512 ranks, the others of which do not exist."""

    def become(rank):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=512)

    yield become
    dist.destroy_process_group()


@pytest.mark.parametrize("stage", [0, 3])
def test_llama_70b_is_laid_out_on_512_ranks(rank_of_512, tmp_path, stage):
    """A rank in the first and one in the last of 4 stages hold a 512th of the model each, by its whole names."""
    choices = {"pipeline_parallel": 4, "tensor_parallel": 8, "context_parallel": 4, "train_batch_size": 4}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump({"preset": "llama3_1_70b", **choices}))
    options = load_file(tmp_path / "run.yaml")
    here = ParallelDims.of(options, world_size=512, nodes=64)
    assert not list(parallel_dims.problems(options, world_size=512, nodes=64))
    rank_of_512(128 * stage + 5)
    (part,) = stages_of(options, Meshes.of(here, "cpu"))
    parameters = dict(part.model.named_parameters())
    assert all(isinstance(parameter, DTensor) and parameter.is_meta for parameter in parameters.values())
    assert {name.split(".")[2] for name in parameters if "layers" in name} == {str(20 * stage + n) for n in range(20)}
    whole = sum(parameter.numel() for parameter in parameters.values())
    held = sum(parameter.to_local().numel() for parameter in parameters.values())
    assert held == pytest.approx(whole / 128, rel=1e-3)
    query = parameters[f"model.layers.{20 * stage}.self_attn.q_proj.weight"]
    assert query.shape == torch.Size((8192, 8192))
    assert query.to_local().shape == torch.Size((8192 // 8 // 16, 8192))
