"""Remove documents that share a sequence of words with an evaluation set, which would make its score too good.

The length is GPT-3's, 13 words, without case and punctuation: https://arxiv.org/abs/2005.14165, appendix C. GPT-3 cut
the shared words out of a document; this removes the document, as the data of later models did. In scripts without
spaces, two characters count as one word.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import regex
from datatrove.pipeline.filters.base_filter import BaseFilter
from numpy.typing import NDArray

from podwright_training.curation.languages import UNSPACED, UNSPACED_LETTER
from podwright_training.data.bad_data import (
    BadRecordError,
    BadShardError,
    DataError,
    MissingColumnError,
    MissingTextError,
)
from podwright_training.data.formats import format_of, read_blocks, row_count
from podwright_training.data.splits import named_split, reason_against
from podwright_training.data.storage import list_files
from podwright_training.data.token_shards import SUFFIX as TOKENS

HASH_BYTES = 8
WORD = regex.compile(rf"(?V1)[{UNSPACED}]\p{{M}}*|[\w--[{UNSPACED}]]+")
INVISIBLE = regex.compile(r"\p{Default_Ignorable_Code_Point}+")  # such as a soft hyphen
SPACED_WEIGHT, UNSPACED_WEIGHT = 2, 1  # A character without spaces around it says half as much as a word.


@dataclass
class EvaluationSet:
    """Counts of the texts that are compared of one evaluation set.

    Attributes:
        files: Its files.
        records: Records of these files.
        records_without_text: Records with a text in none of the columns, which cannot be compared.
        texts: Texts with at least as many words as a sequence has.
        short_texts: Texts with fewer words, which cannot be compared.
        sequences: Different sequences of words.
        digest: Of the sequences.
    """

    files: int = 0
    records: int = 0
    records_without_text: int = 0
    texts: int = 0
    short_texts: int = 0
    sequences: int = 0
    digest: str = ""
    hashes: set[int] = field(default_factory=set, repr=False)

    def sorted_hashes(self) -> NDArray[Any]:
        """Return the hashes in order."""
        return np.array(sorted(self.hashes), dtype=np.uint64)

    def described(self) -> dict[str, Any]:
        """Return everything but the hashes."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.name != "hashes"}


def read_evaluation_sets(
    dataset_by_name: Mapping[str, str], *, columns: Sequence[str], words: int
) -> dict[str, EvaluationSet]:
    """Return evaluation sets by name, with the hashes of their sequences of words.

    Args:
        dataset_by_name: file, folder, ``s3://`` prefix or name on the hub, of each set.
        columns: that have texts; a file may lack some of them.
        words: in a sequence.

    Raises:
        DataError: A set does not exist or is damaged, or none of its texts is long enough.
    """
    return {name: _read(name, dataset, columns, words) for name, dataset in dataset_by_name.items()}


def write_index(path: Path, evaluation_sets: Iterable[EvaluationSet]) -> None:
    """Write the hashes of evaluation sets to a file, in their order."""
    draft = path.with_name(f".{path.name}")
    with draft.open("wb") as file:
        np.savez(file, *(evaluation_set.sorted_hashes() for evaluation_set in evaluation_sets))
    draft.replace(path)


class RemoveContaminated(BaseFilter):  # type: ignore[misc]  # datatrove has no types
    """Remove documents with a sequence of words of an evaluation set; the reason is the set's name.

    Args:
        index: file that ``write_index`` wrote.
        names: of the evaluation sets, in its order.
        words: in a sequence.
    """

    name = "decontamination"

    def __init__(self, index: Path, names: Sequence[str], *, words: int) -> None:
        super().__init__()
        self.index, self.names, self.words = index, tuple(names), words

    def filter(self, document: Any) -> bool | tuple[bool, str]:
        """Return whether a document stays, or the evaluation set that it has words of."""
        number_by_hash = _index(self.index)
        for sequence_hash in _hashes(document.text, self.words):
            if (number := number_by_hash.get(sequence_hash)) is not None:
                return False, self.names[number]
        return True


@cache
def _index(path: Path) -> dict[int, int]:
    """Return the number of the evaluation set by the hash of a sequence; of several sets, the first."""
    number_by_hash: dict[int, int] = {}
    with np.load(path) as arrays:
        for number in range(len(arrays.files)):
            for sequence_hash in arrays[f"arr_{number}"].tolist():
                number_by_hash.setdefault(sequence_hash, number)
    return number_by_hash


