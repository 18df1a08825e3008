"""``podwright-train export-checkpoint``: convert a checkpoint, with its optimizer's states, for another trainer."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from podwright_common.command_line import add_json
from podwright_training.command_result import print_result
from podwright_training.config.architecture import ModelConfig
from podwright_training.config.sources import load_run
from podwright_training.run_folder import RunFolder, writable

RELEASES = {"torchtitan": "0.3", "torchtitan-0.2": "0.2"}
MEGATRON = "megatron"


@dataclass(frozen=True)
class ExportedCheckpoint:
    """The document of `podwright-train export-checkpoint --json`."""

    source: Path
    checkpoint: Path
    step: int
    tokens_seen: int
    differences: list[str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``podwright-train export-checkpoint``."""
    parser.add_argument(
        "--to",
        dest="format",
        choices=(*RELEASES, MEGATRON),
        required=True,
        help="trainer that loads it: torchtitan is release 0.3",
    )
    parser.add_argument("--run-dir", required=True, help="folder of the run")
    parser.add_argument("--step", type=int, help="step of the checkpoint to export. Default: the newest")
    parser.add_argument("--output", required=True, metavar="FOLDER", help="folder in which step-N or iter_N is written")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Write the checkpoint as step-N or iter_N into the folder; return the status."""
    from podwright_training.checkpoint import megatron_export, step_folder, torchtitan_export  # seconds
    from podwright_training.loop.schedule import learning_rate, sequences_of_steps

    config = load_run(RunFolder(Path(args.run_dir)))
    source = step_folder.find(config.checkpoints, args.step)
    output = Path(args.output)
    with writable(output, flag="--output"):
        if args.format == MEGATRON:
            converted = megatron_export.export_checkpoint(
                source, output, config, sequences=lambda steps: sequences_of_steps(steps, config, data_ranks=1)
            )
        else:
            converted = torchtitan_export.export_checkpoint(
                source, output, config, RELEASES[args.format], learning_rate=learning_rate
            )
    document = ExportedCheckpoint(
        source, converted.path, converted.step, converted.tokens_seen or 0, differences=converted.differences
    )
    print_result(args, _text(args, document, config.model), document)
    return 0


def _text(args: argparse.Namespace, exported: ExportedCheckpoint, model: ModelConfig) -> str:
    checkpoint = exported.checkpoint.absolute()
    torchtitan = [
        f"next: torchtitan, with {checkpoint} as checkpoint.initial_load_path,",
        "      dataloader in checkpoint.exclude_from_loading, and without checkpoint.initial_load_model_only",
    ]
    megatron = [
        f"next: Megatron-LM, with --load {checkpoint.parent} --ckpt-format torch_dist --no-load-rng",
        f"      --override-opt_param-scheduler, and {exported.step} in latest_checkpointed_iteration.txt;",
        f"      --use-checkpoint-args does not restore {' '.join(_model_flags(model))}",
    ]
    return "\n".join(
        [
            f"{exported.source} → {exported.checkpoint} (step {exported.step}, {exported.tokens_seen:,} tokens)",
            *(f"differs: {difference}" for difference in exported.differences),
            "not moved: the position in the data and the random states",
            *(megatron if args.format == MEGATRON else torchtitan),
        ]
    )


def _model_flags(model: ModelConfig) -> list[str]:
    """Return the flags of Megatron-LM for what it does not take from a checkpoint's arguments."""
    scaling = model.rope_scaling
    return [
        f"--norm-epsilon {model.rms_norm_eps}",
        *(["--qk-layernorm"] if model.qk_norm else []),
        *([f"--use-rope-scaling --rope-scaling-factor {scaling.factor}"] if scaling else []),
    ]
