"""Measure the trainer on one GPU in nine minutes: whether it is right, then how fast it is beside its peers.

    python bench/gpu.py [--budget-s 540] [--parts ceilings,parity] [--list] [--device cpu] [--output FOLDER]
    python bench/gpu.py --write-expectations

Smallest: python bench/gpu.py --device cpu --parts ceilings,parity --budget-s 300

Needs PyTorch 2.11 or newer, transformers and safetensors, but no network and no installed podwright: with
``PYTHONPATH=training:common`` the checkout is enough. Data and reference are generated from a seed.

Each part has processes of its own and a time limit; what it prints is a line of JSON per case, written at once to
``results.jsonl`` in the output folder and to standard output. A part that fails leaves its last lines there and the
next part begins; one for which no time is left is skipped. At the end comes a table, and ``rows.csv`` has the speeds as
``bench/data/published_throughput.csv`` has them. ``bench/data/gpu_expectations.json`` has what ``dry-run`` and
``plan`` said before; ``--write-expectations`` writes it, on a machine without a GPU.

On a CPU every part runs with small sizes: its times mean nothing, but nothing is run on a GPU for the first time.
"""

from __future__ import annotations

import argparse
import csv
import gc
import gzip
import json
import math
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import torch
    from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
EXPECTATIONS = ROOT / "bench" / "data" / "gpu_expectations.json"
THROUGHPUT = ROOT / "bench" / "data" / "published_throughput.csv"

TAIL_LINES = 40  # of a failed part's log
MOST_BYTES = 15 << 20  # of a file in the output folder
CLOSING_S = 8.0  # of the budget, for the table
LEARNING_RATE = 3e-4
GB = 1e9

ENVIRONMENT = {
    "PYTHONUNBUFFERED": "1",
    "NCCL_SOCKET_IFNAME": "lo",
    "GLOO_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}


ON_GPU = {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "TORCHINDUCTOR_COMPILE_THREADS": "8"}
ON_CPU = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}


@dataclass(frozen=True)
class Setting:
    """Device of a benchmark, and folders that its parts share.

    Attributes:
        device: ``cuda`` or ``cpu``.
        work: folder for data, runs and caches.
        output: folder for files to keep.
    """

    device: str
    work: Path
    output: Path

    @property
    def is_gpu(self) -> bool:
        """Return whether sizes are those of a GPU."""
        return self.device == "cuda"

    @property
    def large(self) -> dict[str, Any]:
        """Return the trainer's options for Llama 3.2 1B with 16,384 tokens per step, or for a small model."""
        if not self.is_gpu:
            return {"preset": "tiny", "max_context_width": 64, "train_batch_size": 2, **self._data(2048)}
        return {"preset": "llama3_2_1b", "max_context_width": 8192, "train_batch_size": 2, **self._data(128256)}

    @property
    def middle(self) -> dict[str, Any]:
        """Return the options of a model of 60 million parameters, or of a tiny one."""
        if not self.is_gpu:
            return {**self.large, "max_context_width": 32}
        return {
            "model_type": "llama_v3",
            "vocab_size": 32000,
            "hidden_size": 512,
            "intermediate_size": 1536,
            "num_layers": 8,
            "num_heads": 8,
            "num_key_value_heads": 4,
            "max_context_width": 2048,
            "train_batch_size": 4,
            **self._data(32000),
        }

    def _data(self, vocab_size: int) -> dict[str, Any]:
        folder = self.work / f"tokens-{vocab_size}"
        return {
            "dataset": str(folder),
            "dataset_config_name": "none",
            "tokenizer": str(self.work / "tokenizer"),
            "data_streams": 4,
            "validation_batches": 1,
            "val_batch_size": 1,
            "device": self.device,
            "lr": LEARNING_RATE,
        }


@dataclass(frozen=True)
class Part:
    """A part of the benchmark.

    Attributes:
        run: prints its cases with ``emit``.
        limit_s: longest time on a GPU.
        expected_s: time on a GPU; a part is skipped when less is left.
        beside: it runs beside the parts next to it that have this too: it measures no time.
        summary: for ``--list``.
    """

    run: Callable[[Setting], None]
    limit_s: float
    expected_s: float
    summary: str
    beside: bool = False


def emit(case: str, **values: Any) -> None:
    """Print a result."""
    print(json.dumps({"case": case, **values}, default=str), flush=True)


# ---------------------------------------------------------------------------------------------------------------------
# Data


def make_data(setting: Setting) -> None:
    """Write a tokenizer of the checkout's own pages, and token shards: documents of random words by Zipf's law."""
    import numpy as np

    from podwright_training.data import byte_level_bpe
    from podwright_training.data.token_shards import write_token_shard
    from podwright_training.data.tokenizer import Encoder, load_tokenizer

    began = time.monotonic()
    pages = (path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("docs/**/*.md")))
    tokenizer = setting.work / "tokenizer"
    byte_level_bpe.train(pages, tokenizer, vocab_size=2048)
    encoder = Encoder(load_tokenizer(str(tokenizer)))
    for vocab_size in (32000, 128256) if setting.is_gpu else (2048,):
        folder = setting.work / f"tokens-{vocab_size}"
        if folder.exists():  # of an earlier run with the same --work
            continue
        folder.mkdir()
        generator = np.random.default_rng(vocab_size)
        chance = 1 / np.arange(10, vocab_size + 10)
        words = generator.permutation(vocab_size)
        total = 0
        for split, documents in {"train": 800 if setting.is_gpu else 200, "validation": 64}.items():
            for number in range(2):
                lengths = np.clip(generator.lognormal(6, 1.2, documents), 16, 16384).astype(int)
                drawn = words[generator.choice(vocab_size, lengths.sum(), p=chance / chance.sum())].astype(np.uint32)
                drawn[drawn == encoder.end] += 1
                pieces = np.split(drawn, np.cumsum(lengths)[:-1])
                for piece in pieces:
                    piece[-1] = encoder.end
                name = f"{split}.{number:05d}-of-00002.safetensors"
                write_token_shard(folder / name, pieces, tokenizer=encoder.digest)
                total += int(lengths.sum())
        emit(f"tokens for {vocab_size}", tokens=total, seconds=time.monotonic() - began)


def sequences(options: Mapping[str, Any]) -> Iterator[Tensor]:
    """Yield batches ``[B, T + 1]`` of the same tokens, for loops that are not our trainer."""
    import torch
    from safetensors.torch import load_file

    shard = load_file(next(Path(options["dataset"]).glob("train.00000*")))
    tokens = shard["tokens"].to(torch.int64)
    size, width = options["train_batch_size"], options["max_context_width"] + 1
    while True:
        for begin in range(0, len(tokens) - size * width, size * width):
            yield tokens[begin : begin + size * width].view(size, width)


# ---------------------------------------------------------------------------------------------------------------------
# Tools of parts


def gpu_events() -> tuple[Any, Any]:
    """Return two events that take the time."""
    import torch

    event: Any = torch.cuda.Event
    return event(enable_timing=True), event(enable_timing=True)


def spent_ms(action: Callable[[], object], setting: Setting, *, repeats: int = 10, warm_up: int = 3) -> float:
    """Return the median time of an action, by events of the GPU, or by the clock."""
    import torch

    times: list[float] = []
    for number in range(warm_up + repeats if setting.is_gpu else 2):
        if setting.is_gpu:
            begin, end = gpu_events()
            begin.record()
            action()
            end.record()
            torch.cuda.synchronize()
            took = begin.elapsed_time(end)
        else:
            start = time.perf_counter()
            action()
            took = 1e3 * (time.perf_counter() - start)
        times += [took] if number >= warm_up or not setting.is_gpu else []
    return statistics.median(times)


def distance(result: Tensor, reference: Tensor) -> float:
    """Return ‖result - reference‖ / ‖reference‖, in float64; infinite if something is no number."""
    difference = (result.detach().double() - reference.detach().double()).norm() / reference.detach().double().norm()
    value = float(difference)
    return value if math.isfinite(value) else math.inf


def load_options(**values: Any) -> Any:
    """Return the trainer's options, checked."""
    from podwright_training.config.sources import load

    return load(argparse.Namespace(config=None, unknown_words=[], **values))


