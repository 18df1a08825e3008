"""torchtitan's own Trainer, 0.3.0 from PyPI and unedited.

On a GPU it has its defaults, CUDA graphs and all: its attention keeps documents apart. On a CPU, where that has no
backward, it has another, and what torchtitan asks of a GPU is answered here.
"""

# ruff: noqa: E402, SLF001 -- it looks for a GPU when it is imported, and its builders of models are private

from __future__ import annotations

import sys
import time
import types
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import work
from datasets import load_dataset
from torch.distributed.fsdp import FSDPModule

task, _ = work.arguments()
sys.argv = sys.argv[:1]


def _answer_for_cpus() -> None:
    """Device interface that torchtitan expects."""
    import psutil

    def memory_stats(*_: object) -> dict[str, int]:
        resident = psutil.Process().memory_info().rss
        return {
            "active_bytes.all.peak": resident,
            "reserved_bytes.all.peak": resident,
            "num_alloc_retries": 0,
            "num_ooms": 0,
        }

    torch._utils._get_available_device_type = lambda: "cpu"
    for name, answer in {
        "get_device_name": "CPU",
        "get_device_properties": types.SimpleNamespace(total_memory=psutil.virtual_memory().total),
        "device_count": 1,
        "set_device": None,
        "empty_cache": None,
        "reset_peak_memory_stats": None,
        "current_device": 0,
    }.items():
        setattr(torch.cpu, name, lambda *_, answer=answer: answer)
    torch.cpu.memory_stats = memory_stats


if task.device == "cpu":
    _answer_for_cpus()
if not hasattr(torch.distributed, "set_timeout"):  # newer than torch 2.13
    torch.distributed.set_timeout = lambda *_: None

import itertools

import torchtitan.distributed.fsdp
from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.hf_datasets import DatasetConfig, text_datasets
from torchtitan.models import llama3
from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3.state_dict_adapter import Llama3StateDictAdapter
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.tools.logging import init_logger
from torchtitan.trainer import Trainer


class CausalAttention(ScaledDotProductAttention):
    """SDPA over whole sequences: torchtitan's backends with masks have no backward on CPUs."""

    @dataclass(kw_only=True, slots=True)
    class Config(ScaledDotProductAttention.Config):
        """As its parent's."""

    def forward(self, q_BLNH: torch.Tensor, k_BLNH: torch.Tensor, v_BLNH: torch.Tensor, **options: Any) -> torch.Tensor:
        """``[B, L, N, H]`` in and out."""
        heads_first = (tensor.transpose(1, 2) for tensor in (q_BLNH, k_BLNH, v_BLNH))
        y = F.scaled_dot_product_attention(*heads_first, is_causal=True, enable_gqa=True, scale=options.get("scale"))
        return y.transpose(1, 2)


def _plain_sum(model: torch.nn.Module) -> None:
    """Gloo has no multiply-and-sum: FSDP sums and the loss is divided, as torchtitan does on GPUs."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


if task.device == "cpu":
    torchtitan.distributed.fsdp.disable_fsdp_gradient_division = _plain_sum
    llama3.parallelize.disable_fsdp_gradient_division = _plain_sum
    llama3.get_attention_config = lambda _backend: CausalAttention.Config()
text_datasets.DATASETS["bench"] = DatasetConfig(
    path=task.data,
    loader=lambda _path: load_dataset(
        "json",
        data_files=[str(path) for path in task.shards],
        split="train",
        streaming=True,
        trust_remote_code=False,
    ),
    sample_processor=lambda sample: sample["text"],
)

shape = task.model
width, vocab_size, tied = shape["hidden_size"], shape["vocab_size"], shape["tie_word_embeddings"]
rope = shape["rope_parameters"]
llama = {"scaling": "llama", "scaling_factor": rope["factor"]} if rope["rope_type"] == "llama3" else {}
model = llama3.Llama3Model.Config(
    dim=width,
    vocab_size=vocab_size,
    enable_weight_tying=tied,
    tok_embeddings=Embedding.Config(
        num_embeddings=vocab_size,
        embedding_dim=width,
        param_init=llama3._EMBEDDING_SKIP_INIT if tied else llama3._EMBEDDING_INIT,
    ),
    norm=RMSNorm.Config(normalized_shape=width, param_init=llama3._NORM_INIT),
    lm_head=Linear.Config(in_features=width, out_features=vocab_size, param_init=llama3._output_linear_init(width)),
    layers=llama3._build_llama3_layers(
        n_layers=shape["num_hidden_layers"],
        dim=width,
        n_heads=shape["num_attention_heads"],
        n_kv_heads=shape["num_key_value_heads"],
        hidden_dim=shape["intermediate_size"],
        rope=ComplexRoPE.Config(
            dim=shape["head_dim"], max_seq_len=shape["max_position_embeddings"], theta=rope["rope_theta"], **llama
        ),
        attn_backend="flex",
    ),
)
config = Trainer.Config(
    model_spec=ModelSpec(
        name="llama3",
        flavor="bench",
        model=model,
        parallelize_fn=llama3.parallelize_llama,
        pipelining_fn=None,
        post_optimizer_build_fn=None,
        state_dict_adapter=Llama3StateDictAdapter,
    ),
    loss=ChunkedLossWrapper.Config(loss_fn=CrossEntropyLoss.Config(global_vocab_size=vocab_size)),
    hf_assets_path=str(task.tokenizer),
    optimizer=default_adamw(lr=work.LEARNING_RATE),
    lr_scheduler=LRSchedulersContainer.Config(warmup_steps=2),
    training=TrainingConfig(
        local_batch_size=task.sequences_per_rank,
        seq_len=task.sequence,
        steps=task.steps,
        disable_cuda_graphs=task.device == "cpu",
        mixed_precision_param={"fp32": "float32", "bf16": "bfloat16"}[task.dtype],
    ),
    dataloader=text_datasets.HuggingFaceTextDataLoader.Config(dataset="bench"),
    metrics=MetricsProcessor.Config(log_freq=1),
    parallelism=ParallelismConfig(**({"spmd_backend": "partial_dtensor"} if task.device == "cpu" else {})),
    checkpoint=CheckpointManager.Config(enable=False),
    activation_checkpoint=None,
    compile=CompileConfig(enable=task.compile),
)
init_logger()
trainer = config.build()
ends = [time.perf_counter()]
step = trainer.train_step


def _timed(*arguments: Any, **options: Any) -> Any:
    result = step(*arguments, **options)
    ends.append(time.perf_counter())
    return result


trainer.train_step = _timed
trainer.train()
trainer.close()
work.report([end - begin for begin, end in itertools.pairwise(ends)])
torch.distributed.destroy_process_group()
