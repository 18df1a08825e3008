"""Register the model families: add an entry here and a preset, and a dense family can be trained and exported.

One block builds every family (``model/llama.py``); a family says which of its features it uses, how Hugging Face
names it, and which extra keys its ``config.json`` has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OPTIONAL_FEATURES = ("sliding_window", "qk_norm", "num_local_experts", "n_shared_experts")  # option names
EXPERT_KEYS = ("num_local_experts", "num_experts_per_tok", "router_aux_loss_coef")


@dataclass(frozen=True, kw_only=True)
class ExpertNames:
    """Names of an expert's matrices on disk, below a block.

    Attributes:
        module: Replaces ``mlp``.
        gate, up, down: Matrices of each expert.
    """

    module: str
    gate: str
    up: str
    down: str


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A model class of transformers.

    Attributes:
        hf_class: Class in ``architectures`` of ``config.json``.
        constants: Keys of ``config.json`` whose value never changes.
        keys: Fields of ``ModelConfig`` that only some architectures write to ``config.json``.
        renamed: Keys of ``config.json`` under which it has other fields of ``ModelConfig``, instead of their own names.
        older_names: Keys under which transformers 4 has fields of ``ModelConfig``, besides those that 5 has.
        rope_constants: Keys of ``rope_parameters`` whose value never changes.
        biased_router: Each expert's score is a sigmoid. A bias that follows the experts' load is added to choose the
            experts, not to mix them, instead of a load-balancing loss.
        supported: Optional features of the block that the class can express, by option name.
        required: Those it cannot do without.
        expert_names: Names of the experts' weights on disk.
    """

    hf_class: str
    constants: Mapping[str, Any] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    older_names: Mapping[str, str] = field(default_factory=dict)
    rope_constants: Mapping[str, Any] = field(default_factory=dict)
    biased_router: bool = False
    supported: frozenset[str] = frozenset()
    required: frozenset[str] = frozenset()
    expert_names: ExpertNames | None = None


@dataclass(frozen=True, kw_only=True)
class Family:
    """A value of the option ``model_type``.

    Attributes:
        architecture: Key of ``ARCHITECTURES``.
        rope_theta: Default base of the rotary frequencies, as of the family's first published model.
        qk_norm_architecture: Key of ``ARCHITECTURES`` to export as when the option ``qk_norm`` is on.
    """

    architecture: str
    rope_theta: float
    qk_norm_architecture: str | None = None

    def hf_model_type(self, *, qk_norm: bool) -> str:
        """Return transformers' ``model_type``."""
        return self.qk_norm_architecture if qk_norm and self.qk_norm_architecture else self.architecture

    def supports(self, feature: str) -> bool:
        """Return whether a model of this family can have the feature and still be exported."""
        names = (self.architecture, self.qk_norm_architecture)
        return any(feature in ARCHITECTURES[name].supported for name in names if name)

    def requires(self, feature: str) -> bool:
        """Return whether every model of this family has the feature."""
        return feature in ARCHITECTURES[self.architecture].required


ARCHITECTURES = {  # The keys are transformers' model_type.
    "llama": Architecture(hf_class="LlamaForCausalLM", constants={"attention_bias": False, "mlp_bias": False}),
    "mistral": Architecture(
        hf_class="MistralForCausalLM", keys=("sliding_window",), supported=frozenset({"sliding_window"})
    ),
    "mixtral": Architecture(
        hf_class="MixtralForCausalLM",
        keys=("sliding_window", *EXPERT_KEYS),
        supported=frozenset({"sliding_window", "num_local_experts"}),
        required=frozenset({"num_local_experts"}),
        expert_names=ExpertNames(module="block_sparse_moe", gate="w1", up="w3", down="w2"),
    ),
    "glm4_moe": Architecture(
        hf_class="Glm4MoeForCausalLM",
        constants={
            "attention_bias": False,
            "first_k_dense_replace": 0,
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.0,
            "num_nextn_predict_layers": 0,
        },
        keys=("num_experts_per_tok", "n_shared_experts"),
        renamed={
            "n_routed_experts": "num_local_experts",
            "moe_intermediate_size": "intermediate_size",
            "use_qk_norm": "qk_norm",
        },
        rope_constants={"partial_rotary_factor": 1.0},
        biased_router=True,
        supported=frozenset({"qk_norm", "num_local_experts", "n_shared_experts"}),
        required=frozenset({"num_local_experts", "n_shared_experts"}),
        expert_names=ExpertNames(module="mlp", gate="gate_proj", up="up_proj", down="down_proj"),
    ),
    "qwen3": Architecture(
        hf_class="Qwen3ForCausalLM",
        constants={"attention_bias": False},
        supported=frozenset({"qk_norm"}),
        required=frozenset({"qk_norm"}),
    ),
    "qwen3_moe": Architecture(
        hf_class="Qwen3MoeForCausalLM",
        constants={"attention_bias": False, "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True},
        keys=EXPERT_KEYS,
        renamed={"moe_intermediate_size": "intermediate_size"},
        older_names={"num_experts": "num_local_experts"},
        supported=frozenset({"qk_norm", "num_local_experts"}),
        required=frozenset({"qk_norm", "num_local_experts"}),
        expert_names=ExpertNames(module="mlp", gate="gate_proj", up="up_proj", down="down_proj"),
    ),
}

FAMILIES = {  # The keys are values of the option model_type.
    "llama_v2": Family(architecture="llama", rope_theta=10_000.0, qk_norm_architecture="qwen3"),
    "llama_v3": Family(architecture="llama", rope_theta=500_000.0, qk_norm_architecture="qwen3"),
    "mistral": Family(architecture="mistral", rope_theta=10_000.0),
    "mixtral": Family(architecture="mixtral", rope_theta=1_000_000.0),
    "glm4_moe": Family(architecture="glm4_moe", rope_theta=1_000_000.0),
    "qwen3_moe": Family(architecture="qwen3_moe", rope_theta=1_000_000.0),
}


def families_with(feature: str) -> list[str]:
    """Return the values of ``model_type`` that support a feature."""
    return [name for name, family in FAMILIES.items() if family.supports(feature)]
