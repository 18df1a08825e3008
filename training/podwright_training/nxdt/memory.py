"""Ask podwright's planner whether a plan fits; it is another distribution, so its command is called."""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from podwright_training.nxdt.plan import MEMBERS, Plan

DEVICES = {"Trainium": ("trn1-chip", 34.3), "Trainium2": ("trn2-chip", 103.0)}  # the planner's names, and 1e9 bytes


class Prediction(NamedTuple):
    """GB of a device at the peak of a step, of those it has."""

    peak_gb: float
    has_gb: float
    fits: bool


def predict(plan: Plan) -> Prediction | None:
    """Return the planner's prediction; ``None`` where its command or this model is missing."""
    program = shutil.which("podwright", path=str(Path(sys.executable).parent)) or shutil.which("podwright")
    if program is None or plan.options.preset is None:
        return None
    name, has_gb = DEVICES[MEMBERS[plan.instance_type]]
    with tempfile.TemporaryDirectory() as folder:
        rows, answer = Path(folder) / "rows.csv", Path(folder) / "answer.csv"
        row = _row(plan, name)
        with rows.open("w", newline="") as file:
            writer = csv.DictWriter(file, row)
            writer.writeheader()
            writer.writerow(row)
        command = [program, "plan", "--batch", str(rows), "--out", str(answer)]
        if subprocess.run(command, capture_output=True, check=False, timeout=60).returncode or not answer.exists():
            return None
        (predicted,) = csv.DictReader(answer.read_text().splitlines())
    if not predicted["pred_peak_mem_gb"]:
        return None
    return Prediction(float(predicted["pred_peak_mem_gb"]), has_gb, predicted["pred_fits"] == "yes")


def _row(plan: Plan, device: str) -> dict[str, object]:
    options, layout = plan.options, plan.layout
    recompute = options.activation_checkpointing_mode if options.activation_checkpointing else "none"
    return {
        "row": 1,
        "model": options.preset,
        "accel": device,
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
