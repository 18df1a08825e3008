"""``podwright-train tokenizer``: train a byte-level BPE tokenizer on a dataset, and measure how well one fits it."""

from __future__ import annotations

import argparse
import shlex
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from podwright_common.command_line import add_json
from podwright_training.command_result import print_result
from podwright_training.config.train_config import TrainConfig
from podwright_training.data.bad_data import BadRecordError, BadShardError, DataError, EmptyTextError, Fault, Faults
from podwright_training.data.byte_level_bpe import PATTERNS, SMALLEST_VOCABULARY, special_token_problems, train
from podwright_training.errors import UserError
from podwright_training.run_folder import place_of
from podwright_training.run_variables import add_secrets_flag
from podwright_training.spelling import command_line, flag

if TYPE_CHECKING:  # it takes seconds to import
    from transformers import PreTrainedTokenizerBase

SAMPLE_DOCUMENTS = 1000  # that ``inspect`` reads
ENCODE_DOCUMENTS = 64  # one call of the tokenizer
SPACES = ("\u2581", "\u0120")  # Tokens of SentencePiece, and tokens of bytes, have these for a space.


class TokenizerError(UserError):
    """Training a tokenizer failed; the message names the problem and the requirement."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``train`` and ``inspect`` with their flags; flags of the trainer have the same meaning."""
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    training = actions.add_parser("train", allow_abbrev=False, help="train on the training split of a dataset")
    training.add_argument("--output", type=Path, required=True, help="folder to create, for train's --tokenizer")
    training.add_argument(
        "--vocab-size", type=int, default=32_000, help="tokens, special ones included. Default: 32000"
    )
    training.add_argument(
        "--multiple",
        type=int,
        default=128,
        help="pad the vocabulary to a multiple of this; 1: do not pad. Default: 128",
    )
    training.add_argument(
        "--pattern", choices=PATTERNS, default="gpt2", help="pre-tokenizer that splits text into words. Default: gpt2"
    )
    training.add_argument(
        "--special-tokens", nargs="+", default=[], metavar="TOKEN", help="additional special tokens, such as <|user|>"
    )
    training.add_argument("--documents", type=int, help="read only this many documents. Default: all")
    training.set_defaults(action=_train)
    inspecting = actions.add_parser(
        "inspect", allow_abbrev=False, help="measure compression and fertility on the validation split"
    )
    inspecting.add_argument("tokenizers", nargs="+", metavar="TOKENIZER", help="folder, or name on the hub")
    inspecting.add_argument(
        "--documents",
        type=int,
        default=SAMPLE_DOCUMENTS,
        help=f"read only this many documents. Default: {SAMPLE_DOCUMENTS}",
    )
    inspecting.set_defaults(action=_inspect)
    defaults = TrainConfig()
    for action in (training, inspecting):
        action.add_argument("--dataset", required=True, help="folder, s3:// prefix or name on the hub")
        for name in ("dataset_config_name", "text_column"):
            default = getattr(defaults, name)
            text = f"same as train's. Default: {default}"
            action.add_argument(flag(name), metavar="NAME", default=default, help=text)
        add_secrets_flag(action)
        add_json(action)


def run(args: argparse.Namespace) -> int:
    """Run the action; return the exit status."""
    status: int = args.action(args)
    return status


@dataclass(frozen=True)
class TokenizerCounts:
    """Counts of a text that a tokenizer divided.

    Attributes:
        tokens: Tokens of the text.
        characters: Its characters.
        text_bytes: Its bytes in UTF-8.
        words: Its words, as white space divides them.
        whole_words: Of them, those that are one token.
        used: Different tokens in it.
        vocabulary: All tokens of the tokenizer.
        restored: Whether every document was decoded to itself.
    """

    tokens: int
    characters: int
    text_bytes: int
    words: int
    whole_words: int
    used: int
    vocabulary: int
    restored: bool

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield name and value of each figure."""
        yield "vocabulary", f"{self.vocabulary:,}"
        yield "tokens of the text", f"{self.tokens:,}"
        yield "bytes per token", f"{self.text_bytes / self.tokens:.3f}"
        yield "characters per token", f"{self.characters / self.tokens:.3f}"
        yield "tokens per word", f"{self.tokens / self.words:.3f}"
        yield "words that are one token", f"{self.whole_words / self.words:.1%}"
        yield "vocabulary used", f"{self.used / self.vocabulary:.1%}"
        yield "decodes to the same text", "yes" if self.restored else "no"


@dataclass(frozen=True)
class TrainedTokenizer:
    """The document of `podwright-train tokenizer train --json`.

    Attributes:
        output: Folder of the tokenizer.
        tokens: Size of its vocabulary.
    """

    output: Path
    tokens: int


@dataclass(frozen=True)
class InspectedTokenizers:
    """The document of `podwright-train tokenizer inspect --json`, by the tokenizer's name."""

    tokenizers: dict[str, TokenizerCounts]


