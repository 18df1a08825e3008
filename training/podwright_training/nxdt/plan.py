"""Plan a job of NxD Training: check model and layout, and name the cache of compiled graphs."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from podwright_training import neuron
from podwright_training.config.train_config import TrainConfig, option_names
from podwright_training.private_folder import why_not_trusted
from podwright_training.run_folder import RunFolder
from podwright_training.spelling import flag

INDEX = "https://pip.repos.neuron.amazonaws.com"  # PyPI's packages of these names are placeholders
# Neuron 2.28, the last with NxD Training: https://awsdocs-neuron.readthedocs-hosted.com/en/v2.28.1/release-notes/releasecontent.html
COMPILER = "2.23.6484.0"
PACKAGES = (  # an exact build of torch-neuronx could not be read: any of that release
    f"neuronx-cc=={COMPILER}",
    "torch-neuronx==2.9.0.2.12.*",
    "neuronx_distributed==0.17.26814",
    "neuronx_distributed_training==1.7.0",
)
SOURCE = "https://github.com/aws-neuron/neuronx-distributed-training.git"
COMMIT = "9169aa03f39efd4eb02da63891a7ed98defb1714"  # its scripts, requirements and patches
CACHE_RECORD = "podwright.json"  # in a cache on a file system: the compiler it is of

MEMBERS = {"ml.trn1.32xlarge": "Trainium", "ml.trn1n.32xlarge": "Trainium", "ml.trn2.48xlarge": "Trainium2"}
DEVICES = 16  # Each instance type has as many.
TRN1_TENSORS = (1, 2, 8, 32)  # groups of cores whose collectives trn1's ring has
PRECISIONS = {"bf16": "mixed_precision", "fp32": "fp32"}  # TrainConfig's: NxD Training's

# Options of podwright-train that NxD Training has too.
OPTIONS = frozenset({
    *("run_dir", "preset", "seed", "device", "dataset", "dataset_config_name", "text_column", "tokenizer"),
    *("token_dtype", "token_end", "add_bos"),
    *("data_streams", "data_mixture", "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_layers"),
    *("num_heads", "num_key_value_heads", "head_dim", "max_context_width", "max_position_embeddings", "rope_theta"),
    *("rope_scaling_factor", "rms_norm_eps", "initializer_range", "tie_word_embeddings", "max_steps", "lr", "warmup"),
    *("weight_decay", "beta1", "beta2", "grad_clip", "train_batch_size", "global_batch_size"),
    *("gradient_accumulation_steps", "tensor_parallel", "pipeline_parallel", "context_parallel", "precision", "bf16"),
    *("activation_checkpointing", "activation_checkpointing_mode", "logging_freq", "checkpoint_freq"),
})  # fmt: skip

# Those that decide what is in the tokenised dataset.
TOKENISED = (
    *("dataset", "dataset_config_name", "text_column", "data_streams", "data_mixture", "tokenizer", "seed"),
    "max_context_width",
)
TOKEN_FILES = ("token_dtype", "token_end")  # They decide what is in token files of other programs.


class Division(NamedTuple):
    """Division of a model among the ranks of a job, which are NeuronCores."""

    ranks: int
    tensor: int
    pipeline: int
    context: int
    key_value_copies: int  # kv_replicator: tensor-parallel ranks that hold the same key-value heads

    @property
    def data(self) -> int:
        """Return the ranks that read different data."""
        return self.ranks // (self.tensor * self.pipeline * self.context)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A job of NxD Training.

    Attributes:
        config: What the run shares with podwright-train's.
        instance_type: Of its nodes, a key of ``MEMBERS``.
        nodes: Their number.
        layout: Of the model on their cores.
        index: Address of Neuron's packages.
        shared: Folder that all nodes see and only the user may enter, for environment, dataset and cache: what is there
            runs as the user.
        cache_root: Folder or S3 address of the caches. Default: in ``shared``.
        partition: Of Slurm.
        auto_resume: Use HyperPod's srun option.
    """

    run: RunFolder
    config: TrainConfig
    instance_type: str
    nodes: int
    layout: Division
    shared: Path
    index: str = INDEX
    cache_root: str = ""
    partition: str | None = None
    auto_resume: bool = False
    python: Path = Path("/usr/bin/python3")
    podwright: Path  # the environment that tokenises

    @property
    def name(self) -> str:
        """Return the name of the run's files."""
        return self.config.preset or "model"

    @property
    def folder(self) -> Path:
        """Return the folder of configuration, scripts and results."""
        return self.run.nxdt

    @property
    def environment(self) -> Path:
        """Return the virtual environment, named by a hash of its packages."""
        digest = hashlib.sha256("\n".join((*PACKAGES, COMMIT)).encode()).hexdigest()[:12]
        return self.shared / "environments" / digest

    @property
    def dataset(self) -> Path:
        """Return the folder of the tokenised dataset, named by a hash of its sources."""
        config = self.config.with_absolute_paths()
        made_of = [getattr(config, name) for name in TOKENISED]
        # They are left out where they are not set, so that datasets of texts keep their names.
        made_of += [f"{name}={value}" for name in TOKEN_FILES if (value := getattr(config, name)) is not None]
        made_of += ["add_bos"] if config.add_bos else []
        return self.shared / "arrow" / _digest([*made_of, self.samples])

    @property
    def samples(self) -> int:
        """Return the sequences of the whole run."""
        return self.config.max_steps * self.config.batch_sequences(self.layout.data)

    @property
    def cache(self) -> str:
        """Return the compiler's cache, named by model, layout and compiler: another of these has its own."""
        shape = [self.config.max_context_width, self.config.train_batch_size, self.config.compute_precision]
        name = _digest([asdict(self.config.model), self.layout, shape, self.instance_type, self.nodes, COMPILER])
        return f"{(self.cache_root or str(self.shared / 'neuron_cache')).rstrip('/')}/{name}"