def _read(name: str, dataset: str, columns: Sequence[str], words: int) -> EvaluationSet:
    files = _files(name, dataset)
    evaluation_set = EvaluationSet(files=len(files))
    for file in files:
        for text in _texts(name, file, columns, evaluation_set):
            hashes = set(_hashes(text, words))
            evaluation_set.texts += bool(hashes)
            evaluation_set.short_texts += not hashes
            evaluation_set.hashes |= hashes
    if not evaluation_set.texts:
        raise DataError(
            f"decontaminate: {name}: no text of {words} words in the columns {' '.join(columns)} of {dataset}; name "
            f"others with --evaluation-columns{_short(evaluation_set.short_texts)}"
        )
    evaluation_set.sequences = len(evaluation_set.hashes)
    evaluation_set.digest = hashlib.sha256(evaluation_set.sorted_hashes().tobytes()).hexdigest()[:16]
    return evaluation_set


def _short(texts: int) -> str:
    return f", or fewer words with --decontamination-words: {texts:,} texts are shorter" if texts else ""


def _files(name: str, dataset: str) -> list[str]:
    """Return the files of an evaluation set: those for training are left out if there are others."""
    if Path(dataset).is_file():
        listing = {Path(dataset).name: dataset} if format_of(dataset) else {}
    else:
        listing = {path: file for path, file in list_files(dataset).items() if not reason_against(path)}
    listing = {path: file for path, file in listing.items() if not path.endswith(TOKENS)}
    untrained = {path: file for path, file in listing.items() if named_split(PurePosixPath(path)) != "train"}
    if not listing:
        raise DataError(f"decontaminate: {name}: {dataset} has no file in a format of data, such as .jsonl or .parquet")
    return [file for _, file in sorted((untrained or listing).items())]


def _texts(name: str, file: str, columns: Iterable[str], evaluation_set: EvaluationSet) -> Iterator[str]:
    """Yield the texts of a file, and count its records and those without a text."""
    numbers: set[int | str] = set()
    numbers_with_text: set[int | str] = set()
    try:
        for column in columns:
            for number, text in _column_texts(file, column):
                numbers.add(number)
                if text is not None:
                    numbers_with_text.add(number)
                    yield text
        records = len(numbers) or _row_count(file)
    except BadShardError as error:
        raise DataError(f"decontaminate: {name}: {file}: {error}") from error
    except BadRecordError as error:
        raise DataError(f"decontaminate: {name}: {error}; correct or remove this record") from error
    evaluation_set.records += records
    evaluation_set.records_without_text += records - len(numbers_with_text)


def _column_texts(file: str, column: str) -> Iterator[tuple[int | str, str | None]]:
    """Yield the number of each record and its text, if it has one; nothing if the file lacks the column."""
    try:
        for block in read_blocks(file, column=column):
            for index in range(len(block)):
                number = block.number(index)
                try:
                    yield number, str(block.document(index))
                except MissingTextError:
                    yield number, None
                except BadRecordError as error:
                    raise BadRecordError(f"{file}:{number}: {error}") from error
    except MissingColumnError:
        return


def _row_count(file: str) -> int:
    """Return the records of a file that has none of the columns; a file of JSON lines has been read."""
    return row_count(file) if format_of(file) in {".parquet", ".arrow"} else 0


def _words(text: str) -> list[str]:
    """Return the words of a text, equal for all its forms in Unicode and in upper or lower case."""
    if not text.isascii():
        text = INVISIBLE.sub("", unicodedata.normalize("NFKC", text)).casefold()
    words: list[str] = WORD.findall(text.lower())
    return words


def _hashes(text: str, words: int) -> Iterator[int]:
    """Yield the hash of each sequence of so many words, or of twice as many characters in scripts without spaces."""
    sequence = _words(text)
    weight_by_word = {word: UNSPACED_WEIGHT if UNSPACED_LETTER.match(word) else SPACED_WEIGHT for word in set(sequence)}
    weights = [weight_by_word[word] for word in sequence]
    end, weight, needed_weight = 0, 0, SPACED_WEIGHT * words
    for begin, begin_weight in enumerate(weights):
        while weight < needed_weight and end < len(weights):
            weight += weights[end]
            end += 1
        if weight < needed_weight:
            return
        content = " ".join(sequence[begin:end]).encode(errors="surrogatepass")
        yield int.from_bytes(hashlib.blake2b(content, digest_size=HASH_BYTES).digest(), "big")
        weight -= begin_weight
