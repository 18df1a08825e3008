"""A page of commands is compared with what they print: ids and numbers may differ, words may not."""

from __future__ import annotations

import pytest

from podwright_testing import transcript
from podwright_testing.transcript import Command, Event

PAGE = """# Title
```console
$ first
vpc-0a1b2c3d4e5f60718 made in 3 s
$ second
```
<!-- rehearsal: write run.yaml -->
```yaml
steps: 3
```
"""


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    return path


def test_a_page_is_read_in_order(page):
    """Commands come with the lines below them, and an event with its file."""
    shown = ["vpc-0a1b2c3d4e5f60718 made in 3 s"]
    assert list(transcript.read(page)) == [
        Command(2, "first", shown),
        Command(4, "second", []),
        Event("write run.yaml", "steps: 3\n"),
    ]


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("vpc-0a1b2c3d4e5f60718 made in 3 s", "vpc-99999999 made in 12 min", True),
        ("vpc-0a1b2c3d4e5f60718 made in 3 s", "vpc-99999999 gone in 3 s", False),
        ("up 13m 57s", "up 2h 1m", True),
        ("updated cluster (1s)", "updated cluster (1m12s)", True),
        ("gpu*  2  idle ip-10-0-16-[5-6]", "gpu* 2 idle ip-10-0-16-[5,9]", True),
        ("gpu*  2  idle ip-10-0-16-[5-6]", "gpu* 2 down ip-10-0-16-[5-6]", False),
        ("cluster/2c504763e63f (1s)", "cluster/0000abcd1234 (2s)", True),
        ("a long line with 12 …", "a long line with 9 and its end", True),
        ("a long line with 12 …", "another line", False),
    ],
)
def test_words_are_compared(shown, printed, same):
    """A shown line is found among the printed ones, whatever its ids, times and numbers."""
    assert transcript.missing(Command(0, "c", [shown, "…"]), f"other\n{printed}\n") == ([] if same else [shown])


def test_a_page_is_written_anew(page):
    """New outputs take the place of the old ones, shortened, and are what the page then shows."""
    long = "\n".join(f"line {letter}" for letter in "abcdefghijklmnopqrstuvwxyz")
    page.write_text(transcript.rewritten(page, {2: "one\n\n", 4: long}))
    first, second, _ = transcript.read(page)
    assert (first.shown, second.shown[8:12]) == (["one"], ["line i", "…", "line w", "line x"])
    assert transcript.missing(second, long) == []
