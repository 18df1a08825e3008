"""Options of the model's architecture."""

from __future__ import annotations

import math
from dataclasses import dataclass

from podwright_training.config.architecture import ModelConfig, RopeScaling
from podwright_training.config.families import ARCHITECTURES, FAMILIES, OPTIONAL_FEATURES, families_with
from podwright_training.config.option import Conflicts, option

ROPE_THETA = ", ".join(f"{family.rope_theta:.0f} for {name}" for name, family in FAMILIES.items())


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Set the model family and its dimensions."""

    model_type: str = option("llama_v3", "Model family.", choices=tuple(FAMILIES))
    vocab_size: int = option(50432, "Rows of the embedding; at least the size of the tokenizer.", at_least=2)
    hidden_size: int = option(768, "Width of the residual stream.", at_least=1, alias="hidden_width")
    intermediate_size: int = option(11008, "Width of the feed-forward layer.", at_least=1)
    num_layers: int = option(12, "Transformer blocks.", at_least=1)
    num_heads: int = option(12, "Query heads; must divide hidden_size.", at_least=1)
    num_key_value_heads: int | None = option(
        None, "Key-value heads; must divide num_heads. Default: num_heads.", at_least=1
    )
    head_dim: int | None = option(None, "Width of a head. Default: hidden_size / num_heads.", at_least=2)
    qk_norm: bool = option(False, "Apply RMSNorm to each query and key head; a Llama is then exported as Qwen3.")
    sliding_window: int | None = option(
        None, "Tokens each token attends to, itself included. Default: all preceding tokens.", at_least=1
    )
    num_local_experts: int | None = option(None, "Experts per block (mixtral, glm4_moe, qwen3_moe).", at_least=2)
    num_experts_per_tok: int = option(2, "Experts each token is routed to.", at_least=1)
    n_shared_experts: int = option(0, "Shared experts, which process every token (glm4_moe).", at_least=0)
    router_aux_loss_coef: float = option(
        0.02, "Weight of the experts' load-balancing loss (mixtral, qwen3_moe).", at_least=0
    )
    router_bias_speed: float = option(
        0.001,
        "Change of an expert's bias per step, up if the expert got too few tokens and down if too many; replaces the "
        "load-balancing loss (glm4_moe).",
        at_least=0,
    )
    max_context_width: int = option(2048, "Tokens per sequence.", at_least=1)
    max_position_embeddings: int | None = option(
        None, "Largest position of the rotary embedding. Default: max_context_width.", at_least=1
    )
    rope_theta: float | None = option(None, f"Base of the rotary frequencies. Default: {ROPE_THETA}.", above=0)
    rope_scaling_factor: float | None = option(
        None, "Factor of Llama 3.1's rotary frequency scaling. Default: no scaling.", at_least=1
    )
    tie_word_embeddings: bool = option(False, "Share the embedding with the output head.")
    rms_norm_eps: float = option(1e-5, "Epsilon that RMSNorm adds to the mean square.", above=0)
    initializer_range: float = option(0.02, "Standard deviation of the initial weights.", above=0)

    @property
    def model(self) -> ModelConfig:
        """Return the architecture in Hugging Face's terms."""
        scaling = RopeScaling(factor=self.rope_scaling_factor) if self.rope_scaling_factor else None
        family = FAMILIES[self.model_type]
        model_type = family.hf_model_type(qk_norm=self.qk_norm)
        architecture = ARCHITECTURES[model_type]
        return ModelConfig(
            model_type=model_type,
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=self.num_layers,
            num_attention_heads=self.num_heads,
            num_key_value_heads=self.num_key_value_heads or self.num_heads,
            head_dim=self.head_dim or self.hidden_size // self.num_heads,
            max_position_embeddings=self.max_position_embeddings or self.max_context_width,
            rope_theta=self.rope_theta or family.rope_theta,
            rope_scaling=scaling,
            rms_norm_eps=self.rms_norm_eps,
            initializer_range=self.initializer_range,
            tie_word_embeddings=self.tie_word_embeddings,
            sliding_window=self.sliding_window,
            qk_norm=self.qk_norm,
            num_local_experts=self.num_local_experts,
            num_experts_per_tok=self.num_experts_per_tok,
            n_shared_experts=self.n_shared_experts,
            router_aux_loss_coef=self.router_aux_loss_coef if "router_aux_loss_coef" in architecture.keys else 0.0,
        )


def conflicts(config: ModelOptions) -> Conflicts:
    """Yield the conflicts among the model's options."""
    yield from _head_conflicts(config)
    positions = config.max_position_embeddings or config.max_context_width
    if config.max_context_width > positions:
        yield (
            ("max_context_width", "max_position_embeddings"),
            f"max_context_width {config.max_context_width} is above max_position_embeddings {positions}",
        )
    yield from _family_conflicts(config)


def _head_conflicts(config: ModelOptions) -> Conflicts:
    if config.head_dim is None and config.hidden_size % config.num_heads:
        yield (
            ("hidden_size", "num_heads"),
            f"hidden_size {config.hidden_size} is not divisible by num_heads {config.num_heads}",
        )
    elif (config.head_dim or config.hidden_size // config.num_heads) % 2:
        width = f"hidden_size {config.hidden_size} / num_heads {config.num_heads}"
        source = f"head_dim {config.head_dim}" if config.head_dim else width
        yield ("hidden_size", "num_heads", "head_dim"), f"{source} is odd; rotary embeddings rotate pairs"
    if config.num_heads % (config.num_key_value_heads or config.num_heads):
        yield (
            ("num_heads", "num_key_value_heads"),
            f"num_heads {config.num_heads} is not divisible by num_key_value_heads {config.num_key_value_heads}",
        )


def _family_conflicts(config: ModelOptions) -> Conflicts:
    """Yield features that the family has no Hugging Face class for, and those it needs."""
    family = FAMILIES[config.model_type]
    for name in OPTIONAL_FEATURES:
        value = getattr(config, name)
        if value and not family.supports(name):
            families = " or ".join(families_with(name))
            yield (
                (name, "model_type"),
                f"{name} {int(value)}: model_type {config.model_type} does not support it; use {families}",
            )
        if not value and family.requires(name):
            yield (name, "model_type"), f"model_type {config.model_type} needs {name}"
    if family.supports("num_local_experts") and config.num_experts_per_tok > (config.num_local_experts or math.inf):
        yield (
            ("num_experts_per_tok", "num_local_experts"),
            f"num_experts_per_tok {config.num_experts_per_tok} is above num_local_experts {config.num_local_experts}",
        )
