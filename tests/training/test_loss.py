"""The loss in chunks is the plain one."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from podwright_training.batch import IGNORED
from podwright_training.model import loss as loss_module
from podwright_training.model.loss import summed_loss


@pytest.fixture(scope="module", autouse=True)
def compiled_without_a_compiler():
    """``torch.compile`` without Inductor, which needs a C++ compiler."""
    compiled = torch.compile(loss_module._fusible_chunk_loss, backend="aot_eager", dynamic=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loss_module, "fused", lambda _function, _device_type: compiled)
        yield


def drawn(tokens, *, vocab=101, dtype=torch.float32, ignored=0.2):
    """Hidden states, a head and labels of which some do not count."""
    draw = torch.Generator().manual_seed(tokens)
    hidden = torch.randn(tokens, 16, generator=draw).to(dtype).requires_grad_()
    head = torch.randn(vocab, 16, generator=draw).to(dtype).requires_grad_()
    labels = torch.randint(0, vocab, (tokens,), generator=draw)
    return hidden, head, labels.masked_fill(torch.rand(tokens, generator=draw) < ignored, IGNORED)


@settings(deadline=None, max_examples=40)
@given(
    tokens=st.integers(1, 60),
    chunk=st.integers(1, 70),
    z_loss=st.sampled_from([0.0, 0.01]),
    weight=st.floats(0.1, 10),
    compiled=st.booleans(),
)
@pytest.mark.slow
def test_chunks_give_the_plain_loss_and_gradients(tokens, chunk, z_loss, weight, compiled):
    """For any chunk, with ignored labels and z-loss, compiled or not, all agree to 1e-5 of their size in fp32."""
    hidden, head, labels = drawn(tokens)
    found = summed_loss(hidden, head, labels, chunk_tokens=chunk, z_loss=z_loss, compiled=compiled)
    expected = summed_loss(hidden, head, labels, chunk_tokens=0, z_loss=z_loss)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-5)
    for gradient, wanted in zip(
        torch.autograd.grad(found * weight, (hidden, head)),
        torch.autograd.grad(expected * weight, (hidden, head)),
        strict=True,
    ):
        torch.testing.assert_close(gradient, wanted, atol=1e-4, rtol=1e-5)


def test_the_plain_loss_is_pytorchs():
    """Without chunks, the sum is ``cross_entropy``'s, and z-loss adds the squared log of the denominator."""
    hidden, head, labels = drawn(50, ignored=0)
    logits = hidden @ head.T
    expected = F.cross_entropy(logits, labels, reduction="sum") + 0.1 * logits.logsumexp(-1).square().sum()
    torch.testing.assert_close(summed_loss(hidden, head, labels, chunk_tokens=0, z_loss=0.1), expected)


@pytest.mark.parametrize("compiled", [False, True])
def test_bf16_loses_nothing_in_the_loss(compiled):
    """Of bf16 logits, the loss is that of fp32 arithmetic to 1e-5, and gradients are within bf16's rounding."""
    hidden, head, labels = drawn(300, vocab=1000, dtype=torch.bfloat16)
    found = summed_loss(hidden, head, labels, chunk_tokens=64, compiled=compiled)
    expected = summed_loss(hidden, head, labels, chunk_tokens=0)
    torch.testing.assert_close(found, expected, atol=0, rtol=1e-5)
    for gradient, wanted in zip(
        torch.autograd.grad(found, (hidden, head)), torch.autograd.grad(expected, (hidden, head)), strict=True
    ):
        torch.testing.assert_close(gradient, wanted, atol=0.05, rtol=0.02)


@pytest.mark.parametrize(("chunk_tokens", "compiled"), [(0, False), (16, False), (16, True)])
def test_nothing_counts_gives_nothing(chunk_tokens, compiled):
    """With every label ignored, loss and gradients are zero, not NaN."""
    hidden, head, labels = drawn(40, ignored=1.1)
    loss = summed_loss(hidden, head, labels, chunk_tokens=chunk_tokens, compiled=compiled)
    assert loss == 0
    assert not any(gradient.any() for gradient in torch.autograd.grad(loss, (hidden, head)))


@pytest.mark.parametrize("compiled", [False, True])
def test_extreme_logits_stay_finite(compiled):
    """Logits of ±1e4 overflow no exponential: the loss of a sure and wrong model is their difference."""
    hidden = torch.tensor([[1e4], [-1e4]], requires_grad=True)
    head = torch.tensor([[1.0], [-1.0]], requires_grad=True)
    loss = summed_loss(hidden, head, torch.tensor([1, 1]), chunk_tokens=1, compiled=compiled)
    assert loss.item() == 2e4
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(loss, (hidden, head)))


def test_memory_does_not_grow_with_the_tokens():
    """The largest tensor that a chunked loss makes has the size of a chunk's logits or of the head."""
    sizes = []

    class Largest(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            sizes.append(result.numel() if isinstance(result, torch.Tensor) else 0)
            return result

    hidden, head, labels = drawn(512, vocab=300)
    with Largest():
        summed_loss(hidden, head, labels, chunk_tokens=32).backward()
    assert max(sizes) == max(32 * 300, 300 * 16, 512 * 16)
