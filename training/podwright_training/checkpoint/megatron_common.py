"""Read the values in a checkpoint of Megatron-LM or Megatron-Core: arguments, step, hyperparameters.

Older releases wrote it to the file ``common.pt``; Megatron-Core 0.19 writes it among the tensors, and reads both.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from podwright_common.regular_file import open_regular
from podwright_training.checkpoint.collective_io import CheckpointError, DamagedCheckpointError
from podwright_training.checkpoint.distributed_folder import DistributedFolder
from podwright_training.checkpoint.inert_pickle import load_inert, reason
from podwright_training.checkpoint.plain_value import LARGEST_NUMBER, plain, plain_text
from podwright_training.config.architecture import ModelConfig

COMMON_FILE = "common.pt"
COMMON_KEY = "common_state/shard_0_1"


class MegatronCommon:
    """The values in a checkpoint of Megatron: all but its tensors.

    Args:
        folder: The checkpoint.
        source: Its path.

    Raises:
        CheckpointError: The checkpoint has nothing of that kind.
        DamagedCheckpointError: It is unreadable.
    """

    def __init__(self, folder: DistributedFolder, source: Path) -> None:
        self._source = source
        file = source / COMMON_FILE
        content = _content(file) if file.is_file() else folder.content(COMMON_KEY)
        if content is None:
            raise CheckpointError(
                f"{source} is not a checkpoint of Megatron-Core: it has neither {COMMON_FILE} nor common_state"
            )
        try:
            common = load_inert(content)
        except Exception as error:  # damaged bytes raise any exception
            raise DamagedCheckpointError(f"checkpoint {source} is damaged: {COMMON_FILE}: {reason(error)}") from error
        self._values = _mapping(common[0] if isinstance(common, list) and common else common)
        arguments = self._values.get("args")
        self._arguments: dict[str, Any] = (
            vars(arguments) if isinstance(arguments, Namespace | SimpleNamespace) else _mapping(arguments)
        )

    def step(self) -> int:
        """Return the steps that Megatron has taken.

        Raises:
            CheckpointError: The checkpoint does not say it.
        """
        step = self._values.get("iteration")
        if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < LARGEST_NUMBER:
            raise CheckpointError(
                f"checkpoint {self._source} has iteration {plain_text(step)}, need a whole number of at least 0"
            )
        return step

    def optimizer_step(self) -> int:
        """Return the steps of its Adam, which do not count those that overflowed."""
        common_step = _mapping(self._optimizer().get("state")).get("common_step")
        steps = [common_step, *(group.get("step") for group in self.parameter_groups())]
        return next((number for step in steps if (number := _whole_number(step)) is not None), self.step())

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return the hyperparameters of Adam, of each group of parameters."""
        groups = self._optimizer().get("param_groups")
        return [group for group in groups if isinstance(group, dict)] if isinstance(groups, list) else []

    def tokens_seen(self) -> int | None:
        """Return the tokens that Megatron has trained on, if it has counted its samples."""
        counts = [self._arguments.get(name) for name in ("consumed_train_samples", "seq_length")]
        samples, width = (count if isinstance(count, int) and 0 <= count < LARGEST_NUMBER else None for count in counts)
        return None if samples is None or width is None else samples * width

    def optimizer_format(self) -> str | None:
        """Return the format of a distributed optimizer, if the checkpoint says it."""
        names = (
            _mapping(self._values.get("optimizer")).get("param_state_sharding_type"),
            _mapping(self._values.get("content_metadata")).get("distrib_optim_sharding_type"),
        )
        return next((name for name in names if isinstance(name, str)), None)

    def has_arguments(self) -> bool:
        """Return whether the arguments of Megatron-LM were saved; Megatron-Core alone saves none."""
        return bool(self._arguments)

    def vocabulary_multiple(self) -> int:
        """Return the number that Megatron-LM pads its vocabulary to a multiple of; its default without arguments."""
        factors = [
            self._arguments.get(name, default)
            for name, default in (("make_vocab_size_divisible_by", 128), ("tensor_model_parallel_size", 1))
        ]
        return math.prod(factor for factor in factors if isinstance(factor, int) and factor > 0)

    def differences(self, model: ModelConfig) -> Iterator[str]:
        """Yield how its model and this one differ, as far as arguments were saved, one phrase each."""
        saved = {name: plain(value) for name, value in self._arguments.items()}
        if not saved.get("group_query_attention", True):
            saved["num_query_groups"] = saved.get("num_attention_heads")  # The argument has its default, 1.
        if not saved.get("use_rope_scaling"):
            saved.pop("rope_scaling_factor", None)
        for name, accepted in _accepted(model).items():
            if saved.get(name) not in (*accepted, None):
                yield f"{name} is {plain_text(saved[name])} there, {accepted[0]} here"

    def _optimizer(self) -> dict[str, Any]:
        optimizer = _mapping(self._values.get("optimizer"))
        return _mapping(optimizer.get("optimizer")) or optimizer


def _accepted(model: ModelConfig) -> dict[str, tuple[Any, ...]]:
    """Return the accepted values of Megatron's arguments by their names; all accept ``None``, which is absence."""
    return {name: (value,) for name, value in model_arguments(model).items()} | {
        # No family here has these: each value is the one that changes nothing.
        "rotary_percent": (1.0,),
        "rotary_interleaved": (False,),
        "rotary_scaling_factor": (1.0,),
        "rotary_seq_len_interpolation_factor": (None, 1.0),
        "no_rope_freq": (None, False),
        "add_qkv_bias": (False,),
        "multi_latent_attention": (False,),
        "squared_relu": (False,),
        "attention_output_gate": (False,),
        "softmax_type": ("vanilla",),
        "softmax_scale": (None, model.head_dim**-0.5),
        "window_size": (None, (-1, -1), (-1, 0)),
        "qk_l2_norm": (False,),
        "apply_residual_connection_post_layernorm": (False,),
        "use_mup": (False,),
        "mup_width_mult": (1.0,),
        "mup_output_mult": (1.0,),
        "mup_embedding_mult": (1.0,),
        "glu_linear_offset": (0.0,),
        "activation_func_clamp_value": (None,),
    }


def model_arguments(model: ModelConfig) -> dict[str, Any]:
    """Return the arguments of Megatron-LM that describe a model."""
    return {
        "num_layers": model.num_hidden_layers,
        "hidden_size": model.hidden_size,
        "ffn_hidden_size": model.intermediate_size,
        "num_attention_heads": model.num_attention_heads,
        "num_query_groups": model.num_key_value_heads,
        "kv_channels": model.head_dim,
        "normalization": "RMSNorm",
        # Megatron-Core 0.16 renamed these two to the second name.
        "norm_epsilon": model.rms_norm_eps,
        "layernorm_epsilon": model.rms_norm_eps,
        "apply_layernorm_1p": False,
        "layernorm_zero_centered_gamma": False,
        "swiglu": True,
        "add_bias_linear": False,
        "position_embedding_type": "rope",
        "rotary_base": model.rope_theta,
        "use_rope_scaling": model.rope_scaling is not None,
        "rope_scaling_factor": model.rope_scaling.factor if model.rope_scaling else None,
        "qk_layernorm": model.qk_norm,
        "untie_embeddings_and_output_weights": not model.tie_word_embeddings,
        "num_experts": None,
    }


def _content(file: Path) -> bytes:
    with open_regular(file, follow_links=True) as opened:
        return opened.read()


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _whole_number(value: Any) -> int | None:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # absent, or nothing that Megatron writes
        return None
    return number if 0 <= number < LARGEST_NUMBER else None
