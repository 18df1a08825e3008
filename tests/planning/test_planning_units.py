"""Quantities with units."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwright.planning.units import UnitError, format_count, format_duration, parse_count, parse_duration


@pytest.mark.parametrize(
    ("text", "value"),
    [("78B", 78e9), ("78e9", 78e9), ("5k", 5e3), ("1.5T", 1.5e12), ("50,432", 50432), ("$5000", 5000), (" 3 m ", 3e6)],
)
def test_counts_as_people_write_them(text, value):
    """Suffixes, exponents, commas and a dollar sign are understood."""
    assert parse_count(text, label="tokens") == value


@pytest.mark.parametrize(("text", "seconds"), [("7d", 604_800), ("36h", 129_600), ("90min", 5_400), ("2w", 1_209_600)])
def test_durations_as_people_write_them(text, seconds):
    """Days, hours, minutes and weeks are understood."""
    assert parse_duration(text, label="deadline") == seconds


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("", "need a number"),
        ("many", "need a number"),
        ("0", "more than zero"),
        ("-5B", "more than zero"),
        ("5x", "k, M, B or T"),
    ],
)
def test_a_wrong_count_says_how_to_write_it(text, hint):
    """The message names the argument and shows what would do."""
    with pytest.raises(UnitError, match=rf"--tokens: .*{hint}"):
        parse_count(text, label="--tokens")


def test_a_duration_without_unit_is_refused():
    """A number without unit is refused, and the message shows one with a unit."""
    with pytest.raises(UnitError, match="Write 7d for days"):
        parse_duration("7", label="--deadline")


@given(st.floats(1, 9.99e14))
def test_a_formatted_count_reads_back(value):
    """A printed number is read as the same number, to three digits."""
    assert parse_count(format_count(value), label="n") == pytest.approx(value, rel=0.006)


def test_durations_are_printed_in_a_readable_unit():
    """Days for days, seconds for seconds."""
    assert [format_duration(value) for value in (1.5, 600, 7200, 604_800)] == ["1.5 s", "10 min", "2 h", "7 days"]
    assert [format_duration(days * 86_400) for days in (999.4, 999.7, 2111)] == ["999 days", "1,000 days", "2,110 days"]
