"""Load a model of transformers with its tokenizer, from an exported folder or straight from a checkpoint."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from podwright_training import model_folder
from podwright_training.data.bad_data import first_line
from podwright_training.errors import UserError
from podwright_training.folder_listing import paths_in
from podwright_training.remote_code import needs_code, refusal

TOKENIZER_FILES = ("tokenizer*", "vocab*", "*.model")  # Without such a file, transformers makes up an empty tokenizer.


@dataclass(frozen=True)
class LoadedModel:
    """A model of transformers that is ready to compute, and its tokenizer.

    Attributes:
        model: Of transformers.
        tokenizer: Its tokenizer.
        is_own: Whether podwright-train trained it: on documents that each end with the tokenizer's EOS token.
        add_bos: Whether each document began with the BOS token in training; of ``is_own`` models only.
    """

    model: Any
    tokenizer: Any
    is_own: bool = False
    add_bos: bool = False

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text to continue, begun as the model's texts were in training.

        Without ``add_bos``, a model of podwright-train has seen no text begin with another token than the end of the
        one before. Other models get the beginning that their tokenizer writes. An empty text becomes the one token that
        precedes a text.
        """
        tokenizer = self.tokenizer
        ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        begin = tokenizer.bos_token_id
        if self.add_bos:
            return [begin, *ids]
        if self.is_own or begin is None:
            if not ids and tokenizer.eos_token_id is None:
                raise UserError("an empty prompt needs a tokenizer with eos_token or bos_token: write a text")
            return ids or [tokenizer.eos_token_id]
        is_written = tokenizer("")["input_ids"][:1] == [begin]
        return [begin, *ids] if is_written or not ids else ids


def load_model(
    folder: Path, *, tokenizer: str | None = None, device: str | None = None, dtype: str = "float32"
) -> LoadedModel:
    """Load a folder in Hugging Face's layout, or a checkpoint of a run.

    Args:
        folder: of the model or checkpoint.
        tokenizer: of a checkpoint, which has none.
        device: of torch. Default: ``cuda`` where there is one, else ``cpu``.
        dtype: name of torch's type of weights and activations.

    Raises:
        UserError: The folder has neither, or it is damaged or of another kind of model.
    """
    if not (folder / "config.json").exists() and tokenizer is None:
        raise UserError(f"{folder} has no config.json: need a folder in Hugging Face's layout")
    if tokenizer is None and not any(paths_in(folder, pattern) for pattern in TOKENIZER_FILES):
        raise UserError(f"{folder} has no tokenizer (tokenizer.json): copy the one that the model was trained with")
    if tokenizer is None:
        model_folder.check(folder)
    _sleep_when_idle()
    import torch
    from transformers.utils.logging import disable_progress_bar

    from podwright_training.checkpoint import trainer_state
    from podwright_training.data.tokenizer import generation_token_ids, load_tokenizer

    disable_progress_bar()
    kind = getattr(torch, dtype)
    try:
        if tokenizer is None:
            encoder, add_bos = load_tokenizer(str(folder), cached=True), model_folder.adds_bos(folder)
            model = _of_folder(folder, kind)
        else:
            encoder, model = load_tokenizer(tokenizer), _of_checkpoint(folder, kind)
            add_bos = trainer_state.adds_bos(folder)
    except UserError:
        raise
    except Exception as error:
        if needs_code(error):
            raise UserError(refusal(folder)) from error
        raise UserError(f"cannot load {folder}: {first_line(error)}") from error
    if add_bos and encoder.bos_token_id is None:
        raise UserError(
            f"{tokenizer or folder}: this tokenizer has no BOS token (bos_token), and each document began with it in "
            f"the training of {folder} (add_bos): restore the tokenizer of the training"
        )
    if tokenizer is not None:  # transformers takes its architecture's usual ids for those that a config does not name
        model.generation_config.update(**generation_token_ids(encoder, add_bos=bool(add_bos)))
    is_own = add_bos is not None
    return LoadedModel(_on(device or default_device(), model.eval()), encoder, is_own, bool(add_bos))


def _on(device: str, model: Any) -> Any:
    try:
        return model.to(device)
    except (RuntimeError, AssertionError) as error:  # no such device, or not in this build, or too small
        why = f"device {device}: {first_line(error)}"
        raise UserError(f"{why}; leave --device out to take the one that this torch has") from error


def default_device() -> str:
    """Return ``cuda`` where there is one, else ``cpu``; of several ranks on a host each has its own."""
    import torch

    from podwright_training.ranks import Ranks

    return f"cuda:{Ranks.from_environment().local_rank}" if torch.cuda.is_available() else "cpu"


def _of_folder(folder: Path, dtype: Any) -> Any:
    """Return the model of a folder in Hugging Face's layout; transformers would make up weights that are missing."""
    from transformers import AutoModelForCausalLM

    model, loading_info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, local_files_only=True, output_loading_info=True, trust_remote_code=False
    )
    kinds = model.config.architectures or [type(model).__name__]
    if type(model).__name__ not in kinds:
        raise UserError(f"{folder} is a {kinds[0]}: need a model that predicts the next token")
    missing = sorted(loading_info["missing_keys"])
    if missing:
        raise UserError(f"{folder} lacks {len(missing)} weights of its model, the first of them {missing[0]}")
    return model


def _of_checkpoint(path: Path, dtype: Any) -> Any:
    """Return transformers' model with the weights of a checkpoint, which transformers arranges as in a file."""
    import transformers

    from podwright_training.checkpoint import manifest, trainer_state
    from podwright_training.checkpoint.export import weights_of
    from podwright_training.checkpoint.tensor_reader import TensorReader

    manifest.check_hashes(path)
    config = transformers.AutoConfig.for_model(**trainer_state.model_config(path).to_hf())
    reader = TensorReader(path)
    weights = {
        weight.part.name: reader.read(weight.key, weight.part.begin, weight.part.shape).view(weight.shape).to(dtype)
        for weight in weights_of(path)
    }
    kind = getattr(transformers, config.architectures[0])
    return kind.from_pretrained(None, config=config, state_dict=weights, dtype=dtype, trust_remote_code=False)


def _sleep_when_idle() -> None:
    """Let idle OpenMP threads sleep, not spin; call before torch is imported: OpenMP reads its environment once.

    A small model's threads wait for each other most of the time. Spinning takes the processor from the thread that
    they wait for as soon as the machine has other work: measured beside other work, ``generate`` of a model of
    2 million parameters took 38 s spinning and 8 s sleeping. Training keeps the default: its ranks own their cores.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
