"""Read the weights of a Hugging Face model into a model that is divided among ranks; each rank reads its part."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from podwright_training import model_folder
from podwright_training.checkpoint.collective_io import CheckpointError, CollectiveIO
from podwright_training.config.architecture import ModelConfig
from podwright_training.errors import UserError
from podwright_training.json_values import misfit
from podwright_training.model import HuggingFacePart, from_hugging_face
from podwright_training.model_folder import CONFIG, INDEX
from podwright_training.remote_code import needs_code, refusal

logger = logging.getLogger(__name__)

FREE = (  # keys of config.json that may differ: they change no weight, or nothing in training
    "architectures",
    "attention_dropout",
    "dtype",
    "initializer_range",
    "max_position_embeddings",
    "router_aux_loss_coef",
    "use_cache",
    # Of the classes of transformers: tokens, losses and noise of its own training, and windows that are off.
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "output_router_logits",
    "router_jitter_noise",
    "max_window_layers",
    "pretraining_tp",
    "num_mtp_layers",
)
# Longer sequences may need other values: worth a warning.
MAY_CHANGE = ("rms_norm_eps", "rope_parameters", "sliding_window")
PLAIN_ROTATION = {"rope_type": "default", "partial_rotary_factor": 1.0}  # Defaults that rope_parameters may lack.
NEEDLESS = ("rotary_emb.inv_freq",)  # ends of the names of tensors that follow from the configuration


class HuggingFaceModel:
    """Folder of a published model: ``config.json`` and safetensors."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @staticmethod
    def is_in(folder: Path) -> bool:
        """Return whether a folder holds one."""
        return (folder / CONFIG).is_file()

    def problems(self, config: ModelConfig) -> list[str]:
        """Return why the published weights do not fit a model of this configuration, one line each."""
        try:
            model_folder.check(self._folder)
            published_config = self._config()
        except UserError as error:
            return [f"init_from {error}"]
        except Exception as error:  # noqa: BLE001 - of transformers, which meets an odd value with any kind
            if needs_code(error):
                return [f"init_from {refusal(self._folder)}"]
            return [f"init_from {self._folder}: cannot read {CONFIG}: {' '.join(str(error).split())}"]
        model_config = _full_config(config)
        if published_config.get("model_type") != model_config["model_type"]:
            kinds = f"a {published_config.get('model_type')} model there, a {model_config['model_type']} model here"
            return [f"init_from {self._folder}: {kinds}, by model_type, qk_norm and num_local_experts"]
        differing = _differing(published_config, model_config)
        vocabulary_sizes = differing.pop("vocab_size", None)
        problems = [
            f"init_from {self._folder}: {key} is {old} there, {new} here"
            for key, (old, new) in differing.items()
            if key not in (*FREE, *MAY_CHANGE)
        ]
        if published_config.get("quantization_config"):
            problems.append(f"init_from {self._folder}: its weights are quantized (quantization_config); convert them")
        problems += self._problems_of_rotation(
            published_config.get("rope_parameters") or {}, model_config["rope_parameters"]
        )
        if vocabulary_sizes:
            published_size, model_size = vocabulary_sizes
            problems.append(
                f"init_from {self._folder}: vocab_size is {published_size} there, {model_size} here; podwright-train "
                "does not extend or cut a vocabulary: set the model's vocab_size and its tokenizer"
            )
        try:
            return problems or self._missing_files()
        except UserError as error:
            return [str(error)]

    def load(self, weights: Mapping[str, Tensor], config: ModelConfig) -> None:
        """Fill this rank's part of the weights; called by all ranks, or by a process without a group.

        Raises:
            CheckpointError: Tensors are missing, too many or of another shape; raised on all ranks.
        """
        collective = CollectiveIO(self._folder)
        parts = _parts(weights, config)
        collective.first_rank(lambda: self._warn(config))
        names_by_rank = collective.all_ranks(
            lambda: {part.name for weight_parts in parts.values() for part in weight_parts}
        )
        collective.all_ranks(
            lambda: self._load(weights, parts, set().union(*names_by_rank), tied=config.tie_word_embeddings)
        )

    def _config(self) -> dict[str, Any]:
        from transformers import AutoConfig  # scans all models of transformers: only ranks that read one pay for it

        config = AutoConfig.from_pretrained(self._folder, local_files_only=True, trust_remote_code=False).to_dict()
        if config.get("head_dim") is None and config.get("num_attention_heads"):  # Mixtral's published files lack it.
            config["head_dim"] = config["hidden_size"] // config["num_attention_heads"]
        return dict(config)

    def _warn(self, config: ModelConfig) -> None:
        published_config = self._config()
        for key, (old, new) in _differing(published_config, _full_config(config)).items():
            if key in MAY_CHANGE:
                logger.warning("init_from %s: %s is %s there, %s here", self._folder, key, old, new)

    def _problems_of_rotation(self, published_rope: Mapping[str, Any], model_rope: Mapping[str, Any]) -> Iterator[str]:
        """Yield a rotation that the weights have not learned; a plain one may be scaled for a longer context."""
        old, new = PLAIN_ROTATION | dict(published_rope), PLAIN_ROTATION | dict(model_rope)
        for key, plain in PLAIN_ROTATION.items():
            scales = key == "rope_type" and old[key] == plain
            if old[key] != new[key] and not scales:
                to_do = (
                    f"; set rope_scaling_factor {old['factor']:g}" if old[key] == "llama3" and "factor" in old else ""
                )
                yield f"init_from {self._folder}: {key} is {old[key]} there, {new[key]} here{to_do}"

    def _load(
        self,
        weights: Mapping[str, Tensor],
        parts: Mapping[str, list[HuggingFacePart]],
        tensor_names: set[str],
        *,
        tied: bool,
    ) -> None:
        with ExitStack() as stack:
            try:
                files = [stack.enter_context(safe_open(path, framework="pt")) for path in self._files()]
            except SafetensorError as error:
                raise CheckpointError(f"init_from {self._folder}: {error}") from error
            tensors = {name: file.get_slice(name) for file in files for name in file.keys()}  # noqa: SIM118 - no mapping
            self._check(
                tensors, tensor_names, (part for weight_parts in parts.values() for part in weight_parts), tied=tied
            )
            for name, weight in weights.items():
                local, begin = _local(weight)
                for part in parts[name]:
                    _copy(local, begin, part, tensors[part.name])

    def _check(
        self, tensors: Mapping[str, Any], tensor_names: set[str], parts: Iterable[HuggingFacePart], *, tied: bool
    ) -> None:
        missing = tensor_names - set(tensors)
        more = {name for name in set(tensors) - tensor_names if not name.endswith(NEEDLESS)}
        if tied:
            more -= {"lm_head.weight"}  # some tools write it twice
        problems = [
            f"{heading}: {', '.join(sorted(names)[:3])}" + (f" and {len(names) - 3} more" if len(names) > 3 else "")  # noqa: PLR2004
            for heading, names in (("its tensors lack", missing), ("it has tensors that the model lacks", more))
            if names
        ]
        for part in parts:
            if part.name in missing:
                continue
            published_shape, model_shape = list(tensors[part.name].get_shape()), list(part.shape)
            if published_shape != model_shape[len(model_shape) - len(published_shape) :]:
                problems.append(f"{part.name} is {published_shape}, need {model_shape}")
        if problems:
            raise CheckpointError(f"init_from {self._folder} belongs to another model: {'; '.join(problems)}")

    def _missing_files(self) -> list[str]:
        files = self._files()
        missing = [path.name for path in files if not path.is_file()]
        if missing and not (self._folder / INDEX).exists():
            return [f"init_from {self._folder} has no safetensors; convert its weights first"]
        return [f"init_from {self._folder} lacks {name}, which {INDEX} lists" for name in missing]

    def _files(self) -> list[Path]:
        index = self._folder / INDEX
        if not index.exists():
            return [self._folder / "model.safetensors"]
        files = model_folder.read_object(index).get("weight_map")
        if not files or (reason := misfit(files, dict[str, str], "weight_map")):
            reason = reason if files else "it has no weight_map"
            raise CheckpointError(f"init_from {self._folder}: cannot read {INDEX}: {reason}")
        return [self._folder / Path(name).name for name in sorted(set(files.values()))]


