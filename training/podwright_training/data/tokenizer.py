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
GENERIC_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")  # the same class in transformers 4 and 5
SPECIAL_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
NOT_MEANING = ("version", "truncation", "padding")  # Keys of tokenizer.json: an encoder neither truncates nor pads.
PROBE = "a"  # a text of one byte in any encoding
BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")
POST_PROCESSOR = "post_processor"  # key of tokenizer.json: adds the special tokens around a text
TRAINING_POST_PROCESSOR = "training_post_processor"  # key of an exported tokenizer_config.json: the one before export


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
    from transformers import PreTrainedTokenizerFast

    if _is_generic(Path(name)):
        generic: PreTrainedTokenizerBase = PreTrainedTokenizerFast.from_pretrained(
            name, trust_remote_code=False, **place
        )
        return generic
    from transformers import AutoTokenizer

    try:
        by_class: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(name, trust_remote_code=False, **place)
    except Exception as error:  # tokenizers raises any exception.
        if needs_code(error) or not (Path(name) / TOKENIZER_JSON).is_file():
            raise
        by_class = PreTrainedTokenizerFast.from_pretrained(name, trust_remote_code=False, **place)
    return by_class


def _is_generic(folder: Path) -> bool:
    """Return whether a folder has a tokenizer of no model's class: ``AutoTokenizer`` would scan all models for it."""
    try:
        config = json.loads((folder / TOKENIZER_CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return (
        isinstance(config, dict)
        and config.get("tokenizer_class") in GENERIC_CLASSES
        and "auto_map" not in config
        and (folder / TOKENIZER_JSON).is_file()
        and not (folder / "config.json").exists()  # A model's type may call for another class.
    )


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
    _write_json(path, settings)


def save_as_trained(tokenizer: PreTrainedTokenizerBase, folder: Path, *, add_bos: bool) -> None:
    """Write a tokenizer that begins texts with BOS if training did, and adds no other special token.

    Many published tokenizers begin texts with BOS. Programs that read an export follow its tokenizer, so a model that
    was trained without BOS would meet a token that it has never seen.
    """
    save_tokenizer(tokenizer, folder)
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_padding()
    backend.no_truncation()
    begin = begin_tokens(tokenizer, add_bos=add_bos)
    tokenizer_path, config_path = folder / TOKENIZER_JSON, folder / TOKENIZER_CONFIG
    config = json.loads(config_path.read_text(encoding="utf-8"))
    # Where the post-processor adds nothing, llama.cpp reads these, and else begins texts of some tokenizers with BOS.
    config |= {"add_bos_token": add_bos, "add_eos_token": False}
    if backend.encode(PROBE).ids != [*begin, *backend.encode(PROBE, add_special_tokens=False).ids]:
        pipeline = json.loads(tokenizer_path.read_text(encoding="utf-8"))
        config.setdefault(TRAINING_POST_PROCESSOR, pipeline[POST_PROCESSOR])  # The digest stays that of training.
        pipeline[POST_PROCESSOR] = _post_processor(pipeline[POST_PROCESSOR], tokenizer.bos_token, begin)
        _write_json(tokenizer_path, pipeline)
    _write_json(config_path, config)


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _post_processor(training_processor: Any, bos_token: str | None, begin: Sequence[int]) -> dict[str, Any]:
    """Return a post-processor that puts only the tokens ``begin`` before a text; it trims offsets as training did."""
    bos = [{"SpecialToken": {"id": bos_token, "type_id": 0}}] if begin else []
    text, second_text = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    template = {
        "type": "TemplateProcessing",
        "single": [*bos, text],
        "pair": [*bos, text, *bos, second_text],
        "special_tokens": {bos_token: {"id": bos_token, "ids": list(begin), "tokens": [bos_token]}} if begin else {},
    }
    processors = (training_processor or {}).get("processors", [training_processor])
    trimming = [processor for processor in processors if processor and processor["type"] == "ByteLevel"]
    return {"type": "Sequence", "processors": [*trimming, template]} if trimming else template


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
        """Return the bytes of labels, each with the token before it.

        A text begins behind BOS, or behind the end of another document where no BOS follows that.
        """
        if self.lengths is None:
            return len(self.tokenizer.decode(labels_T, skip_special_tokens=True).encode())
        end, bos = self.tokenizer.eos_token_id, self.tokenizer.bos_token_id
        follows_end_T = (tokens_T == end) & (labels_T != bos) if bos is not None else tokens_T == end
        follows_bos_T = tokens_T == bos if bos is not None else np.zeros_like(follows_end_T)
        beginnings = int(((follows_end_T | follows_bos_T) & (labels_T != end)).sum())
        return int(self.lengths[labels_T].sum()) - self.prefix_bytes * beginnings


def special_token_ids(tokenizer: PreTrainedTokenizerBase) -> dict[str, int | None]:
    """Return the ids of the tokens that begin, end and pad a text."""
    return {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}


def generation_token_ids(tokenizer: PreTrainedTokenizerBase, *, add_bos: bool) -> dict[str, int | None]:
    """Return the special tokens of a generation: without BOS in training, EOS is what precedes a text."""
    ids = special_token_ids(tokenizer)
    return ids if add_bos else ids | {"bos_token_id": ids["eos_token_id"]}


def begin_tokens(tokenizer: PreTrainedTokenizerBase, *, add_bos: bool) -> tuple[int, ...]:
    """Return the tokens that begin each document: BOS with ``add_bos``, else none.

    Raises:
        DataError: With ``add_bos``, the tokenizer has no BOS token, or it is also the EOS token.
    """
    if not add_bos:
        return ()
    if tokenizer.bos_token_id is None:
        raise DataError(
            f"add_bos: tokenizer {tokenizer.name_or_path!r} has no BOS token (bos_token): leave add_bos out"
        )
    if tokenizer.bos_token_id == tokenizer.eos_token_id:
        raise DataError(
            f"add_bos: the BOS token of tokenizer {tokenizer.name_or_path!r} is its EOS token, {tokenizer.eos_token}, "
            "which ends each document and so precedes the next: leave add_bos out"
        )
    return (tokenizer.bos_token_id,)


def vocabulary_size(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the rows that an embedding needs: ids may have gaps."""
    return max(tokenizer.get_vocab().values(), default=-1) + 1


class Encoder:
    """Encode whole documents: BOS before each if ``add_bos``, EOS after each, no other special token, no truncation.

    Attributes:
        add_bos: Whether each document begins with the BOS token.
        end: The EOS token.
        digest: Sixteen hexadecimal digits that identify the whole pipeline and the tokens around a document:
            normalizer, rule of words, vocabulary, merges, added tokens and decoder.
        toggled_digest: The digest that the other ``add_bos`` would give.
        vocabulary_size: Rows that an embedding needs.
        earlier_digest: That of vocabulary and EOS token alone, as checkpoints of earlier versions have it.

    Raises:
        DataError: The tokenizer has no EOS token, with ``add_bos`` no BOS token, or no ``tokenizer.json``.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, add_bos: bool = False) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise DataError(
                f"tokenizer {tokenizer.name_or_path!r} has no fast implementation: it needs a tokenizer.json"
            )
        if tokenizer.eos_token_id is None:
            raise DataError(
                f"tokenizer {tokenizer.name_or_path!r} has no end-of-text token (eos_token) to separate documents"
            )
        self.add_bos = add_bos
        self.end: int = tokenizer.eos_token_id
        self._begin = begin_tokens(tokenizer, add_bos=add_bos)
        self._backend = Tokenizer.from_str(backend.to_str())  # a copy: the caller's may pad and truncate
        self._backend.no_padding()
        self._backend.no_truncation()
        self._backend.encode_special_tokens = True  # a text that quotes one is text
        pipeline = json.loads(self._backend.to_str())
        if TRAINING_POST_PROCESSOR in tokenizer.init_kwargs:
            pipeline[POST_PROCESSOR] = tokenizer.init_kwargs[TRAINING_POST_PROCESSOR]
        meaning = {key: value for key, value in pipeline.items() if key not in NOT_MEANING} | {"end": self.end}
        with_bos = meaning | {"begin": tokenizer.bos_token_id}
        self.digest = _short_digest(with_bos if add_bos else meaning)
        self.toggled_digest = _short_digest(meaning if add_bos else with_bos)
        id_by_token = self._backend.get_vocab(with_added_tokens=True)
        self.vocabulary_size = 1 + max(id_by_token.values(), default=-1)
        self.earlier_digest = _short_digest([id_by_token, self.end, *self._begin])

    def encode(self, texts: Sequence[str]) -> Iterator[NDArray[np.uint32]]:
        """Yield the ids of each text, between the tokens that begin and end a document."""
        for encoding in self._backend.encode_batch_fast(texts, add_special_tokens=False):
            ids = encoding.ids
            ids[:0] = self._begin
            ids.append(self.end)
            yield np.array(ids, dtype=np.uint32)


def _short_digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
