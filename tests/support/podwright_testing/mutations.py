"""Accidents that happen to JSON files: a value is replaced or lost, the text is cut or garbled."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

JUNK: tuple[Any, ...] = (
    None,
    True,
    -1,
    10**400,
    1.5,
    float("nan"),
    "",
    "\ud800",
    "\0",
    "\u2028\n",
    [],
    [[]],
    [None],
    {},
    {"": {}},
)


def mutated(content: Any, random: Random) -> str:
    """Return the text of a file after one accident."""
    content = copy.deepcopy(content)
    place = content
    while True:
        key = random.choice(sorted(place) if isinstance(place, dict) else range(len(place)))
        if not (isinstance(place[key], (dict, list)) and place[key]) or random.random() < 0.2:
            break
        place = place[key]
    if random.random() < 0.2:
        del place[key]
    else:
        place[key] = random.choice(JUNK)
    text = json.dumps(content)
    accident = random.random()
    if accident < 0.05:
        return text[: random.randrange(len(text))]
    if accident < 0.1:
        index = random.randrange(len(text))
        return text[:index] + random.choice('{}[]",:9\\') + text[index + 1 :]
    return "[" * 100_000 if accident < 0.101 else text


def mutated_bytes(content: Any, random: Random) -> bytes:
    """Return the bytes of a file after one accident; some are not UTF-8."""
    data = bytearray(mutated(content, random).encode())
    if data and random.random() < 0.1:
        data[random.randrange(len(data))] = random.choice((0xFF, 0x00, 0x1E))
    return bytes(data)
