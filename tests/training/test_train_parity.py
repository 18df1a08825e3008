"""Training is what it says it is: transformers' Llama in a plain loop learns the same."""

import pytest
import torch
from torch.optim import AdamW
from transformers import LlamaConfig
from transformers import LlamaForCausalLM as TheirLlama

from podwright_training.batch import Batch
from podwright_training.config.train_config import TrainConfig
from podwright_training.device import process_group
from podwright_training.loop.schedule import learning_rate
from podwright_training.optim import Optimizers
from podwright_training.parallel import ParallelModel
from podwright_training.ranks import Ranks

STEPS = 200
CPU = torch.device("cpu")
OPTIONS = TrainConfig(
    vocab_size=97,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=4,
    num_key_value_heads=2,
    max_context_width=24,
    bf16=False,
    activation_checkpointing=False,
    max_steps=STEPS,
    lr=5e-3,
    warmup=0.05,
    gradient_accumulation_steps=2,
)


def batches():
    """Sequences with something to learn: each token is the last one times three plus a little chance."""
    generator = torch.Generator().manual_seed(1)
    while True:
        rows = [torch.randint(97, (4,), generator=generator)]
        for _ in range(24):
            rows.append((rows[-1] * 3 + torch.randint(3, (4,), generator=generator)) % 97)
        sequences = torch.stack(rows, dim=1)
        yield Batch(sequences[:, :-1], sequences[:, 1:])


def our_losses(model):
    """The trainer's parts, in the trainer's order."""
    optimizers, data, losses = Optimizers(model.named_parameters(), OPTIONS), batches(), []
    for step in range(1, STEPS + 1):
        micro_batches = [next(data), next(data)]
        tokens = sum(batch.counted_tokens for batch in micro_batches)
        losses.append(model.forward_backward(micro_batches, tokens=tokens).item())
        model.clip_grad_norm(OPTIONS.grad_clip)
        optimizers.step(lr=learning_rate(step, OPTIONS))
    return losses


def their_losses(weights):
    """A plain loop over whole batches: no accumulation, PyTorch's AdamW."""
    model = TheirLlama(LlamaConfig(**OPTIONS.model.to_hf()))
    model.load_state_dict(weights)
    decay = [item for item in model.parameters() if item.ndim > 1]
    rest = [item for item in model.parameters() if item.ndim <= 1]
    groups = [{"params": decay, "weight_decay": OPTIONS.weight_decay}, {"params": rest, "weight_decay": 0.0}]
    optimizer = AdamW(groups, betas=(OPTIONS.beta1, OPTIONS.beta2), foreach=True)
    data, losses = batches(), []
    for step in range(1, STEPS + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, OPTIONS)
        pair = [next(data), next(data)]
        logits_BTV = model(torch.cat([batch.tokens_BT for batch in pair])).logits
        labels_BT = torch.cat([batch.labels_BT for batch in pair])
        loss = torch.nn.functional.cross_entropy(logits_BTV.flatten(0, 1), labels_BT.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), OPTIONS.grad_clip)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.slow
def test_two_hundred_losses_are_those_of_transformers():
    """The same weights, data and AdamW: every loss within 1e-4, while it falls by more than 2."""
    with process_group(Ranks(), CPU):
        model = ParallelModel(OPTIONS, Ranks(), CPU)
        weights = {name: item.full_tensor().detach().clone() for name, item in model.named_parameters()}
        ours = our_losses(model)
    theirs = their_losses(weights)
    assert max(abs(our - their) for our, their in zip(ours, theirs, strict=True)) < 1e-4
    assert ours[-1] < ours[0] - 2