@contextmanager
def one_rank(setting: Setting) -> Iterator[torch.device]:
    """Join a process group of this process alone; yield its device."""
    import torch

    from podwright_training.device import process_group
    from podwright_training.ranks import Ranks

    device = torch.device("cuda", 0) if setting.is_gpu else torch.device("cpu")
    with process_group(Ranks(), device):
        yield device


def random_batch(vocab_size: int, *, sequences: int, length: int, seed: int, documents: bool = False) -> Any:
    """Return a batch of the trainer: random tokens, contiguous; with documents, their positions."""
    import torch

    from podwright_training.batch import Batch

    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(vocab_size, (sequences, length + 1), generator=generator)
    positions = None
    if documents:
        places = torch.arange(length).expand(sequences, -1)
        begins = torch.rand(sequences, length, generator=generator) < 8 / length
        positions = places - torch.where(begins, places, 0).cummax(1).values
    return Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), positions)


def gradients(model: Any) -> dict[str, Tensor]:
    """Return a model's gradients as whole tensors, and forget them there."""
    taken = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            gradient = parameter.grad
            taken[name] = (gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient).detach().clone()
            parameter.grad = None
    return taken


def worst_distance(result: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> tuple[float, str]:
    """Return the largest distance of a gradient, and of which parameter."""
    if set(result) != set(reference):
        return math.inf, f"other parameters: {sorted(set(result) ^ set(reference))[:3]}"
    return max((distance(result[name], reference[name]), name) for name in reference)


def reset_peak(setting: Setting) -> None:
    """Begin to measure peak memory."""
    import torch

    if setting.is_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_gb(setting: Setting) -> float | None:
    """Return the most memory allocated since ``reset_peak``; ``None`` on a CPU."""
    import torch

    return round(torch.cuda.max_memory_allocated() / GB, 3) if setting.is_gpu else None


# ---------------------------------------------------------------------------------------------------------------------
# Parts


def measure_ceilings(setting: Setting) -> None:
    """Measure copies and matrix products: what nothing can be faster than."""
    import torch

    _describe_machine(setting)
    device = torch.device(setting.device)
    elements = (4 << 30 if setting.is_gpu else 8 << 20) // 4
    source = torch.randn(elements, device=device)
    target = torch.empty_like(source)
    emit("copy on the device", tb_s=8 * elements / spent_ms(partial(target.copy_, source), setting) / 1e9)
    del source, target
    shapes = [(8192, 8192, 8192), (16384, 2048, 8192), (16384, 8192, 2048), (16384, 2048, 128256)]
    for m, k, n in shapes if setting.is_gpu else [(128, 128, 128)]:
        a = torch.randn(m, k, device=device, dtype=torch.bfloat16)
        b = torch.randn(n, k, device=device, dtype=torch.bfloat16)
        ms = spent_ms(partial(torch.mm, a, b.t()), setting)
        emit(f"bf16 {m}x{k}x{n}", tflop_s=2 * m * k * n / ms / 1e9, ms=ms)
        del a, b
    size = 1 << 30 if setting.is_gpu else 1 << 20
    on_host, on_device = torch.empty(size, dtype=torch.uint8), torch.empty(size, dtype=torch.uint8, device=device)
    emit("pageable memory to device", gb_s=size / spent_ms(lambda: on_device.copy_(on_host), setting, repeats=3) / 1e6)
    if setting.is_gpu:
        pinned = on_host.pin_memory()
        for name, action in {
            "pinned memory to device": lambda: on_device.copy_(pinned, non_blocking=True),
            "device to pinned memory": lambda: pinned.copy_(on_device, non_blocking=True),
        }.items():
            emit(name, gb_s=size / spent_ms(action, setting, repeats=5) / 1e6)


def smi(query: str) -> dict[str, str]:
    """Return what ``nvidia-smi`` answers; nothing where there is no such program."""
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(query.split(","), answer.strip().split(", "), strict=False))


def _describe_machine(setting: Setting) -> None:
    import torch
    import transformers

    values: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "cores": os.cpu_count(),
        "device": platform.processor() or "CPU",
    }
    if setting.is_gpu:
        properties, nccl = torch.cuda.get_device_properties(0), cast("Any", torch.cuda.nccl)
        values |= {
            "device": properties.name,
            "memory_gib": round(properties.total_memory / 2**30, 2),
            "multiprocessors": properties.multi_processor_count,
            "triton": version("triton"),
            "cuda": torch.version.cuda,
            "cudnn": cast("Any", torch.backends.cudnn).version(),
            "nccl": nccl.version(),
        }
    emit("machine", **values, **smi("driver_version,clocks.sm,clocks.mem,power.limit,temperature.gpu"))


def compare_with_hugging_face(setting: Setting) -> None:
    """Compare loss and gradients with transformers in fp64, with the same weights; transformers' own errors beside."""
    import torch
    import torch.nn.functional as F
    from transformers import LlamaConfig
    from transformers import LlamaForCausalLM as HuggingFaceLlama

    from podwright_training.model import LlamaForCausalLM

    device = torch.device(setting.device)
    length = 512 if setting.is_gpu else 48
    options = load_options(
        **{**setting.large, "preset": "tiny", "vocab_size": 2048, "max_context_width": length},
        hidden_size=512,
        intermediate_size=1408,
        num_heads=8,
        num_key_value_heads=2,
        rope_scaling_factor=32.0,
        max_position_embeddings=131072,
    )
    batch = random_batch(2048, sequences=2, length=length, seed=1).to(device)
    settings = {**options.model.to_hf(), "use_cache": False}
    torch.manual_seed(0)
    reference = HuggingFaceLlama(LlamaConfig(**settings, attn_implementation="eager")).double().to(device)
    weights = reference.state_dict()

    def hugging_face(model: Any) -> tuple[Tensor, dict[str, Tensor]]:
        logits = model(input_ids=batch.tokens_BT).logits
        logits = logits if logits.dtype == torch.float64 else logits.float()
        loss = F.cross_entropy(logits.flatten(0, 1), batch.labels_BT.flatten())
        torch.autograd.backward(loss)
        return loss.detach(), gradients(model)

    def ours(model: Any) -> tuple[Tensor, dict[str, Tensor]]:
        loss = model(batch.tokens_BT, labels_BT=batch.labels_BT) / batch.labels_BT.numel()
        loss.backward()
        return loss.detach(), gradients(model)

    exact_loss, exact = hugging_face(reference)
    for name, dtype, tolerance in (("fp32", torch.float32, 1e-4), ("bf16", torch.bfloat16, 4e-2)):
        peer = HuggingFaceLlama(LlamaConfig(**settings, attn_implementation="sdpa")).to(device, dtype)
        peer.load_state_dict(weights)
        model = LlamaForCausalLM(options.model).to(device, dtype)
        model.load_state_dict({key: value for key, value in weights.items() if key in model.state_dict()})
        model.model.rotary_emb.reset()
        results = {"hf": hugging_face(peer), "ours": ours(model)}
        values: dict[str, Any] = {}
        for side, (loss, of_parameters) in results.items():
            worst, where = worst_distance(of_parameters, exact)
            values |= {f"{side}_loss": distance(loss, exact_loss), f"{side}_gradient": worst, f"{side}_worst": where}
        emit(f"against fp64: {name}", ok=values["ours_gradient"] < tolerance, **values)


def compare_attention(setting: Setting, kernels: str = "") -> None:
    """Compare attention kernels with fp64, forward and backward, and time them at the size of the 1B model.

    Args:
        setting: device and folders.
        kernels: only kernels with this in their name.
    """
    import torch

    torch._dynamo.config.automatic_dynamic_shapes = False  # noqa: SLF001 - or the second size is compiled for all sizes
    for head_dim in (64, 128) if setting.is_gpu else (16,):
        for name, call in _attention_kernels(setting).items():
            if kernels not in name:
                continue
            try:
                values = _attention_case(call, setting, head_dim)
                emit(f"attention {name}, heads of {head_dim}", **values)
            except Exception as error:  # noqa: BLE001 - one kernel that is not there says nothing of the next
                wrong = {} if name in BACKENDS else {"ok": False}  # a backend may refuse, our own choice may not
                emit(f"attention {name}, heads of {head_dim}", **wrong, error=f"{type(error).__name__}: {error}"[:200])
            torch._dynamo.reset()  # noqa: SLF001 - it compiles a function a limited number of times
            if setting.is_gpu:
                torch.cuda.empty_cache()


