"""Train a tiny model with Megatron-Core's own model, optimizer and checkpoints, or continue one of them, on a CPU.

Megatron-Core is no requirement of the tests. ``python train_megatron.py record NAME FOLDER`` wrote the checkpoints
beside this file. ``python train_megatron.py continue NAME FOLDER`` prints the logits and losses that Megatron-Core
computes from a checkpoint, such as one that ``podwright-train export-checkpoint`` wrote. PYTHONPATH needs
megatron-core 0.19.2, einops and psutil.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import torch
import torch._dynamo  # before Triton is replaced
import torch.distributed as dist
import torch.nn.functional as F

VOCAB, DIM, LAYERS, HEADS, GROUPS, HIDDEN, CONTEXT, BATCH = 32, 16, 2, 4, 2, 24, 16, 4
STEPS, CONTINUED = 3, 3
LR, WEIGHT_DECAY = 1e-2, 0.1
ITERATION_FOLDER = f"iter_{STEPS:07}"
VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {"qk_layernorm": True, "kv_channels": 8, "tied": True},
    "bf16": {"bf16": True},
    "distributed": {
        "bf16": True,
        "distributed": True,
        "metadata": {
            "distrib_optim_sharding_type": "fully_reshardable",
            "distrib_optim_fully_reshardable_mem_efficient": True,
        },
    },
    "buffers": {"bf16": True, "distributed": True, "metadata": {"distrib_optim_sharding_type": "dp_reshardable"}},
    "layers": {"padded_vocab": 40, "metadata": {"non_homogeneous_layers": True, "singleton_local_shards": True}},
}


def pretend_to_have_a_gpu() -> None:
    """Import Megatron-Core without Triton, and let its optimizer allocate its scalars in CPU memory."""
    for name in ("triton", "triton.language"):
        sys.modules.setdefault(name, MagicMock(__version__="3.5.0"))
    torch.compile = lambda function=None, **_: function or (lambda inner: inner)
    for name in ("tensor", "zeros"):
        setattr(torch, name, partial(_on_cpu, getattr(torch, name)))
    cpu_type = torch.Tensor.type
    torch.Tensor.type = lambda self, *to: cpu_type(self, *to) if to else cpu_type(self).replace("torch.", "torch.cuda.")
    torch.cuda.current_stream = MagicMock()
    torch.cuda.synchronize = lambda *_: None
    torch.cuda.current_device = lambda: torch.device("cpu")


def _on_cpu(factory: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
    return factory(*args, device=None if device == "cuda" else device, **kwargs)


def batch(step: int) -> torch.Tensor:
    """Return the tokens of a step, ``[BATCH, CONTEXT + 1]``."""
    return torch.randint(VOCAB, (BATCH, CONTEXT + 1), generator=torch.Generator().manual_seed(step))


class MegatronRun:
    """A run of Megatron-Core: its model and optimizer, and the steps of its trainer."""

    def __init__(self, name: str) -> None:
        from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
        from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
        from megatron.core.models.gpt.gpt_model import GPTModel
        from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
        from megatron.core.transformer.transformer_config import TransformerConfig

        variant = {"bf16": False, "qk_layernorm": False, "kv_channels": DIM // HEADS, "tied": False} | VARIANTS[name]
        self.iteration = 0
        self.metadata = {"chained_optim_avoid_prefix": True} | variant.get("metadata", {})
        bf16, distributed = variant["bf16"], variant.get("distributed", False)
        config = TransformerConfig(
            num_layers=LAYERS,
            hidden_size=DIM,
            ffn_hidden_size=HIDDEN,
            num_attention_heads=HEADS,
            num_query_groups=GROUPS,
            kv_channels=variant["kv_channels"],
            qk_layernorm=variant["qk_layernorm"],
            normalization="RMSNorm",
            layernorm_epsilon=1e-5,
            gated_linear_unit=True,
            activation_func=F.silu,
            add_bias_linear=False,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            bias_activation_fusion=False,
            bias_dropout_fusion=False,
            masked_softmax_fusion=False,
            apply_rope_fusion=False,
            persist_layer_norm=False,
            gradient_accumulation_fusion=False,
            use_cpu_initialization=True,
            init_method_std=0.1,
            bf16=bf16,
            params_dtype=torch.bfloat16 if bf16 else torch.float32,
            pipeline_dtype=torch.bfloat16 if bf16 else torch.float32,
        )
        spec = get_gpt_layer_local_spec(qk_layernorm=variant["qk_layernorm"], normalization="RMSNorm")
        self.model = GPTModel(
            config,
            spec,
            vocab_size=variant.get("padded_vocab", VOCAB),
            max_sequence_length=CONTEXT,
            position_embedding_type="rope",
            rotary_base=10000,
            share_embeddings_and_output_weights=variant["tied"],
        )
        if bf16:
            self.model.bfloat16()
        optimizer_config = OptimizerConfig(
            optimizer="adam",
            lr=LR,
            min_lr=0.0,
            weight_decay=WEIGHT_DECAY,
            adam_beta1=0.9,
            adam_beta2=0.95,
            adam_eps=1e-8,
            clip_grad=0.0,
            bf16=bf16,
            params_dtype=config.params_dtype,
            use_distributed_optimizer=distributed,
        )
        data_parallel = DistributedDataParallelConfig(use_distributed_optimizer=distributed)
        self.model.ddp_config = data_parallel
        self.trained = DistributedDataParallel(config, data_parallel, self.model) if distributed else self.model
        self.optimizer = get_megatron_optimizer(optimizer_config, [self.trained])
        for group in self.optimizer.param_groups:  # as Megatron's scheduler does
            group["weight_decay"] = WEIGHT_DECAY * group["wd_mult"]

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits of each next token."""
        positions = torch.arange(tokens.shape[1]).expand_as(tokens)
        mask = torch.ones(1, 1, tokens.shape[1], tokens.shape[1]).triu(1).bool()
        result: torch.Tensor = self.model(tokens, positions, mask)
        return result

    def step(self) -> float:
        """Take a step and return its loss."""
        tokens = batch(self.iteration + 1)
        logits = self.logits(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        if self.trained is self.model:
            loss.backward()
            for parameter in self.model.parameters():
                parameter.main_grad = parameter.grad.float()
        else:
            self.trained.zero_grad_buffer()
            loss.backward()
            self.trained.finish_grad_sync()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.iteration += 1
        return loss.item()

    def sharded_state(self, *, is_loading: bool) -> dict[str, Any]:
        """Return the tensors to save or to load, as Megatron-LM's checkpointing does."""
        model = self.model.sharded_state_dict(metadata=self.metadata)
        optimizer = self.optimizer.sharded_state_dict(model, is_loading=is_loading, metadata=self.metadata)
        return {"model": model, "optimizer": optimizer}

    def save(self, folder: Path) -> None:
        """Save a checkpoint as Megatron-LM does."""
        from megatron.core import dist_checkpointing
        from megatron.core.transformer.enums import AttnBackend

        arguments = argparse.Namespace(
            num_layers=LAYERS,
            seq_length=CONTEXT,
            consumed_train_samples=BATCH * self.iteration,
            consumed_valid_samples=0,
            attention_backend=AttnBackend.auto,  # Megatron-LM's arguments have members of its own enumerations.
            norm_epsilon=1e-5,
            rotary_base=10000,
            normalization="RMSNorm",
            swiglu=True,
            tensor_model_parallel_size=1,
            pipeline_model_parallel_size=1,
        )
        common = {"args": arguments, "checkpoint_version": 3.0, "iteration": self.iteration}
        folder.mkdir(parents=True)
        state = self.sharded_state(is_loading=False) | common
        dist_checkpointing.save(state, str(folder), content_metadata=self.metadata)

    def load(self, folder: Path) -> None:
        """Load a checkpoint with ``megatron.core.dist_checkpointing``."""
        from megatron.core import dist_checkpointing

        if self.trained is not self.model:
            self.step()  # Without Transformer Engine a distributed optimizer has no states to load into before.
        self.metadata = dist_checkpointing.load_content_metadata(str(folder))
        state = dist_checkpointing.load(self.sharded_state(is_loading=True), str(folder))
        self.model.load_state_dict(state["model"])
        if self.trained is self.model:
            self.optimizer.load_state_dict(state["optimizer"])
        else:
            step = float(state["optimizer"]["optimizer"]["param_groups"][0]["step"])
            _accept_steps(step)
            self.optimizer.load_state_dict(state["optimizer"])
            for states in self.optimizer.chained_optimizers[0].optimizer.state.values():
                states["step"] = torch.tensor(step)  # All parameters got the same tensor, which each one counts up.
        self.iteration = state["iteration"]


def _accept_steps(step: float) -> None:
    """Let the distributed optimizer load the steps of PyTorch's Adam, as it does those of Transformer Engine's."""
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    load = DistributedOptimizer._set_main_param_and_optimizer_states
    DistributedOptimizer._set_main_param_and_optimizer_states = lambda self, parameter, tensors: load(
        self, parameter, {"step": torch.tensor(step), **tensors}
    )


def main(command: str, name: str, folder: str) -> None:
    """Record a checkpoint and what follows it, or print what follows a checkpoint that exists."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    pretend_to_have_a_gpu()
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    torch.set_num_threads(1)
    from megatron.core import parallel_state
    from megatron.core.safe_globals import register_safe_globals
    from megatron.core.tensor_parallel import get_cuda_rng_tracker

    register_safe_globals()
    parallel_state.initialize_model_parallel()
    get_cuda_rng_tracker().fork = lambda *_: nullcontext()  # Nothing drops out.
    torch.manual_seed(0)
    run = MegatronRun(name)
    if command == "record":
        for _ in range(STEPS):
            run.step()
        run.save(Path(folder) / ITERATION_FOLDER)
    else:
        run.load(Path(folder))
    with torch.no_grad():
        logits = run.logits(batch(0)[:1, :4])[..., :VOCAB]
    text = json.dumps(
        {
            "step": run.iteration,
            "logits": logits.flatten().tolist(),
            "losses": [run.step() for _ in range(CONTINUED)],
        }
    )
    if command == "record":
        (Path(folder) / "continued.json").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
