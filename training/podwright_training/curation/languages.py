"""Recognize the language of a document, or that it is source code."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import regex

from podwright_common.similar_names import question, similar_names

CODE = "code"  # Source code is no language, and no rule of prose fits it.
LANGUAGE_CHARACTERS = 2000  # Recognizing takes a millisecond for each thousand.
LEAST_CODE_LINES, CODE_SHARE = 3, 0.4
MACROLANGUAGES = {"ary": "ar", "arz": "ar", "nn": "no", "uzs": "uz", "wuu": "zh", "yue": "zh"}
NAMES = {  # languages that people name by country, by name or by three letters
    "ar": "arabic ara", "bg": "bulgarian bul", "ca": "catalan cat", "cs": "cz czech ces cze", "da": "dk danish dan",
    "de": "german deutsch deu ger at", "el": "gr greek ell gre", "en": "english eng us gb uk-english",
    "es": "spanish spa mx castilian", "et": "ee estonian est", "fa": "ir persian farsi fas per", "fi": "finnish fin",
    "fr": "french fra fre", "he": "iw il hebrew heb", "hi": "hindi hin", "hr": "croatian hrv", "hu": "hungarian hun",
    "id": "in indonesian ind", "it": "italian ita", "ja": "jp japanese jpn", "ko": "kr korean kor",
    "lt": "lithuanian lit", "lv": "latvian lav", "ms": "my-malay malay msa may", "nl": "dutch nld dut",
    "no": "nb bokmal norwegian nor", "pl": "polish pol", "pt": "portuguese por", "ro": "romanian ron rum",
    "ru": "russian rus", "sk": "slovak slk slo", "sl": "si-slovenian slovenian slovene slv", "sq": "albanian sqi alb",
    "sr": "rs serbian srp", "sv": "swedish swe", "ta": "tamil tam", "th": "thai tha", "tr": "turkish tur",
    "uk": "ua ukrainian ukr", "ur": "urdu urd", "vi": "vn vietnamese vie", "zh": "cn tw chinese mandarin zho chi",
}  # fmt: skip
UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}"  # no space between words
UNSPACED_LETTER = regex.compile(rf"[{UNSPACED}]")
UNSPACED_LETTER_WEIGHT = 3  # letters of an alphabet that one of these stands for
LETTER = regex.compile(r"\p{L}")
CODE_LINE = regex.compile(
    r"""
    ^\s*(?:
        [{}\])]+[;,)]* \s*$ | // | /\* | \*/ | \#!?\s*(?:include|define|ifdef|ifndef|endif|pragma)\b | @\w+\s*$
        | import\s+[\w.{*"'<] .* | from\s+[\w.]+\s+import\b | (?:async\s+)?def\s+\w+\s*\( | class\s+\w+\s*[:({]
        | return\b.*;?$ | (?:if|for|while|switch|elif|except|catch|with)\b.*[:{]\s*$ | (?:else|try|finally)\s*[:{]\s*$
        | (?:public|private|protected|static|const|let|var|fn|func|function|package|using|struct|enum|impl)\s+\w.*[;{=(]
        | </\w+> | <!\w | <\w+(?:\s[^>]*=[^>]*|\s*/?)>(?=\s*(?:$|<)|.*</\w+>)
        | (?:[\w*&\[\]<>:]+\s+){0,2}[\w*&\[\].]+;\s*$
    )
    | [{}]\s*$ | [=\[\]{}"'>]\s*;\s*$ | [=+*/<>\[{"'].*;\s*$ | [A-Za-z_]\([^;]*;\s*$
    | [\w\])]\([^()]*\)\s*[:;]?\s*$ | [\w\])"']\s*(?:[-+*/|&]?=|[=!]=|=>|->|:=)\s*[\w\[({"'-]
    """,
    regex.VERBOSE,
)


@cache
def language_codes() -> tuple[str, ...]:
    """Return the codes that documents can be chosen by: those of py3langid, and ``code``."""
    import py3langid

    return (*sorted(code for code, _ in py3langid.rank("text")), CODE)


def language_problems(codes: tuple[str, ...]) -> Iterator[str]:
    """Yield one line for each code that no document can have."""
    for code in codes:
        if code not in language_codes():
            hint = question(_similar_codes(code), prefix="; ")
            yield f"languages: got {code}, need some of {' '.join(language_codes())}{hint}"


def _similar_codes(code: str) -> list[str]:
    """Return the code that a wrong one probably means, if there is one."""
    word = code.lower().replace("_", "-")
    by_name = {name: code for code, names in NAMES.items() for name in names.split()}
    for candidate in (word, word.partition("-")[0]):
        if candidate in language_codes():
            return [candidate]
        if candidate in by_name:
            return [by_name[candidate]]
    return [by_name[name] for name in similar_names(word, by_name, cutoff=0.75)]


def language_of(text: str) -> str:
    """Return the code of a document's language, recognized in its middle; ``code`` for source code."""
    return language_and_probability(text)[0]


def language_and_probability(text: str) -> tuple[str, float]:
    """Return the code of a document's language, and how probable it is; ``code`` and 1 for source code."""
    if is_code(text):
        return CODE, 1.0
    begin = max(0, (len(text) - LANGUAGE_CHARACTERS) // 2)
    code, probability = _identifier().classify(text[begin : begin + LANGUAGE_CHARACTERS])
    return code, probability


@cache
def _identifier() -> Any:
    """Return the recognition of languages with probabilities, which are comparable for texts of any length."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def is_code(text: str) -> bool:
    """Return whether a document is source code: many of its lines begin or end as statements do."""
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) < LEAST_CODE_LINES:
        return False
    return sum(bool(CODE_LINE.search(line)) for line in lines) / len(lines) >= CODE_SHARE


def is_unspaced(text: str) -> bool:
    """Return whether most letters of a document are of scripts that do not divide words by spaces."""
    begin = max(0, (len(text) - LANGUAGE_CHARACTERS) // 2)
    sample = text[begin : begin + LANGUAGE_CHARACTERS]
    unspaced = len(UNSPACED_LETTER.findall(sample))
    return UNSPACED_LETTER_WEIGHT * unspaced > len(LETTER.findall(sample)) - unspaced
