"""Choose documents by language, and judge each by the limits of its own language and script.

Counts are datatrove's statistics: a task adds them up, and the manifest over all tasks.
"""

from __future__ import annotations

import ipaddress
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
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

from podwright_training.curation.languages import CODE, MACROLANGUAGES, is_unspaced, language_and_probability
from podwright_training.curation.pipeline_steps import Words
from podwright_training.curation.stop_words import STOP_WORDS
from podwright_training.curation.thresholds import DUPLICATE_GRAMS, THRESHOLDS, TOP_GRAMS

ENGLISH = "en"
UNCERTAIN = "uncertain"  # reason against a document whose language is less probable than the threshold
LANGUAGE = "language"  # key of a document's metadata
EMAIL, IPV4_ADDRESS = "email@example.com", "192.0.2.1"  # RFC 5737 reserves the address for documentation.
IPV6_ADDRESS = "2001:db8::1"  # RFC 3849 reserves it.
IPV6 = regex.compile(  # A colon may follow, as in logs.
    r"(?<![\w:.])(?=[\da-fA-F]*:[\da-fA-F:]*:)[\da-fA-F:]{2,38}(?:[\da-fA-F]|::)(?!\w|:[\da-fA-F:])"
)
GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")  # all addresses of the Internet that were assigned so far
SPACED_GRAMS: dict[str, Any] = {
    "top_n_grams": tuple((n, THRESHOLDS[f"top_{n}_gram"].default) for n in TOP_GRAMS),
    "dup_n_grams": tuple((n, THRESHOLDS[f"dup_{n}_gram"].default) for n in DUPLICATE_GRAMS),
}
# Limits of scripts without spaces, whose characters count as words, and of languages other than English.
UNSPACED_GRAMS: dict[str, Any] = {
    "top_n_grams": ((4, 0.2), (6, 0.18), (8, 0.16)),
    "dup_n_grams": ((10, 0.15), (12, 0.14), (14, 0.13), (16, 0.12), (18, 0.11), (20, 0.10)),
}
UNSPACED_WORD_LENGTHS: dict[str, Any] = {"min_avg_word_length": None, "max_avg_word_length": None}
WORD_LENGTHS: dict[str, Any] = {"min_avg_word_length": 2, "max_avg_word_length": 14}
UNSPACED_LINES: dict[str, Any] = {"filter_no_terminal_punct": False, "min_words_per_line": -1}
UNSPACED_SHORT_LINE = 10  # characters


class ChooseLanguages(BaseFilter):  # type: ignore[misc]  # datatrove has no types, as in the classes below
    """Recognize each document's language, count it, and remove those of other languages than some.

    Args:
        languages: to keep; empty: all.
        threshold: least probability of the language.
    """

    name = "languages"

    def __init__(self, languages: tuple[str, ...], *, threshold: float = 0) -> None:
        super().__init__()
        self.languages, self.threshold = frozenset(languages), threshold

    def filter(self, document: Any) -> bool | tuple[bool, str]:
        """Return whether a document stays; the reason is its language."""
        language, probability = language_and_probability(document.text)
        document.metadata[LANGUAGE] = language
        if self.languages and not self.languages.intersection((language, MACROLANGUAGES.get(language, language))):
            return False, language
        if probability < self.threshold:
            return False, UNCERTAIN
        self.stat_update(f"language_{language}")
        return True


class JudgeQuality(BaseFilter):  # type: ignore[misc]
    """Judge each document by datatrove's filter with the limits of its language. Source code stays as it is.

    Args:
        name: of ``FILTERS``.
        thresholds: of this filter, which apply to every language in which they have a meaning; the others have the
            defaults of the language.
    """

    def __init__(self, name: str, thresholds: Mapping[str, float]) -> None:
        self.name = name  # before datatrove names its statistics by it
        self.thresholds = tuple(thresholds.items())
        super().__init__()

    def filter(self, document: Any) -> bool | tuple[bool, str]:
        """Return whether a document stays, or why not; count what a filter removes inside one that stays."""
        language = document.metadata[LANGUAGE]
        if language == CODE:
            self.stat_update("not_judged")
            return True
        before = document.text
        result: bool | tuple[bool, str] = _filter(self.name, language, is_unspaced(before), self.thresholds).filter(
            document
        )
        if result is not True:
            self.stat_update(f"removed_by_language_{language}")
        elif document.text != before:
            self.stat_update("changed_documents")
            self.stat_update("removed_lines", value=len(before.splitlines()) - len(document.text.splitlines()))
        return result


@cache  # Filters count, and have no other state.
def _filter(
    name: str,
    language: str,
    unspaced: bool,  # noqa: FBT001 -- a cache's key
    thresholds: tuple[tuple[str, float], ...],
) -> BaseFilter:
    filter_class, limits_of = _FILTERS[name]
    limits = limits_of(language, unspaced)
    # A limit of None has no meaning in the language, such as stop words without a list of them.
    meaningful = {key: _applied(key, value) for key, value in thresholds if limits.get(key, value) is not None}
    arguments = limits | meaningful
    if filter_class is GopherRepetitionFilter:
        arguments = _with_grams(arguments)
    return filter_class(language=Words(), **arguments)


def _applied(name: str, value: float) -> float:
    """Return a threshold as datatrove applies it: it takes a maximum of 0 for one that is switched off."""
    threshold = THRESHOLDS[name]
    if threshold.is_minimum:
        return value
    if value >= threshold.limit:
        return math.inf  # Overlapping n-grams may have more characters than the document.
    return value or sys.float_info.min


def _gopher_quality(language: str, unspaced: bool) -> dict[str, Any]:  # noqa: FBT001
    lengths = {} if language == ENGLISH else UNSPACED_WORD_LENGTHS if unspaced else WORD_LENGTHS
    words = STOP_WORDS.get(language, frozenset())
    # A short text may be recognized as another language than English.
    stop_words = {"stop_words": [*words, *STOP_WORDS[ENGLISH]]} if words else {"min_stop_words": None}
    return {**lengths, **stop_words}


def _gopher_repetition(_language: str, unspaced: bool) -> dict[str, Any]:  # noqa: FBT001
    return dict(UNSPACED_GRAMS if unspaced else SPACED_GRAMS)


def _with_grams(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments with the shares of n-grams that have names of their own, such as ``top_2_gram``."""
    limits = {name: value for name, value in arguments.items() if not name.endswith("_gram")}
    for kind, names in (("top", TOP_GRAMS), ("dup", DUPLICATE_GRAMS)):
        key = f"{kind}_n_grams"
        limits[key] = tuple(
            (length, arguments.get(f"{kind}_{n}_gram", share))
            for n, (length, share) in zip(names, arguments[key], strict=True)
        )
    return limits


def _c4(_language: str, unspaced: bool) -> dict[str, Any]:  # noqa: FBT001
    return dict(UNSPACED_LINES if unspaced else {})


def _fineweb(_language: str, unspaced: bool) -> dict[str, Any]:  # noqa: FBT001
    return {"short_line_length": UNSPACED_SHORT_LINE} if unspaced else {}


_FILTERS: dict[str, tuple[type[BaseFilter], Callable[[str, bool], dict[str, Any]]]] = {
    "gopher_quality": (GopherQualityFilter, _gopher_quality),
    "gopher_repetition": (GopherRepetitionFilter, _gopher_repetition),
    "c4": (C4QualityFilter, _c4),
    "fineweb": (FineWebQualityFilter, _fineweb),
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
