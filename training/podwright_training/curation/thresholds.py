"""Name the thresholds of the quality filters, with the defaults of datatrove and where they were published.

Sources: Gopher, https://arxiv.org/abs/2112.11446, appendix A.1.1 and table A1; C4, https://arxiv.org/abs/1910.10683,
section 2.2; FineWeb, https://arxiv.org/abs/2406.17557, which has 0.1 for char_duplicates_ratio.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from podwright_common.similar_names import did_you_mean

LANGUAGES = "languages"  # the step that recognizes languages, which every other filter needs
TOP_GRAMS = (2, 3, 4)  # words, as in Gopher
DUPLICATE_GRAMS = (5, 6, 7, 8, 9, 10)


class Threshold(NamedTuple):
    """The filter that has a threshold, its default for English, and which values it takes.

    Attributes:
        filter: that has it.
        default: for English.
        is_minimum: Documents with a lower value are removed, not those with a higher one.
        limit: Highest value that can be set: 1 for a share.
    """

    filter: str
    default: float
    is_minimum: bool = False
    limit: float = math.inf


def minimum(step: str, default: float) -> Threshold:
    """Return a least number."""
    return Threshold(step, default, is_minimum=True)


def minimum_share(step: str, default: float) -> Threshold:
    """Return a least share; 0 keeps all documents."""
    return Threshold(step, default, is_minimum=True, limit=1)


def share(step: str, default: float) -> Threshold:
    """Return a greatest share; 1 keeps all documents."""
    return Threshold(step, default, limit=1)


THRESHOLDS: dict[str, Threshold] = {
    "language_threshold": minimum_share(LANGUAGES, 0),
    "min_doc_words": minimum("gopher_quality", 50),
    "max_doc_words": Threshold("gopher_quality", 100_000),
    "min_avg_word_length": minimum("gopher_quality", 3),
    "max_avg_word_length": Threshold("gopher_quality", 10),
    "max_symbol_word_ratio": Threshold("gopher_quality", 0.1),
    "max_bullet_lines_ratio": share("gopher_quality", 0.9),
    "max_ellipsis_lines_ratio": share("gopher_quality", 0.3),
    "max_non_alpha_words_ratio": minimum_share("gopher_quality", 0.8),
    "min_stop_words": minimum("gopher_quality", 2),
    "dup_line_frac": share("gopher_repetition", 0.3),
    "dup_para_frac": share("gopher_repetition", 0.3),
    "dup_line_char_frac": share("gopher_repetition", 0.2),
    "dup_para_char_frac": share("gopher_repetition", 0.2),
    **{
        f"top_{n}_gram": share("gopher_repetition", default)
        for n, default in zip(TOP_GRAMS, (0.2, 0.18, 0.16), strict=True)
    },
    **{
        f"dup_{n}_gram": share("gopher_repetition", default)
        for n, default in zip(DUPLICATE_GRAMS, (0.15, 0.14, 0.13, 0.12, 0.11, 0.1), strict=True)
    },
    "min_num_sentences": minimum("c4", 5),
    "min_words_per_line": minimum("c4", 3),
    "max_word_length": Threshold("c4", 1000),
    "line_punct_thr": minimum_share("fineweb", 0.12),
    "short_line_thr": share("fineweb", 0.67),
    "short_line_length": Threshold("fineweb", 30),
    "char_duplicates_ratio": share("fineweb", 0.01),
    "new_line_ratio": Threshold("fineweb", 0.3),
}
RANGES = (("min_doc_words", "max_doc_words"), ("min_avg_word_length", "max_avg_word_length"))


def named_values(option: str, words: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """Return the values of ``NAME=VALUE`` words by name, and a problem for each name that another word has too."""
    value_by_name: dict[str, str] = {}
    problems = []
    for word in words:
        name, _, value = word.partition("=")
        if name in value_by_name:
            problems.append(f"{option}: got {name}={value_by_name[name]} and {word}, need each name once")
        value_by_name.setdefault(name, value)
    return value_by_name, problems


def thresholds_in(words: Iterable[str]) -> tuple[dict[str, float], list[str]]:
    """Return the thresholds of ``NAME=NUMBER`` words, and a problem for each repeated name or other form."""
    value_by_name: dict[str, float] = {}
    text_by_name, problems = named_values("thresholds", words)
    for name, text in text_by_name.items():
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if math.isfinite(number) and number >= 0:
            value_by_name[name] = int(number) if number.is_integer() else number
        else:
            word = f"{name}={text}" if text else name
            problems.append(f"thresholds: got {word}, need NAME=NUMBER with a number of at least 0")
    return value_by_name, problems


def problems_of_thresholds(thresholds: Mapping[str, float], filters: Iterable[str]) -> Iterator[str]:
    """Yield one line for each threshold that no chosen filter has or that is too high, and for each empty range."""
    for name, value in thresholds.items():
        if name not in THRESHOLDS:
            question = did_you_mean(name, THRESHOLDS, prefix="; ") or f"; need one of {', '.join(THRESHOLDS)}"
            yield f"thresholds: unknown name {name}{question}"
        elif THRESHOLDS[name].filter not in (LANGUAGES, *filters):
            yield f"thresholds: {name} is one of {THRESHOLDS[name].filter}, which is not among the filters"
        elif value > (limit := THRESHOLDS[name].limit):
            yield f"thresholds: got {name}={value}, need a share from 0 to {limit}"
    for names in RANGES:
        minimum, maximum = (thresholds.get(name, THRESHOLDS[name].default) for name in names)
        if minimum > maximum and not thresholds.keys().isdisjoint(names):
            limits = f"{names[0]}={minimum} and {names[1]}={maximum}"
            yield f"thresholds: {limits} leave no document: need a minimum of at most the maximum"


def thresholds_of(step: str, thresholds: Mapping[str, float]) -> dict[str, float]:
    """Return those of the given thresholds that a filter has."""
    return {name: value for name, value in thresholds.items() if THRESHOLDS[name].filter == step}


def thresholds_in_use(filters: Iterable[str], thresholds: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Return all thresholds for English of each filter, and of the recognition of languages, by name."""
    return {
        step: {
            name: thresholds.get(name, threshold.default)
            for name, threshold in THRESHOLDS.items()
            if threshold.filter == step
        }
        for step in (LANGUAGES, *filters)
    }
