"""Write the token files of this folder with the programs that define their formats, and what those read from them.

The programs are unpacked from their wheels and are no dependency of the tests:

    pip download --no-deps megatron-core==0.19.2 mosaicml-streaming==0.13.0 litdata==0.2.76 ai2-olmo-core==3.0.0
    pip install --no-deps --target FOLDER brotli zstd python-snappy cramjam lightning_utilities catalogue
    PYTHONPATH=FOLDER:… python tests/training/token_files/generate.py

Of some packages only the modules of the format are imported: the packages need Triton, a GPU or clients of clouds.
"""

from __future__ import annotations

import json
import shutil
import sys
import types
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import torch

HERE = Path(__file__).parent
END = 0
MOCKED = (
    "megatron.core.utils",
    "cached_path",
    "cached_path.schemes",
    "google",
    "google.auth",
    "google.auth.exceptions",
)
MOCKED += ("google.cloud", "google.cloud.storage", "google.api_core", "google.api_core.exceptions")
DOCUMENTS = [[1 + (number * 37 + place) % 999 for place in range(number * 5 % 17)] for number in range(24)]
WITH_END = [[*document, END] for document in DOCUMENTS]


def bare(*names: str) -> None:
    """Let modules of packages be imported without what the packages import themselves."""
    for name in names:
        top, *parts = name.split(".")
        (folder,) = find_spec(top).submodule_search_locations if not parts else sys.modules[top].__path__
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [str(Path(folder, *parts))]


def write_megatron(name: str, dtype: type, documents: list[list[int]], *, sentences: int) -> list[list[int]]:
    """Write documents of some sentences each; return the documents that Megatron reads."""
    indexed_dataset = import_module("megatron.core.datasets.indexed_dataset")
    builder = indexed_dataset.IndexedDatasetBuilder(str(HERE / f"{name}.bin"), dtype=dtype)
    for document in documents:
        pieces = torch.tensor_split(torch.tensor(document, dtype=torch.int64), sentences)
        builder.add_document(torch.cat(pieces), [len(piece) for piece in pieces])
    builder.finalize(str(HERE / f"{name}.idx"))
    dataset = indexed_dataset.IndexedDataset(str(HERE / name))
    indices = dataset.document_indices
    return [
        [int(token) for number in range(indices[index], indices[index + 1]) for token in dataset[number]]
        for index in range(len(indices) - 1)
    ]


def write_mds(name: str, encoding: str) -> list[list[int]]:
    """Write a column of tokens between others; return the samples that streaming reads."""
    writer = import_module("streaming.base.format.mds.writer").MDSWriter
    reader = import_module("streaming.base.format.mds.reader").MDSReader
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    columns = {"id": "str", "number": "int", "tokens": encoding, "url": "str"}
    with writer(out=str(folder), columns=columns) as shards:
        for number, document in enumerate(WITH_END):
            tokens = np.array(document, dtype=np.int64 if encoding == "bytes" else np.uint16)
            value = tokens.tobytes() if encoding == "bytes" else tokens
            shards.write({"id": "x" * (number % 3), "number": number, "tokens": value, "url": f"u{number}"})
    (shard,) = json.loads((folder / "index.json").read_text())["shards"]
    read = reader.from_json(str(folder), None, shard)
    samples = (read[number]["tokens"] for number in range(len(WITH_END)))
    return [(np.frombuffer(sample, np.int64) if encoding == "bytes" else sample).tolist() for sample in samples]


def write_litdata(name: str) -> list[int]:
    """Write a chunk of samples; return its tokens, as litdata reads them in blocks of one."""
    writer = import_module("litdata.streaming.writer").BinaryWriter
    loader = import_module("litdata.streaming.item_loader").TokensLoader
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    chunks = writer(str(folder), chunk_bytes="64MB", item_loader=loader())
    for number, document in enumerate(WITH_END):
        chunks[number] = torch.tensor(document, dtype=torch.int32)
    chunks.done()
    chunks.merge()
    dataset = import_module("litdata").StreamingDataset(str(folder), item_loader=loader(block_size=1), shuffle=False)
    return [int(token) for (token,) in dataset]


def write_olmo(name: str) -> list[list[int]]:
    """Write tokens as OLMo's memory-mapped arrays; return the documents between the boundaries that OLMo-core reads."""
    utils = import_module("olmo_core.data.utils")
    path = HERE / f"{name}.npy"
    tokens = np.concatenate(WITH_END).astype(np.uint32)
    array = np.memmap(path, dtype=np.uint32, mode="w+", shape=(len(tokens),))
    array[:] = tokens
    array.flush()
    utils.write_document_indices(path, dtype=np.uint32, eos_token_id=END)
    return [
        utils.load_array_slice(path, begin, end, np.uint32).tolist()
        for begin, end in utils.iter_document_indices(path, use_array_if_local=False)
    ]


def main() -> None:
    """Write all files and ``expected.json``."""
    bare("megatron", "megatron.core", "streaming", "streaming.base", "streaming.base.format")
    for name in MOCKED:
        sys.modules[name] = MagicMock()
    sys.modules["cached_path"].cached_path = lambda path, **_: Path(path)
    expected = {
        "megatron_uint16.bin": write_megatron("megatron_uint16", np.uint16, WITH_END, sentences=1),
        "megatron_int32.bin": write_megatron("megatron_int32", np.int32, DOCUMENTS, sentences=3),
        "mds_uint16/shard.00000.mds": write_mds("mds_uint16", "ndarray:uint16"),
        "mds_dynamic/shard.00000.mds": write_mds("mds_dynamic", "ndarray"),
        "mds_bytes/shard.00000.mds": write_mds("mds_bytes", "bytes"),
        "litdata/chunk-0-0.bin": write_litdata("litdata"),
        "olmo.npy": write_olmo("olmo"),
    }
    (HERE / "expected.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    main()
