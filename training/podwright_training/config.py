"""The configuration of a run: every option with its default, meaning and limits, in one place; no torch.

Options come from a preset, then ``--config run.yaml``, then flags; the later wins. Names and defaults are those of the
FSDP test case of AWS (awsome-distributed-training, ``3.test_cases/pytorch/FSDP``) wherever it has the option.
"""

from __future__ import annotations

import argparse
import hashlib
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

import yaml

PRESETS = Path(__file__).parent / "presets"
ROPE_THETA = {"llama_v2": 10_000.0, "llama_v3": 500_000.0}  # by model type, as Meta published the models


class UserError(ValueError):
    """Something the user can put right: the message says what was given, what is allowed, what to do. Exit status 2."""


class ConfigError(UserError):
    """All problems of a configuration, one per line."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(self.problems))


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """Llama 3.1's stretching of the slow rotary frequencies (Meta's ``rope_scaling``, type ``llama3``)."""

    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The shape of a Llama, in Hugging Face's words."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    rms_norm_eps: float = 1e-5
    initializer_range: float = 0.02
    tie_word_embeddings: bool = False

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> ModelConfig:
        """The inverse of ``dataclasses.asdict``."""
        scaling = content["rope_scaling"]
        return cls(**{**content, "rope_scaling": RopeScaling(**scaling) if scaling else None})

    def to_hf(self) -> dict[str, Any]:
        """The content of ``config.json`` as transformers 5 reads it, for weights in fp32."""
        rope: dict[str, Any] = {"rope_type": "default", "rope_theta": self.rope_theta}
        if self.rope_scaling:
            rope |= {"rope_type": "llama3", **asdict(self.rope_scaling)}
        same_name = {
            item.name: getattr(self, item.name)
            for item in fields(self)
            if item.name not in ("rope_theta", "rope_scaling")
        }
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "mlp_bias": False,
            "dtype": "float32",
            "use_cache": True,
            "rope_parameters": rope,
            **same_name,
        }

    @property
    def parameters(self) -> int:
        """Number of trained parameters; a tied head counts once."""
        embeddings = (1 if self.tie_word_embeddings else 2) * self.vocab_size * self.hidden_size
        norms = (2 * self.num_hidden_layers + 1) * self.hidden_size
        return embeddings + norms + self.num_hidden_layers * self._block_matrices

    def flops_per_token(self, context_width: int) -> float:
        """FLOPs of forward and backward per token: ``6 N + 12 L N_heads H T`` of PaLM (arXiv:2204.02311, appendix B).

        ``N`` counts the matrices that multiply activations: the head, not the embedding. Neither causality nor
        recomputation is counted.
        """
        matrices = self.num_hidden_layers * self._block_matrices + self.vocab_size * self.hidden_size
        attention = 12 * self.num_hidden_layers * self.num_attention_heads * self.head_dim * context_width
        return 6.0 * matrices + attention

    @property
    def _block_matrices(self) -> int:
        attention = 2 * (self.num_attention_heads + self.num_key_value_heads) * self.head_dim * self.hidden_size
        return attention + 3 * self.intermediate_size * self.hidden_size


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
    checkpoint_dir: str | None = option(None, "Where checkpoints are saved; default: <run_dir>/checkpoints.")
    resume_from_checkpoint: str | None = option(
        None, "Folder of checkpoints to start from while checkpoint_dir holds none; may be the same folder."
    )
    preset: str | None = option(None, "Name of a preset whose values replace the defaults.")
    device: str = option("auto", "Where to compute; auto: CUDA if there is any.", choices=("auto", "cuda", "cpu"))

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
    dataset: str = option("allenai/c4", "Dataset on the Hugging Face hub, or a local folder in C4's layout.")
    dataset_config_name: str | None = option("en", "Folder of the dataset's files in it.")
    tokenizer: str = option("EleutherAI/gpt-neox-20b", "Tokenizer on the Hugging Face hub, or a local folder.")
    train_batch_size: int = option(2, "Sequences per rank and step.", at_least=1)
    data_streams: int = option(
        64, "Parts the data is read in; a multiple of every world size the run will have.", at_least=1
    )

    # Optimisation
    max_steps: int = option(5000, "Steps of the whole run.", at_least=1)
    lr: float = option(1e-4, "Peak learning rate.", above=0)
    min_lr: float = option(1e-5, "Learning rate at the end of the cosine.", at_least=0)
    warmup: float = option(0.0032, "Fraction of max_steps with a rising learning rate.", at_least=0, at_most=1)
    plateau: float = option(0.0, "Fraction of max_steps, the last ones, at min_lr.", at_least=0, at_most=1)
    weight_decay: float = option(0.2, "Decay of matrices; norms have none.", at_least=0)
    beta1: float = option(0.9, "AdamW's first decay rate.", at_least=0, at_most=1)
    beta2: float = option(0.95, "AdamW's second decay rate.", at_least=0, at_most=1)
    grad_clip: float = option(1.0, "Largest global norm of the gradient.", above=0)
    seed: int = option(12345, "Seed of the initial weights.", at_least=0)

    # Memory and parallelism
    sharding_strategy: str = option(
        "full",
        "full: shard over all ranks; hybrid: within a node, replicate between nodes.",
        choices=("full", "hybrid"),
    )
    bf16: bool = option(True, "Compute in bf16; weights, reductions and optimizer stay in fp32.")
    activation_checkpointing: bool = option(
        True, "Keep only each block's input and compute the rest again in backward."
    )
    offload_activations: bool = option(False, "Keep these inputs in the host's memory.")

    # Watching and saving
    logging_freq: int = option(1, "Steps between log lines.", at_least=1)
    validation_freq: int | None = option(None, "Steps between validations; default: at the end only.", at_least=1)
    validation_batches: int = option(10, "Batches per validation.", at_least=1)
    val_batch_size: int = option(4, "Sequences per rank and validation batch.", at_least=1)
    checkpoint_freq: int = option(1000, "Steps between checkpoints; one more at the end.", at_least=1)
    keep_checkpoints: int = option(3, "Newest checkpoints kept.", at_least=1)

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints are saved."""
        return Path(self.checkpoint_dir or Path(self.run_dir) / "checkpoints")

    @property
    def model(self) -> ModelConfig:
        """The shape of the model."""
        scaling = RopeScaling(factor=self.rope_scaling_factor) if self.rope_scaling_factor else None
        return ModelConfig(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_width,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=self.num_layers,
            num_attention_heads=self.num_heads,
            num_key_value_heads=self.num_key_value_heads or self.num_heads,
            head_dim=self.hidden_width // self.num_heads,
            max_position_embeddings=self.max_position_embeddings or self.max_context_width,
            rope_theta=self.rope_theta or ROPE_THETA[self.model_type],
            rope_scaling=scaling,
            initializer_range=self.initializer_range,
            tie_word_embeddings=self.tie_word_embeddings,
        )

    def to_yaml(self) -> str:
        """Every option with its value; ``--config`` reads it back to an equal configuration."""
        return yaml.safe_dump(asdict(self), sort_keys=False)

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits that differ when any option differs."""
        return hashlib.sha256(self.to_yaml().encode()).hexdigest()[:12]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--config`` and one flag per option; ``load`` reads what they were given."""
    parser.add_argument("--config", metavar="run.yaml", help="YAML file of options; flags win over it")
    hints = _types()
    for item in fields(TrainConfig):
        allowed = item.metadata["choices"] or (_preset_names() if item.name == "preset" else ())
        parser.add_argument(
            f"--{item.name}",
            default=argparse.SUPPRESS,
            metavar="|".join(allowed) or ("0|1" if hints[item.name].kind is bool else hints[item.name].kind.__name__),
            help=f"{item.metadata['text']} [{_shown(item.default)}]".replace("%", "%%"),
            nargs="?" if hints[item.name].kind is bool else None,
            const="1" if hints[item.name].kind is bool else None,
        )
    parser.set_defaults(unknown_flags=[])