def count_tokens(tokenizer: str, texts: list[str]) -> TokenizerCounts:
    """Measure how the tokenizer divides the texts.

    Raises:
        DataError: There is no such tokenizer, or no fast implementation of it.
    """
    from podwright_training.data.tokenizer import Encoder, load_tokenizer  # numpy: --help does without

    loaded = load_tokenizer(tokenizer)
    encoder = Encoder(loaded)
    used: Counter[int] = Counter()
    restored = True
    for start in range(0, len(texts), ENCODE_DOCUMENTS):
        some = texts[start : start + ENCODE_DOCUMENTS]
        for text, ids in zip(some, encoder.encode(some), strict=True):
            token_ids = ids[:-1].tolist()  # The last id is the end of text.
            used.update(token_ids)
            restored = restored and loaded.decode(token_ids, clean_up_tokenization_spaces=False) == text
    words = Counter(word for text in texts for word in text.split())
    distinct_words = list(words)
    space = "" if _adds_space(loaded) else " "
    lengths = [len(ids) - 1 for ids in encoder.encode([f"{space}{word}" for word in distinct_words])]
    return TokenizerCounts(
        tokens=used.total(),
        characters=sum(map(len, texts)),
        text_bytes=sum(len(text.encode()) for text in texts),
        words=words.total(),
        whole_words=sum(words[word] for word, length in zip(distinct_words, lengths, strict=True) if length == 1),
        used=len(used),
        vocabulary=len(loaded),
        restored=restored,
    )


def _adds_space(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether a tokenizer puts a space before a text, as those of SentencePiece do."""
    first_token = tokenizer.tokenize("a")[:1]
    return bool(first_token) and first_token[0].startswith(SPACES)


def _train(args: argparse.Namespace) -> int:
    _check(args)
    texts = islice(_texts(args, "train"), args.documents)
    output = place_of(args.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.") as temporary:
        folder = Path(temporary) / output.name
        size = train(
            texts,
            folder,
            vocab_size=args.vocab_size,
            pattern=args.pattern,
            multiple=args.multiple,
            special_tokens=args.special_tokens,
        )
        folder.rename(output)
    lines = [f"{args.output}: {size:,} tokens"]
    if size < args.vocab_size:
        lines.append(f"fewer than {args.vocab_size:,}, as the text has no more words to learn")
    text = {name: getattr(args, name) for name in ("dataset", "dataset_config_name", "text_column")}
    lines.append(command_line(f"tokenizer inspect {shlex.quote(str(args.output))}", **text))
    print_result(args, "\n".join(lines), TrainedTokenizer(args.output, size))
    return 0


def _inspect(args: argparse.Namespace) -> int:
    if args.documents < 1:
        raise TokenizerError(f"documents: got {args.documents}, need at least 1")
    texts = list(islice(_texts(args, "validation"), args.documents))
    if not any(text.split() for text in texts):
        raise TokenizerError(f"{args.dataset} has no text in its validation split")
    measured = [count_tokens(tokenizer, texts) for tokenizer in args.tokenizers]
    columns = [list(measurement.rows()) for measurement in measured]
    width = max(len(name) for name, _ in columns[0])
    widths = [
        max(len(name), *(len(value) for _, value in column))
        for name, column in zip(args.tokenizers, columns, strict=True)
    ]
    headings = (name.rjust(wide) for name, wide in zip(args.tokenizers, widths, strict=True))
    lines = ["  ".join([" " * width, *headings])]
    for number, (name, _) in enumerate(columns[0]):
        values = (column[number][1].rjust(wide) for column, wide in zip(columns, widths, strict=True))
        lines.append("  ".join([name.ljust(width), *values]))
    counts_by_name = dict(zip(args.tokenizers, measured, strict=True))
    print_result(args, "\n".join(lines), InspectedTokenizers(counts_by_name))
    return 0


def _check(args: argparse.Namespace) -> None:
    problems = []
    if args.vocab_size < SMALLEST_VOCABULARY + len(args.special_tokens):
        smallest = SMALLEST_VOCABULARY + len(args.special_tokens)
        problems.append(f"vocab-size: got {args.vocab_size}, need at least {smallest}: every byte is a token")
    if args.multiple < 1:
        problems.append(f"multiple: got {args.multiple}, need at least 1")
    if args.documents is not None and args.documents < 1:
        problems.append(f"documents: got {args.documents}, need at least 1")
    problems += special_token_problems(args.special_tokens)
    if args.output.exists():
        problems.append(f"output {args.output} exists: remove it, or choose another folder")
    if problems:
        raise TokenizerError("\n".join(problems))


def _texts(args: argparse.Namespace, name: str) -> Iterator[str]:
    """Yield the documents of a split in the order of its files; skip and log broken records as training does.

    Raises:
        DataError: It has no document, a file is damaged or has tokens, or too many records are broken.
    """
    from podwright_training.data.formats import format_of  # pyarrow: --help does without
    from podwright_training.data.splits import find_split
    from podwright_training.data.token_shards import SUFFIX as TOKENS

    folder = None if args.dataset_config_name.lower() == "none" else args.dataset_config_name
    split = find_split(args.dataset, folder, name)
    defaults = TrainConfig()
    faults = Faults(defaults.max_bad_records, max_bad_shards=0)
    is_empty = True
    for file in split.files:
        if format_of(file) == TOKENS:
            raise DataError(f"{file} holds tokens, not text: name the dataset that they were made from")
        for document in _documents(file, args.text_column, faults):
            if isinstance(document, str) and split.has(document):
                is_empty = False
                yield document
    if is_empty:
        place = split.files[0] if len(split.files) == 1 else f"{args.dataset}, {len(split.files)} files"
        raise DataError(f"{place}: no document with text in the split {name}")


def _documents(file: str, column: str, faults: Faults) -> Iterator[object]:
    """Yield the documents of a file.

    Raises:
        DataError: it is empty or damaged, or it has one broken record too many.
    """
    from podwright_training.data.formats import read_blocks

    try:
        for block in read_blocks(file, column=column):
            for index in range(len(block)):
                try:
                    yield block.document(index)
                except EmptyTextError:
                    continue
                except BadRecordError as error:
                    faults.log(Fault("record", f"{file}:{block.number(index)}", str(error)))
    except BadShardError as error:
        raise DataError(f"{file}: {error}; repair or remove it") from error
