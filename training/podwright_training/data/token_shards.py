"""Read and write tokenized documents in memory-mapped files: one ``safetensors`` file per shard.

Its tensors are ``tokens`` (uint16 or uint32, every document with its end-of-text token) and ``offsets`` (int64, where
each document begins, and the end); its metadata identifies the tokenizer.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from podwright_training.data.faults import BadShardError, DataError
from podwright_training.data.storage import is_local

SUFFIX = ".safetensors"
TOKENIZER = "tokenizer"  # key of the metadata: Encoder.digest


class TokenShard(Sequence[NDArray[Any]]):
    """Documents of one shard; opening it reads only the header.

    Attributes:
        tokenizer: Digest of the encoder that made the tokens.
        token_count: Tokens of all documents.

    Raises:
        DataError: The file is not local, not readable, or not a token shard.
        BadShardError: The file is truncated or overwritten.
    """

    def __init__(self, path: str) -> None:
        if not is_local(path):
            raise DataError(f"{path}: token shards are memory-mapped; copy them to a file system")
        if not os.access(path, os.R_OK):
            raise DataError(f"{path} cannot be read: missing, or permission denied")
        try:
            self._file = cast("Any", safe_open(path, framework="np"))
        except SafetensorError as error:
            raise BadShardError(f"is no whole {SUFFIX} file ({error})") from error
        self.tokenizer: str | None = (self._file.metadata() or {}).get(TOKENIZER)
        if self.tokenizer is None or not {"tokens", "offsets"} <= set(self._file.keys()):
            raise DataError(f"{path} was not written by `podwright-train tokenize`: it has no tokens and offsets")
        self._tokens, self._offsets = self._file.get_slice("tokens"), self._file.get_slice("offsets")
        self.token_count: int = self._tokens.get_shape()[0]
        self._length: int = self._offsets.get_shape()[0] - 1

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        first, end = self._offsets[index : index + 2].tolist()
        return self._tokens[first:end]

    def close(self) -> None:
        """Unmap the file; documents already read stay valid."""
        self._file.__exit__(None, None, None)


def write_token_shard(path: Path, documents: Sequence[NDArray[Any]], *, tokenizer: str) -> None:
    """Write ``documents`` to ``path`` atomically; ``tokenizer`` is their encoder's digest."""
    lengths = [len(document) for document in documents]
    tokens = np.concatenate(documents) if documents else np.empty(0, dtype=np.uint32)
    kind = np.uint16 if not len(tokens) or tokens.max() <= np.iinfo(np.uint16).max else np.uint32
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
    save_file({"tokens": tokens.astype(kind), "offsets": offsets}, temporary, metadata={TOKENIZER: tokenizer})
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)