def load(args: argparse.Namespace) -> TrainConfig:
    """The configuration that a preset, a file and flags give together.

    Args:
        args: Parsed by a parser that ``add_arguments`` extended; ``unknown_flags`` may list what it did not know.

    Raises:
        ConfigError: With every problem of all sources.
    """
    flags = {item.name: getattr(args, item.name) for item in fields(TrainConfig) if hasattr(args, item.name)}
    problems = [_unknown(flag.split("=")[0], "flag", [f"--{name}" for name in _types()]) for flag in args.unknown_flags]
    return _resolve(args.config, flags, problems)


def load_file(path: Path) -> TrainConfig:
    """The configuration in one file, such as a run's ``config.yaml``; raises ``ConfigError``."""
    return _resolve(str(path), {}, [])


class _Given(NamedTuple):
    value: Any
    place: str


def _resolve(file: str | None, flags: Mapping[str, Any], problems: list[str]) -> TrainConfig:
    given = _read(Path(file), problems) if file else {}
    given |= {name: _Given(value, "flag") for name, value in flags.items()}
    given = _preset(given, problems) | given
    values, invalid = _convert_all(given, problems)
    config = TrainConfig(**values)
    problems += [message for names, message in _conflicts(config) if not invalid.intersection(names)]
    if problems:
        raise ConfigError(problems)
    return config


