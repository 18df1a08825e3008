"""Turn a document of a file that another program wrote into the tokens that training reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from podwright_training.data.bad_data import BadRecordError


@dataclass(frozen=True)
class TokenRule:
    """The meaning of a file's numbers, which most formats do not store.

    Attributes:
        dtype: Type of the numbers in a file that does not name it (``token_dtype``); ``None``: such files are refused.
        stored_end: Token that ends a document in the files (``token_end``), in training replaced by ``end``.
        end: EOS token of the run's tokenizer, which ends each document in training.
        vocabulary_size: Rows that the tokenizer's ids need.
    """

    dtype: str | None
    stored_end: int
    end: int
    vocabulary_size: int

    def document(self, stored_tokens: NDArray[Any]) -> NDArray[Any]:
        """Return a copy of a document's tokens, in which the EOS token is the last; a document of no token has none.

        Raises:
            BadRecordError: A token is not in the tokenizer's vocabulary.
        """
        dtype = np.uint16 if self.vocabulary_size <= 1 << 16 else np.uint32
        if not len(stored_tokens):
            return np.empty(0, dtype=dtype)
        if self.stored_end != self.end:
            stored_tokens = stored_tokens.astype(np.int64)
            stored_tokens[stored_tokens == self.stored_end] = self.end
        for token in (int(stored_tokens.min()), int(stored_tokens.max())):
            if not 0 <= token < self.vocabulary_size:
                raise BadRecordError(
                    f"token {token} is not among the {self.vocabulary_size} ids of the tokenizer: name the tokenizer "
                    "that made the tokens, and the token_dtype of a file that does not name its own"
                )
        body = stored_tokens[:-1] if stored_tokens[-1] == self.end else stored_tokens
        tokens = np.empty(len(body) + 1, dtype=dtype)
        tokens[:-1], tokens[-1] = body, self.end
        return tokens
