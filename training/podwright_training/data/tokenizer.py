"""Load a tokenizer and encode documents."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from podwright_training.data.faults import DataError, first_line

if TYPE_CHECKING:  # it takes seconds to import; worker processes do without
    from transformers import PreTrainedTokenizerBase


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """Load the tokenizer from the local folder ``name``, or by that identifier from the Hugging Face hub.

    Raises:
        DataError: There is no such tokenizer, or the hub is unreachable.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise DataError(
            f"tokenizer {name!r}: neither a folder with tokenizer.json nor an identifier that the Hugging Face hub "
            f"serves to this machine ({first_line(error)})"
        ) from error


class Encoder:
    """Encode whole documents: no special tokens, no truncation, the end-of-text token after each.

    Attributes:
        end: The end-of-text token.
        digest: Sixteen hexadecimal digits that identify the vocabulary and the end-of-text token.

    Raises:
        DataError: The tokenizer has no end-of-text token, or no ``tokenizer.json``.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise DataError(
                f"tokenizer {tokenizer.name_or_path!r} has no fast implementation: it needs a tokenizer.json"
            )
        if tokenizer.eos_token_id is None:
            raise DataError(
                f"tokenizer {tokenizer.name_or_path!r} has no end-of-text token (eos_token) to separate documents"
            )
        self.end: int = tokenizer.eos_token_id
        self._backend = Tokenizer.from_str(backend.to_str())  # a copy: the caller's may pad and truncate
        self._backend.no_padding()
        self._backend.no_truncation()
        meaning = json.dumps([self._backend.get_vocab(with_added_tokens=True), self.end], sort_keys=True)
        self.digest = hashlib.sha256(meaning.encode()).hexdigest()[:16]

    def encode(self, texts: Sequence[str]) -> Iterator[NDArray[np.uint32]]:
        """Yield the ids of each text, followed by the end-of-text token."""
        for encoding in self._backend.encode_batch_fast(texts, add_special_tokens=False):
            ids = encoding.ids
            ids.append(self.end)
            yield np.array(ids, dtype=np.uint32)
