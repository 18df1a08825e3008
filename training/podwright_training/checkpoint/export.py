"""Write a checkpoint in Hugging Face's layout: stream its weights into files, and verify the files on disk.

Weights pass through memory a block at a time. Beside that, one thread checks the checkpoint's hashes, and one waits for
the disk and reads each file again. ``podwright.json`` names the files that were read back, with their hashes, so an
export that was killed goes on behind them.

PyTorch's ``HuggingFaceStorageWriter`` is not used. It takes three times the memory of the largest file, so files of
the default 5 GB would not fit on the default controller (16 GB), where ``podwright fetch --export`` runs. It also
writes half-finished files under their final names. docs/measured.md has the figures.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_state_dict_into_shards_factory
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerBase
from xxhash import xxh3_128

from podwright_training.checkpoint import checkpoint_reader, manifest, trainer_state
from podwright_training.checkpoint.collective_io import CheckpointError
from podwright_training.checkpoint.tensor_reader import TensorReader
from podwright_training.config.export_options import ExportOptions
from podwright_training.config.train_config import TrainConfig
from podwright_training.data.tokenizer import (
    Encoder,
    generation_token_ids,
    load_tokenizer,
    save_as_trained,
    special_token_ids,
)
from podwright_training.errors import UserError
from podwright_training.model import HuggingFacePart, from_hugging_face, is_router_bias
from podwright_training.model_folder import ADDS_BOS, CONFIG, INDEX
from podwright_training.run_folder import CARD, ORIGIN, commit_folder, place_of, write_atomically

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
STORED = {torch.float32: "F32", torch.bfloat16: "BF16"}  # names in safetensors
BLOCK_BYTES = 8 * 2**20
ALIGNMENT = 8  # A header of safetensors ends at a multiple of this.


@dataclass(frozen=True)
class Weight:
    """A tensor of the export, and its place in the checkpoint.

    Attributes:
        key: Name of the checkpoint's tensor.
        part: Its name in the export, and its place in that tensor.
    """

    key: str
    part: HuggingFacePart

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the tensor's shape in the export, where each expert is a matrix."""
        return self.part.shape[-2:]

    def blocks(self, itemsize: int) -> Iterator[tuple[list[int], list[int]]]:
        """Yield offset and shape of the blocks of rows that make up the tensor."""
        axis = len(self.part.shape) - len(self.shape)
        rows = max(1, BLOCK_BYTES // (math.prod(self.shape[1:]) * itemsize))
        for row_begin in range(0, self.shape[0], rows):
            begin, shape = list(self.part.begin), list(self.part.shape)
            begin[axis] += row_begin
            shape[axis] = min(rows, self.shape[0] - row_begin)
            yield begin, shape


def export(
    path: Path,
    target: Path,
    config: TrainConfig,
    export_options: ExportOptions | None = None,
    *,
    averaged_with: Sequence[Path] = (),
    card: str = "",
    on_bytes: Callable[[int], object] = lambda _: None,
) -> None:
    """Write a checkpoint of a run as ``target``, completely or not at all; continue an export that was killed.

    Args:
        path: Folder of the checkpoint.
        target: Folder to write; one that is there is replaced when the new one is complete.
        config: Configuration of the run.
        export_options: What is exported. Default: the weights in fp32.
        averaged_with: Checkpoints of the same model whose weights are averaged with this one's.
        card: Text of the model card.
        on_bytes: Called with the number of bytes of each block that was written.

    Raises:
        UserError: The checkpoint is damaged or has no moving average, the tokenizer is not the one that it was trained
            with, or the disk is full; no files are left.
    """
    export_options = export_options or ExportOptions()
    target = place_of(target)
    partial = target.with_name(f".{target.name}.partial")
    averaged = (path, *averaged_with)
    try:
        files = _files(path, export_options)
        tokenizer = _tokenizer(path, config)
        finished = _finished(partial, _origin(path, export_options, averaged_with))
        with ThreadPoolExecutor(1) as checker, ThreadPoolExecutor(1) as disk:
            checked = [checker.submit(manifest.check_hashes, checkpoint) for checkpoint in averaged]
            try:
                _write_tokenizer(partial, tokenizer, add_bos=trainer_state.adds_bos(path))
                written = list(
                    _write_all(averaged, partial, files, finished, export_options, disk=disk, on_bytes=on_bytes)
                )
            finally:
                for task in checked:
                    # A damaged file may also fail to be read: the check's error names it, that failure does not.
                    task.result()
            for task in written:
                task.result()
        _write_description(partial, path, files, export_options, tokenizer)
        if card:
            write_atomically(partial / CARD, card)
        for file in partial.iterdir():
            _sync(file)
        commit_folder(partial, target)
    except (UserError, OSError) as error:
        shutil.rmtree(partial, ignore_errors=True)  # others need its space
        if isinstance(error, UserError):
            raise
        raise UserError(f"cannot export to {target}: {error.filename or partial}: {error.strerror}") from error


def is_exported(path: Path, target: Path, export_options: ExportOptions) -> bool:
    """Return whether ``target`` is a complete export of this checkpoint, with these options."""
    return _recorded(target, _origin(path, export_options)) is not None


def total_bytes(path: Path, export_options: ExportOptions) -> int:
    """Return the size of the weights that are exported."""
    return sum(_size(weight, export_options) for weights in _files(path, export_options).values() for weight in weights)


def weights_of(path: Path, *, ema: bool = False) -> Iterator[Weight]:
    """Yield the tensors of the export of a checkpoint.

    Raises:
        UserError: It has no moving average of the weights.
    """
    entries, model_type = checkpoint_reader.shapes(path), trainer_state.model_config(path).model_type
    for name in (key.removeprefix("model.") for key in entries if key.startswith("model.")):
        key = f"optimizer.{name}.ema" if ema else f"model.{name}"
        if key not in entries:
            raise UserError(f"checkpoint {path} has no moving average of the weights: it was trained without ema_decay")
        for part in from_hugging_face(name, entries[key].size, model_type=model_type):
            yield Weight(key, part)


def _files(path: Path, export_options: ExportOptions) -> dict[str, list[Weight]]:
    """Return the weights of each file, in the layout of the hub: one file, or several and an index."""
    weights = {weight.part.name: weight for weight in weights_of(path, ema=export_options.ema)}
    split = split_state_dict_into_shards_factory(
        weights,
        get_storage_size=lambda weight: _size(weight, export_options),
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=int(export_options.max_shard_gb * 1e9),
    )
    return {
        # The wider type comes first in a file, so that each tensor begins at a multiple of its item size.
        file: sorted((weights[name] for name in names), key=lambda weight: -_dtype(weight, export_options).itemsize)
        for file, names in split.filename_to_tensors.items()
    }


def _dtype(weight: Weight, export_options: ExportOptions) -> torch.dtype:
    """Return the type of a tensor of the export: bf16 would round routers' biases, which then choose other experts."""
    return torch.float32 if is_router_bias(weight.part.name) else DTYPES[export_options.dtype]


def _size(weight: Weight, export_options: ExportOptions) -> int:
    return math.prod(weight.shape) * _dtype(weight, export_options).itemsize


def _origin(path: Path, export_options: ExportOptions, averaged_with: Sequence[Path] = ()) -> dict[str, Any]:
    origin = {
        "checkpoint": str(path),
        "step": trainer_state.read_state(path).step,
        **asdict(export_options),
        "checkpoint_manifest_sha256": _manifest_hash(path),
    }
    manifest_hashes = {  # A checkpoint of another run is named with its folder.
        checkpoint.name if checkpoint.parent == path.parent else str(checkpoint): _manifest_hash(checkpoint)
        for checkpoint in averaged_with
    }
    origin |= {ADDS_BOS: True} if trainer_state.adds_bos(path) else {}
    return origin | ({"averaged_with": manifest_hashes} if manifest_hashes else {})


def _manifest_hash(path: Path) -> str:
    return hashlib.sha256((path / manifest.MANIFEST).read_bytes()).hexdigest()


def _recorded(folder: Path, origin: Mapping[str, Any]) -> dict[str, dict[str, Any]] | None:
    """Return the files that an export of the same origin recorded and that have their sizes; ``None`` without one."""
    try:
        recorded_origin = json.loads((folder / ORIGIN).read_text())
        files: dict[str, dict[str, Any]] = recorded_origin.pop("files")
        # The run's folder may have moved.
        is_same_origin = {**recorded_origin, "checkpoint": ""} == {**origin, "checkpoint": ""}
        are_complete = all((folder / name).stat().st_size == entry["bytes"] for name, entry in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return files if is_same_origin and are_complete else None


def _finished(partial: Path, origin: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the files that a killed export left complete, read back once more; clear away the rest."""
    recorded_files = _recorded(partial, origin) or {}
    intact_files = {
        name: entry for name, entry in recorded_files.items() if _read_back(partial / name) == entry["xxh3_128"]
    }
    if not intact_files:
        shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True, exist_ok=True)
    for file in partial.iterdir():
        if file.name not in intact_files:
            file.unlink()
    write_atomically(partial / ORIGIN, json.dumps({**origin, "files": intact_files}, indent=2) + "\n")
    return intact_files


def _write_all(
    averaged: Sequence[Path],
    partial: Path,
    files: Mapping[str, list[Weight]],
    finished: Mapping[str, Any],
    export_options: ExportOptions,
    *,
    disk: ThreadPoolExecutor,
    on_bytes: Callable[[int], object],
) -> Iterator[Future[None]]:
    """Write the unfinished files; yield for each a future that confirms that it is on disk."""
    readers = [TensorReader(checkpoint) for checkpoint in averaged]
    for name, weights in files.items():
        if name in finished:
            on_bytes(finished[name]["bytes"])
            continue
        digest = xxh3_128()
        with (partial / name).open("wb") as file:
            for piece in _pieces(readers, weights, export_options):
                digest.update(piece)
                file.write(piece)
                on_bytes(len(piece))
        yield disk.submit(_confirm, partial / name, digest.hexdigest())


def _header(weights: list[Weight], export_options: ExportOptions) -> bytes:
    """Return the header of a safetensors file: names, shapes and places of its tensors."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for weight in weights:
        begin, end = end, end + _size(weight, export_options)
        dtype = STORED[_dtype(weight, export_options)]
        entries[weight.part.name] = {"dtype": dtype, "shape": weight.shape, "data_offsets": [begin, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _pieces(
    readers: Sequence[TensorReader], weights: list[Weight], export_options: ExportOptions
) -> Iterator[bytes | memoryview]:
    """Yield the parts of a file, in order."""
    yield _header(weights, export_options)
    for weight in weights:
        for begin, shape in weight.blocks(readers[0].entries[weight.key].properties.dtype.itemsize):
            block = _mean([reader.read(weight.key, begin, shape) for reader in readers])
            yield block.to(_dtype(weight, export_options)).reshape(-1).view(torch.uint8).numpy().data


def _mean(blocks: Sequence[Tensor]) -> Tensor:
    """Return the mean of the same block of several checkpoints, in fp32; one block stays as it is."""
    return blocks[0] if len(blocks) == 1 else torch.stack([block.float() for block in blocks]).mean(dim=0)


def _confirm(file: Path, written: str) -> None:
    """Wait until a file is on the disk, read it from there, and record it."""
    _sync(file)
    if _read_back(file) != written:
        raise CheckpointError(f"{file} is not on the disk as it was written: run the command again, or check the disk")
    record = file.with_name(ORIGIN)
    origin = json.loads(record.read_text())
    origin["files"][file.name] = {"bytes": file.stat().st_size, "xxh3_128": written}
    write_atomically(record, json.dumps(origin, indent=2) + "\n")


def _read_back(file: Path) -> str:
    """Return the hash of a file's content on disk, bypassing the page cache."""
    digest, buffer = xxh3_128(), memoryview(bytearray(BLOCK_BYTES))
    with file.open("rb", buffering=0) as opened:
        if hasattr(os, "posix_fadvise"):  # macOS does not have it.
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while count := opened.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()


def _tokenizer(path: Path, config: TrainConfig) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a run; raise ``UserError`` if it is not the one that the checkpoint was trained with."""
    tokenizer = load_tokenizer(config.tokenizer)
    trained_digest = trainer_state.tokenizer_digest(path)
    encoder = Encoder(tokenizer, add_bos=trainer_state.adds_bos(path))
    if trained_digest not in (None, encoder.digest, encoder.earlier_digest):
        raise UserError(
            f"tokenizer {config.tokenizer} has changed since checkpoint {path} was trained ({trained_digest} there, "
            f"{encoder.digest} here), so the export would decode its tokens as other text: restore that tokenizer"
        )
    return tokenizer


def _write_tokenizer(target: Path, tokenizer: PreTrainedTokenizerBase, *, add_bos: bool) -> None:
    save_as_trained(tokenizer, target, add_bos=add_bos)
    GenerationConfig(**generation_token_ids(tokenizer, add_bos=add_bos)).save_pretrained(target)


def _write_description(
    target: Path,
    path: Path,
    files: Mapping[str, list[Weight]],
    export_options: ExportOptions,
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    if len(files) > 1:
        weight_map = {weight.part.name: name for name, weights in files.items() for weight in weights}
        index = {"metadata": {"total_size": total_bytes(path, export_options)}, "weight_map": weight_map}
        write_atomically(target / INDEX, json.dumps(index, indent=2) + "\n")
    dtype = str(DTYPES[export_options.dtype]).removeprefix("torch.")
    config = trainer_state.model_config(path).to_published(dtype=dtype, special_tokens=special_token_ids(tokenizer))
    write_atomically(target / CONFIG, json.dumps(config, indent=2) + "\n")


def _sync(file: Path) -> None:
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
