"""Memory of an accelerator."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podwright.checkout import ROOT
from podwright.planning.accelerator import Accelerator
from podwright.planning.layout import Layout, LayoutError, check
from podwright.planning.memory import error_share, largest_micro_batch, least_recomputation, memory
from podwright.planning.model import Model
from podwright.planning.trainer_software import Software

LLAMA, H100, OURS = Model.of("llama3_1_8b"), Accelerator.of("H100"), Software.named("podwright")
NEURON = Software.named("neuron.nki")
STATES = ("parameters", "gradients", "master_weights", "optimizer")
BLOCKS = st.integers(1, 32)
POWERS = st.integers(0, 3).map(lambda power: 2**power)


def peak(model: Model = LLAMA, software: Software = OURS, **changes: object) -> float:
    return memory(model, Layout(**{"gpus": 8, "micro_batch": 1, "sequence": 2048, **changes}), H100, software).peak_gb


def states(**changes: object) -> float:
    items = memory(LLAMA, Layout(**{"gpus": 8, "micro_batch": 1, "sequence": 2048, **changes}), H100, OURS).items()
    return sum(items[name] for name in STATES)


@given(POWERS, POWERS)
@settings(deadline=None)
def test_sharding_conserves_the_states(gpus, tensor):
    """However parameters, gradients and moments are sharded, all ranks together hold 16 bytes per parameter."""
    total = states(gpus=gpus * tensor, tensor=tensor) * gpus * tensor
    vectors = 16 * LLAMA.vectors / 1e9  # norms are whole on every tensor-parallel rank
    assert total == pytest.approx(16 * LLAMA.parameters / 1e9 + (tensor - 1) * vectors, rel=1e-6)


def test_an_item_may_be_left_whole():
    """ZeRO-1 shards moments alone, ZeRO-2 gradients too, ZeRO-3 everything."""
    sizes = [states(sharding=kind) for kind in ("none", "optimizer", "gradients", "full")]
    per_byte = LLAMA.parameters / 1e9
    assert sizes == pytest.approx([16 * per_byte, 9 * per_byte, 5.5 * per_byte, 2 * per_byte])


@given(
    st.integers(1, 64),
    st.integers(1, 32).map(lambda blocks: 128 * blocks),
    st.sampled_from(["none", "selective", "full"]),
)
@settings(deadline=None)
def test_more_of_anything_needs_more(micro_batch, sequence, recompute):
    """Memory grows with the batch, the sequence and the layers."""
    base = {"micro_batch": micro_batch, "sequence": sequence, "recompute": recompute}
    assert peak(**base) < peak(**{**base, "micro_batch": micro_batch + 1})
    assert peak(**base) < peak(**{**base, "sequence": sequence + 128})
    assert peak(**base) < peak(replace(LLAMA, layers=LLAMA.layers + 1), **base)


@given(st.integers(1, 16))
@settings(deadline=None)
def test_saving_measures_save(micro_batch):
    """Recomputing, offloading, a chunked loss, more ranks: each needs less than without."""
    base = {"micro_batch": micro_batch}
    for measure in (
        {"recompute": "selective"},
        {"recompute": "full"},
        {"loss_chunk_tokens": 512},
        {"gpus": 16},
        {"offload_optimizer": True},
    ):
        assert peak(**base, **measure) < peak(**base)
    recomputed = {**base, "recompute": "full"}
    assert peak(**recomputed, offload_activations=True) < peak(**recomputed)


@given(st.integers(256, 8192))
@settings(deadline=None, max_examples=25)
def test_the_largest_micro_batch_is_the_largest(sequence):
    """The micro-batch fits with room for the planner's error, and one more sequence does not."""
    layout = Layout(gpus=8, micro_batch=1, sequence=sequence, recompute="full")
    largest = largest_micro_batch(LLAMA, layout, H100, OURS)
    assert memory(LLAMA, replace(layout, micro_batch=largest), H100, OURS).fits_surely
    assert not memory(LLAMA, replace(layout, micro_batch=largest + 1), H100, OURS).fits_surely


def test_nothing_fits_where_the_states_do_not():
    """With 70 billion parameters on one GPU one sequence does not fit."""
    layout = Layout(gpus=1, micro_batch=1, sequence=2048, recompute="full")
    assert largest_micro_batch(Model.of("llama3_1_70b"), layout, H100, OURS) == 0


def test_no_more_is_recomputed_than_needed():
    """The plan recomputes the least that makes the run fit: nothing, if nothing is needed."""
    small = Layout(gpus=64, micro_batch=1, sequence=2048)
    large = replace(small, micro_batch=6)
    assert least_recomputation(LLAMA, small, H100, OURS).recompute == "none"
    assert least_recomputation(LLAMA, large, H100, OURS).recompute == "selective"
    assert least_recomputation(LLAMA, large, H100, OURS, choices=("none", "full")).recompute == "full"


