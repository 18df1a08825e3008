"""Slurm's list of jobs: no text of a user changes another field, and nobody knows the mark between fields."""

from __future__ import annotations

import os
import secrets
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwright_bootstrap.slurm import listing

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=()), max_size=30) | st.sampled_from(
    [
        "UserId=root(0)",
        "x\nJobId=1 UserId=root(0)",
        "~0~",
        "-x",
        "(null)",
        "a|b",
        "%u %A",
        "\x1b]52;c;eA==\x07",
        "\udcff",
    ]
)


@given(st.lists(st.fixed_dictionaries({"name": TEXTS, "comment": TEXTS, "workdir": TEXTS}), min_size=1, max_size=4))
def test_no_text_of_a_user_changes_another_field(records: list[dict[str, str]]) -> None:
    """Whatever names, comments and paths are, they survive, and the numbers beside them are Slurm's."""
    columns, mark = ("jobid", "name", "userid", "comment", "workdir", "arrayjobid"), f"~{secrets.token_hex(16)}~"
    jobs = [{"jobid": str(7 + at), "userid": "2002", "arrayjobid": "7", **texts} for at, texts in enumerate(records)]
    printed = "".join("".join(job[name] + mark for name in columns) + "\n" for job in jobs)
    expected = [{name: "" if text == "(null)" else text for name, text in job.items()} for job in jobs]
    assert listing.rows(columns, mark, printed) == expected
    assert listing.rows_of_shell(columns, f"{mark}\n{printed}") == expected


@pytest.mark.parametrize("printed", ["1~m~", "1~m~2~m~3~m~", "slurm_load_jobs error", "1~m~2~m~\nend"])
def test_a_listing_with_other_fields_is_refused(printed: str) -> None:
    """An answer that lacks a field, has one more, or is a message gives no job."""
    with pytest.raises(listing.ListingError):
        listing.rows(("jobid", "userid"), "~m~", printed)


def test_the_mark_is_in_no_argument(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every user reads arguments of programs: squeue gets the mark by its environment, also from a shell's line."""
    program = tmp_path / "squeue"
    program.write_text(
        '#!/bin/bash\nmark=${SQUEUE_FORMAT2##*:}\necho "${#mark} $*$SQUEUE_FORMAT$mark"\n'
        f'tr "\\0" " " < /proc/$PPID/cmdline > {tmp_path}/parent\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SQUEUE_FORMAT", "%k")
    assert listing.jobs(("comment",), "--me") == [{"comment": "34 --noheader --me"}]
    line = listing.shell_line(("comment",), "--me")
    output = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True).stdout
    assert listing.rows_of_shell(("comment",), output) == [{"comment": "34 --noheader --me"}]
    mark = output.partition("\n")[0]
    assert mark not in (tmp_path / "parent").read_text()
    assert "squeue" in (tmp_path / "parent").read_text()
