"""Plant near duplicates in made-up documents, and count how many of them a curation found."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

SHINGLE_WORDS = 5
WORDS = 229  # of a document: 225 shingles, so that five changed words leave 200 of 250 different ones
JACCARD = 0.8  # of a planted pair
RELATED_JACCARD = (0.25, 0.35)  # of documents that must stay


@dataclass(frozen=True)
class Planted:
    """Documents with planted near duplicates.

    Attributes:
        texts: All documents, in any order; the first word says what one is.
        pairs: Pairs with a Jaccard similarity of 0.8.
        others: Documents that almost equal no other; a third of them have something in common with another.
    """

    texts: list[str]
    pairs: int
    others: int

    @classmethod
    def make(cls, pairs: int, *, seed: int = 3) -> Planted:
        """Make the documents of so many pairs, and half as many more that must stay."""
        dice = random.Random(seed)  # noqa: S311 - not for secrets
        known = ["".join(dice.choices("abcdefghijklmnoprstuvw", k=dice.randint(3, 9))) for _ in range(20_000)]

        def document(name: str) -> list[str]:
            return [name, *dice.choices(known, k=WORDS - 3), "the", "of"]  # two words of English

        single = [document("single") for _ in range(pairs)]
        related = [["related", *_changed(words, 24, dice)[1:]] for words in single[: pairs // 2]]
        first = [document(f"pair{number}") for number in range(pairs)]
        second = [_changed(words, 5, dice) for words in first]
        assert {similarity(*both) for both in zip(first, second, strict=True)} <= {JACCARD}
        low, high = RELATED_JACCARD
        assert all(low < similarity(*both) < high for both in zip(single, related, strict=False))
        texts = [" ".join(words) for words in (*single, *first, *second, *related)]
        dice.shuffle(texts)
        return cls(texts, pairs, len(single) + len(related))

    def found(self, left: Iterable[str]) -> tuple[float, float]:
        """Return the share of pairs that lost a document, and the share of documents that went for nothing."""
        counts = Counter(text.split()[0] for text in left)
        names = [f"pair{number}" for number in range(self.pairs)]
        found = sum(counts[name] < 2 for name in names)
        lost = sum(not counts[name] for name in names) + self.others - counts["single"] - counts["related"]
        return found / self.pairs, lost / (self.pairs + self.others)


def similarity(one: list[str], other: list[str]) -> float:
    """Return the share of the shingles of both documents that are in both."""
    first, second = (
        {tuple(words[start : start + SHINGLE_WORDS]) for start in range(len(words) - SHINGLE_WORDS + 1)}
        for words in (one, other)
    )
    return len(first & second) / len(first | second)


def documents_of(folder: Path, tokenizer: Path) -> Iterator[str]:
    """Yield every document of a curated dataset."""
    from transformers import AutoTokenizer

    from podwright_training.data.token_shards import TokenShard

    decoder = AutoTokenizer.from_pretrained(tokenizer)
    for path in sorted(folder.glob("*.safetensors")):
        shard = TokenShard(str(path))
        yield from (decoder.decode(shard[number], skip_special_tokens=True) for number in range(len(shard)))


def _changed(words: list[str], number: int, dice: random.Random) -> list[str]:
    """Return the document with some words replaced, far from each other: each changes as many shingles as it has."""
    places = range(SHINGLE_WORDS, len(words) - SHINGLE_WORDS, (len(words) - 2 * SHINGLE_WORDS) // number)
    again = list(words)
    for place in list(places)[:number]:
        again[place] = f"new{dice.random():.9f}".replace(".", "")
    return again
