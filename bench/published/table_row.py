"""Parse one row of a table of published configurations."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from podwright.errors import PodwrightError
from podwright.planning.accelerator import Accelerator, UnknownAcceleratorError
from podwright.planning.layout import LayoutError, check
from podwright.planning.model import Model, UnknownModelError
from podwright.planning.trainer_software import SHARDINGS, Sharding
from published.layout import PublishedLayout, PublishedPrecision, PublishedRecompute, Training
from published.memory import largest_micro_batch, least_recomputation
from published.models import published_model
from published.software import GRAPHS, PublishedSoftware, software_named, software_of

_NODE_NETWORK = re.compile(r"(\d+)\s*x\s*(\d+)\s*Gb\b|(\d+)\s*Gbps node")
_PLAIN = ("mpt", "bloom", "gpt", "opt", "mt-nlg", "pythia", "neox", "bert", "turing", "falcon", "nemotron")
_DIMENSIONS = {  # a table's column: the field of Model
    "layers": "layers",
    "hidden": "hidden_size",
    "heads": "heads",
    "kv_heads": "kv_heads",
    "ffn": "ffn",
    "vocab": "vocab",
}
_DATA_PARALLEL = ("FSDP", "SHARD", "DDP", "ZERO")  # in this column, these mean that there is no other parallelism
_ONE_LEVEL = (
    "litgpt",
    "composer",
    "flash-attn",
    "fsdp",
)  # frameworks without tensor and pipeline parallelism in these tables


_SMALL_MODULES = ("layernorm", "moe_act", "mla_up_proj")
LARGEST = 1e16  # No figure in a table is larger, of parameters or tokens.
USUAL_STEP_TOKENS = 524_288  # default for pretraining


class RowError(PodwrightError, ValueError):
    """The row lacks a needed figure. The message says which."""


ROW_ERRORS = (RowError, UnknownModelError, UnknownAcceleratorError, LayoutError)


@dataclass(frozen=True, kw_only=True)
class ParsedRow:
    """A parsed row, with the assumptions made for missing cells."""

    model: Model
    layout: PublishedLayout
    accelerator: Accelerator
    software: PublishedSoftware
    per_gpu: int  # ranks of the layout in one accelerator of the table: 2 NeuronCores in a chip
    assumed: tuple[str, ...]


def parse_row(row: Mapping[str, str]) -> ParsedRow:
    """Return model, layout, accelerator and software of a row.

    Raises:
        RowError: A needed figure is missing.
        UnknownModelError, UnknownAcceleratorError, LayoutError: A name is unknown, or the layout does not work.
    """
    assumed: list[str] = []
    sequence = _required(row, "seq_len", "sequence length")
    gpus = _required(row, "gpus", "number of accelerators")
    model = _model(row, sequence, assumed)
    software = _software(row, assumed)
    if software.name == "litgpt-finetune":
        model = replace(model, tied=False)  # convert_hf_checkpoint.py copies a tied head
    accelerator, per_gpu = _accelerator(row)
    layout = _layout(row, gpus=gpus * per_gpu, sequence=sequence, software=software)
    check(replace(layout, micro_batch=1, virtual_stages=1), model)
    layout = _filled(row, layout, model, accelerator, software, assumed)
    check(layout, model)
    return ParsedRow(
        model=model, layout=layout, accelerator=accelerator, software=software, per_gpu=per_gpu, assumed=tuple(assumed)
    )


# ---- model ---------------------------------------------------------------------------------------------


def _model(row: Mapping[str, str], sequence: int, assumed: list[str]) -> Model:
    dimensions = {field: value for column, field in _DIMENSIONS.items() if (value := _integer(row, column))}
    try:
        model = published_model(row.get("model", ""))
    except UnknownModelError:
        return _from_dimensions(row, dimensions, sequence, assumed)
    if "w/o MTP" in row.get("notes", "") + row.get("model", ""):
        model = replace(model, extra_predictions=0)
    changed = {name: value for name, value in dimensions.items() if getattr(model, name) != value and not model.experts}
    if "heads" in changed or "hidden_size" in changed:
        changed["head_dim"] = changed.get("hidden_size", model.hidden_size) // changed.get("heads", model.heads)
    return replace(model, **cast("dict[str, Any]", changed)) if changed else model


def _from_dimensions(row: Mapping[str, str], dimensions: dict[str, int], sequence: int, assumed: list[str]) -> Model:
    name = row.get("model", "") or "model"
    if row.get("kind") == "moe":
        raise RowError(
            f"{name}: the catalog does not have this model, and a row has no columns for the number and size of experts"
        )
    if "hidden_size" not in dimensions:
        raise RowError(f"{name}: hidden size not given and the model is not in the catalog")
    if "vocab" not in dimensions:
        dimensions["vocab"] = 32_000 if "llama" in name.lower() else 51_200
        assumed.append(f"vocabulary of {dimensions['vocab']} assumed")
    hidden_size = dimensions["hidden_size"]
    plain = (
        any(word in name.lower() for word in _PLAIN)
        if "ffn" not in dimensions
        else dimensions["ffn"] == 4 * hidden_size
    )
    if "ffn" not in dimensions:
        dimensions["ffn"] = 4 * hidden_size if plain else -(-(8 * hidden_size // 3) // 256) * 256
        assumed.append(f"FFN width {dimensions['ffn']} assumed")
    if "layers" not in dimensions:
        dimensions["layers"] = _layers(row, dimensions, plain=plain)
        assumed.append(f"{dimensions['layers']} layers follow from the number of parameters")
    if "heads" not in dimensions:
        dimensions["heads"] = _usual_heads(hidden_size, _integer(row, "tp") or 1)
        assumed.append(f"{dimensions['heads']} heads assumed")
    return Model(
        name=name,
        head_dim=hidden_size // dimensions["heads"],
        gated=not plain,
        tied=plain and "nemotron" not in name.lower(),
        bias="all" if plain else "none",
        norm_vectors=2 if plain else 1,
        learned_positions=sequence if name.lower().startswith(("mpt", "gpt")) else 0,
        **cast("dict[str, Any]", {"kv_heads": dimensions["heads"], **dimensions}),
    )


def _layers(row: Mapping[str, str], dimensions: Mapping[str, int], *, plain: bool) -> int:
    total = _number(row, "params_total")
    if not total:
        raise RowError(f"{row.get('model')}: neither layers nor parameters given")
    block = 4 * dimensions["hidden_size"] ** 2 + (2 if plain else 3) * dimensions["hidden_size"] * dimensions["ffn"]
    stages = _integer(row, "pp") or 1
    return max(1, round((total - dimensions["vocab"] * dimensions["hidden_size"]) / block / stages)) * stages


def _usual_heads(hidden_size: int, tensor: int) -> int:
    """Return a number of heads of 96 to 256 elements, as near to 128 as the tensor-parallel degree allows."""
    widths = [width for width in range(96, 257, 4) if hidden_size % width == 0 and hidden_size // width % tensor == 0]
    fallback = max(1, hidden_size // tensor)
    return hidden_size // min(widths, key=lambda width: (width % 16 > 0, abs(width - 128)), default=fallback)


# ---- software, accelerator --------------------------------------------------------------------------------


def _software(row: Mapping[str, str], assumed: list[str]) -> PublishedSoftware:
    framework, notes = row.get("framework", ""), row.get("notes", "")
    if not framework.strip():
        raise RowError("framework not given")
    container = re.match(r"\d\d\.\d\d", notes)
    software = software_of(
        container[0] if container else f"{framework} {row.get('task', '')} {_date(notes)}"
    ) or software_of(framework)
    if software is None:
        assumed.append(f"unknown framework {framework!r} treated as PyTorch FSDP")
        software = software_named("torch-fsdp")
    if "expandable_segments" in row.get("act_ckpt", ""):
        software = replace(software, expandable_segments=True)
    software = replace(
        software,
        graphs=next((item for item in GRAPHS if item == row.get("cuda_graphs")), software.graphs),
        overlaps_experts=row.get("a2a_overlap") == "yes",
    )
    if software.name == "torch-fsdp" and "compile" in f"{framework} {notes}".lower():
        return software_named("torch-compile")
    return software


def _date(notes: str) -> str:
    """Return the day in the notes, ``MM-DD``, by which some software is known."""
    day = re.search(r"\b\d\d-\d\d\b", notes)
    return day[0] if day else ""


def _accelerator(row: Mapping[str, str]) -> tuple[Accelerator, int]:
    accelerator = _named_accelerator(row)
    match = _NODE_NETWORK.search(row.get("notes", ""))
    if match and accelerator.link_domain <= 8:  # noqa: PLR2004 - a node, not a rack
        gigabits = int(match[3]) if match[3] else int(match[1]) * int(match[2])
        accelerator = accelerator.with_network(node_gb_s=gigabits / 8, gpus_per_node=8)
    if accelerator.generation.startswith("neuron") and _counts_cores(row, accelerator):
        return accelerator.core(), accelerator.dies
    return accelerator, 1


def _counts_cores(row: Mapping[str, str], accelerator: Accelerator) -> bool:
    """Return whether the degrees of parallelism count NeuronCores: the row says so, or their product matches."""
    degrees = [_integer(row, name) for name in ("dp", "tp", "pp")]
    ranks = math.prod(degree or 0 for degree in degrees) * (_integer(row, "cp") or 1)
    return "NeuronCores" in row.get("notes", "") or ranks == (_integer(row, "gpus") or 0) * accelerator.dies


def _named_accelerator(row: Mapping[str, str]) -> Accelerator:
    """Return the row's accelerator, by its memory if the name is ambiguous.

    If the row's peak is that of half the module, return one die.
    """
    name, memory_gb, peak = row.get("accel", ""), _number(row, "accel_mem_gb"), _number(row, "peak_bf16_tflops")
    try:
        accelerator = Accelerator.of(f"{name}-{memory_gb:.0f}GB" if memory_gb else name)
    except UnknownAcceleratorError:
        accelerator = Accelerator.of(name)
    is_die = accelerator.dies > 1 and peak is not None and 0 < peak < 0.6 * accelerator.peak_bf16_tflops
    return accelerator.core() if is_die else accelerator


# ---- layout ------------------------------------------------------------------------------------------------


def _layout(row: Mapping[str, str], *, gpus: int, sequence: int, software: PublishedSoftware) -> PublishedLayout:
    framework = row.get("framework", "").lower()
    missing = [name for name in ("tp", "pp") if not _integer(row, name)]
    sharded = any(word in row.get("sharding", "").upper() for word in _DATA_PARALLEL)
    if missing and gpus > 1 and not sharded and not any(word in framework for word in _ONE_LEVEL):
        raise RowError(f"layout not given ({' and '.join(missing)} empty)")
    task = row.get("task", "")
    training: Training = "qlora" if "nf4" in row.get("precision", "") else "lora" if "lora" in task else "full"
    sharding, shards = _sharding(row, software, training=training, gpus=gpus)
    pipeline = _integer(row, "pp") or 1
    return PublishedLayout(
        gpus=gpus,
        micro_batch=_micro_batch(row),
        sequence=sequence,
        tensor=_integer(row, "tp") or 1,
        pipeline=pipeline,
        virtual_stages=_integer(row, "vp") or 0,
        context=_integer(row, "cp") or 1,
        expert=_integer(row, "ep") or 1,
        sharding=sharding,
        shards=shards,
        precision=_precision(row),
        training=training,
        # PyTorch's schedules reduce gradients of FSDP after the last micro-batch
        whole_gradients=pipeline > 1 and sharding == "full" and training == "full",
    )


def _sharding(
    row: Mapping[str, str], software: PublishedSoftware, *, training: Training, gpus: int
) -> tuple[Sharding, int]:
    """Return the sharding and its number of ranks (0: all data-parallel ranks)."""
    words = row.get("sharding", "").upper()
    stage = _integer(row, "zero_stage")
    if stage is not None:
        return SHARDINGS[min(3, stage)], 0
    if "HYBRID" in words or "HSDP" in words:
        return "full", min(8, gpus)
    named: tuple[tuple[str, Sharding], ...] = (
        ("FSDP", "full"),
        ("FULL_SHARD", "full"),
        ("ZERO-3", "full"),
        ("ZERO-2", "gradients"),
        ("ZERO-1", "optimizer"),
        ("GRAD_OP", "gradients"),
        ("DIST", "optimizer"),
        ("DDP", "none"),
    )
    default = software.sharding
    if software.name == "litgpt-finetune":
        default = "optimizer" if training == "full" else "none"
    return next((meaning for word, meaning in named if word in words), default), 0


def _precision(row: Mapping[str, str]) -> PublishedPrecision:
    text = row.get("precision", "").lower()
    if "fp4" in text:
        return "fp4"
    if "fp8" in text or "float8" in text:
        return "fp8"
    return "fp32" if text == "fp32" else "bf16"


def _filled(  # noqa: PLR0917 - columns
    row: Mapping[str, str],
    layout: PublishedLayout,
    model: Model,
    accelerator: Accelerator,
    software: PublishedSoftware,
    assumed: list[str],
) -> PublishedLayout:
    """Return the layout with micro-batches and recomputation from the row, or else the likeliest ones.

    A published run ran, so it may have had less to spare than a proposal.
    """
    recompute = _recompute(row, model)
    layout = replace(
        layout,
        recompute=recompute or "none",
        offloaded_layers=min(model.layers, _offloaded_layers(row)),
        repeated_modules=tuple(name for name in _SMALL_MODULES if name in _modules(row)),
        virtual_stages=layout.virtual_stages or _virtual_stages(layout, model, software),
    )
    data = max(1, layout.gpus // (layout.tensor * layout.pipeline * layout.context))
    per_rank = _sequences_per_rank(row, layout, data, assumed)
    if layout.pipeline > 1 and layout.micro_batch == per_rank > 1:
        assumed.append(f"{layout.micro_batch} sequences are a rank's batch, taken one by one through the pipeline")
        layout = replace(layout, micro_batch=1)
    if not layout.micro_batch:
        layout = replace(layout, micro_batch=_likely_micro_batch(layout, model, accelerator, software, per_rank))
        assumed.append(f"micro-batch {layout.micro_batch} assumed")
    layout = replace(layout, micro_batches=max(1, round(per_rank / layout.micro_batch)))
    if recompute is None:
        layout = least_recomputation(model, layout, accelerator, software)
        if layout.recompute != "none":
            assumed.append(f"{layout.recompute} recomputation assumed: the run does not fit without it")
    return layout


def _sequences_per_rank(row: Mapping[str, str], layout: PublishedLayout, data: int, assumed: list[str]) -> float:
    batch = _integer(row, "gbs_seqs")
    if batch:
        return batch / data
    assumed.append("steps of about half a million tokens assumed")
    return max(1, round(USUAL_STEP_TOKENS / layout.sequence / data))


def _likely_micro_batch(
    layout: PublishedLayout, model: Model, accelerator: Accelerator, software: PublishedSoftware, per_rank: float
) -> int:
    """Return 1 in a pipeline, else the largest power of two up to 8 that fits and divides the rank's batch."""
    if layout.pipeline > 1:
        return 1
    one_sequence = replace(layout, micro_batch=1)
    fitting = largest_micro_batch(model, one_sequence, accelerator, software, at_most=8)
    candidates = (size for size in (8, 4, 2) if size <= fitting and per_rank % size == 0)
    return next(candidates, 1)


