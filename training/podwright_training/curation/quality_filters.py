"""Choose documents by language, and judge each by the limits of its own language and script.

Counts are datatrove's statistics: a task adds them up, and the manifest over all tasks.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import regex
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
)
from datatrove.pipeline.filters.base_filter import BaseFilter
from datatrove.pipeline.formatters import PIIFormatter

from podwright_training.curation.languages import CODE, MACROLANGUAGES, is_unspaced, language_of
from podwright_training.curation.pipeline_steps import Words
from podwright_training.curation.stop_words import STOP_WORDS

ENGLISH = "en"
LANGUAGE = "language"  # key of a document's metadata
EMAIL, IPV4_ADDRESS = "email@example.com", "192.0.2.1"  # RFC 5737 reserves the address for documentation.
IPV6_ADDRESS = "2001:db8::1"  # RFC 3849 reserves it.
IPV6 = regex.compile(  # A colon may follow, as in logs.
    r"(?<![\w:.])(?=[\da-fA-F]*:[\da-fA-F:]*:)[\da-fA-F:]{2,38}(?:[\da-fA-F]|::)(?!\w|:[\da-fA-F:])"
)
GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")  # all addresses of the Internet that were assigned so far
# Limits of scripts without spaces, whose characters count as words, and of languages other than English.
UNSPACED_NGRAMS: dict[str, Any] = {
    "top_n_grams": ((4, 0.2), (6, 0.18), (8, 0.16)),
    "dup_n_grams": ((10, 0.15), (12, 0.14), (14, 0.13), (16, 0.12), (18, 0.11), (20, 0.10)),
}
UNSPACED_WORD_LENGTHS: dict[str, Any] = {"min_avg_word_length": None, "max_avg_word_length": None}
WORD_LENGTHS: dict[str, Any] = {"min_avg_word_length": 2, "max_avg_word_length": 14}
UNSPACED_LINES: dict[str, Any] = {"filter_no_terminal_punct": False, "min_words_per_line": -1}
UNSPACED_SHORT_LINE = 10  # characters


class ChooseLanguages(BaseFilter):  # type: ignore[misc]  # datatrove has no types, as in the classes below
    """Recognize each document's language, count it, and remove those of other languages than some."""

    name = "languages"

    def __init__(self, languages: tuple[str, ...]) -> None:
        super().__init__()
        self.languages = frozenset(languages)

    def filter(self, document: Any) -> bool | tuple[bool, str]:
        """Return whether a document stays; the reason is its language."""
        language = language_of(document.text)
        document.metadata[LANGUAGE] = language
        if self.languages and not self.languages.intersection((language, MACROLANGUAGES.get(language, language))):
            return False, language
        self.stat_update(f"language_{language}")
        return True


class JudgeQuality(BaseFilter):  # type: ignore[misc]
    """Judge each document by datatrove's filter with the limits of its language. Source code stays as it is.

    Args:
        name: of ``FILTERS``.
    """

    def __init__(self, name: str) -> None:
        self.name = name  # before datatrove names its statistics by it
        super().__init__()

    def filter(self, document: Any) -> bool | tuple[bool, str]:
        """Return whether a document stays, or why not; count what a filter removes inside one that stays."""
        language = document.metadata[LANGUAGE]
        if language == CODE:
            self.stat_update("not_judged")
            return True
        before = document.text
        result: bool | tuple[bool, str] = _filter(self.name, language, is_unspaced(before)).filter(document)
        if result is not True:
            self.stat_update(f"removed_by_language_{language}")
        elif document.text != before:
            self.stat_update("changed_documents")
            self.stat_update("removed_lines", value=len(before.splitlines()) - len(document.text.splitlines()))
        return result


@cache  # Filters count, and have no other state.
def _filter(name: str, language: str, unspaced: bool) -> BaseFilter:  # noqa: FBT001 -- a cache's key
    return _FILTERS[name](language, unspaced)


def _gopher_quality(language: str, unspaced: bool) -> BaseFilter:  # noqa: FBT001
    lengths = {} if language == ENGLISH else UNSPACED_WORD_LENGTHS if unspaced else WORD_LENGTHS
    words = STOP_WORDS.get(language, frozenset())
    # A short text may be recognized as another language than English.
    stop_words = {"stop_words": [*words, *STOP_WORDS[ENGLISH]]} if words else {"min_stop_words": None}
    return GopherQualityFilter(language=Words(), **lengths, **stop_words)


def _gopher_repetition(_language: str, unspaced: bool) -> BaseFilter:  # noqa: FBT001
    return GopherRepetitionFilter(language=Words(), **(UNSPACED_NGRAMS if unspaced else {}))


def _c4(_language: str, unspaced: bool) -> BaseFilter:  # noqa: FBT001
    return C4QualityFilter(language=Words(), **(UNSPACED_LINES if unspaced else {}))


def _fineweb(_language: str, unspaced: bool) -> BaseFilter:  # noqa: FBT001
    return FineWebQualityFilter(language=Words(), **({"short_line_length": UNSPACED_SHORT_LINE} if unspaced else {}))


_FILTERS: dict[str, Callable[[str, bool], BaseFilter]] = {
    "gopher_quality": _gopher_quality,
    "gopher_repetition": _gopher_repetition,
    "c4": _c4,
    "fineweb": _fineweb,
}


class MaskPersonal(PipelineStep):  # type: ignore[misc]
    """Replace email addresses and public IP addresses by those that documentation uses, and count them."""

    type = "📞 - FORMAT"
    name = "mask personal"

    def run(self, data: Iterable[Any], rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Yield all documents."""
        del rank, world_size
        for document in data:
            self.stat_update("total")
            before = document.text
            document.text = self._masked(before)
            if document.text != before:
                self.stat_update("changed_documents")
            yield document

    def _masked(self, text: str) -> str:
        formatter = _personal()
        for kind, pattern, is_personal, replacement in (
            ("email_addresses", formatter.emails_replacer.regex, bool, EMAIL),
            ("ipv6_addresses", IPV6, _is_public_ipv6, IPV6_ADDRESS),
            ("ipv4_addresses", formatter.ip_replacer.regex, formatter.ip_replacer.validator, IPV4_ADDRESS),
        ):
            text, count = _replace(text, pattern, replacement, is_personal)
            if count:
                self.stat_update(f"masked_{kind}", value=count)
        return text


def _replace(text: str, pattern: Any, replacement: str, is_personal: Callable[[str], bool]) -> tuple[str, int]:
    """Return the text with a replacement for each match that is personal, and their number."""
    count = 0

    def replace(match: Any) -> str:
        nonlocal count
        if not is_personal(match[0]):
            return str(match[0])
        count += 1
        return replacement

    return pattern.sub(replace, text), count


@cache
def _personal() -> PIIFormatter:
    return PIIFormatter()


def _is_public_ipv6(text: str) -> bool:
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return address in GLOBAL_UNICAST and address.is_global
