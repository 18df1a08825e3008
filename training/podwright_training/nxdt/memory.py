"""Ask podwright's planner whether a plan fits; it is another distribution, so a node calls its command."""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from podwright_training.nxdt.plan import MEMBERS, Plan

DEVICES = {"Trainium": ("trn1-chip", 34.3), "Trainium2": ("trn2-chip", 103.0)}  # the planner's names, and 1e9 bytes

LLAMA = "llama3_8b"  # of the planner's catalog: models without a preset are like it, with other sizes


class Prediction(NamedTuple):
    """GB of a device at the peak of a step, of those it has."""

    peak_gb: float
    has_gb: float
    fits: bool


def predict(plan: Plan) -> Prediction | None:
    """Return the prediction of the planner's command; ``None`` if the command is missing."""
    program = shutil.which("podwright", path=str(Path(sys.executable).parent)) or shutil.which("podwright")
    if program is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        rows, answer = Path(folder) / "rows.csv", Path(folder) / "answer.csv"
        asked = row(plan)
        with rows.open("w", newline="") as file:
            writer = csv.DictWriter(file, asked)
            writer.writeheader()
            writer.writerow(asked)
        command = [program, "plan", "--batch", str(rows), "--out", str(answer)]
        if subprocess.run(command, capture_output=True, check=False, timeout=60).returncode or not answer.exists():
            return None
        (predicted,) = csv.DictReader(answer.read_text().splitlines())
    return prediction(plan, predicted)


def prediction(plan: Plan, predicted: Mapping[str, str]) -> Prediction | None:
    """Return the values of the columns that the planner appended to a plan's row; ``None`` if it could not predict."""
    if not predicted["pred_peak_mem_gb"]:
        return None
    _, has_gb = DEVICES[MEMBERS[plan.instance_type]]
    return Prediction(float(predicted["pred_peak_mem_gb"]), has_gb, predicted["pred_fits"] == "yes")


def problem(plan: Plan, needed: Prediction) -> str:
    """Return the line about a plan that does not fit."""
    return (
        f"memory: podwright plan predicts {needed.peak_gb:.1f} GB of a device's {needed.has_gb:.1f} with "
        f"tensor_parallel {plan.layout.tensor} x pipeline_parallel {plan.layout.pipeline}: divide the model more"
    )


def row(plan: Plan) -> dict[str, str]:
    """Return a plan as a row of the planner's table of runs."""
    options, layout, model = plan.options, plan.layout, plan.options.model
    recompute = options.activation_checkpointing_mode if options.activation_checkpointing else "none"
    values = {
        "row": 1,
        "model": options.preset or LLAMA,
        "layers": model.num_hidden_layers,
        "hidden": model.hidden_size,
        "heads": model.num_attention_heads,
        "kv_heads": model.num_key_value_heads,
        "ffn": model.intermediate_size,
        "vocab": model.vocab_size,
        "accel": DEVICES[MEMBERS[plan.instance_type]][0],
        "gpus": 16 * plan.nodes,
        "framework": "NxD (Neuron 2.24)",
        "precision": "bf16 autocast+fp32 optim",
        "tp": layout.tensor,
        "pp": layout.pipeline,
        "dp": layout.data,
        "cp": layout.context,
        "mbs": options.train_batch_size,
        "gbs_seqs": options.batch_sequences(layout.data),
        "seq_len": options.max_context_width,
        "zero_stage": 1,
        "act_ckpt": recompute,
        "notes": "TP/PP/DP counted in NeuronCores",
    }
    return {name: str(value) for name, value in values.items()}