BACKENDS = {"cudnn": "CUDNN_ATTENTION", "flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION"}


def _attention_kernels(setting: Setting) -> dict[str, tuple[Any, dict[str, Any]]]:
    from torch.nn.attention import SDPBackend

    backends = {name: getattr(SDPBackend, kernel) for name, kernel in (BACKENDS if setting.is_gpu else {}).items()}
    masks: dict[str, dict[str, Any]] = {
        "flex causal": {"window": None},
        "flex documents": {"documents": True},
        "flex window": {"window": 512},
        "flex documents, window": {"documents": True, "window": 512},
    }
    return {
        "default": (None, {}),
        **{name: (backend, {}) for name, backend in backends.items()},
        **{name: (None, {"flex": True, **mask}) for name, mask in masks.items()},
    }


def _attention_case(kernel: tuple[Any, dict[str, Any]], setting: Setting, head_dim: int) -> dict[str, Any]:
    """Return errors of a small case, and the time, rate and kernels of a large one."""
    import torch

    small = {"sequences": 2, "length": 1024 if setting.is_gpu else 256, "heads": 4, "groups": 2}
    large = {"sequences": 2, "length": 8192, "heads": 2048 // head_dim, "groups": 512 // head_dim}
    results, exact = (_attention(kernel, setting, head_dim, exact=exact, **small) for exact in (False, True))
    names = ("forward", "dq", "dk", "dv")
    values: dict[str, Any] = {
        name: distance(result, reference) for name, result, reference in zip(names, results(), exact(), strict=False)
    }
    values["ok"] = max(values.values()) < 2e-2  # noqa: PLR2004 - bf16's
    if setting.is_gpu:
        call = _attention(kernel, setting, head_dim, exact=False, **large)
        ms = spent_ms(call, setting)
        flops = 3.5 * 4 * large["sequences"] * large["heads"] * large["length"] ** 2 * head_dim / 2
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            call()
            torch.cuda.synchronize()
        longest = sorted(profiler.key_averages(), key=lambda item: -item.device_time_total)[:2]
        values |= {"ms": ms, "causal_tflop_s": flops / ms / 1e9, "kernels": [item.key[:60] for item in longest]}
    return values


def _attention(
    kernel: tuple[Any, dict[str, Any]],
    setting: Setting,
    head_dim: int,
    *,
    exact: bool,
    sequences: int,
    length: int,
    heads: int,
    groups: int,
) -> Callable[[], tuple[Tensor, ...]]:
    """Return a call of forward and backward: the trainer's own ``attend``, or with ``exact`` plain products in fp64."""
    import torch
    from torch.nn.attention import sdpa_kernel

    from podwright_training.model import attention

    backend, mask = kernel
    device = torch.device(setting.device)
    generator = torch.Generator().manual_seed(0)
    shapes = ((sequences, length, heads, head_dim), *[(sequences, length, groups, head_dim)] * 2)
    drawn = [torch.randn(shape, generator=generator).bfloat16().to(device) for shape in shapes]
    learns = setting.is_gpu or not mask.get("flex")  # flex attention has no backward on a CPU
    inputs = [(item.double() if exact else item).requires_grad_(learns) for item in drawn]
    slope = torch.randn(shapes[0], generator=generator).bfloat16().to(device)
    starts = None
    if mask.get("documents"):
        token = torch.arange(length, device=device)
        starts = (token // (length // 8) * (length // 8)).expand(sequences, -1)
    window, block_mask = mask.get("window"), None
    if mask.get("flex"):
        block_mask = attention.block_mask(length, starts_BT=starts, window=window, device=device)

    def run() -> tuple[Tensor, ...]:
        if exact:
            seen = attention.pair_mask(length, starts_BT=starts, window=window, device=device)
            q, k, v = (item.transpose(1, 2) for item in inputs)
            k, v = (item.repeat_interleave(heads // groups, dim=1) for item in (k, v))
            scores = (q @ k.mT / math.sqrt(head_dim)).masked_fill(~seen, -math.inf)
            y = (scores.softmax(-1) @ v).transpose(1, 2)
        else:
            with sdpa_kernel(backend) if backend is not None else nullcontext():
                q, k, v = inputs
                y = attention.attend(q, k, v, block_mask)
        return (y, *torch.autograd.grad(y, inputs, slope.to(y.dtype))) if learns else (y,)

    return run


def compare_variants(setting: Setting, chosen: tuple[str, ...] = ()) -> None:
    """Compare compiled blocks, recomputation, chunks of the loss and float8 with the eager model, on other batches.

    Args:
        setting: device and folders.
        chosen: only these variants; the first is what the others are compared with.
    """
    import torch
    from torch._dynamo.utils import counters

    small = {
        "hidden_size": 1024 if setting.is_gpu else 64,
        "intermediate_size": 2816 if setting.is_gpu else 128,
        "num_layers": 2 if setting.is_gpu else 1,
        "num_heads": 16 if setting.is_gpu else 4,
        "num_key_value_heads": 4 if setting.is_gpu else 2,
        "vocab_size": 128256 if setting.is_gpu else 2048,
        "max_context_width": 1024 if setting.is_gpu else 32,
    }
    base: dict[str, Any] = {**setting.middle, **small, "train_batch_size": 2, "activation_checkpointing": False}
    base["precision"] = "bf16" if setting.is_gpu else "fp32"
    again = {"activation_checkpointing": True}
    variants: dict[str, dict[str, Any]] = {
        "eager": {},
        "eager, again": {},
        "compiled": {"compile": True},
        "compiled, selective": {"compile": True, **again, "activation_checkpointing_mode": "selective"},
        "compiled, float8": {"compile": True, "float8": True, "precision": "bf16"},
        "full": again,
        "full, offloaded": {**again, "offload_activations": True},
        "whole loss": {"loss_chunk_tokens": 0},
        "compiled, full": {"compile": True, **again},
        "compiled, budget 0.5": {"compile": True, **again, "activation_checkpointing_mode": "budget"},
        "float8": {"float8": True, "precision": "bf16"},
    }
    if not setting.is_gpu:  # each compiles for many seconds on a CPU
        variants = {name: variants[name] for name in ("eager", "compiled", "full", "whole loss")}
    variants = {name: options for name, options in variants.items() if not chosen or name in chosen}
    exact: list[tuple[Tensor, dict[str, Tensor]]] = []
    with one_rank(setting) as device:
        for name, options in variants.items():
            torch._dynamo.reset()  # noqa: SLF001 - it has no public name
            counters.clear()
            try:
                results, values = _steps_of_variant({**base, **options}, setting, device)
                exact = exact or results
                values |= _graphs(counters)
                losses = [distance(a[0], b[0]) for a, b in zip(results, exact, strict=True)]
                worst = max(worst_distance(a[1], b[1]) for a, b in zip(results, exact, strict=True))
                limit = 0.2 if "float8" in name else 0.03
                emit(
                    f"variant {name}",
                    ok=worst[0] < limit,
                    loss=max(losses),
                    gradient=worst[0],
                    worst=worst[1],
                    **values,
                )
            except Exception as error:  # noqa: BLE001 - the next variant is another one
                emit(f"variant {name}", ok=False, error=f"{type(error).__name__}: {error}"[:400])


def _graphs(counters: Mapping[str, Counter[str]]) -> dict[str, Any]:
    return {
        "graphs": counters["stats"]["unique_graphs"],
        "breaks": sum(counters["graph_break"].values()),
        **({"break": next(iter(counters["graph_break"]))[:120]} if counters["graph_break"] else {}),
    }


def _steps_of_variant(
    values: dict[str, Any], setting: Setting, device: torch.device
) -> tuple[list[tuple[Tensor, dict[str, Tensor]]], dict[str, Any]]:
    from podwright_training.parallel import ParallelModel
    from podwright_training.ranks import Ranks

    options = load_options(**values)
    model = ParallelModel(options, Ranks(), device)
    batches = [
        random_batch(options.vocab_size, sequences=2, length=options.max_context_width, seed=seed) for seed in range(3)
    ]
    results = []
    for batch in batches:
        loss = model.forward_backward([batch], tokens=batch.labels_BT.numel())
        results.append((loss.detach().clone(), gradients(model)))
    reset_peak(setting)
    model.forward_backward(batches[:1], tokens=1000)
    return results, {"peak_gb": peak_gb(setting)}


def repeat_with_one_seed(setting: Setting) -> None:
    """Take the same step twice, of a dense model and of a mixture: are the gradients the same bits?"""
    import torch

    from podwright_training.parallel import ParallelModel
    from podwright_training.ranks import Ranks

    mixture = {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    with one_rank(setting) as device:
        for name, more in {"dense": {}, "mixture": mixture}.items():
            for deterministic in (False, True):
                torch.use_deterministic_algorithms(deterministic)
                case = f"same seed twice: {name}" + ", deterministic" * deterministic
                try:
                    options = load_options(**{**setting.middle, **more, "train_batch_size": 2})
                    model = ParallelModel(options, Ranks(), device)
                    batch = random_batch(options.vocab_size, sequences=2, length=options.max_context_width, seed=3)
                    runs = []
                    for _ in range(3):
                        loss = model.forward_backward([batch], tokens=batch.labels_BT.numel())
                        runs.append((loss.detach().clone(), gradients(model)))
                    differing = {key for a, b in pairwise(runs) for key in a[1] if not a[1][key].equal(b[1][key])}
                    emit(case, bit_equal=not differing, differing=len(differing), first=sorted(differing)[:2])
                except Exception as error:  # noqa: BLE001 - the next case is another one
                    emit(case, ok=False, error=f"{type(error).__name__}: {error}"[:300])
        torch.use_deterministic_algorithms(mode=False)
        _compare_experts(setting, device)


def _compare_experts(setting: Setting, device: torch.device) -> None:
    """Compare the grouped products of experts with a loop over them in fp64."""
    import torch

    from podwright_training.model.experts import Experts

    options = load_options(
        **{**setting.middle, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
    )
    torch.manual_seed(0)
    exact = Experts(options.model).double().to(device)
    for parameter in exact.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    counts = torch.tensor([0, 5, 64, 1, 128, 40, 10, 8], device=device)
    rows = int(counts.sum())
    x = torch.randn(rows, options.hidden_size, device=device).bfloat16()
    grouped = Experts(options.model).to(device, torch.bfloat16)
    grouped.load_state_dict(exact.state_dict())
    exact.load_state_dict({name: value.double() for name, value in grouped.state_dict().items()})
    outcomes = []
    for model, dtype in ((grouped, torch.bfloat16), (exact, torch.float64)):
        rows_in = x.detach().to(dtype, copy=True).requires_grad_()
        y = model(rows_in, counts)
        y.backward(torch.ones_like(y))
        outcomes.append([y, rows_in.grad, *gradients(model).values()])
    worst = max(distance(a, b) for a, b in zip(*outcomes, strict=True))
    emit("grouped products against a loop in fp64", ok=worst < 2e-2, error_=worst)  # noqa: PLR2004 - bf16's


def train_and_resume(setting: Setting) -> None:
    """Train without interruption, twice, and with a signal and a resumption between: are the steps the same bits?

    The second uninterrupted run separates a wrong resumption from runs that differ by themselves.
    """
    steps = 200 if setting.is_gpu else 8
    options = {
        **setting.middle,
        "max_steps": steps,
        "checkpoint_freq": steps // 3,
        "logging_freq": 1,
        "compile": setting.is_gpu,
        "activation_checkpointing": False,
        "deterministic": True,
    }
    whole = Run(setting, "whole", options).start()
    again = Run(setting, "again", options).start()
    broken = Run(setting, "broken", options).start()
    broken.wait_for("train", steps // 5, limit_s=150)
    broken.process.send_signal(signal.SIGUSR1)
    status = broken.process.wait(100)
    stopped = broken.events("train")[-1]["step"]
    resumed = Run(setting, "broken", options).start()
    statuses = [status, *(run.process.wait(150) for run in (whole, again, resumed))]
    for run in (whole, again, resumed):
        run.check()
    logged = {run.name: {event["step"]: event for event in run.events("train")} for run in (whole, again, resumed)}
    keys = ("loss", "grad_norm", "batch_digest")

    def first_differing(name: str) -> dict[str, int | None]:
        return {
            key: next(
                (step for step in range(1, steps + 1) if logged["whole"][step][key] != logged[name][step][key]), None
            )
            for key in keys
        }

    differing = {name: first_differing(name) for name in ("again", "broken")}
    saves = whole.events("checkpoint")
    same = not any(step for steps_by_key in differing.values() for step in steps_by_key.values())
    emit(
        "the real trainer, stopped and resumed",
        ok=same and stopped < steps and not any(statuses),
        statuses=statuses,
        stopped_at=stopped,
        losses=[logged["whole"][1]["loss"], logged["whole"][steps]["loss"]],
        again_differs_from=differing["again"],
        resumed_differs_from=differing["broken"],
    )
    emit(
        "asynchronous saves",
        ok=len(saves) >= 2,  # noqa: PLR2004 - the second is the one that may fail
        count=len(saves),
        paused_s=[save["paused_s"] for save in saves],
        seconds=[save["seconds"] for save in saves],
    )


class Run:
    """A run of the real command ``podwright-train train`` in a process of its own."""

    def __init__(self, setting: Setting, name: str, options: Mapping[str, Any]) -> None:
        self.name = name
        self.folder = setting.work / "runs" / name
        self._options = options
        self._log = setting.work / f"run-{name}-{time.monotonic_ns()}.log"

    def start(self) -> Run:
        """Start it."""
        from podwright_training.spelling import as_flag

        flags = [as_flag(name, value) for name, value in self._options.items()]
        command = [sys.executable, "-m", "podwright_training", "train", *flags, f"--run-dir={self.folder}"]
        with self._log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        return self

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Return the events of a kind so far."""
        path = self.folder / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        events = [json.loads(line) for line in lines if line.endswith("}")]
        return [event for event in events if event["event"] == kind]

    def wait_for(self, kind: str, step: int, *, limit_s: float) -> None:
        """Wait until it has logged an event of a step."""
        until = time.monotonic() + limit_s
        while not any(event["step"] >= step for event in self.events(kind)):
            if self.process.poll() is not None:
                self.check()
                raise RuntimeError(f"{self.name} ended before step {step}")
            if time.monotonic() > until:
                self.process.kill()
                self._print_log()
                raise TimeoutError(f"{self.name} has not reached step {step} in {limit_s:.0f} s")
            time.sleep(0.1)

    def check(self) -> None:
        """Raise an error with the end of the log if it has failed."""
        if self.process.returncode:
            self._print_log()
            raise RuntimeError(f"{self.name} ended with status {self.process.returncode}")

    def is_out_of_memory(self) -> bool:
        """Return whether the GPU's memory was not enough."""
        return "out of memory" in self._log.read_text(errors="replace").lower()

    def _print_log(self) -> None:
        print("\n".join(self._log.read_text(errors="replace").splitlines()[-TAIL_LINES:]), file=sys.stderr)


LARGE_VARIANTS: dict[str, dict[str, Any]] = {
    "compiled": {"compile": True, "activation_checkpointing": False},
    "default": {},
    "documents": {"compile": True, "activation_checkpointing": False, "document_mask": True},
    "short": {"compile": True, "activation_checkpointing": False},
    "selective": {"compile": True, "activation_checkpointing": True, "activation_checkpointing_mode": "selective"},
    "full": {"compile": True, "activation_checkpointing": True, "activation_checkpointing_mode": "full"},
    "float8": {"compile": True, "activation_checkpointing": False, "float8": True},
    "eager": {"compile": False, "activation_checkpointing": False},
}


def train_large(setting: Setting, variant: str) -> None:
    """Train 1B with the real command, log every fifth step, and end it without a checkpoint."""
    every = 5 if setting.is_gpu else 2
    last = 4 * every
    options = {**setting.large, **LARGE_VARIANTS[variant], "max_steps": 1000, "logging_freq": every}
    if not setting.is_gpu and variant != "compiled":
        options["compile"] = False  # it takes a minute there
    if variant == "float8" and (problem := _float8_problem(setting)):
        emit("float8", skipped=problem)
        return
    if variant == "short":
        options |= {"max_context_width": options["max_context_width"] // 2, "train_batch_size": 4}
    profiled = variant in ("compiled", "default")
    if profiled:
        options["profile_steps"] = f"{last + 2}-{last + 2}"
    run = Run(setting, f"large-{variant}", options).start()
    try:
        run.wait_for("train", last, limit_s=150 if setting.is_gpu else 400)
        trace = run.folder / "traces" / "rank-0.json"
        events = run.events("train")
        _emit_large(variant, events, run, options)
        if variant == "compiled":
            emit("card under load", **smi("clocks.sm,clocks.mem,power.draw,temperature.gpu"))
        if profiled:
            _wait_for_file(trace, run.process, limit_s=30)
    except RuntimeError:
        if not run.is_out_of_memory():
            raise
        emit(f"1B {variant}", outcome="oom", **_work_of(options))
        return
    finally:
        run.process.kill()  # before it saves
        run.process.wait()
    if profiled and trace.exists():
        _read_trace(trace, setting, variant)


def _float8_problem(setting: Setting) -> str | None:
    import torch

    from podwright_training.model.configure import float8_problem

    return float8_problem(torch.device(setting.device))


def _work_of(options: Mapping[str, Any]) -> dict[str, Any]:
    return {"length": options["max_context_width"], "sequences": options["train_batch_size"]}


def _emit_large(variant: str, events: Sequence[Mapping[str, Any]], run: Run, options: Mapping[str, Any]) -> None:
    from podwright_training.config.sources import load_file

    steady = events[1:]
    config = load_file(run.folder / "config.yaml")
    flops = run.events("start")[0]["flops_per_token"]
    tokens_per_s = statistics.median(event["tokens_per_s"] for event in steady)
    emit(
        f"1B {variant}",
        tokens_per_s=tokens_per_s,
        step_s=[round(event["step_s"], 4) for event in steady],
        data_s=steady[-1]["data_s"],
        first_step_s=events[0].get("first_step_s"),
        model_tflop_s=tokens_per_s * flops / 1e12,
        mfu=steady[-1]["mfu"],
        peak_gb=events[-1]["memory_peak_bytes"] / GB,
        reserved_gb=(events[-1]["memory_reserved_bytes"] or 0) / GB,
        loss=[events[0]["loss"], events[-1]["loss"]],
        compile=bool(config.compile),
        recompute=config.activation_checkpointing_mode if config.activation_checkpointing else "none",
        framework="podwright",
        **_work_of(options),
    )


def _wait_for_file(path: Path, process: subprocess.Popen[bytes], *, limit_s: float) -> None:
    """Wait until a file is there and no longer grows."""
    until, size = time.monotonic() + limit_s, -1
    while time.monotonic() < until and process.poll() is None:
        if path.exists() and path.stat().st_size == size > 0:
            return
        size = path.stat().st_size if path.exists() else -1
        time.sleep(1)


def _read_trace(trace: Path, setting: Setting, variant: str) -> None:
    """Print how busy the device was in the profiled step, what waited for it, the longest kernels; keep the trace."""
    events = json.loads(trace.read_text())["traceEvents"]
    on_device = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    on_device = on_device or [event for event in events if event.get("cat") == "cpu_op"]
    intervals = sorted((event["ts"], event["ts"] + event["dur"]) for event in on_device)
    busy, end = 0.0, intervals[0][0]
    for begin, finish in intervals:
        busy += max(0.0, finish - max(begin, end))
        end = max(end, finish)
    by_name: Counter[str] = Counter()
    for event in on_device:
        by_name[event["name"]] += event["dur"]
    calls = Counter(event["name"] for event in events if "ynchronize" in event.get("name", ""))
    copies = Counter(event["name"] for event in on_device if event.get("cat") == "gpu_memcpy")
    span = end - intervals[0][0]
    emit(
        f"profiled step of 1B {variant}",
        span_ms=span / 1e3,
        busy_share=busy / span,
        launches=len(on_device),
        synchronizing=dict(calls),
        copies=dict(copies),
        longest_ms={name[:70]: round(us / 1e3, 2) for name, us in by_name.most_common(18)},
    )
    packed = setting.output / f"trace-{variant}.json.gz"
    with trace.open("rb") as source, gzip.open(packed, "wb", compresslevel=6) as target:
        shutil.copyfileobj(source, target)
    if packed.stat().st_size > MOST_BYTES:
        packed.unlink()


def train_plain_fsdp2(setting: Setting) -> None:
    """Train the same model with a plain loop: Hugging Face's Llama, FSDP2, compiled blocks and loss, fused AdamW."""
    _train_peer(setting, "plain FSDP2", _plain_fsdp2_steps)


def train_hugging_face(setting: Setting) -> None:
    """Train the same model with transformers' Trainer, compiled."""
    _train_peer(setting, "HF Trainer", _hugging_face_steps)


def _train_peer(setting: Setting, name: str, steps: Callable[..., list[float]]) -> None:
    """Measure a peer with as many sequences per step as ours, or with half if memory is not enough."""
    import torch
    from torch._dynamo.utils import counters

    for size in (2, 1):
        options = {**setting.large, "train_batch_size": size}
        config = load_options(**options)
        torch._dynamo.reset()  # noqa: SLF001 - it has no public name
        gc.collect()
        reset_peak(setting)
        try:
            step_s = steps(setting, options, config)
        except torch.OutOfMemoryError as error:
            emit(f"1B {name}", outcome="oom", error=str(error)[:200], framework=name, **_work_of(options))
            continue
        tokens = size * config.max_context_width
        tokens_per_s = tokens / statistics.median(step_s)
        emit(
            f"1B {name}",
            tokens_per_s=tokens_per_s,
            step_s=[round(seconds, 4) for seconds in step_s],
            model_tflop_s=tokens_per_s * config.model.flops_per_token(config.max_context_width) / 1e12,
            peak_gb=peak_gb(setting),
            reserved_gb=torch.cuda.max_memory_reserved() / GB if setting.is_gpu else None,
            compile=setting.is_gpu,
            recompute="none",
            framework=name,
            **_graphs(counters),
            **_work_of(options),
        )
        return


def _plain_fsdp2_steps(setting: Setting, options: Mapping[str, Any], config: Any) -> list[float]:
    import torch
    import torch.nn.functional as F
    from torch import nn
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from transformers import LlamaConfig, LlamaForCausalLM

    @torch.compile(dynamic=False, disable=not setting.is_gpu)
    def loss_of(hidden: Tensor, head: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(hidden, head).float().flatten(0, 1), labels.flatten())

    class Task(nn.Module):
        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model: Any = model

        def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
            hidden = self.model.model(input_ids=tokens).last_hidden_state
            result: Tensor = loss_of(hidden, self.model.lm_head.weight, labels)
            return result

    torch._dynamo.config.recompile_limit = 64  # noqa: SLF001 - layers that differ in their number
    with one_rank(setting) as device:
        torch.manual_seed(0)
        with device:
            task = Task(
                LlamaForCausalLM(
                    LlamaConfig(**{**config.model.to_hf(), "use_cache": False}, attn_implementation="sdpa")
                )
            )
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
        for layer in task.model.model.layers:
            if setting.is_gpu:
                layer.compile()
            fully_shard(layer, mp_policy=policy)
        fully_shard(task, mp_policy=policy)
        optimizer = torch.optim.AdamW(task.parameters(), lr=LEARNING_RATE, fused=True)
        batches = sequences(options)

        def step() -> None:
            batch = next(batches)
            tokens, labels = (
                (item.contiguous().pin_memory() if setting.is_gpu else item).to(device, non_blocking=True)
                for item in (batch[:, :-1], batch[:, 1:])
            )
            task(tokens, labels).backward()
            nn.utils.clip_grad_norm_(task.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

        return _times_of_five(step, setting)


def _times_of_five(step: Callable[[], None], setting: Setting) -> list[float]:
    """Return seconds per step, from events around groups of five, after five."""
    import torch

    every, groups = (5, 4) if setting.is_gpu else (1, 3)
    seconds = []
    for _ in range(groups):
        if setting.is_gpu:
            begin, end = gpu_events()
            begin.record()
        start = time.perf_counter()
        for _ in range(every):
            step()
        if setting.is_gpu:
            end.record()
            torch.cuda.synchronize()
            seconds.append(begin.elapsed_time(end) / 1e3 / every)
        else:
            seconds.append((time.perf_counter() - start) / every)
    return seconds[1:]


def _hugging_face_steps(setting: Setting, options: Mapping[str, Any], config: Any) -> list[float]:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

    steps = 15 if setting.is_gpu else 4

    class Packed(torch.utils.data.IterableDataset[dict[str, "Tensor"]]):
        def __iter__(self) -> Iterator[dict[str, Tensor]]:
            for batch in sequences(options):
                for row in batch[:, :-1]:
                    yield {"input_ids": row, "labels": row}

    ends: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            if setting.is_gpu:
                torch.cuda.synchronize()
            ends.append(time.perf_counter())

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**{**config.model.to_hf(), "use_cache": False}, attn_implementation="sdpa"))
    settings = TrainingArguments(
        output_dir=str(setting.work / "trainer"),
        per_device_train_batch_size=options["train_batch_size"],
        max_steps=steps,
        learning_rate=LEARNING_RATE,
        logging_steps=5,
        save_strategy="no",
        report_to="none",
        use_cpu=not setting.is_gpu,
        bf16=setting.is_gpu,
        torch_compile=setting.is_gpu,
        optim="adamw_torch_fused",
        disable_tqdm=True,
    )
    Trainer(model=model, args=settings, train_dataset=Packed(), callbacks=[Clock()]).train()
    return [end - begin for begin, end in pairwise(ends)][steps // 3 :]


def answer_questions(setting: Setting) -> None:
    """Measure single choices of the trainer, before and after."""
    questions = (
        _question_of_batches,
        _question_of_gather,
        _question_of_head_gradient,
        _question_of_tf32,
        _question_of_optimizer,
        _question_of_staging,
        _question_of_memory_history,
    )
    for question in questions:
        try:
            question(setting)
        except Exception as error:  # noqa: BLE001 - the next question is another one
            emit(question.__name__.removeprefix("_"), ok=False, error=f"{type(error).__name__}: {error}"[:300])


def _question_of_batches(setting: Setting) -> None:
    """Compare sending slices of a batch with sending it whole and slicing on the device."""
    import torch

    from podwright_training.batch import Batch

    device = torch.device(setting.device)
    rows = torch.randint(1000, (4, 4097))
    sliced = Batch(rows[:, :-1], rows[:, 1:])
    whole = Batch(rows[:, :-1].contiguous(), rows[:, 1:].contiguous())
    values = {
        name: _host_ms(partial(batch.to, device), setting)
        for name, batch in (("slices", sliced), ("contiguous", whole))
    }
    emit("batch to the device behind 20 ms of work: host's ms", **values)


def _host_ms(action: Callable[[], object], setting: Setting) -> float:
    """Return the host's time of an action while the device has work: more than a little is a wait for it."""
    import torch

    times = []
    for _ in range(6):
        if setting.is_gpu:
            torch.cuda.synchronize()
            cast("Any", torch.cuda)._sleep(40_000_000)  # noqa: SLF001 - about 20 ms
        begin = time.perf_counter()
        action()
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times[2:])


def _question_of_gather(setting: Setting) -> None:
    """Compare gradients of a mixture's rows: ``x[token]`` accumulates, a gather by the inverse permutation adds."""
    import torch

    device = torch.device(setting.device)
    tokens, active, width = (16384, 8, 2048) if setting.is_gpu else (64, 2, 16)
    x = torch.randn(tokens, width, device=device, dtype=torch.bfloat16, requires_grad=True)
    order = torch.randperm(tokens * active, device=device)
    slope = torch.randn(tokens * active, width, device=device, dtype=torch.bfloat16)
    inverse = order.argsort()

    def accumulate() -> Tensor:
        return torch.autograd.grad(x[order // active], x, slope)[0]

    def gather() -> Tensor:
        return slope[inverse].view(tokens, active, width).sum(1)

    emit(
        "gradient of gathered rows: ms",
        index_put=spent_ms(accumulate, setting, repeats=5),
        inverse_gather=spent_ms(gather, setting, repeats=5),
        distance=distance(accumulate(), gather()),
        repeatable=accumulate().equal(accumulate()),
    )


def _question_of_head_gradient(setting: Setting) -> None:
    """Compare ways to add up the gradient of the head in fp32."""
    import torch

    device = torch.device(setting.device)
    chunk, width, words = (4096, 2048, 128256) if setting.is_gpu else (64, 16, 256)
    a = torch.randn(chunk, words, device=device, dtype=torch.bfloat16)
    b = torch.randn(chunk, width, device=device, dtype=torch.bfloat16)
    total = torch.zeros(words, width, device=device)

    def in_two_passes() -> None:
        total.add_(torch.mm(a.t(), b))

    values: dict[str, Any] = {"mm_then_add": spent_ms(in_two_passes, setting, repeats=5)}
    for name, call in {
        "mm_out_dtype": lambda: torch.mm(a.t(), b, out_dtype=torch.float32),
        "addmm_out_dtype": lambda: torch.addmm(total, a.t(), b, out_dtype=torch.float32),
    }.items():
        try:
            values[name] = spent_ms(call, setting, repeats=5)
        except Exception as error:  # noqa: BLE001 - not all versions have it
            values[name] = f"{type(error).__name__}: {error}"[:100]
    emit("gradient of the head: ms", **values)


def _question_of_tf32(setting: Setting) -> None:
    import torch

    size = 4096 if setting.is_gpu else 64
    a, b = (torch.randn(size, size, device=setting.device) for _ in range(2))
    values = {}
    for precision in ("highest", "high"):
        torch.set_float32_matmul_precision(precision)
        values[precision] = 2 * size**3 / spent_ms(lambda: a @ b, setting, repeats=5) / 1e9
    torch.set_float32_matmul_precision("highest")
    emit("fp32 products, TFLOP/s: without and with TF32", **values)


def _question_of_optimizer(setting: Setting) -> None:
    import torch

    count = 500_000_000 if setting.is_gpu else 100_000
    parameters = [torch.nn.Parameter(torch.randn(count // 10, device=setting.device)) for _ in range(10)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer = torch.optim.AdamW(parameters, fused=True)
    ms = spent_ms(optimizer.step, setting, repeats=5)
    emit("fused AdamW", gb_s=28 * count / ms / 1e6, ms=ms)  # reads four numbers, writes three


def _question_of_staging(setting: Setting) -> None:
    import torch

    from podwright_training.checkpoint.stager import Stager

    count = 1 << 30 if setting.is_gpu else 1 << 18
    state = {f"part {number}": torch.randn(count // 4, device=setting.device) for number in range(4)}
    stager = Stager()
    seconds = []
    for _ in range(3):
        begin = time.perf_counter()
        staged = stager.stage(state)
        seconds.append(time.perf_counter() - begin)
    equal = all(staged[name].equal(state[name].cpu()) for name in state)
    stager.close()
    emit("staging of a save", ok=equal, first_s=seconds[0], later_s=seconds[1:], gb_s=4 * count / seconds[-1] / 1e9)


def _question_of_memory_history(setting: Setting) -> None:
    """Compare the time of allocations with and without the history that a memory snapshot needs."""
    import torch

    if not setting.is_gpu:
        return

    def allocate() -> None:
        for _ in range(2000):
            torch.empty(1024, device="cuda")

    def clock() -> float:
        begin = time.perf_counter()
        allocate()
        return (time.perf_counter() - begin) / 2000 * 1e6

    clock()
    off = clock()
    torch.cuda.memory._record_memory_history(max_entries=100_000, stacks="python")  # noqa: SLF001 - no public name
    on = clock()
    torch.cuda.memory._record_memory_history(enabled=None)  # noqa: SLF001 - no public name
    emit("allocation, microseconds", off=off, on=on)


PARTS: dict[str, Part] = {
    "data": Part(make_data, 60, 0, "tokenizer and token shards", beside=True),
    "ceilings": Part(measure_ceilings, 60, 15, "copies, matrix products"),
    "parity": Part(compare_with_hugging_face, 90, 15, "loss and gradients against transformers in fp64", beside=True),
    "variants": Part(compare_variants, 110, 30, "compiled, recomputed, float8 against eager", beside=True),
    "repeats": Part(repeat_with_one_seed, 90, 15, "the same step twice; grouped products", beside=True),
    "resume": Part(train_and_resume, 150, 40, "the real trainer: signal, resume, asynchronous saves", beside=True),
    "compiled": Part(partial(train_large, variant="compiled"), 160, 40, "1B: compiled, 2 x 8,192; a profiled step"),
    "fsdp2": Part(train_plain_fsdp2, 110, 35, "1B: plain FSDP2 loop, compiled"),
    "default": Part(partial(train_large, variant="default"), 90, 30, "1B: our defaults; a profiled step"),
    "attention": Part(compare_attention, 100, 30, "attention kernels against fp64, and their speed"),
    "windows": Part(partial(compare_attention, kernels="window"), 60, 20, "the sliding windows of attention alone"),
    "float8-steps": Part(
        partial(compare_variants, chosen=("eager", "compiled, float8")), 90, 15, "float8 of the variants", beside=True
    ),
    "documents": Part(partial(train_large, variant="documents"), 100, 35, "1B: documents kept apart"),
    "selective": Part(partial(train_large, variant="selective"), 90, 35, "1B: selective recomputation"),
    "questions": Part(answer_questions, 60, 15, "single choices, before and after"),
    "float8": Part(partial(train_large, variant="float8"), 130, 35, "1B: float8"),
    "short": Part(partial(train_large, variant="short"), 80, 30, "1B: 4 x 4,096"),
    "hf": Part(train_hugging_face, 140, 70, "1B: transformers' Trainer, compiled as a whole"),
    "full": Part(partial(train_large, variant="full"), 80, 30, "1B: full recomputation, compiled"),
    "eager": Part(partial(train_large, variant="eager"), 60, 20, "1B: not compiled"),
}
OF_OTHERS = {"data", "windows", "float8-steps"}  # parts that others contain
NEED_DATA = {"resume", "fsdp2", "hf", *LARGE_VARIANTS}


# ---------------------------------------------------------------------------------------------------------------------
# Driver


@dataclass
class Results:
    """Lines of all parts, written at once."""

    folder: Path
    lines: list[dict[str, Any]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, part: str, values: Mapping[str, Any]) -> None:
        """Write a line to the file and to standard output."""
        line = {"part": part, **values}
        with self._lock:
            self.lines.append(line)
            text = json.dumps(line)
            with (self.folder / "results.jsonl").open("a", encoding="utf-8") as file:
                file.write(f"{text}\n")
                file.flush()
                os.fsync(file.fileno())
            print(text, flush=True)


class Child:
    """A part in a process of its own."""

    def __init__(self, name: str, setting: Setting, results: Results, limit_s: float) -> None:
        self.name = name
        self._results = results
        self._began = time.monotonic()
        self._until = self._began + limit_s
        self._log = setting.work / f"part-{name}.log"
        command = [sys.executable, str(Path(__file__).resolve()), "--run-part", name, "--device", setting.device]
        command += ["--work", str(setting.work), "--output", str(setting.output)]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=_environment(setting),
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait(self) -> None:
        """Wait until it ends or its time is over, and say how it ended."""
        outcome = "ok"
        try:
            status = self._process.wait(max(0.1, self._until - time.monotonic()))
            outcome = "ok" if status == 0 else f"failed with status {status}"
        except subprocess.TimeoutExpired:
            outcome = "out of time"
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # what it has started too
        self._process.wait()
        self._reader.join(5)
        log = self._log.read_text(errors="replace").splitlines()
        with (self._results.folder / "log.txt").open("a", encoding="utf-8") as file:
            file.write("\n".join([f"==== {self.name}: {outcome}", *log[-2000:], ""]))
        seconds = round(time.monotonic() - self._began, 1)
        self._results.add(self.name, {"case": "part", "outcome": outcome, "seconds": seconds})
        if outcome != "ok":
            print("\n".join(log[-TAIL_LINES:]), flush=True)

    def _read(self) -> None:
        for text in self._process.stdout or ():
            try:
                values = json.loads(text)
                self._results.add(self.name, values if isinstance(values, dict) else {"case": "text", "text": text})
            except ValueError:  # what a library prints
                with self._log.open("a") as log:
                    log.write(text)


def _environment(setting: Setting) -> dict[str, str]:
    paths = [str(ROOT / "training"), str(ROOT / "common"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    more = {
        "PYTHONPATH": os.pathsep.join(paths),
        "TORCHINDUCTOR_CACHE_DIR": str(setting.work / "inductor"),
        "TRITON_CACHE_DIR": str(setting.work / "triton"),
        **(ON_GPU if setting.is_gpu else ON_CPU),
    }
    return {**os.environ, **ENVIRONMENT, **more}


def run_parts(names: Sequence[str], setting: Setting, budget_s: float) -> Results:
    """Run the parts in order; neighbours that may run beside each other do."""
    until = time.monotonic() + budget_s - CLOSING_S
    results = Results(setting.output)
    factor = 1.0 if setting.is_gpu else 3.0
    if NEED_DATA & set(names):
        names = ["data", *(name for name in names if name != "data")]
    running: list[Child] = []

    def wait_for(children: Sequence[Child]) -> None:
        for child in children:
            child.wait()
            running.remove(child)

    for name in names:
        part = PARTS[name]
        if name in NEED_DATA:
            wait_for([child for child in running if child.name == "data"])
        if not part.beside:
            wait_for([child for child in running if (child.name, name) != ("data", "ceilings")])
        left = until - time.monotonic()
        if left < (part.expected_s if setting.is_gpu else 5):
            results.add(name, {"case": "part", "outcome": f"skipped: {left:.0f} s left, need {part.expected_s:.0f}"})
            continue
        running.append(Child(name, setting, results, min(part.limit_s * factor, left)))
        if not part.beside or not setting.is_gpu:  # a CPU has too few cores
            wait_for(running[-1:])
    wait_for(list(running))
    return results


# ---------------------------------------------------------------------------------------------------------------------
# Report


MOST_CHARACTERS = 11_000  # of the table: what a terminal or a log still shows


def print_table(results: Results, expectations: Mapping[str, Any]) -> None:
    """Print all results, what matters most last, and keep them as a file."""
    ceilings = [line for line in results.lines if line["part"] == "ceilings" and line["case"] != "part"]
    others = [line for line in results.lines if line["part"] != "ceilings" and line["case"] != "part"]
    ends = [
        f"{line['part']} {line['outcome']} {line.get('seconds', '')}".strip()
        for line in results.lines
        if line["case"] == "part"
    ]
    wrong = [line for line in others if line.get("ok") is False]
    lines = [
        *(row for line in others for row in _rows(line)),
        "",
        *(row for line in ceilings for row in _rows(line)),
        "",
        f"parts: {', '.join(ends)}",
        f"wrong: {'; '.join(line['case'] for line in wrong) or 'nothing'}",
        *_speed_lines(results.lines, expectations),
    ]
    text = "\n".join(lines)
    (results.folder / "table.txt").write_text(f"{text}\n", encoding="utf-8")
    print(f"\n{text[-MOST_CHARACTERS:]}", flush=True)


def _rows(line: Mapping[str, Any]) -> Iterator[str]:
    """Yield a result as a row, and each of a profile's longest kernels."""
    if line["case"].startswith("1B "):
        return
    hidden = {"case", "part", "framework", "longest_ms", "ok"}
    values = ", ".join(f"{name} {_brief(value)}" for name, value in line.items() if name not in hidden)
    yield f"{'WRONG ' if line.get('ok') is False else ''}{line['case'][:46]}: {values[:170]}"
    for name, ms in list(line.get("longest_ms", {}).items())[:8]:
        yield f"{ms:10.2f} ms  {name}"


def _speed_lines(lines: Sequence[Mapping[str, Any]], expectations: Mapping[str, Any]) -> Iterator[str]:
    peak = next((line["tflop_s"] for line in lines if line["case"] == "bf16 8192x8192x8192"), None)
    columns = f"{'1B':24}{'batch':>9}{'tok/s':>9}{'TFLOP/s':>9}{'of peak':>8}{'GB':>7}{'resv':>7}"
    yield f"\n{columns}  expected of an H100"
    for line in lines:
        if not line["case"].startswith("1B "):
            continue
        batch = f"{line['sequences']}x{line['length']}"
        if line.get("outcome") == "oom":
            yield f"{line['case'][3:]:24}{batch:>9}  out of memory"
            continue
        share = f"{line['model_tflop_s'] / peak:8.1%}" if peak else f"{'':8}"
        expected = expectations.get(line["case"][3:], {})
        yield (
            f"{line['case'][3:]:24}{batch:>9}{line['tokens_per_s']:>9,.0f}{line['model_tflop_s']:>9.1f}{share}"
            f"{line['peak_gb'] or 0:>7.1f}{line['reserved_gb'] or 0:>7.1f}  {_brief(expected) if expected else '-'}"
        )


def _brief(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return " ".join(f"{name}:{_brief(item)}" for name, item in value.items())
    if isinstance(value, list):
        return f"[{' '.join(map(_brief, value))}]"
    return str(value)


CARDS = {"H200": ("H200-141GB", 141), "H100": ("H100-80GB", 80)}  # names of the planner's table


def write_rows(results: Results) -> None:
    """Write the speeds as rows of the planner's table."""
    with THROUGHPUT.open(newline="", encoding="utf-8") as file:
        columns = next(csv.reader(file))
    machine = next((line for line in results.lines if line["case"] == "machine"), {})
    shape = {"params_total": 1235814400, "layers": 16, "hidden": 2048, "heads": 32, "kv_heads": 8, "ffn": 8192}
    rows = []
    for number, line in enumerate(line for line in results.lines if line["case"].startswith("1B ")):
        card, memory_gb = next(
            (values for name, values in CARDS.items() if name in str(machine.get("device"))), ("CPU", 0)
        )
        values = {
            **shape,
            "row": f"gpu-{number + 1}",
            "group": "own",
            "task": "pretrain",
            "model": "Llama-3.2-1B",
            "kind": "dense",
            "vocab": 128256,
            "seq_len": line["length"],
            "accel": card,
            "accel_mem_gb": memory_gb,
            "peak_bf16_tflops": 989,
            "gpus": 1,
            "framework": {"podwright": "podwright", "plain FSDP2": "pytorch FSDP2 + torch.compile"}.get(
                line.get("framework", "podwright"), "hugging face Trainer"
            ),
            "precision": "fp8" if line["case"] == "1B float8" else "bf16",
            **dict.fromkeys(("tp", "pp", "dp", "cp"), 1),
            "sharding": "FULL_SHARD",
            "mbs": line["sequences"],
            "gbs_seqs": line["sequences"],
            "act_ckpt": line.get("recompute"),
            "outcome": line.get("outcome", "ok"),
            "notes": "; ".join(
                [
                    line["case"],
                    f"compile {line.get('compile')}",
                    str(machine.get("device")),
                    f"torch {machine.get('torch')}",
                ]
            ),
            "source": "bench/gpu.py",
            "confidence": "measured here",
        }
        if "tokens_per_s" in line:
            values |= {
                "tok_s_gpu": round(line["tokens_per_s"]),
                "tok_s_total": round(line["tokens_per_s"]),
                "step_s": statistics.median(line["step_s"]),
                "model_tflops_gpu": round(line["model_tflop_s"], 1),
                "mfu_pct": round(line["model_tflop_s"] / 9.89, 1),
                "peak_mem": line["reserved_gb"] and round(line["reserved_gb"], 2),
                "mem_unit": "GB reserved",
                "tflops_convention": "6N+12Lhs",
            }
        rows.append(values)
    with (results.folder / "rows.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def write_expectations() -> None:
    """Ask ``dry-run`` and ``plan`` what they expect of the 1B runs on an H100; needs an installed checkout."""
    from podwright_training.spelling import as_flag

    expected: dict[str, Any] = {}
    programs = Path(sys.executable).parent
    for variant, chosen in {**LARGE_VARIANTS, "plain FSDP2": LARGE_VARIANTS["compiled"]}.items():
        length, size = (4096, 4) if variant == "short" else (8192, 2)
        options = {"preset": "llama3_2_1b", "max_context_width": length, "train_batch_size": size, **chosen}
        config = load_options(**options)
        recompute = config.activation_checkpointing_mode if config.activation_checkpointing else "none"
        flags = [as_flag(name, value) for name, value in options.items()]
        dry_run = [str(programs / "podwright-train"), "dry-run", "--world-size=1", *flags, "--json"]
        plan = [str(programs / "podwright"), "plan", "--json", "--model=llama3_2_1b", "--instance=ml.p5.4xlarge"]
        plan += [f"--seq-len={length}", f"--micro-batch={size}", "--accumulate=1", f"--recompute={recompute}"]
        plan += ["--precision=fp8"] if config.float8 else []
        answers = [
            json.loads(subprocess.run(command, capture_output=True, check=True).stdout) for command in (dry_run, plan)
        ]
        expected[variant] = {
            "dry_run_gb": round(answers[0]["ranks"][0]["peak_bytes"] / GB, 1),
            "plan_gb": round(answers[1]["memory_gb"]["peak"], 1),
            "plan_tok_s": round(answers[1]["speed"]["tokens_per_s_per_gpu"]),
            "low": round(answers[1]["speed"]["low"]),
            "high": round(answers[1]["speed"]["high"]),
        }
        print(variant, expected[variant], flush=True)
    expected["plain FSDP2"].pop("dry_run_gb")
    EXPECTATIONS.write_text(json.dumps(expected, indent=2) + "\n", encoding="utf-8")


def main() -> int:
    """Run the parts; return 1 if one failed or found something wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--budget-s", type=float, default=540, help="of all parts. Default: 540")
    parser.add_argument("--parts", help="names, separated by commas. Default: all")
    parser.add_argument("--list", action="store_true", help="list the parts")
    parser.add_argument("--output", type=Path, help="folder for results. Default: $OUT, or .cache/bench/gpu")
    parser.add_argument("--work", type=Path, help="folder for data, runs and caches. Default: a temporary one")
    parser.add_argument("--write-expectations", action="store_true", help=f"write {EXPECTATIONS.relative_to(ROOT)}")
    parser.add_argument("--run-part", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.list:
        for name, part in PARTS.items():
            print(f"{name:10} {part.expected_s:4.0f} s, at most {part.limit_s:3.0f}  {part.summary}")
        return 0
    if args.write_expectations:
        write_expectations()
        return 0
    if args.run_part:
        PARTS[args.run_part].run(Setting(args.device, args.work, args.output))
        return 0
    names = args.parts.split(",") if args.parts else [name for name in PARTS if name not in OF_OTHERS]
    if unknown := sorted(set(names) - set(PARTS)):
        parser.error(f"got {', '.join(unknown)}, need {', '.join(PARTS)}")
    output = args.output or Path(os.environ.get("OUT") or ROOT / ".cache" / "bench" / "gpu")
    output.mkdir(parents=True, exist_ok=True)
    for stale in ("results.jsonl", "log.txt"):
        (output / stale).unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpu-", ignore_cleanup_errors=True) as folder:
        setting = Setting(args.device, args.work or Path(folder), output.resolve())
        results = run_parts(names, setting, args.budget_s)
    expectations = json.loads(EXPECTATIONS.read_text()) if EXPECTATIONS.exists() and setting.is_gpu else {}
    write_rows(results)
    print_table(results, expectations)
    failed = [
        line for line in results.lines if line.get("ok") is False or str(line.get("outcome")).startswith("failed")
    ]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
