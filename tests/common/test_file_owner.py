"""The owner of a file has a name in messages, and inside a user namespace a line on what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from podwright_common.file_owner import is_unmapped, numbered, user_name
from podwright_training.run_folder import RunFolder

ROOT = Path(__file__).parents[2]
NOBODY = 65534
READ = """
import sys
from pathlib import Path
from podwright_training.errors import UserError
from podwright_training.private_folder import other_owner, why_not_private
from podwright_training.run_folder import RunFolder
from podwright_training.run_secret import run_secret
from podwright_training.run_variables import read_secret

run = RunFolder(Path(sys.argv[1]))
for read in (lambda: read_secret("HF_TOKEN", str(run.secret)), lambda: run_secret(run)):
    try:
        read()
    except UserError as error:
        print(error)
print(why_not_private(run.root))
print(other_owner(run.root))
"""


def test_users_have_their_names() -> None:
    """A number without an account stays a number; outside user namespaces nobody is an account like others."""
    assert user_name(0) == "root"
    assert user_name(61202) == numbered(61202) == "uid 61202"
    assert not is_unmapped(NOBODY)


@pytest.mark.hosts
@pytest.mark.skipif(os.geteuid() != 0, reason="makes files of another user, which needs root")
def test_a_file_that_a_container_does_not_map_has_a_line_on_what_to_do(tmp_path: Path) -> None:
    """Linux shows every user of the host that enroot or Podman does not map as 65534."""
    namespace = ["unshare", "--user", "--map-root-user"]
    if subprocess.run([*namespace, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this host permits no user namespaces")
    secret = RunFolder(tmp_path / "run").secret
    secret.parent.mkdir()
    secret.write_text("hf_x\n")
    # Root of the namespace could not open a file of mode 600 of a user whom it does not map.
    for path, mode in ((secret, 0o644), (secret.parent, 0o755)):
        path.chmod(mode)
        os.chown(path, 1000, 1000)
    done = subprocess.run(
        [*namespace, sys.executable, "-c", READ, str(secret.parent)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("common", "training"))},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 4, done.stderr
    for line in lines:
        assert f"uid {NOBODY} (any user of the host that this container does not map" in line
        assert "--no-container-remap-root)" in line
