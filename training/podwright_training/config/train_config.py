"""The configuration of a run: every option with its default, meaning and limits, in one place; no torch.

Names and defaults are those of the
FSDP test case of AWS (awsome-distributed-training, ``3.test_cases/pytorch/FSDP``) wherever it has the option.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from podwright_training.config.architecture import ModelConfig, RopeScaling

PRESETS = Path(__file__).parent / "presets"
ROPE_THETA = {  # by model type, as its first model was published
    "llama_v2": 10_000.0,
    "llama_v3": 500_000.0,
    "mistral": 10_000.0,
    "mixtral": 1_000_000.0,
}
QUICK_LOSS_CHUNK_TOKENS = {"cpu": 512, "accelerator": 4096}  # measured: beyond, a CPU only pays in memory
PRECISIONS = ("bf16", "fp16", "fp32")


def option(
    default: Any,
    text: str,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """A field of ``TrainConfig``: its default, one sentence of help, and the limits of its value."""
    limits = {"at_least": at_least, "above": above, "at_most": at_most, "choices": choices}
    return field(default=default, metadata={"text": text, **limits})


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One training run. Each field is a flag of the same name and a key of ``run.yaml``."""

    # Where
    run_dir: str = option("runs/default", "Folder of the run: config, metrics, checkpoints, results.")
    checkpoint_dir: str | None = option(
        None, "Where checkpoints are saved, a folder or s3://bucket/prefix; default: <run_dir>/checkpoints."
    )
    resume_from_checkpoint: str | None = option(
        None, "Folder of checkpoints to start from while checkpoint_dir holds none; may be the same folder."
    )
    preset: str | None = option(None, "Name of a preset whose values replace the defaults.")
    device: str = option(
        "auto", "Where to compute; auto: an accelerator if there is any.", choices=("auto", "cuda", "neuron", "cpu")
    )

    # Model
    model_type: str = option("llama_v3", "Family of the model.", choices=tuple(ROPE_THETA))
    vocab_size: int = option(50432, "Rows of the embedding; at least the tokenizer's size.", at_least=2)
    hidden_width: int = option(768, "Width of the residual stream.", at_least=1)
    intermediate_size: int = option(11008, "Width of the feed-forward layer.", at_least=1)
    num_layers: int = option(12, "Transformer blocks.", at_least=1)
    num_heads: int = option(12, "Query heads; divides hidden_width.", at_least=1)
    num_key_value_heads: int | None = option(
        None, "Key-value heads; divides num_heads; default: num_heads.", at_least=1
    )
    head_dim: int | None = option(None, "Width of a head; default: hidden_width / num_heads.", at_least=2)
    qk_norm: bool = option(False, "RMSNorm of each query and key head; the model is exported as a Qwen3.")
    sliding_window: int | None = option(
        None, "Tokens that a token sees, itself included; default: all before it.", at_least=1
    )
    num_local_experts: int | None = option(None, "Feed-forward layers per block, of mixtral.", at_least=2)
    num_experts_per_tok: int = option(2, "Experts that a token is sent to.", at_least=1)
    router_aux_loss_coef: float = option(0.02, "Weight of the experts' load-balancing loss.", at_least=0)
    max_context_width: int = option(2048, "Tokens per sequence.", at_least=1)
    max_position_embeddings: int | None = option(
        None, "Positions the rotary embedding is made for; default: max_context_width.", at_least=1
    )
    rope_theta: float | None = option(
        None, f"Base of the rotary frequencies; default by model_type: {ROPE_THETA}.", above=0
    )
    rope_scaling_factor: float | None = option(
        None, "Llama 3.1's stretching of rotary frequencies; default: none.", at_least=1
    )
    tie_word_embeddings: bool = option(False, "Use the embedding as the output head too.")
    initializer_range: float = option(0.02, "Standard deviation of the initial weights.", above=0)

    # Data
    dataset: str = option(
        "allenai/c4",
        "Dataset on the Hugging Face hub, a local folder, or s3://bucket/folder, of JSON lines, Parquet, "
        "Arrow or token shards.",
    )
    dataset_config_name: str | None = option(
        "en", "Folder of the dataset's files in it, or a configuration its card names; none: all."
    )
    text_column: str = option("text", "Column of the dataset's records that holds the text.")
    data_mixture: str | None = option(
        None,
        "Several datasets by weight, in place of dataset: dataset=weight,… or a YAML file of name: {dataset: …, "
        "dataset_config_name: …, text_column: …, weight: …}.",
    )
    tokenizer: str = option("EleutherAI/gpt-neox-20b", "Tokenizer on the Hugging Face hub, or a local folder.")
    train_batch_size: int = option(2, "Sequences per rank and micro-batch.", at_least=1)
    data_streams: int = option(
        64, "Parts the data is read in; a multiple of every world size the run will have.", at_least=1
    )
    data_workers: int = option(
        2, "Processes per rank that read, tokenise and pack ahead; 0: the trainer does it itself.", at_least=0
    )
    document_mask: bool = option(False, "Tokens see only their own document, and positions begin anew with each.")
    max_bad_records: int = option(100, "Broken records a rank leaves out before it stops.", at_least=0)
    max_bad_shards: int = option(1, "Shards broken in the middle that a rank leaves before it stops.", at_least=0)

    # Optimisation
    max_steps: int = option(5000, "Steps of the whole run.", at_least=1)
    gradient_accumulation_steps: int = option(1, "Micro-batches per rank and step.", at_least=1)
    batch_ramp: float = option(
        0.0,
        "Fraction of max_steps over which the micro-batches per step rise from 1 to gradient_accumulation_steps.",
        at_least=0,
        at_most=1,
    )
    optimizer: str = option(
        "adamw",
        "muon: Muon for the blocks' matrices, AdamW for the rest, with one learning rate.",
        choices=("adamw", "muon"),
    )
    lr: float = option(1e-4, "Peak learning rate.", above=0)
    lr_schedule: str = option(
        "cosine",
        "How the rate falls from lr to min_lr; wsd: it stays at lr until the last wsd_decay.",
        choices=("cosine", "linear", "wsd"),
    )
    min_lr: float = option(1e-5, "Learning rate at the end of the decay.", at_least=0)
    warmup: float = option(0.0032, "Fraction of max_steps with a rising learning rate.", at_least=0, at_most=1)
    plateau: float = option(0.0, "Fraction of max_steps, the last ones, at min_lr.", at_least=0, at_most=1)
    wsd_decay: float = option(
        0.1, "Fraction of max_steps over which wsd falls, before the plateau.", at_least=0, at_most=1
    )
    weight_decay: float = option(0.2, "Decay of matrices; norms have none.", at_least=0)
    beta1: float = option(0.9, "AdamW's first decay rate.", at_least=0, at_most=1)
    beta2: float = option(0.95, "AdamW's second decay rate.", at_least=0, at_most=1)
    z_loss: float = option(
        0.0, "Weight of the squared logarithm of the softmax's denominator (PaLM, arXiv:2204.02311).", at_least=0
    )
    grad_clip: float = option(1.0, "Largest global norm of the gradient.", above=0)
    adaptive_grad_clip: float | None = option(
        None,
        "Largest norm of a matrix's gradient as a share of the matrix's own norm; default: no such limit.",
        above=0,
    )
    ema_decay: float | None = option(
        None, "Keep a moving average of the weights with this decay per step; default: none.", above=0, at_most=1
    )
    noise_scale_freq: int | None = option(
        None, "Steps between estimates of the gradient's noise scale; default: none.", at_least=1
    )
    seed: int = option(12345, "Seed of the initial weights and of the order of the data.", at_least=0)
    deterministic: bool = option(False, "Let PyTorch use deterministic algorithms alone, which may be slower.")

    # Guard
    guard_policy: str = option(
        "stop",
        "What to do about a step whose loss or gradient is NaN, infinite or a spike; rollback: go back to the newest "
        "checkpoint, and on with the data after that step.",
        choices=("stop", "skip", "rollback"),
    )
    guard_z_score: float | None = option(
        None, "A loss is a spike above this robust z-score among the last ones; default: none is.", above=0
    )
    guard_window: int = option(100, "Losses a spike is measured against.", at_least=8)

    # Memory and parallelism
    sharding_strategy: str = option(
        "full",
        "full: shard over all ranks; hybrid: within a node, replicate between nodes.",
        choices=("full", "hybrid"),
    )
    data_replicas: int | None = option(
        None, "Copies of the sharded model, with sharding_strategy hybrid; default: one per node.", at_least=1
    )
    tensor_parallel: int = option(
        1, "Ranks that share each block's matrices and heads, and the sequence in between.", at_least=1
    )
    context_parallel: int = option(1, "Ranks that share each sequence.", at_least=1)
    pipeline_parallel: int = option(1, "Ranks that hold the model's blocks one after the other.", at_least=1)
    pipeline_schedule: str = option(
        "1f1b",
        "Order of forwards and backwards in the pipeline; all but 1f1b give each rank two stages.",
        choices=("1f1b", "interleaved_1f1b", "zero_bubble"),
    )
    pipeline_micro_batches: int | None = option(
        None, "Pieces that the pipeline cuts each batch into; default: one per sequence.", at_least=1
    )
    expert_parallel: int = option(1, "Ranks that hold different experts of a block.", at_least=1)
    reshard_after_forward: str = option(
        "auto",
        "Give a block's gathered weights up after forward, and gather them again in backward. auto: unless all of them "
        "take 1 GiB at most, or a pipeline needs them again.",
        choices=("auto", "always", "never"),
    )
    cpu_offload: bool = option(False, "Keep weights, gradients and optimizer state in the host's memory.")
    bf16: bool = option(True, "Compute in bf16; weights, reductions and optimizer stay in fp32.")
    precision: str | None = option(
        None,
        "Compute in this precision, fp16 with dynamic loss scaling; default: bf16 or, with --bf16 0, fp32.",
        choices=PRECISIONS,
    )
    float8: bool = option(False, "Multiply matrices of blocks in float8; needs torchao and an H100 or newer.")
    compile: bool = option(False, "Compile each block and the loss with torch.compile.")
    attention: str = option(
        "sdpa",
        "How a GPU hides what document masks and sliding windows hide: a mask of all pairs, or flex_attention, which "
        "skips hidden blocks.",
        choices=("sdpa", "flex"),
    )
    loss_chunk_tokens: int | None = option(
        None,
        "Tokens whose logits are in memory at a time, 0: all; default: "
        f"{QUICK_LOSS_CHUNK_TOKENS['cpu']} on a CPU, {QUICK_LOSS_CHUNK_TOKENS['accelerator']} on a GPU.",
        at_least=0,
    )
    activation_checkpointing: bool = option(
        True, "Keep only a part of each block's activations and compute the rest again in backward."
    )
    activation_checkpointing_mode: str = option(
        "full",
        "full: keep each block's input; selective: keep also what matrix products and attention gave.",
        choices=("full", "selective"),
    )
    offload_activations: bool = option(False, "Keep these inputs in the host's memory.")

    # Watching and saving
    logging_freq: int = option(1, "Steps between log lines.", at_least=1)
    validation_freq: int | None = option(None, "Steps between validations; default: at the end only.", at_least=1)
    validation_batches: int = option(10, "Batches per validation.", at_least=1)
    val_batch_size: int = option(4, "Sequences per rank and validation batch.", at_least=1)
    checkpoint_freq: int = option(1000, "Steps between checkpoints; one more at the end.", at_least=1)
    keep_checkpoints: int = option(3, "Newest checkpoints kept.", at_least=1)
    keep_every: int | None = option(None, "Steps between checkpoints kept for ever; default: none.", at_least=1)
    async_checkpoints: bool = option(True, "Write checkpoints in the background of the next steps.")
    profile_steps: str | None = option(
        None, "Steps to record a trace of, first-last, as in 10-15; default: none is recorded."
    )
    tensorboard: bool = option(False, "Write the metrics for TensorBoard too.")
    wandb: bool = option(False, "Send the metrics to Weights & Biases too; WANDB_PROJECT names the project.")

    @property
    def checkpoints(self) -> Path:
        """The folder where checkpoints are saved."""
        folder = None if self.remote_checkpoints else self.checkpoint_dir
        return Path(folder or Path(self.run_dir) / "checkpoints")

    @property
    def remote_checkpoints(self) -> str | None:
        """Where they are copied to from there, a URL."""
        return self.checkpoint_dir if "://" in (self.checkpoint_dir or "") else None

    @property
    def compute_precision(self) -> str:
        """One of ``PRECISIONS``: what matrix products are computed in."""
        return self.precision or ("bf16" if self.bf16 else "fp32")

    @property
    def profiled(self) -> range:
        """The steps to record a trace of; raises ``ValueError`` if ``profile_steps`` is not ``first-last``."""
        if self.profile_steps is None:
            return range(0)
        first, _, last = self.profile_steps.partition("-")
        steps = range(int(first), int(last) + 1)
        if not steps or steps[0] < 1:
            raise ValueError
        return steps

    @property
    def model(self) -> ModelConfig:
        """The shape of the model."""
        family = self.model_type if self.model_type in ("mistral", "mixtral") else "llama"
        scaling = RopeScaling(factor=self.rope_scaling_factor) if self.rope_scaling_factor else None
        return ModelConfig(
            model_type="qwen3" if self.qk_norm else family,
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_width,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=self.num_layers,
            num_attention_heads=self.num_heads,
            num_key_value_heads=self.num_key_value_heads or self.num_heads,
            head_dim=self.head_dim or self.hidden_width // self.num_heads,
            max_position_embeddings=self.max_position_embeddings or self.max_context_width,
            rope_theta=self.rope_theta or ROPE_THETA[self.model_type],
            rope_scaling=scaling,
            initializer_range=self.initializer_range,
            tie_word_embeddings=self.tie_word_embeddings,
            sliding_window=self.sliding_window,
            qk_norm=self.qk_norm,
            num_local_experts=self.num_local_experts,
            num_experts_per_tok=self.num_experts_per_tok,
            router_aux_loss_coef=self.router_aux_loss_coef if self.num_local_experts else 0.0,
        )

    def to_yaml(self) -> str:
        """Every option with its value; ``--config`` reads it back to an equal configuration."""
        return yaml.safe_dump(asdict(self), sort_keys=False)

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits that differ when any option differs."""
        return hashlib.sha256(self.to_yaml().encode()).hexdigest()[:12]


def conflicts(config: TrainConfig) -> Iterator[tuple[tuple[str, ...], str]]:
    """Pairs of options that do not go together: their names, and what to say."""
    yield from _model_conflicts(config)
    if config.min_lr > config.lr:
        yield ("min_lr", "lr"), f"min_lr {config.min_lr} is above lr {config.lr}"
    yield from _schedule_conflicts(config)
    yield from _step_conflicts(config)
    yield from _checkpoint_conflicts(config)
    if config.offload_activations and not config.activation_checkpointing:
        yield (
            ("offload_activations", "activation_checkpointing"),
            "offload_activations moves what activation_checkpointing keeps: it needs activation_checkpointing 1",
        )
    if config.float8 and config.compute_precision != "bf16":
        yield ("float8", "precision"), f"float8 needs precision bf16, not {config.compute_precision}"


def _model_conflicts(config: TrainConfig) -> Iterator[tuple[tuple[str, ...], str]]:
    if config.head_dim is None and config.hidden_width % config.num_heads:
        yield (
            ("hidden_width", "num_heads"),
            f"hidden_width {config.hidden_width} is not divisible by num_heads {config.num_heads}",
        )
    elif (config.head_dim or config.hidden_width // config.num_heads) % 2:
        width = f"hidden_width {config.hidden_width} / num_heads {config.num_heads}"
        given = f"head_dim {config.head_dim}" if config.head_dim else width
        yield (
            ("hidden_width", "num_heads", "head_dim"),
            f"{given} is odd; rotary embeddings turn pairs",
        )
    if config.num_heads % (config.num_key_value_heads or config.num_heads):
        yield (
            ("num_heads", "num_key_value_heads"),
            f"num_heads {config.num_heads} is not divisible by num_key_value_heads {config.num_key_value_heads}",
        )
    range_ = config.max_position_embeddings or config.max_context_width
    if config.max_context_width > range_:
        yield (
            ("max_context_width", "max_position_embeddings"),
            f"max_context_width {config.max_context_width} is above max_position_embeddings {range_}",
        )
    yield from _family_conflicts(config)


def _family_conflicts(config: TrainConfig) -> Iterator[tuple[tuple[str, ...], str]]:
    """What a family does not have could not be exported."""
    llama = config.model_type in ("llama_v2", "llama_v3")
    if config.sliding_window and llama:
        yield (
            ("sliding_window", "model_type"),
            f"sliding_window {config.sliding_window}: a {config.model_type} has none; use a mistral or mixtral",
        )
    if config.qk_norm and not llama:
        yield (
            ("qk_norm", "model_type"),
            f"qk_norm 1: a {config.model_type} has none; use a llama_v2 or llama_v3",
        )
    if (config.num_local_experts is None) == (config.model_type == "mixtral"):
        yield (
            ("num_local_experts", "model_type"),
            f"num_local_experts {config.num_local_experts}, model_type {config.model_type}: a mixtral has experts",
        )
    elif config.num_experts_per_tok > (config.num_local_experts or config.num_experts_per_tok):
        yield (
            ("num_experts_per_tok", "num_local_experts"),
            f"num_experts_per_tok {config.num_experts_per_tok} is above num_local_experts {config.num_local_experts}",
        )


def _checkpoint_conflicts(config: TrainConfig) -> Iterator[tuple[tuple[str, ...], str]]:
    if config.keep_every and config.keep_every % config.checkpoint_freq:
        yield (
            ("keep_every", "checkpoint_freq"),
            f"keep_every {config.keep_every} is not a multiple of checkpoint_freq {config.checkpoint_freq}",
        )
    start = config.resume_from_checkpoint or ""
    if "://" in start and start != config.checkpoint_dir:
        yield (
            ("resume_from_checkpoint", "checkpoint_dir"),
            f"resume_from_checkpoint {start} is not checkpoint_dir {config.checkpoint_dir}: copy it to a folder first",
        )


def _schedule_conflicts(config: TrainConfig) -> Iterator[tuple[tuple[str, ...], str]]:
    parts = ("warmup", "wsd_decay", "plateau") if config.lr_schedule == "wsd" else ("warmup", "plateau")
    if sum(getattr(config, name) for name in parts) > 1:
        *first, last = [f"{name} {getattr(config, name)}" for name in parts]
        yield parts, f"{', '.join(first)} and {last} together exceed 1"


def _step_conflicts(config: TrainConfig) -> Iterator[tuple[tuple[str, ...], str]]:
    for name in ("batch_ramp", "noise_scale_freq"):
        if getattr(config, name) and config.gradient_accumulation_steps == 1:
            yield (
                (name, "gradient_accumulation_steps"),
                f"{name} {getattr(config, name)} needs more than one micro-batch: set gradient_accumulation_steps",
            )
    try:
        steps = config.profiled
    except ValueError:
        yield ("profile_steps",), f"profile_steps {config.profile_steps}: write the first and last step, as in 10-15"
        return
    if steps and steps[-1] > config.max_steps:
        yield (
            ("profile_steps", "max_steps"),
            f"profile_steps {config.profile_steps} goes beyond max_steps {config.max_steps}",
        )