def _micro_batch(row: Mapping[str, str]) -> int:
    """Return the sequences per micro-batch from the notes or the column, or 0."""
    noted = re.search(r"\bmbs (\d+)", row.get("notes", ""))
    return int(noted[1]) if noted else _integer(row, "mbs") or 0


def _virtual_stages(layout: PublishedLayout, model: Model, software: PublishedSoftware) -> int:
    """Return the virtual stages of Megatron-Core's recipes, which use parts of four layers."""
    if layout.pipeline == 1 or not software.compiled:
        return 1
    return max(1, min(5, model.layers // layout.pipeline // 4))


def _modules(row: Mapping[str, str]) -> set[str]:
    return set(re.split(r"[^a-z_]+", row.get("act_ckpt", "").lower()))


def _offloaded_layers(row: Mapping[str, str]) -> int:
    match = re.search(r"activations of (\d+) layers offloaded", row.get("notes", ""))
    return int(match[1]) if match else 0


def _recompute(row: Mapping[str, str], model: Model) -> PublishedRecompute | None:
    """Return the recomputation that the row names, or None. Megatron's ``mlp`` leaves the experts of a mixture out."""
    text = row.get("act_ckpt", "").lower()
    if not text or text == "see source":
        return None
    modules = _modules(row)
    if ("moe" if model.experts else "mlp") in modules:
        return "mlp"
    if "full" in modules:
        return "full"
    return "selective" if text == "selective" or "core_attn" in modules else "none"


# ---- cells -------------------------------------------------------------------------------------------------


def _number(row: Mapping[str, str], name: str) -> float | None:
    text = (row.get(name) or "").strip()
    try:
        number = float(text) if text else None
    except ValueError:
        raise RowError(f"{name}: got {text!r}, need a number") from None
    if number is not None and not 0 <= number < LARGEST:
        raise RowError(f"{name}: got {text}, need a number from 0 to {LARGEST:g}")
    return number


def _integer(row: Mapping[str, str], name: str) -> int | None:
    number = _number(row, name)
    if number is None:
        return None
    if number != int(number):
        raise RowError(f"{name}: got {number:g}, need a whole number")
    return int(number)


def _required(row: Mapping[str, str], name: str, words: str) -> int:
    value = _integer(row, name)
    if not value:
        raise RowError(f"{words} not given ({name} empty)")
    return value
