"""Read and write tokenized documents in memory-mapped files: one ``safetensors`` file per shard.

Its tensors are ``tokens`` (uint16 or uint32, every document with its end-of-text token), ``offsets`` (int64, where
each document begins, and the end) and ``crc32`` (uint32, of each document's bytes); its metadata identifies the
tokenizer.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from array import array
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from podwright_common.atomic_file import rename_durably
from podwright_training.data.bad_data import BadRecordError, BadShardError, DataError, first_line
from podwright_training.data.storage import is_local
from podwright_training.folder_listing import paths_in

if TYPE_CHECKING:
    from typing_extensions import Self  # Python has it in typing from 3.11 on.

SUFFIX = ".safetensors"
TOKEN_DTYPES = ("U16", "U32")
ALIGNMENT = 8  # The header's size is a multiple of it.
COPY_BYTES = 1 << 20
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


class TokenShardWriter:
    """Write documents to a shard one by one; memory holds three numbers of each, its tokens are in a file.

    The shard appears at the end of a ``with`` block, or not at all if the block raises an error.

    Args:
        path: of the shard.
        tokenizer: digest of the documents' encoder.

    Attributes:
        token_count: Tokens of all documents so far.
    """

    def __init__(self, path: Path, *, tokenizer: str) -> None:
        self._path, self._tokenizer = path, tokenizer
        self._shard = path.with_name(f".{path.name}.{os.getpid()}")
        self._spool_path = self._shard.with_name(f"{self._shard.name}.tokens")
        self._dtype: np.dtype[Any] = np.dtype(np.uint16)
        self._offsets, self._crc32 = array("q", [0]), array("I")
        self.token_count = 0

    def __len__(self) -> int:
        return len(self._crc32)

    def __enter__(self) -> Self:
        try:
            self._spool = self._spool_path.open("wb")
        except OSError as error:
            raise self._failure(error) from error
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self._spool.close()
            if kind is None:
                self._commit()
        except OSError as error:
            raise self._failure(error) from error
        finally:
            self._spool_path.unlink(missing_ok=True)
            self._shard.unlink(missing_ok=True)

    def add(self, tokens: NDArray[Any]) -> None:
        """Append a document.

        Raises:
            DataError: The file system is full, or fails.
        """
        try:
            if self._dtype == np.uint16 and len(tokens) and tokens.max() > np.iinfo(np.uint16).max:
                self._widen()
            content = tokens.astype(self._dtype).tobytes()
            self._spool.write(content)
        except OSError as error:
            raise self._failure(error) from error
        self._crc32.append(zlib.crc32(content))
        self.token_count += len(tokens)
        self._offsets.append(self.token_count)

    def _widen(self) -> None:
        """Write the documents so far again, as a token needs more than 16 bits."""
        self._spool.close()
        narrow_path, narrow_size, wide_size = self._spool_path, self._dtype.itemsize, np.dtype(np.uint32).itemsize
        self._spool_path = narrow_path.with_name(f"{narrow_path.name}.{wide_size}")
        self._dtype, self._crc32 = np.dtype(np.uint32), array("I")
        self._spool = self._spool_path.open("wb")
        with narrow_path.open("rb") as narrow:
            for begin, end in pairwise(self._offsets):
                tokens = np.frombuffer(narrow.read((end - begin) * narrow_size), dtype=np.uint16)
                content = tokens.astype(self._dtype).tobytes()
                self._spool.write(content)
                self._crc32.append(zlib.crc32(content))
        narrow_path.unlink()

    def _commit(self) -> None:
        """Write the shard in the layout of ``safetensors``: a header, and the tensors it describes."""
        if not self.token_count:
            self._dtype = np.dtype(np.uint16)
        offsets, crc32 = np.array(self._offsets, dtype="<i8").tobytes(), np.array(self._crc32, dtype="<u4").tobytes()
        tensors: list[tuple[str, str, int, int]] = [
            ("offsets", "I64", len(self._offsets), len(offsets)),
            ("crc32", "U32", len(self._crc32), len(crc32)),
            ("tokens", f"U{8 * self._dtype.itemsize}", self.token_count, self.token_count * self._dtype.itemsize),
        ]
        header: dict[str, Any] = {"__metadata__": {ENCODER: self._tokenizer}}
        begin = 0
        for name, dtype, length, size in tensors:
            header[name] = {"dtype": dtype, "shape": [length], "data_offsets": [begin, begin + size]}
            begin += size
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % ALIGNMENT)
        with self._shard.open("wb") as shard, self._spool_path.open("rb") as spool:
            shard.write(len(text).to_bytes(8, "little") + text + offsets + crc32)
            shutil.copyfileobj(spool, shard, COPY_BYTES)
        rename_durably(self._shard, self._path)

    def _failure(self, error: OSError) -> DataError:
        return DataError(f"cannot write {self._path}: {first_line(error)}")


def remove_unfinished(folder: Path) -> None:
    """Remove what killed writers left in a folder whose shards are complete."""
    for path in paths_in(folder, f".*{SUFFIX}.*"):
        path.unlink(missing_ok=True)


def write_token_shard(path: Path, documents: Iterable[NDArray[Any]], *, tokenizer: str) -> None:
    """Write ``documents`` to ``path`` atomically; ``tokenizer`` is their encoder's digest."""
    with TokenShardWriter(path, tokenizer=tokenizer) as shard:
        for document in documents:
            shard.add(document)
