"""Train a tiny model with torchtitan's own model, optimizer, schedule and checkpoints, or continue one of them.

torchtitan is no requirement of the tests. ``python train_torchtitan.py record NAME FOLDER`` wrote the checkpoints
beside this file. ``python train_torchtitan.py continue NAME FOLDER`` prints the losses that torchtitan computes from
the newest checkpoint of a folder, such as one that ``podwright-train export-checkpoint`` wrote. PYTHONPATH needs
torchtitan 0.3.0 or, for ``llama3-0.2``, 0.2.2, with einops, spmd_types, tensorboard, torchdata, torch_checkpointing,
triton and tyro.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

VOCAB, DIM, LAYERS, HEADS, KV_HEADS, HIDDEN, CONTEXT, BATCH = 32, 16, 2, 4, 2, 32, 16, 4
STEPS, CONTINUED, TOTAL = 3, 4, 100
LR, WARMUP, WEIGHT_DECAY = 1e-2, 5, 0.1


def batch(step: int) -> torch.Tensor:
    """Return the tokens of a step, ``[BATCH, CONTEXT + 1]``."""
    return torch.randint(VOCAB, (BATCH, CONTEXT + 1), generator=torch.Generator().manual_seed(step))


def llama3() -> Any:
    """Return the configuration of a Llama 3 model with fused queries, keys and values, as in torchtitan's flavors."""
    from torchtitan.models import llama3 as titan
    from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm

    rope = ComplexRoPE.Config(dim=DIM // HEADS, max_seq_len=CONTEXT, theta=500_000, scaling="llama")
    layers = titan._build_llama3_layers(
        n_layers=LAYERS, dim=DIM, n_heads=HEADS, n_kv_heads=KV_HEADS, hidden_dim=HIDDEN, rope=rope, attn_backend="flex"
    )
    head = Linear.Config(in_features=DIM, out_features=VOCAB, param_init=titan._output_linear_init(DIM))
    return titan.Llama3Model.Config(
        dim=DIM,
        vocab_size=VOCAB,
        tok_embeddings=Embedding.Config(
            num_embeddings=VOCAB, embedding_dim=DIM, param_init={"weight": partial(torch.nn.init.normal_, std=0.1)}
        ),
        norm=RMSNorm.Config(normalized_shape=DIM, param_init=titan._NORM_INIT),
        lm_head=head,
        layers=layers,
    )


def qwen3(*, fuse_qkv: bool = True) -> Any:
    """Return the configuration of a dense Qwen3 model, whose head is the embedding."""
    from torchtitan.models import qwen3 as titan
    from torchtitan.models.common import CosSinRoPE, Embedding, Linear

    layers = titan._build_qwen3_layers(
        n_layers=LAYERS,
        dim=DIM,
        n_heads=HEADS,
        n_kv_heads=KV_HEADS,
        head_dim=8,
        hidden_dim=HIDDEN,
        fuse_qkv=fuse_qkv,
        attn_backend="flex",
        rope=CosSinRoPE.Config(dim=8, max_seq_len=CONTEXT, theta=1_000_000.0),
    )
    return titan.Qwen3Model.Config(
        vocab_size=VOCAB,
        dim=DIM,
        enable_weight_tying=True,
        norm=titan._qwen3_norm(DIM),
        tok_embeddings=Embedding.Config(num_embeddings=VOCAB, embedding_dim=DIM, param_init=titan._EMBEDDING_SKIP_INIT),
        lm_head=Linear.Config(
            in_features=DIM, out_features=VOCAB, param_init={"weight": partial(torch.nn.init.normal_, std=0.1)}
        ),
        layers=layers,
    )


def _build(config: Any) -> torch.nn.Module:
    """Build a model of torchtitan 0.3 whose attention runs on a CPU: flex attention has no gradient there."""
    from torchtitan.models.common.attention import ScaledDotProductAttention

    for layer in config.layers:
        layer.attention = replace(layer.attention, inner_attention=ScaledDotProductAttention.Config())
    model = config.build()
    model.init_states()
    return model


def _parts_0_3(name: str, folder: Path, states: dict[str, Any]) -> tuple[Any, Any, Any, Any]:
    """Return model, optimizers, schedules and checkpoints, with the classes of torchtitan 0.3."""
    from torchtitan.components.checkpoint import CheckpointManager
    from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer, ParamGroupConfig

    model = _build({"llama3": llama3, "qwen3": qwen3, "qwen3-split": partial(qwen3, fuse_qkv=False)}[name]())
    adamw = {"lr": LR, "betas": (0.9, 0.95), "eps": 1e-8}
    groups = [
        ParamGroupConfig(
            pattern=pattern, optimizer_name="AdamW", optimizer_kwargs={**adamw, "weight_decay": weight_decay}
        )
        for pattern, weight_decay in (("norm", 0.0), (".*", WEIGHT_DECAY))
    ]
    optimizers = OptimizersContainer.Config(param_groups=groups).build(model_parts=[model])
    schedule = LRSchedulersContainer.Config(warmup_steps=WARMUP, decay_ratio=0.1)
    schedulers = schedule.build(optimizers=optimizers, training_steps=TOTAL)
    checkpoints = CheckpointManager.Config(
        enable=True, folder=str(folder), interval=1, keep_latest_k=0, exclude_from_loading=["dataloader"]
    ).build(
        dataloader=Dataloader(),
        model_parts=[model],
        optimizers=optimizers,
        lr_schedulers=schedulers,
        states=states,
        sd_adapter=None,
    )
    return model, optimizers, schedulers, checkpoints


def _parts_0_2(folder: Path, states: dict[str, Any]) -> tuple[Any, Any, Any, Any]:
    """Return model, optimizers, schedules and checkpoints, with the classes of torchtitan 0.2.

    Its optimizer has one weight decay for all parameters, norms too; here that is 0.
    """
    from torchtitan.components.checkpoint import CheckpointManager
    from torchtitan.components.lr_scheduler import build_lr_schedulers
    from torchtitan.components.optimizer import OptimizersContainer
    from torchtitan.config.job_config import Checkpoint, LRScheduler
    from torchtitan.models.llama3 import Transformer, TransformerModelArgs

    arguments = TransformerModelArgs(
        dim=DIM,
        n_layers=LAYERS,
        n_heads=HEADS,
        n_kv_heads=KV_HEADS,
        vocab_size=VOCAB,
        multiple_of=16,
        ffn_dim_multiplier=0.7,  # 2/3 · 4 · dim · 0.7, rounded up, is HIDDEN
        rope_theta=500_000,
        max_seq_len=CONTEXT,
    )
    model = Transformer(arguments)
    with torch.no_grad():
        model.init_weights()
    kwargs = {"lr": LR, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.0, "fused": True, "foreach": False}
    optimizers = OptimizersContainer([model], torch.optim.AdamW, kwargs)
    schedulers = build_lr_schedulers(optimizers, LRScheduler(warmup_steps=WARMUP, decay_ratio=0.1), TOTAL)
    checkpoints = CheckpointManager(
        dataloader=Dataloader(),
        model_parts=[model],
        optimizers=optimizers,
        lr_schedulers=schedulers,
        states=states,
        checkpoint_config=Checkpoint(
            enable=True, folder=str(folder), interval=1, keep_latest_k=0, exclude_from_loading=["dataloader"]
        ),
        sd_adapter=None,
    )
    return model, optimizers, schedulers, checkpoints


class TrainState:
    """The state that torchtitan's trainer saves under ``train_state``."""

    def __init__(self) -> None:
        self.step = self.ntokens_seen = 0

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step, "ntokens_seen": self.ntokens_seen}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step, self.ntokens_seen = state["step"], state["ntokens_seen"]


