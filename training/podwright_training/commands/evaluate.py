"""``podwright-train evaluate``: perplexity of a model under transformers, on the text that training validates on."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from podwright_common.command_line import add_json
from podwright_training.command_result import print_result
from podwright_training.commands.generate import PROMPTS, continue_texts
from podwright_training.config.sources import add_options, load, load_run
from podwright_training.config.train_config import TrainConfig
from podwright_training.errors import UserError
from podwright_training.evaluation import (
    CheckpointQuality,
    ModelEvaluation,
    Quality,
    RunEvaluation,
    SourceQuality,
    TrainerQuality,
)
from podwright_training.events import ValidationEvent
from podwright_training.harness import PROGRAM, run_tasks
from podwright_training.json_document import to_values
from podwright_training.json_text import to_json
from podwright_training.model_folder import read_object
from podwright_training.perplexity import Sums, sums_by_source
from podwright_training.ranks import Ranks
from podwright_training.run_folder import ORIGIN, RunFolder, require_own, write_atomically
from podwright_training.run_variables import add_secrets_flag
from podwright_training.spelling import flag
from podwright_training.transformers_model import default_device, load_model

SAMPLE_TOKENS = 32  # that each checkpoint writes for each prompt
TEXT = (  # options that choose the text to judge --model on
    "dataset", "dataset_config_name", "text_column", "token_dtype", "token_end", "add_bos", "data_mixture",
    "data_streams", "max_context_width", "validation_sequences", "val_batch_size",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``podwright-train evaluate``."""
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--run-dir", type=Path, help="folder of a consolidated run")
    which.add_argument("--model", type=Path, help="folder of any model in Hugging Face's layout")
    parser.add_argument("--device", help="torch device. Default: cuda where there is one, else cpu")
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        default="float32",
        help="dtype of weights and activations. Default: float32",
    )
    parser.add_argument(
        "--all-checkpoints", action="store_true", help="also evaluate every checkpoint, and let it continue the prompts"
    )
    parser.add_argument(
        "--prompts", nargs="+", default=list(PROMPTS), metavar="TEXT",
        help=f"prompts to continue. Default: {shlex.join(PROMPTS)}",
    )  # fmt: skip
    parser.add_argument(
        "--tasks", nargs="+", default=[], metavar="NAME", help="also run these tasks of lm-evaluation-harness"
    )
    parser.add_argument("--include-path", type=Path, help="folder of additional tasks, like lm_eval's --include_path")
    parser.add_argument(
        "--lm-eval",
        default=PROGRAM,
        help=f"program of lm-evaluation-harness, in its own environment. Default: {PROGRAM}",
    )
    add_secrets_flag(parser)
    add_json(parser)
    text = parser.add_argument_group("text that --model is judged on: a validation split, as train reads it")
    text.add_argument("--config", metavar="run.yaml", help="YAML file of options, as config.yaml of a run")
    add_options(text, TEXT)


def run(args: argparse.Namespace) -> int:
    """Print the evaluation; keep that of a run as JSON in its folder, for its report. Return the exit status.

    Ranks that torchrun started share the work; the first one prints.
    """
    _check(args)
    with _process_group() as ranks:
        result = _of_model(args) if args.model else _of_run(args)
        if ranks.rank == 0:
            _keep(result, args)
    return 0


def _check(args: argparse.Namespace) -> None:
    text_flags = [flag(name) for name in ("config", *TEXT) if getattr(args, name, None) is not None]
    if args.run_dir and text_flags:
        raise UserError(f"got {text_flags[0]} with --run-dir: a run is judged on its own validation split")
    if args.run_dir:
        require_own(args.run_dir)
    if args.model and not {"--config", "--dataset", "--data-mixture"}.intersection(text_flags):
        raise UserError("--model needs a text to judge it on: --dataset, or --config with config.yaml of a run")
    if args.model and args.all_checkpoints:
        raise UserError("got --all-checkpoints with --model: only --run-dir has checkpoints")


def _of_model(args: argparse.Namespace) -> ModelEvaluation:
    config = load(args, TEXT)
    tokens, quality, sources = _quality(
        args.model, config, _validated_tokens(config), device=args.device, dtype=args.dtype
    )
    return ModelEvaluation(model=str(args.model), tokens=tokens, quality=quality, sources=sources)


def _of_run(args: argparse.Namespace) -> RunEvaluation:
    folder = RunFolder(args.run_dir)
    evaluation = evaluate(folder, device=args.device, dtype=args.dtype)
    if not args.all_checkpoints:
        return evaluation
    tokens = _tokens_of_run(folder, load_run(folder))
    checkpoints = progression(folder, args.prompts, tokens=tokens, device=args.device, dtype=args.dtype)
    return replace(evaluation, progression=list(checkpoints))


def _keep(evaluation: ModelEvaluation | RunEvaluation, args: argparse.Namespace) -> None:
    if args.tasks:
        tasks = run_tasks(
            args.model or RunFolder(args.run_dir).hf,
            args.tasks,
            program=args.lm_eval,
            include_path=args.include_path,
            device=args.device or default_device(),
            dtype=args.dtype,
        )
        evaluation = replace(evaluation, tasks=tasks)
    if args.run_dir:
        text = to_json(to_values(evaluation), indent=2)
        write_atomically(RunFolder(args.run_dir).evaluation, f"{text}\n")
    print_result(args, "\n".join(_lines(evaluation)), evaluation)


