"""The rehearsal's text comes from a real package of this distribution."""

import shutil
import subprocess

import pytest

from podwright.rehearsal import prose
from podwright.rehearsal.prose import ProseError, fetch_prose


@pytest.mark.skipif(shutil.which("apt-get") is None, reason="needs a system with apt")
def test_fetches_megabytes_of_english(tmp_path):
    """apt brings several megabytes of English paragraphs, free of markup, and nothing else is left in the folder."""
    folder = fetch_prose(tmp_path)
    text = "\n\n".join(file.read_text() for file in folder.iterdir())
    words = text.split()
    assert len(text) > 3_000_000
    assert 0.03 < sum(word == "the" for word in words) / len(words) < 0.12
    assert text.count("</") < 200
    assert list(tmp_path.iterdir()) == [folder]


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


def test_failure_of_apt(tmp_path, monkeypatch):
    """What apt complains about is shown, and nothing half-made stays."""
    monkeypatch.setattr(prose, "_dependency", lambda: "postgresql-doc-0")
    with pytest.raises(ProseError, match="Unable to locate package postgresql-doc-0"):
        fetch_prose(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_unknown_package(monkeypatch):
    """A distribution without the package is told apart from a failing download."""
    monkeypatch.setattr(prose, "PACKAGE", "no-such-package")
    assert (
        subprocess.run(["apt-cache", "depends", "no-such-package"], capture_output=True, check=False).returncode == 100
    )
    assert prose._dependency() is None