def _read(path: Path, problems: list[str]) -> dict[str, _Given]:
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        problems.append(f"{path} cannot be read: {' '.join(str(error).split())}")
        return {}
    if not isinstance(content or {}, dict):
        problems.append(f"{path} must hold `option: value` lines, not {type(content).__name__}")
        return {}
    known = _types()
    problems += [_unknown(str(key), f"option in {path}", known) for key in content or {} if key not in known]
    return {key: _Given(value, str(path)) for key, value in (content or {}).items() if key in known}


def _preset(given: Mapping[str, _Given], problems: list[str]) -> dict[str, _Given]:
    name = given["preset"].value if "preset" in given else None
    if name is None:
        return {}
    if name not in _preset_names():
        problems.append(f"preset = {name} ({given['preset'].place}): there are {', '.join(_preset_names())}")
        return {}
    return {
        key: _Given(given.value, f"preset {name}") for key, given in _read(PRESETS / f"{name}.yaml", problems).items()
    }


def _preset_names() -> list[str]:
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def _convert_all(given: Mapping[str, _Given], problems: list[str]) -> tuple[dict[str, Any], set[str]]:
    values: dict[str, Any] = {}
    invalid = set()
    for item in fields(TrainConfig):
        if item.name not in given:
            continue
        value, place = given[item.name]
        try:
            values[item.name] = _within_limits(_convert(value, _types()[item.name]), item.metadata)
        except ValueError as error:
            invalid.add(item.name)
            problems.append(f"{item.name} = {value} ({place}): {error}")
    return values, invalid


class _Type(NamedTuple):
    kind: type
    optional: bool


@cache
def _types() -> dict[str, _Type]:
    hints = get_type_hints(TrainConfig)
    return {item.name: _type(hints[item.name]) for item in fields(TrainConfig)}


def _type(hint: Any) -> _Type:
    kinds = [kind for kind in get_args(hint) or (hint,) if kind is not types.NoneType]
    return _Type(kinds[0], optional=len(get_args(hint)) > 1)


def _convert(value: Any, to: _Type) -> Any:
    """A flag's text or a YAML value as the option's type; raises ``ValueError`` with what is allowed."""
    if value is None or (to.optional and str(value).lower() in ("none", "null")):
        if to.optional:
            return None
        raise ValueError("a value is needed")
    text = str(value)
    if to.kind is bool:
        if text.lower() not in ("0", "1", "true", "false"):
            raise ValueError("allowed are 0 and 1")
        return text.lower() in ("1", "true")
    try:
        return to.kind(text)  # via text: YAML reads 1e-4 as text, and 0.5 is no int
    except ValueError:
        raise ValueError("must be a whole number" if to.kind is int else "must be a number") from None


def _within_limits(value: Any, limits: Mapping[str, Any]) -> Any:
    if value is None:
        return value
    if limits["choices"] and value not in limits["choices"]:
        raise ValueError(f"allowed are {', '.join(limits['choices'])}")
    if limits["at_least"] is not None and not value >= limits["at_least"]:
        raise ValueError(f"must be at least {limits['at_least']}")
    if limits["above"] is not None and not value > limits["above"]:
        raise ValueError(f"must be above {limits['above']}")
    if limits["at_most"] is not None and not value <= limits["at_most"]:
        raise ValueError(f"must be at most {limits['at_most']}")
    return value


def _conflicts(config: TrainConfig) -> Iterator[tuple[tuple[str, ...], str]]:
    """Pairs of options that do not go together: their names, and what to say."""
    if config.hidden_width % config.num_heads:
        yield (
            ("hidden_width", "num_heads"),
            f"hidden_width {config.hidden_width} is not divisible by num_heads {config.num_heads}",
        )
    elif (config.hidden_width // config.num_heads) % 2:
        yield (
            ("hidden_width", "num_heads"),
            f"hidden_width {config.hidden_width} / num_heads {config.num_heads} is odd; rotary embeddings turn pairs",
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
    if config.min_lr > config.lr:
        yield ("min_lr", "lr"), f"min_lr {config.min_lr} is above lr {config.lr}"
    if config.warmup + config.plateau > 1:
        yield ("warmup", "plateau"), f"warmup {config.warmup} and plateau {config.plateau} together exceed 1"
    if config.offload_activations and not config.activation_checkpointing:
        yield (
            ("offload_activations", "activation_checkpointing"),
            "offload_activations moves what activation_checkpointing keeps: it needs activation_checkpointing 1",
        )


def _unknown(name: str, what: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, list(known), n=1)
    return f"unknown {what} {name}" + (f"; did you mean {close[0]}?" if close else "")


def _shown(default: Any) -> str:
    if default is MISSING or default is None:
        return "none"
    return str(int(default)) if isinstance(default, bool) else str(default)