def _lines(evaluation: ModelEvaluation | RunEvaluation) -> Iterator[str]:
    """Yield the lines of an evaluation, one for each source, checkpoint, prompt and task."""
    of_run = evaluation if isinstance(evaluation, RunEvaluation) else None
    step = f", step {of_run.step}" if of_run else ""
    yield f"{evaluation.model}{step}, on {evaluation.tokens:,} tokens"
    yield f"  {_quality_text(evaluation.quality)}"
    if of_run and of_run.trainer:
        perplexity, apart = of_run.trainer.trainer_perplexity, of_run.trainer.relative_difference
        yield f"  the trainer's perplexity at this step: {perplexity:.5g}, relative difference {apart:.1e}"
    for name, source in (evaluation.sources or {}).items():
        yield f"source {name}, {source.tokens:,} tokens"
        yield f"  {_quality_text(source.quality)}"
    for checkpoint in (of_run and of_run.progression) or ():
        yield f"checkpoint of step {checkpoint.step}"
        yield f"  {_quality_text(checkpoint.quality)}"
        yield from (f"  writes {json.dumps(text, ensure_ascii=False)}" for text in checkpoint.samples)
    for task, numbers in (evaluation.tasks or {}).items():
        yield f"task {task}"
        yield from (f"  {name} {number:.4g}" for name, number in numbers.items())


def _quality_text(quality: Quality) -> str:
    return (
        f"loss {quality.loss:.4f} nats per token, perplexity {quality.perplexity:.5g}, "
        f"{quality.bits_per_byte:.4f} bits per byte"
    )


@contextmanager
def _process_group() -> Iterator[Ranks]:
    """Connect the ranks, if torchrun started several; they exchange only sums."""
    ranks = Ranks.from_environment()
    if ranks.world_size == 1:
        yield ranks
        return
    import torch.distributed as dist

    dist.init_process_group("gloo")
    try:
        yield ranks
    finally:
        dist.destroy_process_group()


def evaluate(folder: RunFolder, *, device: str | None = None, dtype: str = "float32") -> RunEvaluation:
    """Return loss (nats per token), perplexity and bits per byte of ``folder.hf``, and the trainer's at the same step.

    Args:
        folder: a consolidated run.
        device: of torch. Default: ``cuda`` where there is one, else ``cpu``.
        dtype: name of torch's type of weights and activations; the loss is summed in float64.

    Raises:
        UserError: The run is not consolidated, or its model is damaged.
    """
    config, origin = load_run(folder), _origin(folder)
    step, is_averaged = origin["step"], bool(origin.get("ema") or origin.get("averaged_with"))
    validations = {event.step: event for event in folder.events_of(ValidationEvent)}
    trainer = validations.get(step)  # none if the run was stopped between validations
    tokens = trainer.tokens if trainer else _tokens_of_run(folder, config)
    tokens, quality, sources = _quality(folder.hf, config, tokens, device=device, dtype=dtype)
    of_trainer = None
    if trainer and not is_averaged:  # the trainer validates the weights that it trains
        of_trainer = TrainerQuality(
            trainer_loss=trainer.loss,
            trainer_perplexity=trainer.perplexity,
            relative_difference=abs(quality.perplexity - trainer.perplexity) / trainer.perplexity,
        )
    return RunEvaluation(
        model=str(folder.hf), step=step, tokens=tokens, quality=quality, sources=sources, trainer=of_trainer
    )


def _origin(folder: RunFolder) -> dict[str, Any]:
    """Return the record of the exported model: its step, and what it is averaged of."""
    again = f"run `podwright-train consolidate --run-dir {folder.root}`"
    if not folder.hf.exists():
        raise UserError(f"{folder.hf} does not exist: {again} first")
    try:
        origin = read_object(folder.hf / ORIGIN)
        return {**origin, "step": int(origin["step"])}
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise UserError(f"{folder.hf / ORIGIN} does not have the step of the model: {again} again") from error


def _tokens_of_run(folder: RunFolder, config: TrainConfig) -> int:
    """Return the tokens of the run's last validation, or those that its options ask for."""
    validations = list(folder.events_of(ValidationEvent))
    return validations[-1].tokens if validations else _validated_tokens(config)


def _validated_tokens(config: TrainConfig) -> int:
    return config.validated_sequences(readers=1) * config.max_context_width


def _quality(
    model: Path, config: TrainConfig, tokens: int, *, device: str | None, dtype: str
) -> tuple[int, Quality, dict[str, SourceQuality] | None]:
    """Return the tokens that were read and the quality of a model; for a mixture, also by source."""
    by_source = sums_by_source(load_model(model, device=device, dtype=dtype), config, tokens=tokens)
    total = sum(by_source.values(), Sums())
    if len(by_source) == 1:
        return total.tokens, total.quality(), None
    return (
        total.tokens,
        total.quality(),
        {name: SourceQuality(tokens=sums.tokens, quality=sums.quality()) for name, sums in by_source.items()},
    )


def progression(
    folder: RunFolder, prompts: list[str], *, tokens: int, device: str | None = None, dtype: str = "float32"
) -> Iterator[CheckpointQuality]:
    """Yield the quality of every checkpoint of a run, the oldest first, with its likeliest continuations.

    Args:
        folder: a run.
        prompts: texts to continue.
        tokens: of the validation split to evaluate on.
        device: of torch. Default: ``cuda`` where there is one, else ``cpu``.
        dtype: name of torch's type of weights and activations.
    """
    from podwright_training.checkpoint import step_folder, trainer_state

    config, is_first_rank = load_run(folder), Ranks.from_environment().rank == 0
    for path in reversed(step_folder.intact(config.checkpoints)):
        loaded = load_model(path, tokenizer=config.tokenizer, device=device, dtype=dtype)
        quality = sum(sums_by_source(loaded, config, tokens=tokens).values(), Sums()).quality()
        texts = continue_texts(loaded, prompts, max_new_tokens=SAMPLE_TOKENS, do_sample=False) if is_first_rank else []
        yield CheckpointQuality(step=trainer_state.read_state(path).step, quality=quality, samples=texts)
