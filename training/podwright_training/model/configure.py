"""Apply the options that change how a model computes, not its architecture."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import nn

from podwright_training.config.train_config import TrainConfig
from podwright_training.model.compilation import compile_backend
from podwright_training.model.experts import MixtureOfExperts
from podwright_training.model.llama import Block, LlamaForCausalLM
from podwright_training.model.recomputation import Recomputation

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}  # by sections.compute.PRECISIONS


def configure(model: LlamaForCausalLM, options: TrainConfig, device_type: str) -> None:
    """Apply the options to a model that will compute on such a device, before it is divided among ranks."""
    if hasattr(model, "lm_head"):  # on the last stage of a pipeline
        model.lm_head.chunk_tokens = options.loss_chunk_tokens
        model.lm_head.z_loss = options.z_loss
        model.lm_head.compiled = options.compile
    model.model.attention = options.attention
    if options.float8:
        _use_float8(model)
    for block in model.model.layers:
        if isinstance(block, Block):
            if options.activation_checkpointing:
                block.recomputation = Recomputation(
                    mode=options.activation_checkpointing_mode,
                    offload=options.offload_activations,
                    remembers=isinstance(block.mlp, MixtureOfExperts),
                )
            if options.compile:
                _compile(block, compile_backend(device_type))


def _compile(block: Block, backend: str) -> None:
    """Compile a block; of one with a mixture, each part: no graph goes on where weights are gathered or rows sent."""
    if not isinstance(block.mlp, MixtureOfExperts):
        block.compile(backend=backend)
        return
    for part in (block.input_layernorm, block.self_attn, block.post_attention_layernorm, block.mlp.gate):
        part.compile(backend=backend)
    if block.mlp.shared_experts is not None:
        block.mlp.shared_experts.compile(backend=backend)
    block.mlp.experts.compile(backend=backend, dynamic=True)  # each step routes another number of rows


def float8_problem(device: torch.device) -> str | None:
    """Return why float8 is not available here, or ``None``."""
    if find_spec("torchao") is None:
        return "float8 needs torchao: `pip install torchao`, or leave float8 out"
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 9):
        return f"float8 needs an H100 or newer GPU; device is {device.type}"
    return None


def _use_float8(model: LlamaForCausalLM) -> None:
    """Replace the matrices of attention and feed-forward, not of routers and head."""
    from torchao.float8 import convert_to_float8_training  # type: ignore[import-not-found, import-untyped, unused-ignore]

    convert_to_float8_training(model.model.layers, module_filter_fn=_is_large)


def _is_large(module: nn.Module, _name: str) -> bool:
    """Return whether a module is a matrix whose sizes are multiples of 16, as float8 kernels need."""
    return isinstance(module, nn.Linear) and not (module.in_features % 16 or module.out_features % 16)