def test_optimizers_differ_in_their_states():
    """AdamW keeps 8 bytes a parameter, Muon half of that for matrices."""
    sizes = {
        kind: memory(LLAMA, Layout(gpus=8, micro_batch=1, sequence=2048, optimizer=kind), H100, OURS).optimizer
        for kind in ("adamw", "muon")
    }
    assert sizes["adamw"] == pytest.approx(LLAMA.parameters / 1e9)
    assert sizes["muon"] == pytest.approx((LLAMA.parameters - LLAMA.block_matrices / 2) / 1e9)


def test_a_pipeline_keeps_as_many_micro_batches_as_it_has_stages():
    """The first stage of a pipeline keeps activations for all micro-batches in flight, but no more than there are."""
    few, many = (
        memory(
            LLAMA,
            Layout(gpus=8, pipeline=4, micro_batch=1, micro_batches=count, sequence=4096, sharding="optimizer"),
            H100,
            NEURON,
        )
        for count in (1, 64)
    )
    assert few.activations < many.activations
    assert few.parameters == many.parameters


def test_the_last_stage_of_a_pipeline_has_the_loss():
    """Of 8B in four stages on 64 ranks the dry run counts 14.8 GB, on the last stage: the plan has that, and gaps."""
    layout = Layout(
        gpus=64, pipeline=4, micro_batch=1, micro_batches=8, sequence=8192, recompute="full", loss_chunk_tokens=2048
    )
    needed = memory(LLAMA, layout, H100, OURS)
    assert needed.logits > 4
    assert needed.peak_gb == pytest.approx(14.8, rel=0.1)
    assert peak(replace(LLAMA, vocab=16), gpus=64, pipeline=4, loss_chunk_tokens=2048) < needed.peak_gb


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tensor": 3}, "6 or 9"),
        ({"gpus": 24, "tensor": 3}, "1, 2, 4, 8, 16, 32"),
        ({"pipeline": 8, "virtual_stages": 5}, "32 layers"),
        ({"expert": 2}, "has no experts"),
        ({"micro_batch": 0}, "micro_batch: got 0, need at least 1"),
        ({"sequence": -1}, "sequence: got -1, need at least 1"),
    ],
)
def test_impossible_layouts_say_what_is_possible(changes, words):
    """A layout that cannot run is refused with the values that could."""
    layout = Layout(**{"gpus": 8, "micro_batch": 1, "sequence": 2048, **changes})
    with pytest.raises(LayoutError, match=words):
        check(layout, LLAMA)


def test_all_problems_of_a_layout_are_said_at_once():
    """Two mistakes give two lines."""
    layout = Layout(gpus=24, tensor=3, expert=4, micro_batch=1, sequence=2048)
    with pytest.raises(LayoutError) as caught:
        check(layout, LLAMA)
    assert len(str(caught.value).splitlines()) == 2


def test_whole_gradients_are_counted():
    """A rank that accumulates the whole gradient of 8B parameters keeps 32 GB, not its shard."""
    layout = Layout(gpus=64, micro_batch=1, micro_batches=4, sequence=4096, recompute="full")
    sharded = memory(LLAMA, layout, H100, OURS).gradients
    assert memory(LLAMA, replace(layout, whole_gradients=True), H100, OURS).gradients == pytest.approx(64 * sharded)
    assert 64 * sharded == pytest.approx(32.1, abs=0.1)
    assert memory(LLAMA, replace(layout, whole_gradients=True, micro_batches=1), H100, OURS).gradients == sharded


def test_a_pipeline_keeps_what_its_options_say():
    """Whole gradients are those of a stage; weights that are gathered again are two blocks, not a stage's."""
    layout = Layout(
        gpus=64, pipeline=4, micro_batch=1, micro_batches=8, sequence=8192, recompute="full", loss_chunk_tokens=2048
    )
    once = memory(LLAMA, layout, H100, OURS)
    whole = memory(LLAMA, replace(layout, whole_gradients=True), H100, OURS)
    again = memory(LLAMA, replace(layout, reshard="always"), H100, OURS)
    assert whole.gradients == pytest.approx(16 * once.gradients)
    assert whole.peak_gb == pytest.approx(22.9, rel=0.1)  # counted by the dry run
    assert once.peak_gb - again.peak_gb > 2
    assert again.gradients == once.gradients


def test_the_margin_is_the_published_error():
    """Proposals leave free what the page gives as the 90th percentile of the planner's error."""
    table = (ROOT / "docs" / "plan.md").read_text(encoding="utf-8")
    (row,) = (line for line in table.splitlines() if line.startswith("| memory |"))
    assert row.endswith(f"| {100 * error_share():.1f} % |")
