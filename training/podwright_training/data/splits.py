"""Find the shards of a split, or hold out a share of the documents as the validation split."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath

from podwright_training.data import card, token_files
from podwright_training.data.bad_data import DataError
from podwright_training.data.formats import FOREIGN_TOKENS, FORMATS, Document, format_of
from podwright_training.data.held_out import HELD_OUT_SHARE, is_held_out
from podwright_training.data.schemes import S3
from podwright_training.data.storage import Listing, is_local, list_files, read_pieces, shared, sizes_of

SPLITS = ("train", "validation")  # Token shards and curated folders have these.
WORDS = {  # Words that name the split in a file's or folder's name, as on the Hugging Face hub.
    "train": frozenset(("train", "training")),
    "validation": frozenset(("validation", "valid", "val", "dev")),
    "test": frozenset(("test", "testing", "eval", "evaluation")),
}
SAMPLED_SHARDS = 256  # Bytes of this many shards are part of a split's fingerprint.
SAMPLES = 8  # Each shard's samples range from its first to its last byte.
SAMPLE_BYTES = 4096
SAMPLERS = 32  # requests to a store at a time
# What transformations of the library datasets leave beside the data that they have read.
CACHE = re.compile(r"(cache-[0-9a-z]+(_\d+_of_\d+)?|tmp\w+)\.arrow")
UNNAMED = "no word of its path names a split, as of other files here"
COMPRESSED_MDS = "; decompress shards of MDS, such as with unzstd --rm *.mds.zstd"
FOR_TEST = "for tests"
BESIDE_DATA = "tokens of another program, beside other data"
MOST_NAMES = 3  # A reason names so many files at most.
NOT_DATA = frozenset(("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json", "tokenizer.json"))


@dataclass(frozen=True)
class Split:
    """Shards of a split, and the rule by which their documents belong to the split.

    Attributes:
        names: Paths in the dataset, sorted.
        files: Paths or URLs to open, in the same order.
        held_out: ``None`` for all documents; else whether the split is the share held out, or the rest.
        unread_files: Files of the dataset that no split has, each with the reason; empty if there are none.
    """

    names: tuple[str, ...]
    files: tuple[str, ...]
    held_out: bool | None = None
    unread_files: str = ""

    def has(self, document: Document) -> bool:
        """Return whether ``document`` belongs to this split: by its content, so that copies of a text stay together."""
        if self.held_out is None:
            return True
        content = document.encode() if isinstance(document, str) else document.tobytes()
        return is_held_out(content) == self.held_out

    @property
    def share(self) -> str | None:
        """Return which share of the documents the split has, in words; ``None`` for all."""
        if self.held_out is None:
            return None
        share = f"{HELD_OUT_SHARE:.0%} of the documents, by their text"
        return share if self.held_out else f"all but {share}"

    @property
    def is_local(self) -> bool:
        """Return whether all shards are local files."""
        return all(map(is_local, self.files))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Return the bytes of each shard; the first rank looks them up for all ranks."""
        listed = shared(f"sizes of {self.files[0]} and {self.digest}", self._list_sizes)
        return tuple(int(listed[file]) for file in self.files)

    def _list_sizes(self) -> Listing:
        return {file: str(size) for file, size in sizes_of(self.files).items()}

    @cached_property
    def contents_digest(self) -> str | None:
        """Return twelve hexadecimal digits that identify the shards' bytes; None for shards on the hub.

        They are of the sizes of all and of samples, and the same for the same files in a folder and on S3. The first
        rank reads them, for all.
        """
        if not self.is_local and not all(file.startswith(S3) for file in self.files):
            return None
        return shared(f"contents of {self.files[0]} and {self.digest}", self._read_contents)["digest"]

    def _read_contents(self) -> Listing:
        digest = hashlib.sha256()
        sizes = dict(zip(self.files, self.sizes, strict=True))
        sampled = self.files[:: -(-len(self.files) // SAMPLED_SHARDS)]
        with ThreadPoolExecutor(SAMPLERS) as pool:
            samples = dict(zip(sampled, pool.map(lambda file: _samples(file, sizes[file]), sampled), strict=True))
        for file in self.files:
            digest.update(f"{sizes[file]}\n".encode())
            for sample in samples.get(file, ()):
                digest.update(sample)
        return {"digest": digest.hexdigest()[:12]}

    @property
    def digest(self) -> str:
        """Return twelve hexadecimal digits that identify the shards' names."""
        return hashlib.sha256("\n".join(self.names).encode()).hexdigest()[:12]


def find_split(dataset: str, dataset_config_name: str | None, split: str) -> Split:
    """Find the shards of ``split`` (``train`` or ``validation``) in the folder ``dataset_config_name`` of ``dataset``.

    Without such a folder, the name is a configuration of the dataset's card, with its own splits. Otherwise a file
    belongs to the split that a word of its path names (``c4-train.00000-of-01024.json.gz``, ``val/0.parquet``).
    Without any such word, all files are for training.

    Raises:
        DataError: No such dataset, or no shard of that split in it.
    """
    folder = dataset_config_name or ""
    files = list_files(dataset, folder)
    paths = {name: PurePosixPath(name).relative_to(folder) for name in files}
    if folder and not files and card.may_configure(dataset):
        configured = card.configured_files(dataset, folder)
        files = {name: file for of_split in configured.values() for name, file in of_split.items()}
        paths = {name: PurePosixPath(word) for word, of_split in configured.items() for name in of_split}
    by_split = defaultdict(list)
    names_by_reason = defaultdict(list)
    for name, reason in _reason_by_name(files).items():
        if reason:
            names_by_reason[reason].append(name)
        else:
            by_split[named_split(paths[name])].append(name)
    if by_split["train"]:
        names_by_reason[UNNAMED] += by_split[""]
    names_by_reason[FOR_TEST] += by_split["test"]
    training = by_split["train"] or by_split[""]
    names = tuple(training if split == "train" else by_split["validation"] or training)
    if not names:
        raise DataError(_nothing(dataset, folder, split, files))
    token_files.check_indexes(names, files)
    held_out = None if by_split["validation"] else split == "validation"
    return Split(names, tuple(files[name] for name in names), held_out, _as_text(names_by_reason))


def _reason_by_name(files: Iterable[str]) -> dict[str, str | None]:
    """Return for each file why it is not read as data; without the indexes, which are read with their token files.

    Beside texts, token files of other programs are left out: they may be of these texts, and ``.bin`` may be anything.
    """
    indexes = token_files.indexes_among(files)
    reasons = {name: reason_against(name) for name in sorted(files) if name not in indexes}
    tokens = [name for name, reason in reasons.items() if not reason and format_of(name) in FOREIGN_TOKENS]
    if len(tokens) < sum(not reason for reason in reasons.values()):
        reasons |= dict.fromkeys(tokens, BESIDE_DATA)
    return reasons


def reason_against(name: str) -> str | None:
    """Return why a file is not read as data, whatever its split."""
    path = PurePosixPath(name)
    if any(part.startswith(".") for part in path.parts):
        return "hidden"
    if not format_of(name):
        return "in no format of data"
    if path.name in NOT_DATA:
        return "describes data"
    return "a cache of the library datasets" if CACHE.fullmatch(path.name) else None


def _as_text(names_by_reason: Mapping[str, Sequence[str]]) -> str:
    """Return the first files that are left out for each reason."""
    parts = []
    for reason, names in names_by_reason.items():
        more = f" and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else ""
        if names:
            parts.append(f"{', '.join(names[:MOST_NAMES])}{more} ({reason})")
    return "; ".join(parts)


def named_split(path: PurePosixPath) -> str:
    """Return the split named by the last matching part of ``path``; empty if no part matches."""
    for part in reversed(path.parts):
        words = set(re.split(r"[^a-z]+", part.lower()))
        for split, split_words in WORDS.items():
            if words & split_words:
                return split
    return ""


def _samples(file: str, size: int) -> list[bytes]:
    places = [max(0, size - SAMPLE_BYTES) * number // (SAMPLES - 1) for number in range(SAMPLES)]
    return read_pieces(file, places, min(size, SAMPLE_BYTES))


def _nothing(dataset: str, folder: str, split: str, files: dict[str, str]) -> str:
    if folder and not files:
        return (
            f"dataset {dataset!r} has no folder {folder!r} with files (dataset_config_name); for files directly in "
            f"{dataset!r}, give --dataset-config-name none"
        )
    if not files:
        return f"dataset {dataset!r} does not exist or is empty"
    place = f"folder {folder!r} (dataset_config_name) of dataset {dataset!r}" if folder else f"dataset {dataset!r}"
    suffixes = sorted({PurePosixPath(name).suffix or "no suffix" for name in files})
    hint = COMPRESSED_MDS if any(".mds." in name for name in files) else ""
    return f"{place} has no file for {split} in a known format ({' '.join(FORMATS)}); found {' '.join(suffixes)}{hint}"
