"""Define the values of a trainer's log, and the regular expressions of well-known trainers.

Each expression has one group, the number. ``tests/training/test_jobs.py`` has a line of each trainer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

VALUES = {  # name: meaning, with its unit
    "step": "optimizer steps so far",
    "loss": "training loss, nats per token",
    "lr": "learning rate",
    "grad_norm": "norm of the gradient before clipping",
    "tokens": "tokens so far, of all ranks",
    "tokens_per_s": "tokens per second, of all ranks",
    "tokens_per_s_per_rank": "tokens per second of one rank",
    "sequences": "sequences so far, of all ranks",
    "batch_sequences": "sequences of this step, of all ranks",
    "sequences_per_s": "sequences per second, of all ranks",
    "step_s": "seconds per step",
    "step_ms": "milliseconds per step",
}
NEEDED = ("step", "loss")
ORDERS = ("same", "before", "after")
NUMBER = r"([-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|inf)"
ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")  # colours


@dataclass(frozen=True)
class Patterns:
    """Expressions by the name of their value, and where the step is: in the loss's line, or in one before or after."""

    by_name: Mapping[str, str]
    step_line: str = "same"
    first_step: int = 1  # number that the trainer gives its first step


def _number(prefix: str) -> str:
    return prefix + NUMBER


_MEGATRON = {
    "step": r"\biteration\s+(\d+)\s*/",
    "lr": _number(r"\blearning rate: "),
    "grad_norm": _number(r"\bgrad norm: "),
    "sequences": r"\bconsumed samples:\s+(\d+)",
    "batch_sequences": r"\bglobal batch size:\s+(\d+)",
    "step_ms": _number(r"\belapsed time per iteration \(ms\): "),
    "loss": _number(r"\blm loss: "),
}
_NEMO = {
    "step": _number(r"\bglobal_step[=:] ?"),
    "loss": _number(r"\breduced_train_loss[=:] ?"),
    "lr": _number(r"\blr[=:] ?"),
    "sequences": _number(r"\bconsumed_samples[=:] ?"),
    "batch_sequences": _number(r"\bglobal_batch_size[=:] ?"),
    "step_s": _number(r"\btrain_step_timing in s[=:] ?"),
}
_NEURON = {**_NEMO, "grad_norm": _number(r"\bgradient_norm="), "sequences_per_s": _number(r"\bthroughput=")}
READY = {
    "huggingface": Patterns(  # a line without a step; the progress bar that follows has it
        {
            "step": r"\|\s*(\d+)/\d+ \[",
            "loss": _number(r"\{'loss': '?"),
            "lr": _number(r"'learning_rate': '?"),
            "grad_norm": _number(r"'grad_norm': '?"),
            "tokens": r"'num_input_tokens_seen': '?(\d+)",
        },
        step_line="after",
    ),
    "torchtitan": Patterns(
        {
            "step": r"\bstep:\s+(\d+)",
            "loss": _number(r"\bloss:\s+"),
            "grad_norm": _number(r"\bgrad_norm:\s+"),
            "tokens_per_s_per_rank": _number(r"\btps:\s+"),
        }
    ),
    "litgpt": Patterns(
        {
            "step": r"\bstep (\d+) \|",
            "loss": _number(r"\bloss train: "),
        }
    ),
    "megatron": Patterns(_MEGATRON),
    "gpt-neox": Patterns(
        {
            **{name: _MEGATRON[name] for name in ("step", "lr", "step_ms")},
            "loss": _number(r"\blm_loss: "),
            "sequences_per_s": _number(r"\bsamples/sec: "),
        }
    ),
    "deepspeed": Patterns(  # DeepSpeed's engine prints all but the loss, which the program prints.
        {
            "step": r"\bstep=(\d+),",
            "loss": _number(r"\bloss[=:] ?"),
            "lr": _number(r"\blr=\["),
            "sequences_per_s": _number(r"\bRunningAvgSamplesPerSec="),
        },
        step_line="after",
    ),
    "nemo": Patterns(_NEMO, first_step=0),
    "olmo-core": Patterns(
        {
            "step": r"\[step=([\d,]+)/",
            "loss": _number(r"\btrain/CE loss="),
            "lr": _number(r"\boptim/LR(?: \(group 0\))?="),
            "grad_norm": _number(r"\boptim/total grad norm="),
            "tokens_per_s_per_rank": _number(r"\bthroughput/device/TPS="),
        },
        step_line="before",
    ),
    "neuronx-nemo-megatron": Patterns(_NEURON, first_step=0),
    "nxdt": Patterns(_NEURON, first_step=0),
}
