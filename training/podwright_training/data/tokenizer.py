"""Load a tokenizer, save it, and encode documents with it.

A tokenizer is what its ``tokenizer.json`` says. For many classes that ``tokenizer_config.json`` may name (GPT-2's,
Qwen's), transformers 5 takes only vocabulary and merges from the file, and cuts texts by a rule of the class.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from podwright_training import model_folder
from podwright_training.data.bad_data import DataError, first_line
from podwright_training.errors import UserError
from podwright_training.remote_code import needs_code, refusal

if TYPE_CHECKING:  # it takes seconds to import; worker processes do without
    from transformers import PreTrainedTokenizerBase

FirstRank = Callable[[str, Callable[[], Any]], Any]  # runs an action of a name there, returns its result on all
TOKENIZER_JSON, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
SPECIAL_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
NOT_MEANING = ("version", "truncation", "padding")  # Keys of tokenizer.json: an encoder neither truncates nor pads.
PROBE = "a"  # a text of one byte in any encoding
BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")


def load_tokenizer(name: str, *, revision: str | None = None, cached: bool = False) -> PreTrainedTokenizerBase:
    """Load the tokenizer from the local folder ``name``, or by that identifier from the Hugging Face hub.

    Args:
        name: Of the tokenizer.
        revision: Of the hub's; ``None``: the newest.
        cached: Do not ask the hub, only its cache here.

    Raises:
        DataError: There is no such tokenizer, it needs code of its own, or the hub is unreachable.
    """
    from podwright_training.data import hub_client

    if Path(name).is_dir():
        try:
            model_folder.refuse_special(Path(name))
        except UserError as error:
            raise DataError(f"tokenizer {name!r}: {error}") from error
    try:
        local = cached or Path(name).is_dir() or not hub_client.answers()
        place = {"revision": revision, "local_files_only": local}
        return _by_file(_by_class(name, place), name, place)
    except Exception as error:  # tokenizers raises any exception if a file is damaged.
        if needs_code(error):
            raise DataError(f"tokenizer {refusal(name)}") from error
        raise DataError(
            f"tokenizer {name!r}: neither a folder with tokenizer.json nor an identifier that the Hugging Face hub "
            f"serves to this machine ({first_line(error)}){hub_client.token_hint(error)}"
        ) from error


def _by_class(name: str, place: Mapping[str, Any]) -> PreTrainedTokenizerBase:
    """Return the tokenizer of its class; a class that cannot read a folder's ``tokenizer.json`` is left out."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    try:
        by_class: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(name, trust_remote_code=False, **place)
    except Exception as error:  # tokenizers raises any exception.
        if needs_code(error) or not (Path(name) / TOKENIZER_JSON).is_file():
            raise
        by_class = PreTrainedTokenizerFast.from_pretrained(name, trust_remote_code=False, **place)
    return by_class


def _by_file(by_class: PreTrainedTokenizerBase, name: str, place: Mapping[str, Any]) -> PreTrainedTokenizerBase:
    """Return the tokenizer that ``tokenizer.json`` describes, with the special tokens of its class.

    Without that file, it is the one that its class has made.
    """
    from transformers import PreTrainedTokenizerFast
    from transformers.utils.hub import cached_file

    missing = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
    if type(by_class) is PreTrainedTokenizerFast or not cached_file(name, TOKENIZER_JSON, **place, **missing):
        return by_class
    tokenizer = PreTrainedTokenizerFast.from_pretrained(name, trust_remote_code=False, **place)
    vocabulary = tokenizer.get_vocab()
    for role in SPECIAL_ROLES:
        default = getattr(by_class, role)
        if getattr(tokenizer, role) is None and default in vocabulary:
            setattr(tokenizer, role, default)
    return tokenizer


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a tokenizer for transformers 4 and 5, and for programs that read ``tokenizer.json`` alone.

    transformers 5 writes the name of a class that 4 lacks, and further special tokens as a list, where 4 needs an
    object.
    """
    tokenizer.save_pretrained(folder)
    path = folder / TOKENIZER_CONFIG
    settings = json.loads(path.read_text(encoding="utf-8"))
    if (folder / TOKENIZER_JSON).exists():
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    if isinstance(settings.get("extra_special_tokens"), list):
        settings["additional_special_tokens"] = settings.pop("extra_special_tokens")
    path.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def load_for_all_ranks(name: str, of_first_rank: FirstRank) -> PreTrainedTokenizerBase:
    """Load the tokenizer on each rank of a job: only the first queries the hub, the others read their host's cache.

    A host whose cache lacks it, as it is not a shared one, asks the hub too, for the first rank's revision.

    Raises:
        DataError: As ``load_tokenizer``; or this host has another tokenizer of that name than the first rank's.
    """
    loaded: list[PreTrainedTokenizerBase] = []

    def load() -> dict[str, str | None]:
        loaded.append(load_tokenizer(name))
        return {"revision": _cached_revision(name), "digest": _digest(loaded[0])}

    identity = of_first_rank(f"tokenizer {name}", load)
    if loaded:
        return loaded[0]
    if identity["revision"]:
        with suppress(DataError):
            tokenizer = load_tokenizer(name, revision=identity["revision"], cached=True)
            if _digest(tokenizer) == identity["digest"]:
                return tokenizer  # If the digests differ, another rank of this host is downloading it.
    tokenizer = load_tokenizer(name, revision=identity["revision"])
    if _digest(tokenizer) != identity["digest"]:
        raise DataError(f"tokenizer {name!r} is another one here than on the first rank: use one folder for all hosts")
    return tokenizer


def _cached_revision(name: str) -> str | None:
    """Return the revision of a tokenizer of the hub in this host's cache; ``None`` of a folder."""
    from huggingface_hub import try_to_load_from_cache

    if Path(name).is_dir():
        return None
    cached_files = (try_to_load_from_cache(name, file) for file in (TOKENIZER_JSON, TOKENIZER_CONFIG, "config.json"))
    return next((Path(path).parent.name for path in cached_files if isinstance(path, str)), None)