def _parts(weights: Mapping[str, Tensor], config: ModelConfig) -> dict[str, list[HuggingFacePart]]:
    """Return the published tensors, or slices of them, that make up each weight."""
    return {
        name: list(from_hugging_face(name, weight.shape, model_type=config.model_type))
        for name, weight in weights.items()
    }


def _full_config(config: ModelConfig) -> dict[str, Any]:
    """Return ``config.json`` with every key of transformers' class: a published one may set keys that ours leaves out.

    A class that lays sliding windows over some layers, such as Qwen's, would compute something else.
    """
    from transformers import AutoConfig, PreTrainedConfig

    content = config.to_hf()
    full = AutoConfig.for_model(**content).to_dict()
    of_class = {key: value for key, value in full.items() if key not in PreTrainedConfig().to_dict()}
    return of_class | content | {"rope_parameters": full["rope_parameters"]}


def _differing(published_config: Mapping[str, Any], model_config: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {
        key: (published_config.get(key), value)
        for key, value in model_config.items()
        if published_config.get(key) != value
    }


def _local(weight: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """Return this rank's part of a parameter, and its offset in the whole parameter."""
    if not isinstance(weight, DTensor):
        return weight.detach(), (0,) * weight.ndim
    _, begin = compute_local_shape_and_global_offset(weight.shape, weight.device_mesh, weight.placements)
    return weight.to_local().detach(), tuple(begin)


def _copy(local: Tensor, begin: tuple[int, ...], part: HuggingFacePart, tensor: Any) -> None:
    """Copy a part's rows and columns that belong to this rank, without reading the rest of the file."""
    low = [max(local_begin, first) for local_begin, first in zip(begin, part.begin, strict=True)]
    ends = zip(begin, local.shape, part.begin, part.shape, strict=True)
    high = [min(local_begin + size, first + length) for local_begin, size, first, length in ends]
    if any(first >= last for first, last in zip(low, high, strict=True)):
        return
    tensor_slices = tuple(slice(a - first, b - first) for a, b, first in zip(low, high, part.begin, strict=True))
    local_slices = tuple(
        slice(a - local_begin, b - local_begin) for a, b, local_begin in zip(low, high, begin, strict=True)
    )
    values: Tensor = tensor[tensor_slices[len(tensor_slices) - len(tensor.get_shape()) :]]
    with torch.no_grad():
        local[local_slices].copy_(values.view(local[local_slices].shape))