def shared_folder(run_dir: Path) -> Path:
    """Return the folder beside a user's runs for what they share: in one for all users, others could prepare it."""
    return run_dir.parent / f".nxdt-{os.geteuid()}"


def layout_of(
    config: TrainConfig, instance_type: str, nodes: int, *, key_value_copies: int | None, tensor: int | None
) -> Division:
    """Return the layout; values that are ``None`` are chosen: all cores of a trn1 for tensors, the fewest copies."""
    ranks = DEVICES * neuron.ranks_per_device(MEMBERS[instance_type])
    tensor = tensor or (ranks if MEMBERS[instance_type] == "Trainium" else ranks // 4)
    fewest = max(1, tensor // config.model.num_key_value_heads)
    copies = fewest if key_value_copies is None else key_value_copies
    return Division(ranks * nodes, tensor, config.pipeline_parallel, config.context_parallel, copies)


def problems(plan: Plan) -> Iterator[str]:
    """Yield why NxD Training or the nodes refuse a plan, one line each."""
    config, layout = plan.config, plan.layout
    usual = TrainConfig()
    set_here = [name for name in option_names() if getattr(config, name) != getattr(usual, name)]
    yield from (f"{flag(name)}: NxD Training has no such option" for name in set_here if name not in OPTIONS)
    if config.compute_precision not in PRECISIONS:
        precision = f"precision {config.compute_precision}: NxD Training has {' and '.join(PRECISIONS)}"
        yield f"{precision} (its bf16 keeps weights in fp32)"
    if config.num_local_experts or config.model_type not in ("llama_v2", "llama_v3"):
        yield f"model_type {config.model_type}: NxD Training is set up here for llama_v2 and llama_v3"
    yield from _problems_of_heads(config, layout)
    yield from _problems_of_ranks(plan)
    yield from _problems_of_places(plan)


def _problems_of_heads(config: TrainConfig, layout: Division) -> Iterator[str]:
    heads, key_value_heads = config.model.num_attention_heads, config.model.num_key_value_heads
    copies = key_value_heads * layout.key_value_copies
    if layout.key_value_copies < 1 or copies > heads:
        yield (
            f"--kv-replicator: got {layout.key_value_copies}, need 1 to {heads // key_value_heads}: "
            f"{key_value_heads} key-value heads are copied for {heads} heads"
        )
        return
    if heads % layout.tensor:
        yield f"tensor_parallel {layout.tensor} does not divide the {heads} heads"
    if copies % layout.tensor:
        yield (
            f"tensor_parallel {layout.tensor} does not divide {key_value_heads} key-value heads x kv_replicator "
            f"{layout.key_value_copies} = {copies}: set --kv-replicator {max(1, layout.tensor // key_value_heads)}"
        )
    if layout.tensor % layout.key_value_copies:
        yield f"kv_replicator {layout.key_value_copies} does not divide tensor_parallel {layout.tensor}"
    if config.num_layers % layout.pipeline:
        yield f"pipeline_parallel {layout.pipeline} does not divide the {config.num_layers} layers"
    if config.max_context_width % layout.tensor:
        yield f"max_context_width {config.max_context_width} is not divisible by tensor_parallel {layout.tensor}"


def _problems_of_ranks(plan: Plan) -> Iterator[str]:
    config, layout = plan.config, plan.layout
    divided = layout.tensor * layout.pipeline * layout.context
    if layout.ranks % divided:
        division = f"tensor_parallel {layout.tensor} x pipeline_parallel {layout.pipeline} x context_parallel"
        yield f"{division} {layout.context} = {divided} does not divide the {layout.ranks} ranks of {plan.nodes} nodes"
        return
    if MEMBERS[plan.instance_type] == "Trainium" and layout.tensor not in TRN1_TENSORS:
        yield (
            f"tensor_parallel {layout.tensor}: {plan.instance_type} has collectives among "
            f"{', '.join(map(str, TRN1_TENSORS[:-1]))} or {TRN1_TENSORS[-1]} cores"
        )
    step = config.train_batch_size * layout.data
    if config.batch_sequences(layout.data) % step:
        yield (
            f"global_batch_size {config.global_batch_size} is not divisible by train_batch_size x data-parallel "
            f"ranks, {config.train_batch_size} x {layout.data}"
        )


def _problems_of_places(plan: Plan) -> Iterator[str]:
    if not re.fullmatch(r"https?://[\w.:/-]+", plan.index) or "pypi.org" in plan.index:
        yield (
            f"--neuron-index: got {plan.index or 'nothing'}, need Neuron's own, {INDEX}, or a mirror: PyPI's packages"
            " of these names are placeholders"
        )
    if plan.cache_root and not re.fullmatch(r"(s3://[\w./-]+|/[\w./-]+)", plan.cache_root):
        yield f"--compile-cache: got {plan.cache_root}, need a folder that all nodes see, or s3://BUCKET/PREFIX"
    folder = Path(plan.cache_root)
    if folder.is_absolute() and folder.exists() and (problem := why_not_trusted(folder)):
        yield f"--compile-cache: {problem}: compiled graphs in it run as you"
    if compiler := cached_by(plan.cache):
        yield (
            f"--compile-cache: {plan.cache} was made by neuronx-cc {compiler}, but the run uses {COMPILER}: name "
            "another, or remove it"
        )


def cached_by(cache: str) -> str | None:
    """Return the compiler of a cache on a file system if it is not this plan's."""
    try:
        compiler = json.loads((Path(cache) / CACHE_RECORD).read_text())["compiler"]
    except (OSError, ValueError, KeyError):
        return None
    return str(compiler) if compiler != COMPILER else None


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]
