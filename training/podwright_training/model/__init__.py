"""Build the model: token ids → logits, or their loss.

Legend of the shapes in tensor names, as in ``x_BTD``:

| letter | size | letter | size |
|---|---|---|---|
| B | sequences | H | head_dim |
| T | tokens per sequence | F | intermediate_size |
| S | B · T | E | experts |
| D | hidden_size | A | experts per token |
| N | query heads | P | pairs of token and expert |
| K | key-value heads | V | vocab_size |
"""

from podwright_training.model.attention import Attend, Attention, Mask, has_mask, make_mask, mask_problem, uses_flex
from podwright_training.model.configure import DTYPES, configure, float8_problem, kept_in_bf16
from podwright_training.model.embedding import Embedding
from podwright_training.model.experts import (
    BiasedRouter,
    Experts,
    FeedForward,
    HuggingFacePart,
    MixtureOfExperts,
    from_hugging_face,
    is_router_bias,
)
from podwright_training.model.head import Head
from podwright_training.model.llama import Block, LlamaForCausalLM
from podwright_training.model.recomputation import Recomputation

__all__ = [
    "DTYPES",
    "Attend",
    "Attention",
    "BiasedRouter",
    "Block",
    "Embedding",
    "Experts",
    "FeedForward",
    "Head",
    "HuggingFacePart",
    "LlamaForCausalLM",
    "Mask",
    "MixtureOfExperts",
    "Recomputation",
    "configure",
    "float8_problem",
    "from_hugging_face",
    "has_mask",
    "is_router_bias",
    "kept_in_bf16",
    "make_mask",
    "mask_problem",
    "uses_flex",
]
