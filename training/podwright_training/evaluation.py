"""The evaluation of a model or a run: what ``evaluate`` prints and keeps, and the report shows."""

from __future__ import annotations

from dataclasses import dataclass, field

from podwright_training.json_values import SPREAD


@dataclass(frozen=True, kw_only=True)
class Quality:
    """Loss in nats per token, perplexity, and bits per byte."""

    loss: float
    perplexity: float
    bits_per_byte: float


@dataclass(frozen=True, kw_only=True)
class SourceQuality:
    """Quality on one source of a mixture."""

    tokens: int
    quality: Quality = field(metadata=SPREAD)


@dataclass(frozen=True, kw_only=True)
class CheckpointQuality:
    """Quality of one checkpoint, and the texts with which it continues the prompts."""

    step: int
    quality: Quality = field(metadata=SPREAD)
    samples: list[str]


@dataclass(frozen=True, kw_only=True)
class TrainerQuality:
    """Quality that the trainer measured at the same step, and how far the perplexities differ."""

    trainer_loss: float
    trainer_perplexity: float
    relative_difference: float


@dataclass(frozen=True, kw_only=True)
class ModelEvaluation:
    """The document of `podwright-train evaluate --model FOLDER --json`.

    Attributes:
        model: Folder of the model.
        tokens: Tokens that it was evaluated on.
        quality: On all of them.
        sources: Of a mixture, by name.
        tasks: Metrics of tasks of lm-evaluation-harness, by task and metric.
    """

    model: str
    tokens: int
    quality: Quality = field(metadata=SPREAD)
    sources: dict[str, SourceQuality] | None = None
    tasks: dict[str, dict[str, float]] | None = None


@dataclass(frozen=True, kw_only=True)
class RunEvaluation:
    """The document of `podwright-train evaluate --run-dir R --json`, and the run's ``evaluation.json``.

    Attributes:
        model: Folder of the exported model.
        step: Step of the checkpoint that it was exported from.
        tokens: Tokens that it was evaluated on.
        quality: On all of them.
        sources: Of a mixture, by name.
        trainer: Missing if the trainer did not validate at this step, or validated other weights.
        progression: Each checkpoint, the oldest first.
        tasks: Metrics of tasks of lm-evaluation-harness, by task and metric.
    """

    model: str
    step: int
    tokens: int
    quality: Quality = field(metadata=SPREAD)
    sources: dict[str, SourceQuality] | None = None
    trainer: TrainerQuality | None = field(default=None, metadata=SPREAD)
    progression: list[CheckpointQuality] | None = None
    tasks: dict[str, dict[str, float]] | None = None
