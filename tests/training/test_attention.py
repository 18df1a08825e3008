"""Attention in blocks on a CPU is attention; masks hide documents and what is behind a window."""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from transformers.models.llama.modeling_llama import eager_attention_forward

from podwright_training.config.train_config import TrainConfig
from podwright_training.model.attention import attend, block_mask, make_mask, mask_problem, pair_mask
from podwright_training.model.blockwise import ROWS


def drawn(sequences, length, heads, key_value_heads, dtype=torch.float32):
    """Queries, keys and values."""
    draw = torch.Generator().manual_seed(length)
    return [
        torch.randn(sequences, length, count, 8, generator=draw, dtype=dtype).requires_grad_()
        for count in (heads, key_value_heads, key_value_heads)
    ]


def naive(q, k, v, seen):
    """Softmax attention in fp64, pair by pair."""
    groups = q.shape[2] // k.shape[2]
    k, v = (x.double().repeat_interleave(groups, dim=2) for x in (k, v))
    scores = torch.einsum("bqnh,bknh->bnqk", q.double(), k) * 8**-0.5
    return torch.einsum("bnqk,bknh->bqnh", scores.masked_fill(~seen, -torch.inf).softmax(-1), v)


@st.composite
def _cases(draw):
    length = draw(st.integers(1, 150))
    ends = sorted(draw(st.sets(st.integers(0, length), max_size=5)) | {0, length})
    lengths = [end - begin for begin, end in pairwise(ends)]
    positions = torch.cat([torch.arange(count) for count in lengths])
    whole = torch.arange(length)
    documents = torch.stack([positions, whole]) if draw(st.booleans()) else None
    return length, documents, draw(st.none() | st.integers(1, 160)), draw(st.sampled_from([(1, 1), (4, 2), (3, 1)]))


@settings(deadline=None, max_examples=60)
@given(case=_cases())
def test_blocks_give_attention_and_its_gradients(case):
    """For any length, documents, window and groups of heads, values and gradients agree with the formula to 1e-5."""
    length, positions, window, heads = case
    q, k, v = drawn(2, length, *heads)
    token = torch.arange(length)
    seen = (token <= token[:, None]) & (token > token[:, None] - (window or length))
    if positions is not None:
        starts = (token - positions)[:, None, :, None]
        seen = seen & (token >= starts)
    mask = make_mask(torch.zeros(2, length), positions_BT=positions, window=window, how="sdpa")
    found, expected = attend(q, k, v, mask), naive(q, k, v, seen)
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=0)
    weight = torch.randn_like(found)
    for gradient, wanted in zip(
        torch.autograd.grad((found * weight).sum(), (q, k, v)),
        torch.autograd.grad((expected * weight).sum(), (q, k, v)),
        strict=True,
    ):
        torch.testing.assert_close(gradient, wanted, atol=1e-5, rtol=0)


def test_bf16_is_as_exact_as_transformers():
    """Against fp64 the error in bf16 is that of ``eager_attention_forward``: scores and probabilities are rounded."""
    q, k, v = drawn(2, 200, 4, 2, torch.bfloat16)
    seen = torch.ones(200, 200, dtype=torch.bool).tril()
    exact = naive(q, k, v, seen)
    ours = attend(q, k, v, make_mask(torch.zeros(2, 200), positions_BT=None, window=None, how="sdpa"))
    hidden = torch.zeros(200, 200, dtype=torch.bfloat16).masked_fill(~seen, torch.finfo(torch.bfloat16).min)
    groups = SimpleNamespace(num_key_value_groups=2, training=False)
    theirs, _ = eager_attention_forward(groups, *(x.transpose(1, 2) for x in (q, k, v)), hidden, scaling=8**-0.5)
    assert (ours - exact).square().mean() < 1.1 * (theirs - exact).square().mean()


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("documents", [False, True])
def test_a_gpus_masks_hide_the_same(window, documents):
    """A mask of all pairs and flex_attention give what the blocks of a CPU give."""
    q, k, v = (x.detach() for x in drawn(2, 140, 4, 2))  # flex_attention has no backward on a CPU
    positions = torch.stack([torch.arange(140) % 50, torch.arange(140) % 33]) if documents else None
    starts = (torch.arange(140) - positions) if documents else None
    expected = attend(q, k, v, make_mask(torch.zeros(2, 140), positions_BT=positions, window=window, how="sdpa"))
    for make in (pair_mask, block_mask):
        mask = make(140, starts_BT=starts, window=window, device=torch.device("cpu"))
        torch.testing.assert_close(attend(q, k, v, mask), expected, atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("documents", [False, True])
def test_a_mask_of_a_window_compiles(documents):
    """The compiler's restrictions on a mask's function are the same on a CPU: no operation in place."""
    q, k, v = (x.detach().transpose(1, 2) for x in drawn(2, 140, 2, 2))
    starts = (torch.arange(140) // 50 * 50).expand(2, -1) if documents else None
    mask = block_mask(140, starts_BT=starts, window=7, device=torch.device("cpu"))
    y = torch.compile(flex_attention, fullgraph=True)(q, k, v, block_mask=mask)
    expected = naive(
        *(x.transpose(1, 2) for x in (q, k, v)), pair_mask(140, starts_BT=starts, window=7, device=torch.device("cpu"))
    )
    torch.testing.assert_close(y.transpose(1, 2).double(), expected, atol=1e-5, rtol=0)


@settings(deadline=None, max_examples=40)
@given(length=st.integers(1, 700), window=st.none() | st.integers(1, 400), document=st.none() | st.integers(1, 300))
def test_blocks_of_a_mask_follow_from_their_ends(length, window, document):
    """Of ``flex_attention``, the blocks that are computed, and those without a mask, are those of all pairs."""
    first = length // 3
    positions = None if document is None else torch.stack([torch.arange(length) % document, torch.arange(length)])
    starts = None if positions is None else torch.arange(length) - positions
    arguments = {"starts_BT": starts, "window": window, "device": torch.device("cpu"), "first_query": first}
    found, pairs = block_mask(length, **arguments), pair_mask(length, **arguments)
    expected = create_block_mask(
        lambda sequence, _head, token, other: pairs[sequence % len(pairs), 0, token, other],
        *(len(pairs), None, length - first, length),
        device="cpu",
    )
    for name in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    assert torch.equal(found.to_dense(), expected.to_dense())


def test_a_window_is_not_computed_and_then_hidden():
    """Of a long sequence, a block of queries is multiplied with the keys of its window only."""
    rows = make_mask(torch.zeros(1, 1024), positions_BT=None, window=64, how="auto")
    assert max(part.end - part.first_key for part in rows) == 64 + ROWS - 1


def test_a_mask_of_too_many_pairs_is_refused():
    """A device without flex_attention has masks of at most 2^30 pairs; a GPU and a CPU make none."""
    long = TrainConfig(document_mask=True, max_context_width=32768, train_batch_size=2)
    assert "needs a mask of 2 x 32768 x 32768 pairs" in mask_problem(long, torch.device("meta"))
    assert mask_problem(replace(long, train_batch_size=1), torch.device("meta")) is None
    assert mask_problem(replace(long, document_mask=False), torch.device("meta")) is None
    assert mask_problem(long, torch.device("cuda")) is None
    assert mask_problem(replace(long, attention="sdpa"), torch.device("cuda")) is not None
    assert mask_problem(long, torch.device("cpu")) is None
    assert mask_problem(replace(long, attention="sdpa"), torch.device("cpu")) is not None
