"""Files of users are read with a limit and without waiting, or refused in one line with their name."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwright_bootstrap.host import files, log
from podwright_bootstrap.host.errors import BootstrapError
from podwright_bootstrap.storage import own_folder
from podwright_common import atomic_file
from podwright_common.regular_file import UnreadableFileError, read, read_text


@pytest.mark.parametrize("follow_links", [False, True])
def test_special_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, follow_links: bool) -> None:
    """Each kind is one line, and none is waited for."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    Path("folder").mkdir()
    Path("text").write_text("abc")
    Path("link").symlink_to("text")
    Path("zero").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as agent:
        agent.bind("socket")
    kinds = {
        "pipe": "a pipe",
        "folder": "a folder",
        "socket": "a socket",
        "zero": "a device" if follow_links else "a link",
    }
    for name, kind in kinds.items():
        with pytest.raises(UnreadableFileError) as refusal:
            read(Path(name), limit_bytes=9, follow_links=follow_links)
        assert str(refusal.value) == f"{name}: is {kind}, not a regular file"
    if follow_links:
        assert read(Path("link"), limit_bytes=9, follow_links=True) == b"abc"
    else:
        with pytest.raises(UnreadableFileError, match="link: is a link, not a regular file"):
            read(Path("link"), limit_bytes=9)


@given(content=st.binary(max_size=30), limit=st.integers(0, 30))
def test_no_more_than_the_limit_is_read(tmp_path_factory: pytest.TempPathFactory, content: bytes, limit: int) -> None:
    """A longer file is refused, or its end is read; what is no text is named by its byte."""
    path = tmp_path_factory.getbasetemp() / "content"
    path.write_bytes(content)
    assert read(path, limit_bytes=limit, tail=True) == content[max(0, len(content) - limit) :]
    if len(content) > limit:
        with pytest.raises(UnreadableFileError, match=f"has {len(content)} bytes, more than {limit}"):
            read(path, limit_bytes=limit)
        return
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        with pytest.raises(UnreadableFileError, match=f"content: not UTF-8: byte 0x{content[error.start]:02x}"):
            read_text(path, limit_bytes=limit)
    else:
        assert read_text(path, limit_bytes=limit) == text


def test_a_file_that_became_a_pipe_is_replaced(tmp_path: Path) -> None:
    """Root's writer compares with no content that it would wait for."""
    path = tmp_path / "file"
    os.mkfifo(path)
    assert atomic_file._content(path, 3) == b""
    assert files.write_file(path, "abc")
    assert path.read_text() == "abc"


def test_a_link_to_a_folder_is_not_given_away(tmp_path: Path) -> None:
    """Root changes the owner of the folder that it opened, and opens no link."""
    (tmp_path / "link").symlink_to("/etc")
    with pytest.raises(BootstrapError, match="is a link to /etc"):
        own_folder.open_folder(tmp_path / "link")


def test_a_log_has_nothing_that_a_terminal_obeys(capsys: pytest.CaptureFixture[str]) -> None:
    """An administrator reads it on one."""
    log.say("chown: '\x1b]52;c;eA==\x07\u202e\udcff': no\ttab\nnext")
    assert capsys.readouterr().out.split(" ", 1)[1] == ("chown: '\\x1b]52;c;eA==\\x07\\u202e\\udcff': no\ttab\nnext\n")
