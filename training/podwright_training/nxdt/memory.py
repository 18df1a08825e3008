"""Ask podwright's planner whether a plan fits; it is another distribution, so a node calls its command."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from podwright_training.nxdt.plan import DEVICES as DEVICES_PER_NODE
from podwright_training.nxdt.plan import MEMBERS, Plan

DEVICES = {"Trainium": ("trn1-chip", 34.3), "Trainium2": ("trn2-chip", 103.0)}  # the planner's names, and 1e9 bytes


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
        file = Path(folder) / "run.json"
        file.write_text(json.dumps(description(plan)), encoding="utf-8")
        command = [program, "plan", "--nxdt", str(file)]
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return prediction(plan, json.loads(result.stdout)) if result.returncode == 0 else None


def prediction(plan: Plan, predicted: Mapping[str, Any]) -> Prediction:
    """Return the planner's answer to a plan's ``description``."""
    _, has_gb = DEVICES[MEMBERS[plan.instance_type]]
    return Prediction(float(predicted["peak_gb"]), has_gb, bool(predicted["fits"]))


def problem(plan: Plan, needed: Prediction) -> str:
    """Return the message about a plan that does not fit."""
    return (
        f"memory: podwright plan predicts {needed.peak_gb:.1f} GB of a device's {needed.has_gb:.1f} with "
        f"tensor_parallel {plan.layout.tensor} x pipeline_parallel {plan.layout.pipeline}: divide the model more"
    )


def description(plan: Plan) -> dict[str, Any]:
    """Return the run that the planner's ``--nxdt`` reads, in the names of its models and layouts."""
    config, layout, model = plan.config, plan.layout, plan.config.model
    recompute = config.activation_checkpointing_mode if config.activation_checkpointing else "none"
    return {
        "accelerator": DEVICES[MEMBERS[plan.instance_type]][0],
        "devices": DEVICES_PER_NODE * plan.nodes,
        "sequences_per_step": config.batch_sequences(layout.data),
        "model": {
            "hidden_size": model.hidden_size,
            "layers": model.num_hidden_layers,
            "heads": model.num_attention_heads,
            "kv_heads": model.num_key_value_heads,
            "head_dim": model.head_dim,
            "ffn": model.intermediate_size,
            "vocab": model.vocab_size,
            "tied": model.tie_word_embeddings,
        },
        "layout": {
            "micro_batch": config.train_batch_size,
            "sequence": config.max_context_width,
            "tensor": layout.tensor,
            "pipeline": layout.pipeline,
            "context": layout.context,
            "recompute": recompute if recompute in ("full", "selective") else "none",
        },
    }
