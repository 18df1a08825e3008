"""The fast matrix products of a CPU change results by rounding only."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from podwright_training import cpu


@pytest.fixture(scope="module", autouse=True, params=[cpu.prefer_onednn, cpu.prefer_openblas, cpu.widen_halves])
def kernels(request):
    """The process as a trainer's on a CPU with AVX-512, on AMD's without it, and on one that cannot multiply bf16."""
    return request.param()


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.tuples(*[st.integers(0, 40)] * 4),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64]),
    turned=st.tuples(st.booleans(), st.booleans()),
)
def test_products_are_exact(sizes, dtype, turned):
    """For any size, also none, type and layout, all three products agree with fp64 to the type's rounding."""
    batch, rows, inner, columns = sizes
    draw = torch.Generator().manual_seed(sum(sizes))
    left = torch.randint(-9, 9, (batch, inner, rows) if turned[0] else (batch, rows, inner), generator=draw).to(dtype)
    right = torch.randint(-9, 9, (batch, columns, inner) if turned[1] else (batch, inner, columns), generator=draw)
    left, right = left.mT if turned[0] else left, right.to(dtype).mT if turned[1] else right.to(dtype)
    expected = (left.double().unsqueeze(-1) * right.double().unsqueeze(-3)).sum(-2)
    tolerance = {"atol": 0, "rtol": 2**-8 if dtype in {torch.bfloat16, torch.float16} else 1e-6}
    torch.testing.assert_close(torch.bmm(left, right).double(), expected, **tolerance)
    for index in range(batch):
        torch.testing.assert_close(torch.mm(left[index], right[index]).double(), expected[index], **tolerance)
        total = torch.zeros(rows, columns, dtype=dtype).addmm_(left[index], right[index])
        torch.testing.assert_close(total.double(), expected[index], **tolerance)


def test_gradients_pass_through():
    """Autograd differentiates the product as before."""
    left, right = (torch.randn(5, 5, dtype=torch.float32, requires_grad=True) for _ in range(2))
    for found, wanted in zip(
        torch.autograd.grad((left @ right).sum(), (left, right)),
        torch.autograd.grad((left.double() @ right.double()).sum(), (left, right)),
        strict=True,
    ):
        torch.testing.assert_close(found, wanted)


def test_it_is_done_once():
    """A second model in the process finds the choice made."""
    assert cpu.tune() is cpu.tune()


@pytest.mark.filterwarnings("error")
def test_nan_passes_through():
    """NaN and Inf stay so in the product, without a warning: the guard reports them."""
    left = torch.tensor([[math.nan, 1.0], [math.inf, -math.inf]])
    assert torch.mm(left, torch.ones(2, 2)).isnan().all()


def test_what_was_multiplied_can_be_freed():
    """FSDP gives a gathered weight's memory back after use, whatever has multiplied it."""
    left, right = torch.ones(3, 3), torch.ones(3, 3)
    assert torch.mm(left, right).equal(torch.full((3, 3), 3.0))
    for used in (left, right):
        used.untyped_storage().resize_(0)
        assert used.untyped_storage().nbytes() == 0
