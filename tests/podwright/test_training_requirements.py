"""The lock file of packages that cluster.yaml adds, as check reads it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from podwright.cli import main
from podwright.training_lock import LOWEST_PYTHON, training_lock

ROOT = Path(__file__).resolve().parents[2]
HASH = f"--hash=sha256:{'0' * 64}"
COMMAND = "uv pip compile --universal --python-version 3.10 --only-binary :all: --generate-hashes"


@pytest.fixture
def check(tmp_path, capsys):
    """Return a function that checks a cluster with a lock file, and returns its output."""

    def checked(lock):
        (tmp_path / "packages.lock").write_bytes(lock.encode())
        content = yaml.safe_load((ROOT / "cluster.yaml").read_text())
        content["training"] = {"source": "bundled", "requirements": "packages.lock"}
        (tmp_path / "cluster.yaml").write_text(yaml.safe_dump(content))
        main(["check", str(tmp_path / "cluster.yaml")])
        output = capsys.readouterr()
        return output.out + output.err

    return checked


@pytest.mark.parametrize(
    "line",
    [
        "wandb @ git+https://ada:PASSword@github.com/a/b",
        "wandb @ git+https://PASSword@github.com/a/b",
        "--index-url https://ada:PASSword@example.com/simple",
        "--index-url https://ada:" + "PASSword" * 9 + "@example.com/simple",
        "--index-url https://example.com/simple?token=hf_" + "PASSword" * 4,
    ],
)
def test_credentials_of_a_package_index_are_not_repeated(line, check):
    """Whoever reads the output of check, such as in CI, could use them."""
    output = check(f"{line}\nidna==3 {HASH}\n")
    assert f"packages.lock: got {line[:7]}" in output
    assert "PASSword" not in output


def test_the_lock_is_compiled_for_the_lowest_python_of_the_nodes(check):
    """A lock for a newer Python lacks packages and versions for older ones; nodes install only wheels."""
    assert f"{COMMAND} packages.in" in " ".join(check("wandb>=1\n").split())
    assert COMMAND in (ROOT / "docs" / "train.md").read_text()
    assert f'\nrequires-python = ">={LOWEST_PYTHON}"\n' in (ROOT / "training" / "pyproject.toml").read_text()


def test_a_byte_order_mark_is_no_part_of_the_first_package(check, tmp_path):
    """Editors of Windows write it."""
    output = check(f"\ufeffnot-in-ours==1 {HASH}\n")
    assert "packages.lock" not in output
    assert "\nnot-in-ours==1 \\\n" in training_lock(tmp_path / "packages.lock")
