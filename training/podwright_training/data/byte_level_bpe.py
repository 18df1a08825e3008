"""Train a byte-level BPE tokenizer and save it as transformers loads it."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from podwright_training.errors import UserError

logger = logging.getLogger(__name__)

SPECIAL_TOKENS = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
RESERVED = "<|reserved_{}|>"  # fills the vocabulary up to a multiple
RESERVED_NAME = re.compile(r"<\|reserved_\d+\|>")
SMALLEST_VOCABULARY = 256 + len(SPECIAL_TOKENS)  # every byte is a token
LONG_WORDS_BYTES = 16_000_000  # Training learns from so many bytes of different long words, in 2 GB of memory.
LONGEST_WORD = 1000  # characters; a longer one is cut, as each merge goes through it
LONG_WORD = re.compile(rf"[^\x00-\x7f\s]{{5,{LONGEST_WORD}}}|\S{{20,{LONGEST_WORD}}}")
PATTERNS = {  # pre-tokenizers, which split text into words; tokens are merged inside words
    "gpt2": None,  # the library's own
    # Llama 3's: digits in threes, contractions in any case. https://github.com/meta-llama/llama3/blob/main/llama/tokenizer.py
    "llama3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+",
}


def special_token_problems(tokens: Sequence[str]) -> Iterator[str]:
    """Yield one line for each special token that is not allowed."""
    reserved = {*SPECIAL_TOKENS.values()}
    for token in tokens:
        if not token.strip():
            yield f"special-tokens: got {token!r}, need text"
        elif token in reserved or RESERVED_NAME.fullmatch(token):
            yield f"special-tokens: got {token} twice, or it is one of every tokenizer: name each once"
        reserved.add(token)


class _LongWords:
    """Limits different long words: training takes 130 bytes of memory for each byte of them.

    In scripts without spaces all text between two spaces is one, so nearly each of them is another. Those that occurred
    before still count.

    Attributes:
        skipped_bytes: Text in UTF-8 that was left out.
    """

    def __init__(self) -> None:
        self.skipped_bytes = 0
        self._bytes = 0
        self._seen: set[int] = set()

    def bounded(self, text: str) -> str:
        """Return a text without the long words beyond the limit; a very long word is cut."""
        return LONG_WORD.sub(self._choose, text)

    def _choose(self, match: re.Match[str]) -> str:
        word = match[0]
        key, size = hash(word), len(word.encode())
        if key not in self._seen:
            if self._bytes + size > LONG_WORDS_BYTES:
                self.skipped_bytes += size
                return " "
            self._seen.add(key)
            self._bytes += size
        return f"{word}\n" if len(word) == LONGEST_WORD else word


def train(
    texts: Iterable[str],
    folder: Path,
    *,
    vocab_size: int,
    pattern: str = "gpt2",
    multiple: int = 1,
    special_tokens: Iterable[str] = (),
) -> int:
    """Train on ``texts``, save to ``folder`` and return the number of tokens.

    Args:
        texts: documents; the library counts their words, and keeps no text.
        folder: written by transformers, for ``AutoTokenizer``.
        vocab_size: most tokens to learn, special ones included; little text gives fewer.
        pattern: key of ``PATTERNS``.
        multiple: the vocabulary is filled up to a multiple of it with reserved tokens, which no text becomes.
        special_tokens: additional special tokens, after those that begin and end a text.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    from podwright_training.data.tokenizer import save_tokenizer

    model = Tokenizer(models.BPE())
    words = PATTERNS[pattern]
    cut = [pre_tokenizers.Split(Regex(words), behavior="isolated")] if words else []
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not words)
    model.pre_tokenizer = pre_tokenizers.Sequence([*cut, to_bytes]) if cut else to_bytes
    model.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[*SPECIAL_TOKENS.values(), *special_tokens],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    long_words = _LongWords()
    model.train_from_iterator(map(long_words.bounded, texts), trainer=trainer)
    if long_words.skipped_bytes:
        logger.warning(
            "learned from the first %d MB of different text without spaces; %.1f MB of further such text were not used",
            LONG_WORDS_BYTES // 10**6, long_words.skipped_bytes / 1e6,
        )  # fmt: skip
    model.add_special_tokens([RESERVED.format(number) for number in range(-model.get_vocab_size() % multiple)])
    further = {"additional_special_tokens": list(special_tokens)} if special_tokens else {}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=model, **SPECIAL_TOKENS, **further)
    try:
        save_tokenizer(tokenizer, folder)
    except Exception as error:  # the library raises no other
        raise UserError(f"cannot write the tokenizer: {error}") from error
    return len(tokenizer)
