"""Load a model of transformers with its tokenizer, from an exported folder or straight from a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from podwright_training.errors import UserError
from podwright_training.openmp import sleep_when_idle


@dataclass(frozen=True)
class LoadedModel:
    """A model of transformers that is ready to compute, and its tokenizer."""

    model: Any
    tokenizer: Any


def load(
    folder: Path, *, tokenizer: str | None = None, device: str | None = None, dtype: str = "float32"
) -> LoadedModel:
    """Load a folder in Hugging Face's layout, or a checkpoint of a run.

    Args:
        folder: of the model or checkpoint.
        tokenizer: of a checkpoint, which has none.
        device: of torch. Default: ``cuda`` where there is one, else ``cpu``.
        dtype: name of torch's type of weights and activations.

    Raises:
        UserError: The folder has neither, or the checkpoint is damaged.
    """
    if not (folder / "config.json").exists() and tokenizer is None:
        raise UserError(f"{folder} has no config.json: need a folder in Hugging Face's layout")
    sleep_when_idle()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    from podwright_training.data import load_tokenizer

    disable_progress_bar()
    kind = getattr(torch, dtype)
    try:
        if tokenizer is None:
            encoder = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=kind, local_files_only=True)
        else:
            encoder, model = load_tokenizer(tokenizer), _of_checkpoint(folder, kind)
    except (OSError, KeyError) as error:
        raise UserError(f"cannot load {folder}: {' '.join(str(error).split())}") from error
    return LoadedModel(model.eval().to(device or default_device()), encoder)


def default_device() -> str:
    """Return ``cuda`` where there is one, else ``cpu``; of several ranks on a host each has its own."""
    import torch

    from podwright_training.ranks import Ranks

    return f"cuda:{Ranks.from_environment().local_rank}" if torch.cuda.is_available() else "cpu"


def _of_checkpoint(path: Path, dtype: Any) -> Any:
    """Return transformers' model with the weights of a checkpoint, which transformers arranges as those of a file."""
    import transformers

    from podwright_training.checkpoint import step_folder
    from podwright_training.checkpoint.export import weights_of
    from podwright_training.checkpoint.tensor_reader import TensorReader

    step_folder.check_hashes(path)
    config = transformers.AutoConfig.for_model(**step_folder.model_config(path).to_hf())
    with TensorReader(path) as reader:
        weights = {
            weight.part.name: reader.read(weight.key, weight.part.begin, weight.part.shape).view(weight.shape).to(dtype)
            for weight in weights_of(path)
        }
    kind = getattr(transformers, config.architectures[0])
    return kind.from_pretrained(None, config=config, state_dict=weights, dtype=dtype)
