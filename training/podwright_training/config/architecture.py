"""Describe a model's architecture in Hugging Face's terms; imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from podwright_training.config.families import ARCHITECTURES, EXPERT_KEYS

FLOPS_CONVENTION = "6 N + 12 L N_heads H T per token (PaLM, arXiv:2204.02311, appendix B)"


FREE_TO_CHANGE = (  # fields of ModelConfig that fit the same weights
    "max_position_embeddings",
    "rope_theta",
    "rope_scaling",
    "rms_norm_eps",
    "initializer_range",
    "sliding_window",
    "router_aux_loss_coef",
)


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """Llama 3.1's scaling of the low rotary frequencies (``rope_scaling`` of type ``llama3``)."""

    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Architecture of a Llama-like decoder, in Hugging Face's terms.

    Attributes:
        model_type: transformers' name, a key of ``families.ARCHITECTURES``; decides how the model is exported.
        sliding_window: tokens each token attends to, itself included; ``None``: all preceding (arXiv:2310.06825).
        qk_norm: RMSNorm of each query and key head (arXiv:2302.05442), as in Qwen3.
        num_local_experts: experts per block, of which each token uses ``num_experts_per_tok``; ``None``: one
            feed-forward layer that every token uses.
        n_shared_experts: further experts of a block that every token passes.
        router_aux_loss_coef: weight of the experts' load-balancing loss.
    """

    model_type: str = "llama"
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    rms_norm_eps: float = 1e-5
    initializer_range: float = 0.02
    tie_word_embeddings: bool = False
    sliding_window: int | None = None
    qk_norm: bool = False
    num_local_experts: int | None = None
    num_experts_per_tok: int = 2
    n_shared_experts: int = 0
    router_aux_loss_coef: float = 0.0

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> ModelConfig:
        """Build from the result of ``dataclasses.asdict``."""
        scaling = content["rope_scaling"]
        return cls(**{**content, "rope_scaling": RopeScaling(**scaling) if scaling else None})

    def differences(self, weights_model: ModelConfig, *, may_scale: bool = True) -> list[str]:
        """Return why the weights of another model do not fit this one, one phrase each.

        Args:
            weights_model: The other model.
            may_scale: Let this model scale the rotation of those weights, for a longer context.
        """
        other_values, values = asdict(weights_model), asdict(self)
        fixed = [name for name in values if name not in FREE_TO_CHANGE]
        differences = [
            f"{name} {other_values[name]} there, {values[name]} here"
            for name in fixed
            if other_values[name] != values[name]
        ]
        if weights_model.rope_scaling != self.rope_scaling and not (may_scale and self.rope_scaling):
            differences.append(f"{_rotation(weights_model)} there, {_rotation(self)} here")
        return differences

    def to_hf(self) -> dict[str, Any]:
        """Return ``config.json`` for transformers 5, for weights in fp32."""
        rope: dict[str, Any] = {"rope_type": "default", "rope_theta": self.rope_theta}
        if self.rope_scaling:
            rope |= {"rope_type": "llama3", **asdict(self.rope_scaling)}
        architecture = ARCHITECTURES[self.model_type]
        handled = {"rope_theta", "rope_scaling", "qk_norm", "sliding_window", "n_shared_experts", *EXPERT_KEYS}
        handled |= set(architecture.renamed.values())
        return {
            "architectures": [architecture.hf_class],
            "hidden_act": "silu",
            "attention_dropout": 0.0,
            "dtype": "float32",
            "use_cache": True,
            "rope_parameters": rope | dict(architecture.rope_constants),
            **{name: value for name, value in asdict(self).items() if name not in handled},
            **architecture.constants,
            **{name: getattr(self, name) for name in architecture.keys},
            **{key: getattr(self, name) for key, name in architecture.renamed.items()},
        }

    def to_published(self, *, dtype: str, special_tokens: Mapping[str, int | None]) -> dict[str, Any]:
        """Return ``config.json`` for a published model, which transformers 4 and 5, vLLM and llama.cpp read alike.

        Each setting that transformers 4 spells in another way is there in both spellings: it would silently take its
        default for a key that it does not know.

        Args:
            dtype: Name of torch's type of the weights.
            special_tokens: Ids of the tokenizer by their key, such as ``eos_token_id``. Each is written, also where the
                tokenizer has none, because transformers fills in the ids of Llama 2 for a missing key.
        """
        architecture = ARCHITECTURES[self.model_type]
        scaling = {"rope_type": "llama3", **asdict(self.rope_scaling)} if self.rope_scaling else None
        # llama.cpp reads it at the top level, and would take 8192 instead of another value.
        context_before = "original_max_position_embeddings"
        return {
            **self.to_hf(),
            **({context_before: scaling[context_before]} if scaling else {}),
            "dtype": dtype,
            "torch_dtype": dtype,
            "rope_theta": self.rope_theta,
            "rope_scaling": scaling,
            **architecture.rope_constants,
            **{key: getattr(self, name) for key, name in architecture.older_names.items()},
            **special_tokens,
        }

    @property
    def biased_router(self) -> bool:
        """Return whether a bias balances the experts' load (``families.Architecture``)."""
        return ARCHITECTURES[self.model_type].biased_router

    @property
    def parameters(self) -> int:
        """Return the number of trained parameters; a tied head counts once."""
        embeddings = (1 if self.tie_word_embeddings else 2) * self.vocab_size * self.hidden_size
        norms = (2 * self.num_hidden_layers + 1) * self.hidden_size
        head_norms = 2 * self.num_hidden_layers * self.head_dim if self.qk_norm else 0
        matrices = self.num_hidden_layers * self._block_matrices(self.num_local_experts or 1)
        biases = self.num_hidden_layers * (self.num_local_experts or 0) if self.biased_router else 0
        return embeddings + norms + head_norms + matrices + biases

    def flops_per_token(self, context_width: int) -> float:
        """Return the FLOPs of forward and backward per token: ``6 N + 12 L N_heads H T`` (PaLM, appendix B).

        ``N`` counts the matrices that multiply a token's activations: the head, not the embedding, and only the experts
        the token is routed to. ``T`` is limited by the sliding window. Causality and recomputation are not counted.
        """
        used = self.num_experts_per_tok if self.num_local_experts else 1
        matrices = self.num_hidden_layers * self._block_matrices(used) + self.vocab_size * self.hidden_size
        attended_tokens = min(context_width, self.sliding_window or context_width)
        attention = 12 * self.num_hidden_layers * self.num_attention_heads * self.head_dim * attended_tokens
        return 6.0 * matrices + attention

    def _block_matrices(self, feed_forwards: int) -> int:
        attention = 2 * (self.num_attention_heads + self.num_key_value_heads) * self.head_dim * self.hidden_size
        router = (self.num_local_experts or 0) * self.hidden_size
        feed_forwards += self.n_shared_experts
        return attention + router + feed_forwards * 3 * self.intermediate_size * self.hidden_size


def _rotation(config: ModelConfig) -> str:
    scaling = config.rope_scaling
    if scaling is None:
        return "no rope_scaling_factor"
    usual = scaling == RopeScaling(factor=scaling.factor)
    return f"rope_scaling_factor {scaling.factor:g}" if usual else f"rope_scaling {asdict(scaling)}"