def _digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a digest of how a tokenizer splits texts; a constant for one without a fast implementation."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return hashlib.sha256(backend.to_str().encode() if backend else b"").hexdigest()


def token_bytes(tokenizer: PreTrainedTokenizerBase) -> NDArray[np.int64] | None:
    """Return how many bytes of text each token has, by its id; special tokens have 0.

    ``None`` if the tokenizer is neither on the level of bytes nor of characters with bytes for the others: then tokens
    do not add up to the text. Decoding a sequence does not do: the end of one cuts characters.
    """
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    decoder = backend["decoder"] or {}
    kinds = {part["type"] for part in decoder.get("decoders", [decoder]) if part}
    if not kinds & {"ByteLevel", "ByteFallback"}:
        return None
    vocabulary = tokenizer.get_vocab()
    lengths = np.zeros(max(vocabulary.values()) + 1, dtype=np.int64)
    added = {
        token["id"]: 0 if token["special"] else len(token["content"].encode()) for token in backend["added_tokens"]
    }
    for token, number in vocabulary.items():
        if number in added:
            lengths[number] = added[number]
        elif "ByteLevel" in kinds:
            lengths[number] = len(token)  # a character for each byte
        else:
            lengths[number] = 1 if BYTE_TOKEN.fullmatch(token) else len(token.replace("\u2581", " ").encode())
    return lengths


@dataclass(frozen=True)
class TextSize:
    """Count the bytes of text that tokens are.

    Attributes:
        tokenizer: The tokenizer.
        lengths: Its ``token_bytes``.
        prefix_bytes: Bytes that it adds in front of each text, as SentencePiece's tokenizers do with a space.
    """

    tokenizer: PreTrainedTokenizerBase
    lengths: NDArray[np.int64] | None
    prefix_bytes: int

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> TextSize:
        """Return the rule of a tokenizer."""
        lengths = token_bytes(tokenizer)
        if lengths is None:
            return cls(tokenizer, None, 0)
        ids = tokenizer.backend_tokenizer.encode(PROBE, add_special_tokens=False).ids
        return cls(tokenizer, lengths, max(0, int(lengths[ids].sum()) - len(PROBE)))

    def count(self, tokens_T: NDArray[np.int64], labels_T: NDArray[np.int64]) -> int:
        """Return the bytes of labels, each with the token before it: a document begins behind the end of another."""
        if self.lengths is None:
            return len(self.tokenizer.decode(labels_T, skip_special_tokens=True).encode())
        end = self.tokenizer.eos_token_id
        beginnings = int(((tokens_T == end) & (labels_T != end)).sum())
        return int(self.lengths[labels_T].sum()) - self.prefix_bytes * beginnings


def special_token_ids(tokenizer: PreTrainedTokenizerBase) -> dict[str, int | None]:
    """Return the ids of the tokens that begin, end and pad a text."""
    return {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}


def vocabulary_size(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the rows that an embedding needs: ids may have gaps."""
    return max(tokenizer.get_vocab().values(), default=-1) + 1


class Encoder:
    """Encode whole documents: no special tokens, no truncation, the end-of-text token after each.

    Attributes:
        end: The end-of-text token.
        digest: Sixteen hexadecimal digits that identify the whole pipeline and the end-of-text token: normalizer,
            rule of words, vocabulary, merges, added tokens and decoder.
        vocabulary_size: Rows that an embedding needs.
        earlier_digest: That of vocabulary and end-of-text token alone, as checkpoints of earlier versions have it.

    Raises:
        DataError: The tokenizer has no end-of-text token, or no ``tokenizer.json``.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise DataError(
                f"tokenizer {tokenizer.name_or_path!r} has no fast implementation: it needs a tokenizer.json"
            )
        if tokenizer.eos_token_id is None:
            raise DataError(
                f"tokenizer {tokenizer.name_or_path!r} has no end-of-text token (eos_token) to separate documents"
            )
        self.end: int = tokenizer.eos_token_id
        self._backend = Tokenizer.from_str(backend.to_str())  # a copy: the caller's may pad and truncate
        self._backend.no_padding()
        self._backend.no_truncation()
        self._backend.encode_special_tokens = True  # a text that quotes one is text
        pipeline = json.loads(self._backend.to_str())
        meaning = {key: value for key, value in pipeline.items() if key not in NOT_MEANING} | {"end": self.end}
        self.digest = hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()[:16]
        id_by_token = self._backend.get_vocab(with_added_tokens=True)
        self.vocabulary_size = 1 + max(id_by_token.values(), default=-1)
        vocabulary = json.dumps([id_by_token, self.end], sort_keys=True)
        self.earlier_digest = hashlib.sha256(vocabulary.encode()).hexdigest()[:16]

    def encode(self, texts: Sequence[str]) -> Iterator[NDArray[np.uint32]]:
        """Yield the ids of each text, followed by the end-of-text token."""
        for encoding in self._backend.encode_batch_fast(texts, add_special_tokens=False):
            ids = encoding.ids
            ids.append(self.end)
            yield np.array(ids, dtype=np.uint32)
