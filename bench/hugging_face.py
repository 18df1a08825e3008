"""Take a model of transformers through the trainer and back, for every family.

    python bench/hugging_face.py [--steps 50]

Smallest: python bench/hugging_face.py --steps 2

transformers makes a small random model. The trainer starts from it, trains on the rehearsal's prose and exports it, and
transformers loads that. Exits with 1 unless logits and losses agree to 1e-5:

- import: logits of the imported weights, against the model that they are from;
- export: logits of transformers with the export, against the trainer's own model;
- loss: ``evaluate`` of the export, against the trainer's last validation.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from podwright_rehearsal.run.supplies import SHARDS, dataset
from podwright_training.__main__ import main as podwright_train
from podwright_training.checkpoint import checkpoint_reader, step_folder
from podwright_training.checkpoint.hugging_face import HuggingFaceModel
from podwright_training.commands.evaluate import evaluate
from podwright_training.config.architecture import ModelConfig
from podwright_training.config.families import FAMILIES
from podwright_training.config.sources import load_file
from podwright_training.events import TrainEvent
from podwright_training.model import LlamaForCausalLM
from podwright_training.run_folder import RunFolder
from podwright_training.spelling import as_flag

TOLERANCE = 1e-5
CHECKED_TOKENS = 64
EXPERTS = {"num_local_experts": 4}
VARIANTS: dict[str, dict[str, Any]] = {  # of each value of model_type, what its models differ by
    "llama_v2": {},
    "llama_v3": {"rope_scaling_factor": 8.0, "tie_word_embeddings": True},
    "llama_v3, qk_norm": {"qk_norm": True, "rms_norm_eps": 1e-6},
    "mistral": {"sliding_window": 48},
    "mixtral": EXPERTS,
    "glm4_moe": {**EXPERTS, "n_shared_experts": 1, "qk_norm": True},
    "qwen3_moe": {**EXPERTS, "qk_norm": True},
}


def main() -> int:
    """Print a line per family; return 1 if one disagrees."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50)
    args = parser.parse_args()
    disable_progress_bar()
    if missing := set(FAMILIES) - {name.partition(",")[0] for name in VARIANTS}:
        parser.error(f"VARIANTS lacks {', '.join(sorted(missing))}")
    print(f"{'family':20}{'import':>10}{'export':>10}{'loss':>10}{'first':>10}{'last':>10}   nats; {args.steps} steps")
    worst = 0.0
    for name, variant in VARIANTS.items():
        with tempfile.TemporaryDirectory() as folder:
            differences, losses = _there_and_back(Path(folder), name.partition(",")[0], variant, args.steps)
        worst = max(worst, *differences)
        cells = "".join([*(f"{item:10.1e}" for item in differences), *(f"{loss:10.4f}" for loss in losses)])
        print(f"{name:20}{cells}", flush=True)
    return int(not worst <= TOLERANCE)


def _there_and_back(folder: Path, family: str, variant: dict[str, Any], steps: int) -> tuple[list[float], list[float]]:
    """Return the three differences, and the losses before and after training."""
    options = {"model_type": family, **variant}
    config = _config(folder, options)
    theirs = _random_model(config)
    theirs.save_pretrained(folder / "from", max_shard_size="500KB")
    run = RunFolder(folder / "run")
    _train(run, folder / "from", options, steps)
    back = AutoModelForCausalLM.from_pretrained(run.hf, trust_remote_code=False)
    trained = _ours(config)
    checkpoint_reader.load_weights(trained, step_folder.find(run.checkpoints, steps))
    imported = _ours(config)
    HuggingFaceModel(folder / "from").load(dict(imported.named_parameters()), config)
    found = evaluate(run, device="cpu")
    tokens = torch.randint(0, config.vocab_size, (2, CHECKED_TOKENS), generator=torch.Generator().manual_seed(0))
    differences = [
        _difference(imported(tokens), theirs(input_ids=tokens).logits),
        _difference(trained(tokens), back(input_ids=tokens).logits),
        abs(found.quality.loss - found.trainer.trainer_loss) if found.trainer else math.inf,
    ]
    return differences, [event.loss for event in run.events_of(TrainEvent)][:: max(1, steps - 1)]


def _difference(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).detach().abs().max())


def _config(folder: Path, options: dict[str, Any]) -> ModelConfig:
    """Return the architecture that the preset tiny and ``options`` make."""
    file = folder / "run.yaml"
    file.write_text("\n".join(f"{key}: {value}" for key, value in {"preset": "tiny", **options}.items()))
    return load_file(file).model


def _random_model(config: ModelConfig) -> Any:
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config.to_hf()), trust_remote_code=False)
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):  # ones hide a norm that is not loaded
            parameter.data.uniform_(0.5, 1.5)
    return model.eval()


def _ours(config: ModelConfig) -> LlamaForCausalLM:
    model = LlamaForCausalLM(config)
    model.reset_buffers()
    return model.eval()


def _train(run: RunFolder, source: Path, options: dict[str, Any], steps: int) -> None:
    data = {"dataset": dataset(), "tokenizer": dataset() / "tokenizer", "data_streams": SHARDS, "data_workers": 0}
    lengths = {"max_steps": steps, "checkpoint_freq": steps, "validation_freq": steps, "logging_freq": 1}
    small = {"validation_batches": 1, "train_batch_size": 2, "val_batch_size": 2, "warmup": 0.1}
    device = {"bf16": False, "device": "cpu", "preset": "tiny", "run_dir": run.root, "init_from": source}
    flags = [as_flag(key, value) for key, value in {**device, **options, **data, **lengths, **small}.items()]
    for command in (["train", *flags], ["consolidate", f"--run-dir={run.root}"]):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            status = podwright_train(command)
        if status:
            sys.exit(f"{printed.getvalue()}podwright-train {command[0]} ended with {status}")


if __name__ == "__main__":
    sys.exit(main())
