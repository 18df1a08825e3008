"""Write the command that submits a plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from podwright.planning import trainer_options
from podwright.planning.model import UnknownModelError
from podwright.planning.run_plan import Plan
from podwright.planning.trainer_options import DEFAULTS
from podwright.planning.trainer_run import model_of
from podwright_training.config.sources import load_file, preset_names
from podwright_training.config.train_config import PRESETS, TrainConfig
from podwright_training.spelling import as_item

FEWEST_CHECKPOINTS = 10  # Each run saves so often, however rarely its nodes fail.
DEFAULT_TOKENIZER_TOKENS = 50_277  # DEFAULTS.tokenizer has so many: https://huggingface.co/EleutherAI/gpt-neox-20b


@dataclass(frozen=True, kw_only=True)
class LaunchInputs:
    """Further inputs of the command, in addition to the plan.

    Attributes:
        run: File of the run, and its configuration.
        dataset: Dataset of the run. Default: the trainer's.
        tokenizer: Tokenizer of the run. Default: the trainer's, if the model's vocabulary holds it.
    """

    run: tuple[Path, TrainConfig] | None = None
    dataset: str | None = None
    tokenizer: str | None = None


def command(plan: Plan, source: LaunchInputs) -> list[str]:
    """Return the words of ``podwright-train launch`` for a plan."""
    preset = None if source.run else _preset(plan)
    base = source.run[1] if source.run else load_file(PRESETS / f"{preset}.yaml") if preset else DEFAULTS
    submit = [f"--preset={preset}"] if preset else [f"--run-dir=runs/{plan.model.name}"]
    flags = [*trainer_options.flags(plan.layout, base), *_other_flags(plan, base, source)]
    if source.run:
        submit = [f"--run-dir={base.run_dir}"]
        flags = [f"--config={source.run[0]}", *flags]
    elif not preset:
        shape_options = trainer_options.shape(plan.model, plan.layout)
        flags = [*trainer_options.as_flags(shape_options, DEFAULTS, always=("vocab_size", "num_layers")), *flags]
    return ["podwright-train", "launch", *submit, f"--nodes={plan.hardware.nodes}", "--", *flags]


def run_file(plan: Plan, source: LaunchInputs) -> str:
    """Return the lines of a run.yaml with the options of ``command``."""
    words = command(plan, source)
    preset = [word for word in words if word.startswith("--preset=")]
    options = [*preset, *words[words.index("--") + 1 :]]
    return "".join("{}: {}\n".format(*as_item(word)) for word in options)


def obstacles(plan: Plan, source: LaunchInputs) -> list[str]:
    """Return why no command can be given; empty if ``command`` runs."""
    if not plan.fits:
        return [plan.sentence()]
    lacking = plan.unsupported_options(source.run[1] if source.run else None)
    if lacking:
        return [f"podwright-train does not support {item}" for item in lacking]
    if not (source.run or source.tokenizer) and plan.model.vocab < DEFAULT_TOKENIZER_TOKENS:
        default = f"the default tokenizer {DEFAULTS.tokenizer} {DEFAULT_TOKENIZER_TOKENS:,}"
        return [f"the model has {plan.model.vocab:,} tokens, {default}: name another with --tokenizer"]
    return []


def _other_flags(plan: Plan, base: TrainConfig, source: LaunchInputs) -> Iterator[str]:
    """Yield the flags of steps, checkpoints and data."""
    tokens_per_step = trainer_options.batch_sequences(plan.layout, base) * plan.layout.sequence
    steps = ceil(plan.tokens / tokens_per_step) if plan.tokens else base.max_steps
    if not source.run or steps != base.max_steps:
        yield f"--max-steps={steps}"
    if not source.run and plan.checkpoint_steps():
        best = plan.checkpoint_steps() or steps
        yield f"--checkpoint-freq={min(best, max(1, steps // FEWEST_CHECKPOINTS))}"
    for name in ("dataset", "tokenizer"):
        value = getattr(source, name)
        if value or not source.run:
            yield f"--{name}={value or getattr(base, name)}"


def _preset(plan: Plan) -> str | None:
    """Return the preset of the plan's model."""
    for name in preset_names():
        config = load_file(PRESETS / f"{name}.yaml")
        try:
            published = plan.model.of(name)
        except UnknownModelError:
            continue
        if published == plan.model and trainer_options.shape(published, plan.layout) == trainer_options.shape(
            model_of(config), plan.layout
        ):
            return name
    return None
