"""Describe an exported model as a model card of the hub: its training data, steps and quality."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from podwright_training.checkpoint import trainer_state
from podwright_training.code_version import package_version
from podwright_training.config.train_config import TrainConfig
from podwright_training.events import ReadEvent, StartEvent, TrainEvent, ValidationEvent
from podwright_training.run_folder import RunFolder


def model_card(folder: RunFolder, path: Path, config: TrainConfig, *, averaged_with: Sequence[Path] = ()) -> str:
    """Return the card of a checkpoint of a run, without losses that the run did not log for these weights."""
    state = trainer_state.read_state(path)
    losses: dict[str, float] = {}
    rows = {
        "parameters": f"{config.model.parameters:,}",
        "steps": f"{state.step:,}",
        "tokens": f"{state.sequences * config.max_context_width:,}",
        "data": config.data_mixture or config.dataset,
        "tokenizer": config.tokenizer,
        "context": f"{config.max_context_width:,} tokens",
    }
    reads = [event for event in folder.events_of(ReadEvent) if event.step == state.step]
    for name, tokens in (reads[-1].source_tokens if reads else {}).items():
        rows[f"tokens of {name}"] = f"{tokens:,} in {reads[-1].source_epochs.get(name, 0.0):.4g} epochs"
    starts = [event for event in folder.events_of(StartEvent) if event.step <= state.step]
    if starts and starts[-1].code is not None:
        rows["code"] = starts[-1].code
    if averaged_with:
        rows["weights"] = _averaged(path, averaged_with)
    for event in () if averaged_with else folder.events():
        if isinstance(event, TrainEvent | ValidationEvent) and event.step == state.step:
            losses[event.kind] = event.loss  # The last one counts: a restarted run logs some steps twice.
    for kind in (TrainEvent.kind, ValidationEvent.kind):
        if kind in losses:
            rows[f"{kind} loss, nats per token"] = f"{losses[kind]:.4f}"
    if config.ema_decay:
        rows["ema_decay"] = str(config.ema_decay)
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    return (
        "---\nlibrary_name: transformers\npipeline_tag: text-generation\n---\n"
        f"# {folder.root.absolute().name}\n\nPre-trained by podwright-training {package_version()}, "
        f"configuration {config.digest}.\n\n| | |\n|---|---|\n{table}\n"
    )


def _averaged(path: Path, other_paths: Sequence[Path]) -> str:
    """Return the checkpoints that the weights are the mean of."""
    steps = sorted((trainer_state.read_state(checkpoint).step, checkpoint) for checkpoint in (path, *other_paths))
    if all(checkpoint.parent == path.parent for checkpoint in other_paths):
        return f"mean of steps {', '.join(f'{step:,}' for step, _ in steps)}"
    return f"mean of {', '.join(f'{_run(checkpoint)} at step {step:,}' for step, checkpoint in steps)}"


def _run(path: Path) -> str:
    """Return the name of a checkpoint's run: of its folder, or of ``checkpoint_dir``."""
    folder = path.parent.absolute()
    return folder.parent.name if folder.name == "checkpoints" else folder.name
