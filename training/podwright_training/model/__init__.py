"""The model: token ids → logits, or their loss.

Shapes are in names: B sequences, T tokens, S = B · T, D hidden_size, N query heads, K key-value heads, H head_dim,
F intermediate_size, E experts, V vocab_size.
"""

from podwright_training.model.attention import Attend, Attention, Mask, make_mask
from podwright_training.model.configure import DTYPES, configure, float8_problem
from podwright_training.model.experts import Experts, MixtureOfExperts, to_hugging_face
from podwright_training.model.llama import Block, FeedForward, LlamaForCausalLM
from podwright_training.model.recomputation import Recomputation

__all__ = [
    "DTYPES",
    "Attend",
    "Attention",
    "Block",
    "Experts",
    "FeedForward",
    "LlamaForCausalLM",
    "Mask",
    "MixtureOfExperts",
    "Recomputation",
    "configure",
    "float8_problem",
    "make_mask",
    "to_hugging_face",
]
