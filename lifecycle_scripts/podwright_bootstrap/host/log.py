"""Write lines to the log of provisioning."""

from __future__ import annotations

import re
from datetime import datetime, timezone

# What a terminal obeys, or no log can have: administrators read logs on one. Tabs and line ends stay.
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def say(text: str) -> None:
    """Write a line to the log; control characters, as in a file's name, are written as in Python."""
    line = OBEYED.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
    print(f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ} {line}", flush=True)
