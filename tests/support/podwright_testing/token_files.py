"""Write files of tokens as other programs do; tests compare them with what those programs wrote and read."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np

Documents = Sequence[Sequence[int]]
MEGATRON_CODES = {"u1": 1, "i1": 2, "<i2": 3, "<i4": 4, "<i8": 5, "<u2": 8}


def write_raw(path: Path, documents: Documents, dtype: str = "<u2") -> None:
    """Write tokens alone, as nanoGPT and OLMo do."""
    path.write_bytes(np.array(list(chain.from_iterable(documents)), dtype=dtype).tobytes())


def write_numpy(path: Path, documents: Documents, dtype: str = "<u2") -> None:
    """Write an array of numpy, as build-nanogpt does."""
    with path.open("wb") as file:
        np.save(file, np.array(list(chain.from_iterable(documents)), dtype=dtype))


def write_llm_c(path: Path, documents: Documents, dtype: str = "<u2") -> None:
    """Write a shard of llm.c or modded-nanogpt."""
    tokens = np.array(list(chain.from_iterable(documents)), dtype=dtype)
    header = np.zeros(256, dtype="<i4")
    header[:3] = *{"<u2": (20240520, 1), "<u4": (20240801, 7)}[dtype], len(tokens)
    path.write_bytes(header.tobytes() + tokens.tobytes())


def write_mds(path: Path, documents: Documents, dtype: str = "uint16", *, columns: Sequence[str] = ("tokens",)) -> None:
    """Write a shard of MosaicML's streaming with columns of tokens, which have the same tokens."""
    count = len(columns)
    header = {
        "column_encodings": [f"ndarray:{dtype}"] * count,
        "column_names": list(columns),
        "column_sizes": [None] * count,
    }
    text = json.dumps(header | {"format": "mds", "version": 2}, sort_keys=True).encode()
    arrays = [
        bytes([1 << 2 | 1, *len(each).to_bytes(2, "little")]) + np.array(each, dtype).tobytes() for each in documents
    ]
    samples = [len(array).to_bytes(4, "little") * count + array * count for array in arrays]
    first = (2 + len(samples)) * 4 + len(text)
    places = np.cumsum([first, *map(len, samples)], dtype="<u4")
    path.write_bytes(len(samples).to_bytes(4, "little") + places.tobytes() + text + b"".join(samples))


def write_megatron(path: Path, documents: Documents, dtype: str = "<u2", *, sentences: int = 1) -> None:
    """Write Megatron's ``.bin`` and ``.idx``, each document cut into about so many sequences."""
    cut = [np.array_split(np.array(document, dtype=dtype), sentences) for document in documents]
    sequences = list(chain.from_iterable(cut))
    lengths = np.array([len(sequence) for sequence in sequences], dtype="<i4")
    ends = np.cumsum([sequence.nbytes for sequence in sequences], dtype="<i8") if sequences else np.empty(0, "<i8")
    pointers = ends - lengths * np.dtype(dtype).itemsize
    first_sequences = np.arange(0, len(sequences) + 1, sentences, dtype="<i8")
    path.write_bytes(b"".join(sequence.tobytes() for sequence in sequences))
    header = struct.pack("<QBQQ", 1, MEGATRON_CODES[dtype], len(sequences), len(first_sequences))
    arrays = lengths.tobytes() + pointers.astype("<i8").tobytes() + first_sequences.tobytes()
    path.with_suffix(".idx").write_bytes(b"MMIDIDX\x00\x00" + header + arrays)
