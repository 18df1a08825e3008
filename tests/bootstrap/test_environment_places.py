"""Building the environment leaves no name in /tmp that users could take first."""

from __future__ import annotations

import hashlib
import io
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from podwright_bootstrap.contract import TrainingPayload
from podwright_bootstrap.host.errors import CommandError
from podwright_bootstrap.host.unprivileged import BUILDER_ID
from podwright_bootstrap.steps.environment import build

UV = b'#!/bin/sh\ntouch "$TMPDIR/uv-0123456789abcdef.lock" || exit\nstat --format=%u,%n "$TMPDIR"/* >&2\nexit 1\n'


@pytest.fixture
def public() -> Iterator[Path]:
    """Yield a folder that the builder may enter; pytest's own are closed to other users."""
    with tempfile.TemporaryDirectory(prefix="podwright-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.hosts  # needs root
def test_uv_has_a_folder_for_temporary_files_of_its_own(public):
    """Uv's lock files, whose names follow from what it builds, are in a folder that only the builder can write."""
    archive, target = public / "uv.tar.gz", public / "environment"
    with tarfile.open(archive, "w:gz") as release:
        member = tarfile.TarInfo("uv/uv")
        member.size = len(UV)
        release.addfile(member, io.BytesIO(UV))
    digest = hashlib.sha256(b"").hexdigest()
    payload = TrainingPayload("s3://b/a.whl", digest, "s3://b/requirements.lock", digest)
    with pytest.raises(CommandError) as caught:
        build(target, payload, uv=archive, copy=lambda _uri, path: path.touch())
    temporary = target / "build" / "tmp"
    assert f"{BUILDER_ID},{temporary}/uv-0123456789abcdef.lock" in str(caught.value)
    assert (temporary.stat().st_uid, temporary.stat().st_mode & 0o022) == (BUILDER_ID, 0)
