"""Files that podwright writes: a link of another user's leads them nowhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from podwright.output_file import OutputError, write_output

STRANGER = 61202  # of no account


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a link of another user's, which needs root")
def test_another_users_link_is_refused_and_the_users_own_is_followed(tmp_path: Path) -> None:
    """As in /tmp, where the kernel follows no such link, either."""
    target, link = tmp_path / "profile", tmp_path / "plan.html"
    target.write_text("mine")
    link.symlink_to(target)
    write_output(link, "page")
    assert (target.read_text(), link.is_symlink()) == ("page", True)
    os.lchown(link, STRANGER, STRANGER)
    with pytest.raises(OutputError, match=f"is a link to .* that uid {STRANGER} made"):
        write_output(link, "again")
    assert target.read_text() == "page"
