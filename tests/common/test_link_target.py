"""A link leads what is written to its target if its user made it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from podwright_common.link_target import link_target

STRANGER = 61202  # of no account


def test_a_link_of_the_user_is_followed_to_the_end(tmp_path: Path) -> None:
    """Also if the file does not exist yet; a path that is no link stays as it is."""
    target, link, second_link = tmp_path / "target", tmp_path / "link", tmp_path / "second"
    link.symlink_to(target)
    second_link.symlink_to(link)
    assert link_target(second_link, error_class=ValueError) == target
    assert link_target(target, error_class=ValueError) == target


def test_a_link_into_a_missing_folder_is_refused(tmp_path: Path) -> None:
    """As to a disk that is not mounted."""
    link = tmp_path / "link"
    link.symlink_to("/nowhere/disk/file")
    with pytest.raises(ValueError, match="is a link to /nowhere/disk/file, where there is no folder"):
        link_target(link, error_class=ValueError)


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a link of another user's, which needs root")
def test_a_link_of_another_user_is_refused(tmp_path: Path) -> None:
    """The message names the user, by number if there is no account."""
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "target")
    os.lchown(link, STRANGER, STRANGER)
    with pytest.raises(ValueError, match=f"target that uid {STRANGER} made: remove it"):
        link_target(link, error_class=ValueError)
