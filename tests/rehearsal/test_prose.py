"""The rehearsal's text comes from a real package of this distribution."""

import shutil

import pytest

from podwright_rehearsal.run import prose
from podwright_rehearsal.run.prose import ProseError, fetch_prose, page_to_text

pytestmark = pytest.mark.slow

needs_apt = pytest.mark.skipif(shutil.which("apt-get") is None, reason="needs a system with apt")


@needs_apt
def test_fetches_megabytes_of_english(tmp_path):
    """Apt downloads several megabytes of English paragraphs, free of markup, and nothing else is left in the folder."""
    folder = fetch_prose(tmp_path)
    text = "\n\n".join(file.read_text() for file in folder.iterdir())
    words = text.split()
    assert len(text) > 3_000_000
    assert 0.03 < sum(word == "the" for word in words) / len(words) < 0.12
    assert text.count("</") < 200
    assert list(tmp_path.iterdir()) == [folder]


def test_a_page_of_the_manual():
    """Headings and paragraphs remain; code, tables and navigation go, and entities are characters."""
    page = (
        "<html><head><title>T</title></head><body><nav><p>next</p></nav><h1>A  title</h1>"
        "<p>One &amp; <em>two</em>\nthree."
        "<pre>code</pre></p><table><tr><td>cell</td></tr></table><ul><li>item<li>other</ul><script>x()</script></body>"
    )
    assert page_to_text(page).split("\n\n") == ["A title", "One & two three.", "item", "other"]


def test_uses_what_is_there(tmp_path, monkeypatch):
    """Prose that is already there is used without any program: so other texts can be put in its place."""
    (tmp_path / prose.PACKAGE).mkdir()
    monkeypatch.setenv("PATH", "")
    assert fetch_prose(tmp_path) == tmp_path / prose.PACKAGE


def test_without_apt(tmp_path, monkeypatch):
    """On a system without apt, the message says what is missing and what to put where."""
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ProseError, match=rf"apt-get, apt-cache, dpkg-deb not found.*put text files into {tmp_path}"):
        fetch_prose(tmp_path)


@needs_apt
def test_failure_of_apt(tmp_path, monkeypatch):
    """An error of apt is shown, and no unfinished folder stays."""
    monkeypatch.setattr(prose.debian, "search", lambda _: ["postgresql-doc-0"])
    with pytest.raises(ProseError, match="Unable to locate package postgresql-doc-0"):
        fetch_prose(tmp_path)
    assert list(tmp_path.iterdir()) == []


@needs_apt
def test_unknown_package(tmp_path, monkeypatch):
    """A distribution without the package, or without lists, gets an error that says so."""
    monkeypatch.setattr(prose, "PACKAGE", "no-such-package")
    monkeypatch.setattr(prose.debian.os, "geteuid", lambda: 1000)
    with pytest.raises(ProseError, match=r"apt knows no package no-such-package-<version>: run `apt-get update`"):
        fetch_prose(tmp_path)
