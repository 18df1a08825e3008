"""Read and write tokenized documents in memory-mapped files: one ``safetensors`` file per shard.

Its tensors are ``tokens`` (uint16 or uint32, every document with its end-of-text token), ``offsets`` (int64, where
each document begins, and the end) and ``crc32`` (uint32, of each document's bytes); its metadata identifies the
tokenizer.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from podwright_common.atomic_file import rename_durably
from podwright_training.data.bad_data import BadRecordError, BadShardError, DataError, first_line
from podwright_training.data.storage import is_local

SUFFIX = ".safetensors"
TOKEN_DTYPES = ("U16", "U32")
ENCODER = "encoder"  # key of the metadata: Encoder.digest
EARLIER = "tokenizer"  # that key in shards where a special token that a document quoted ended it


class TokenShard(Sequence[NDArray[Any]]):
    """Documents of one shard; opening it reads only the header.

    Attributes:
        tokenizer: Digest of the encoder that made the tokens.
        token_count: Tokens of all documents.

    Raises:
        DataError: The file is not local, not readable, or not a token shard.
        BadShardError: The file is truncated or overwritten. A document that has changed is a ``BadRecordError``.
    """

    def __init__(self, path: str) -> None:
        if not is_local(path):
            raise DataError(f"{path}: token shards are memory-mapped; copy them to a file system")
        if not os.access(path, os.R_OK):
            raise DataError(f"cannot read {path}: missing, or permission denied")
        try:
            self._file = cast("Any", safe_open(path, framework="np"))
        except SafetensorError as error:
            raise BadShardError(f"is not a complete {SUFFIX} file ({error})") from error
        metadata = self._file.metadata() or {}
        if EARLIER in metadata:
            raise DataError(
                f"{path}: tokens of an earlier podwright, which cut documents that quote a special token: "
                "run `podwright-train tokenize` or `curate` again"
            )
        if ENCODER not in metadata or not {"tokens", "offsets", "crc32"} <= set(self._file.keys()):
            raise DataError(f"{path} was not written by `podwright-train tokenize`: it has no tokens and offsets")
        self.tokenizer: str = metadata[ENCODER]
        self._tokens, self._offsets = self._file.get_slice("tokens"), self._file.get_slice("offsets")
        self.token_count: int = self._tokens.get_shape()[0]
        self._length: int = self._offsets.get_shape()[0] - 1
        self._crc32 = self._file.get_slice("crc32")
        if self._tokens.get_dtype() not in TOKEN_DTYPES or self._crc32.get_shape() != [self._length]:
            raise BadShardError("is damaged: its tokens, offsets and checksums do not fit together")

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        try:
            begin, end = self._offsets[index : index + 2].tolist()
            is_inside = 0 <= begin <= end <= self.token_count
            # safetensors cuts nothing of an empty tensor
            tokens = self._tokens[begin:end] if is_inside and end > begin else np.empty(0, dtype=np.uint16)
            is_intact = is_inside and _crc32(tokens) == self._crc32[index : index + 1].item()
        except SafetensorError as error:
            raise BadRecordError(f"cannot be read ({first_line(error)})") from error
        if not is_intact:
            raise BadRecordError("its tokens do not match their checksum")
        return tokens

    def close(self) -> None:
        """Unmap the file; documents already read stay valid."""
        self._file.__exit__(None, None, None)


def _crc32(tokens: NDArray[Any]) -> int:
    return zlib.crc32(tokens.tobytes())


def write_token_shard(path: Path, documents: Sequence[NDArray[Any]], *, tokenizer: str) -> None:
    """Write ``documents`` to ``path`` atomically; ``tokenizer`` is their encoder's digest."""
    lengths = [len(document) for document in documents]
    tokens = np.concatenate(documents) if documents else np.empty(0, dtype=np.uint32)
    kind = np.uint16 if not len(tokens) or tokens.max() <= np.iinfo(np.uint16).max else np.uint32
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
    tensors = {
        "tokens": tokens.astype(kind),
        "offsets": offsets,
        "crc32": np.array([_crc32(document.astype(kind)) for document in documents], dtype=np.uint32),
    }
    try:
        save_file(tensors, temporary, metadata={ENCODER: tokenizer})
        rename_durably(temporary, path)
    except (SafetensorError, OSError) as error:
        temporary.unlink(missing_ok=True)
        raise DataError(f"cannot write {path}: {first_line(error)}") from error
