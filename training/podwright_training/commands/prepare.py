"""``podwright-train prepare``: convert prose in a folder or archive to a dataset in C4's layout, and train a tokenizer.

``<output>/en/c4-train.00000-of-00016.json.gz`` …, ``<output>/en/c4-validation.00000-of-00001.json.gz`` and
``<output>/tokenizer/`` appear at once or not at all, and are byte for byte the same for the same prose.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import math
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath

from podwright_common.command_line import add_json
from podwright_training.command_result import print_result
from podwright_training.data.bad_data import first_line
from podwright_training.data.byte_level_bpe import SMALLEST_VOCABULARY
from podwright_training.data.byte_level_bpe import train as train_tokenizer
from podwright_training.data.prose import READERS, UnreadableError, check_packages, paragraphs_of
from podwright_training.data.storage import files_below
from podwright_training.errors import UserError
from podwright_training.json_values import SPREAD
from podwright_training.run_folder import place_of
from podwright_training.spelling import command_line

CONFIG_NAME = "en"
TOKENIZER_FOLDER = "tokenizer"
DOCUMENT_CHARACTERS = 3000  # paragraphs are gathered up to this; C4's documents have about 2,000
HEADING_CHARACTERS = 80  # A shorter paragraph may be the heading of the next one.
PARAGRAPH_CHARACTERS = 40  # A page or PDF without a paragraph of this length has menus and labels.
DAMAGE = (OSError, EOFError, zlib.error, zipfile.BadZipFile, tarfile.TarError)
TIMESTAMP = "1970-01-01T00:00:00Z"  # C4 has the time of the crawl; prose from a folder has none that would repeat


class PrepareError(UserError):
    """Making a dataset of the prose failed; the message names the problem and the requirement."""


@dataclass(frozen=True)
class Prepared:
    """Result of ``prepare``."""

    folder: Path
    train_documents: int
    validation_documents: int
    characters: int
    vocab_size: int
    shards: int
    dropped: Dropped


@dataclass(frozen=True)
class PreparedDataset:
    """The document of `podwright-train prepare --json`."""

    prepared: Prepared = field(metadata=SPREAD)
    train_command: str


@dataclass
class Dropped:
    """Input that is not in the dataset.

    Attributes:
        unreadable: Files, each with the reason.
        without_prose: Pages and PDFs without a paragraph of 40 characters.
        without_text: Other files without a letter or digit.
        paragraphs_without_letters: Page numbers and rules of pages and PDFs.
        hidden: Files whose name, or that of a folder on the way, begins with a dot; macOS's in ``__MACOSX``.
        other_types: Files by suffix; the name is empty for those without one.
        duplicates: Documents whose text occurred before.
    """

    unreadable: list[str] = field(default_factory=list)
    without_prose: list[str] = field(default_factory=list)
    without_text: list[str] = field(default_factory=list)
    paragraphs_without_letters: int = 0
    hidden: int = 0
    other_types: Counter[str] = field(default_factory=Counter)
    duplicates: int = 0

    def lines(self) -> Iterator[str]:
        """Yield one line for people per kind of input that was dropped."""
        yield from (f"skipped {name}" for name in self.unreadable)
        if self.without_prose:
            example, count = self.without_prose[0], len(self.without_prose)
            yield f"skipped {count:,} files without a paragraph of {PARAGRAPH_CHARACTERS} characters: {example}, …"
        if self.without_text:
            yield f"skipped {len(self.without_text):,} files without text: {self.without_text[0]}, …"
        if self.paragraphs_without_letters:
            yield f"dropped {self.paragraphs_without_letters:,} paragraphs without a letter, such as page numbers"
        if self.hidden:
            yield f"skipped {self.hidden:,} hidden files"
        if self.other_types:
            kinds = ", ".join(
                f"{count:,} {suffix or 'without suffix'}" for suffix, count in self.other_types.most_common()
            )
            yield f"skipped {self.other_types.total():,} files of other types: {kinds} (read are {' '.join(READERS)})"
        if self.duplicates:
            yield f"dropped {self.duplicates:,} documents: their text occurred before"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``podwright-train prepare``."""
    parser.add_argument("source", type=Path, help=f"folder, .zip or .tar.* of {' '.join(READERS)} files (or these .gz)")
    parser.add_argument("--output", type=Path, required=True, help="folder to create, for train's --dataset")
    parser.add_argument("--shards", type=int, default=16, help="number of training files. Default: 16")
    parser.add_argument(
        "--vocab-size", type=int, default=2048, help="size of the tokenizer's vocabulary. Default: 2048"
    )
    parser.add_argument(
        "--validation-fraction", type=float, default=0.05, help="fraction of the documents held out. Default: 0.05"
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Prepare the dataset and print a summary; return the exit status."""
    try:
        prepared = prepare(
            args.source,
            args.output,
            shards=args.shards,
            vocab_size=args.vocab_size,
            validation_fraction=args.validation_fraction,
        )
    except DAMAGE[1:] as error:  # The archive is damaged.
        raise PrepareError(f"{args.source} is truncated or damaged: {first_line(error)}") from error
    except OSError as error:
        path = error.filename or args.output
        raise PrepareError(f"cannot prepare {args.source}: {path}: {error.strerror or error}") from error
    for line in prepared.dropped.lines():
        print(line, file=sys.stderr)
    text = (
        f"{prepared.folder}: {prepared.train_documents:,} documents for training, {prepared.validation_documents:,} "
        f"for validation, {prepared.characters / 1e6:.1f} million characters, {prepared.vocab_size:,} tokens\n"
        f"Train the smallest preset on it:\n{_train_command(prepared)}"
    )
    print_result(args, text, PreparedDataset(prepared, _train_command(prepared)))
    return 0


def _train_command(prepared: Prepared) -> str:
    """Return a command that trains the smallest preset on the dataset."""
    return command_line(
        "train",
        preset="tiny",
        dataset=prepared.folder,
        tokenizer=prepared.folder / TOKENIZER_FOLDER,
        vocab_size=prepared.vocab_size,
        data_streams=prepared.shards,
        run_dir=f"runs/{prepared.folder.name}",
    )


def prepare(source: Path, output: Path, *, shards: int, vocab_size: int, validation_fraction: float) -> Prepared:
    """Write the dataset and its tokenizer.

    Documents are split by their hash: no text is in both splits, and a document keeps its split when others are added
    or removed.

    Raises:
        PrepareError: A number is out of range, the source has too little prose, or ``output`` exists.
    """
    _check(output, shards=shards, vocab_size=vocab_size, validation_fraction=validation_fraction)
    dropped = Dropped()
    documents: dict[str, tuple[str, str]] = {}
    for url, text in _documents(source, dropped):
        digest = hashlib.sha256(text.encode()).hexdigest()
        dropped.duplicates += digest in documents
        documents[digest] = (url, text)
    train: list[tuple[str, str]] = []
    validation: list[tuple[str, str]] = []
    for digest in sorted(documents):  # The order of the hashes shuffles the documents.
        (validation if int(digest[:8], 16) < validation_fraction * 16**8 else train).append(documents[digest])
    if min(len(train), len(validation)) < shards:  # train reads either split in as many streams
        raise PrepareError(
            f"{source} has {len(train)} documents for training and {len(validation)} for validation; {shards} shards "
            f"need at least {shards} of each: {_way_out(sorted(documents), shards)}"
        )
    output = place_of(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.") as temporary:
        folder = Path(temporary) / output.name
        for shard in range(shards):
            _write_shard(folder / CONFIG_NAME / f"c4-train.{shard:05d}-of-{shards:05d}.json.gz", train[shard::shards])
        _write_shard(folder / CONFIG_NAME / "c4-validation.00000-of-00001.json.gz", validation)
        tokens = train_tokenizer((text for _, text in train), folder / TOKENIZER_FOLDER, vocab_size=vocab_size)
        folder.rename(output)
    characters = sum(len(text) for _, text in documents.values())
    return Prepared(output, len(train), len(validation), characters, tokens, shards, dropped)


def _check(output: Path, *, shards: int, vocab_size: int, validation_fraction: float) -> None:
    problems = []
    if shards < 1:
        problems.append(f"shards: got {shards}, need at least 1")
    if vocab_size < SMALLEST_VOCABULARY:
        problems.append(f"vocab_size: got {vocab_size}, need at least {SMALLEST_VOCABULARY}: every byte is a token")
    if not 0 < validation_fraction < 1:
        problems.append(f"validation_fraction: got {validation_fraction}, need a number between 0 and 1")
    if output.exists():
        problems.append(f"output {output} exists: remove it, or choose another folder")
    if problems:
        raise PrepareError("\n".join(problems))


def _way_out(digests: list[str], shards: int) -> str:
    """Return which numbers would do for documents of these hashes, in order."""
    if len(digests) < 2 * shards:
        return "add prose" + (f", or take --shards {len(digests) // 2} or fewer" if len(digests) > 1 else "")
    fraction = math.ceil(100 * (int(digests[shards - 1][:8], 16) + 1) / 16**8) / 100
    return f"take --validation-fraction {fraction:g}, fewer --shards, or add prose"


def _documents(source: Path, dropped: Dropped) -> Iterator[tuple[str, str]]:
    """Yield address and text of every document of the source."""
    for name, read in _files(source, dropped):
        try:
            content = read()
            reader = READERS[_suffix(name)]
            prose = reader.read(gzip.decompress(content) if name.endswith(".gz") else content)
        except UnreadableError as error:
            dropped.unreadable.append(f"{name}: {error}")
            continue
        except DAMAGE as error:
            reason = error.strerror if isinstance(error, OSError) else None  # gzip's own errors have no strerror
            dropped.unreadable.append(f"{name}: {reason or 'truncated or damaged'}")
            continue
        except RuntimeError as error:  # zipfile's, of an encrypted file
            dropped.unreadable.append(f"{name}: {first_line(error)}")
            continue
        paragraphs = list(paragraphs_of(prose, is_extracted=reader.is_extracted))
        if reader.is_extracted:
            if max(map(len, paragraphs), default=0) < PARAGRAPH_CHARACTERS:
                dropped.without_prose.append(name)
                continue
            with_letters = [paragraph for paragraph in paragraphs if any(map(str.isalpha, paragraph))]
            dropped.paragraphs_without_letters += len(paragraphs) - len(with_letters)
            paragraphs = with_letters
        elif not any(map(str.isalnum, prose)):
            dropped.without_text.append(name)
            continue
        for number, document in enumerate(split_documents(paragraphs)):
            yield f"file:{name}#{number}", document


def split_documents(paragraphs: Iterable[str]) -> Iterator[str]:
    """Yield documents of at least ``DOCUMENT_CHARACTERS``, cut between paragraphs; the last one may be shorter.

    A heading stays with the paragraph that follows it. A paragraph of many lines is cut between lines, too.
    """
    document: list[str] = []
    size = 0
    for paragraph in paragraphs:
        for piece in _pieces(paragraph):
            if size >= DOCUMENT_CHARACTERS and not _is_heading(document[-1]):
                yield "\n\n".join(document)
                document, size = [], 0
            document.append(piece)
            size += len(piece)
    if document:
        yield "\n\n".join(document)


def _is_heading(paragraph: str) -> bool:
    return len(paragraph) < HEADING_CHARACTERS and "\n" not in paragraph and paragraph[-1].isalnum()


def _pieces(paragraph: str) -> Iterator[str]:
    """Yield a paragraph, or parts of one that alone would be several documents."""
    if len(paragraph) < 2 * DOCUMENT_CHARACTERS:
        yield paragraph
        return
    lines: list[str] = []
    size = 0
    for line in paragraph.split("\n"):
        lines.append(line)
        size += len(line)
        if size >= DOCUMENT_CHARACTERS:
            yield "\n".join(lines)
            lines, size = [], 0
    if lines:
        yield "\n".join(lines)


def _files(source: Path, dropped: Dropped) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Yield the files with prose, sorted by name, each with its reader."""
    if source.is_dir():
        paths = {path.relative_to(source).as_posix(): path for path in files_below(source)}
        yield from ((name, paths[name].read_bytes) for name in _readable(paths, dropped))
    elif source.is_file() and zipfile.is_zipfile(source):
        with zipfile.ZipFile(source) as archive:
            files = [member.filename for member in archive.infolist() if not member.is_dir()]
            yield from ((name, partial(archive.read, name)) for name in _readable(files, dropped))
    elif source.is_file() and tarfile.is_tarfile(source):
        with tarfile.open(source) as archive:
            members = {member.name: member for member in archive if member.isfile()}
            for name in _readable(members, dropped):
                if file := archive.extractfile(members[name]):
                    yield name, file.read
    elif not source.exists():
        raise PrepareError(f"{source}: no such file or folder")
    else:
        raise PrepareError(f"{source} is neither a folder nor a .zip or .tar archive")


def _readable(names: Iterable[str], dropped: Dropped) -> list[str]:
    """Return the names of files with prose, sorted; count the others."""
    names = set(names)
    visible_names = {name for name in names if not _is_hidden(name)}
    dropped.hidden += len(names) - len(visible_names)
    readable = sorted(name for name in visible_names if _suffix(name) in READERS)
    check_packages({_suffix(name) for name in readable})
    dropped.other_types.update(_suffix(name) for name in visible_names.difference(readable))
    return readable


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") or part == "__MACOSX" for part in PurePosixPath(name).parts)


def _suffix(name: str) -> str:
    return Path(name.removesuffix(".gz")).suffix.lower()


def _write_shard(path: Path, documents: list[tuple[str, str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps({"text": text, "timestamp": TIMESTAMP, "url": url}) + "\n" for url, text in documents)
    with path.open("wb") as raw, gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as file:
        file.writelines(line.encode() for line in lines)