class Dataloader:
    """Stands for torchtitan's: each rank's position under its own key."""

    def state_dict(self) -> dict[str, Any]:
        return {"dp_rank_0": b"position", "world_size": 1}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Leave the position where it is."""


class TitanRun:
    """A run of torchtitan: its model, optimizer, schedule and checkpoints, and the steps of its trainer."""

    def __init__(self, name: str, folder: Path) -> None:
        torch.manual_seed(0)
        self.state = TrainState()
        states = {"train_state": self.state}
        self.model, self.optimizers, self.schedulers, self.checkpoints = (
            _parts_0_2(folder, states) if name == "llama3-0.2" else _parts_0_3(name, folder, states)
        )

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits of each next token."""
        result: torch.Tensor = self.model(tokens)
        return result

    def step(self) -> float:
        """Take a step and return its loss."""
        tokens = batch(self.state.step + 1)
        logits = self.logits(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        self.optimizers.step()
        self.schedulers.step()
        self.optimizers.zero_grad()
        self.state.step += 1
        self.state.ntokens_seen += BATCH * CONTEXT
        return loss.item()


def main(command: str, name: str, folder: str) -> None:
    """Record a checkpoint and what follows it, or print what follows a checkpoint that exists."""
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    torch.set_num_threads(1)
    run = TitanRun(name, Path(folder).absolute())
    if command == "record":
        for _ in range(STEPS):
            run.step()
        run.checkpoints.save(STEPS)
    else:
        run.checkpoints.load()
    step, tokens_seen = run.state.step, run.state.ntokens_seen
    with torch.no_grad():
        logits = run.logits(batch(0)[:1, :4])
    learning_rates, losses = [], []
    for _ in range(CONTINUED):
        learning_rates.append(run.optimizers.optimizers[0].param_groups[0]["lr"])
        losses.append(run.step())
    text = json.dumps(
        {
            "step": step,
            "tokens_seen": tokens_seen,
            "learning_rates": learning_rates,
            "losses": losses,
            "logits": logits.flatten().tolist(),
        }
    )
    if command == "record":
        (Path(folder) / "continued.json").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
