"""Apply the options that change how a model computes, not its architecture."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn
from torch._functorch import config as compiler

from podwright_training.config.compilation import is_compiled
from podwright_training.config.parallel_dims import splits_backward
from podwright_training.config.train_config import TrainConfig
from podwright_training.model.device_compiler import compile_backend
from podwright_training.model.experts import Experts, MixtureOfExperts
from podwright_training.model.float8 import MULTIPLE, Float8Linear, use_float8
from podwright_training.model.llama import Block, LlamaForCausalLM
from podwright_training.model.recomputation import Recomputation

DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
}  # The keys are compute_options.PRECISIONS.


def configure(model: LlamaForCausalLM, config: TrainConfig, device_type: str) -> None:
    """Apply the options to a model that will compute on such a device, before it is divided among ranks."""
    compiled = is_compiled(config, device_type)
    if hasattr(model, "lm_head"):  # on the last stage of a pipeline
        model.lm_head.chunk_tokens = config.loss_chunk_tokens
        model.lm_head.z_loss = config.z_loss
        model.lm_head.compiled = compiled
    model.model.attention = config.attention
    if config.float8:
        use_float8(
            model.model.layers, parts=config.tensor_parallel
        )  # The head stays in bf16; routers are other layers.
    budgeted = config.activation_checkpointing and config.activation_checkpointing_mode == "budget"
    # PyTorch reads this variable of the process when a block is first compiled.
    compiler.activation_memory_budget = config.activation_memory_budget if budgeted else 1.0
    for block in model.model.layers:
        if isinstance(block, Block):
            if config.activation_checkpointing and not budgeted:
                block.recomputation = Recomputation(
                    mode=config.activation_checkpointing_mode,
                    offload=config.offload_activations,
                    remembers=isinstance(block.mlp, MixtureOfExperts),
                    in_parts=splits_backward(config),
                )
            if compiled:
                _compile(block, compile_backend(device_type))


def _compile(block: Block, backend: str) -> None:
    """Compile a block; for a mixture of experts, each part: gathering weights or sending rows breaks a graph."""
    if not isinstance(block.mlp, MixtureOfExperts):
        block.compile(backend=backend)
        return
    for part in (block.input_layernorm, block.self_attn, block.post_attention_layernorm, block.mlp.gate):
        part.compile(backend=backend)
    if block.mlp.shared_experts is not None:
        block.mlp.shared_experts.compile(backend=backend)
    block.mlp.experts.compile(backend=backend, dynamic=True)  # each step routes another number of rows


def kept_in_bf16(config: TrainConfig) -> str | None:
    """Return the matrices of each block that ``float8`` leaves in bf16, and why; ``None`` if it converts all."""
    with torch.device("meta"):
        model = LlamaForCausalLM(replace(config.model, num_hidden_layers=1))  # all blocks are alike
    block = model.model.layers[0]
    use_float8(block, parts=config.tensor_parallel)
    modules = dict(block.named_modules())
    odd = [name for name, item in modules.items() if isinstance(item, nn.Linear) and not isinstance(item, Float8Linear)]
    experts = [name for name, item in modules.items() if isinstance(item, Experts)]
    multiple = f"{MULTIPLE} x tensor_parallel {config.tensor_parallel}"
    reasons = [
        *([f"{', '.join(experts)}: routed experts are not linear layers"] if experts else []),
        *([f"{', '.join(odd)}: sizes are not multiples of {multiple}"] if odd else []),
    ]
    return f"float8 leaves in bf16, in each block, {'; '.join(reasons)}" if reasons else None


def float8_problem(device: torch.device) -> str | None:
    """Return why float8 is not available here, or ``None``."""
    if device.type == "cpu" and not torch._C._dispatch_has_kernel_for_dispatch_key("aten::_scaled_mm_v2", "CPU"):  # noqa: SLF001 - not public
        return f"float8 on a CPU needs PyTorch 2.13 or newer; this is {torch.__version__}"
    if device.type == "cpu" or (device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)):
        return None
    return f"float8 needs an H100 or newer GPU, or a CPU to try it on; device is {device.type}"
