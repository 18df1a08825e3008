"""``podwright setup``: the programs that deploying needs are found, or downloaded and checked."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import zipfile
from io import BytesIO
from pathlib import Path

import pytest

from podwright import checkout, cli
from podwright.errors import OperationError
from podwright.operations.deployment import setup, terraform_release
from podwright.operations.deployment.terraform import TerraformError


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The one folder on PATH."""
    monkeypatch.setattr(setup, "search_path", lambda: str(tmp_path))
    return tmp_path


def program(folder: Path, name: str, says: str = "") -> None:
    (folder / name).write_text(f"#!/bin/sh\necho '{says}'\n", encoding="utf-8")
    (folder / name).chmod(0o755)


def test_each_program_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Terraform, the kit's command and Node are there, as JSON with their paths."""
    assert cli.main(["setup", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert all(os.access(found[name], os.X_OK) for name in ("terraform", "cdktf", "node"))


def test_a_missing_node_is_named(path: Path) -> None:
    """Without Node or npm, and with an unknown Node, the message has the versions and what to install."""
    with pytest.raises(OperationError, match=r"no Node\.js on PATH, need Node\.js 20, 22 or 24 with npm") as missing:
        setup.programs()
    assert "pip install 'podwright[node]'" in missing.value.hint
    program(path, "node", "v18.1.0")
    with pytest.raises(OperationError, match="no npm on PATH"):
        setup.programs()
    program(path, "npm")
    with pytest.raises(OperationError, match=r"node is v18\.1\.0, need"):
        setup.programs()


def test_a_kit_of_another_lock_is_installed_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kit of the user's own counts; one that podwright installed counts until its lock changes."""
    monkeypatch.setattr(checkout, "KIT_FOLDERS", {"cdktf": path})
    assert not setup._has_kit()
    program(path, "cdktf")
    assert setup._has_kit()
    key = path / "node_modules" / setup.LOCK_KEY
    key.parent.mkdir()
    key.write_text("of an earlier version")
    assert not setup._has_kit()
    key.write_text(setup._lock_key())
    assert setup._has_kit()


def test_npm_says_why_it_failed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed installation ends with npm's own words, and leaves nothing."""
    folder = path / "kit"
    monkeypatch.setattr(checkout, "KIT_FOLDERS", {"cdktf": folder})
    program(path, "npm", "registry is closed")
    with (path / "npm").open("a", encoding="utf-8") as script:
        script.write("exit 3\n")
    with pytest.raises(OperationError, match=r"`npm ci` ended with exit code 3:\nregistry is closed"):
        setup.install_kit()
    assert list(folder.iterdir()) == []


def test_terraform_of_another_hash_is_refused(tmp_path: Path) -> None:
    """An archive with the pinned hash becomes an executable; any other is not unpacked."""
    stream = BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("terraform", "#!/bin/sh\n")
    content, where = stream.getvalue(), tmp_path / "bin"
    with pytest.raises(TerraformError, match=r"somewhere has SHA-256 .*: not installed"):
        terraform_release.install(content, where, source="somewhere", sha256="0" * 64)
    assert not where.exists()
    sha256 = hashlib.sha256(content).hexdigest()
    assert os.access(terraform_release.install(content, where, source="somewhere", sha256=sha256), os.X_OK)


def test_without_network_only_npms_cache_is_asked(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry that does not answer is asked once; npm itself would try each package for minutes."""
    (path / "npm").write_text('#!/bin/sh\necho "$*"\nexit 1\n', encoding="utf-8")
    (path / "npm").chmod(0o755)
    monkeypatch.setattr(checkout, "KIT_FOLDERS", dict.fromkeys(checkout.KIT_FOLDERS, tmp_path / "cache"))
    with pytest.raises(OperationError, match=r"ended with exit code 1:\nci .*--offline") as failure:
        setup.install_kit()
    assert "`npm ping`" in failure.value.hint


def test_the_line_for_path_is_printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The printed line puts every program on PATH; it is left out if all are there."""
    found = setup.programs()
    line = setup.path_line(found.values(), "/none")
    path = subprocess.run(["/bin/sh", "-c", f"{line}; echo $PATH"], env={}, capture_output=True, text=True, check=True)
    assert all(shutil.which(name, path=path.stdout.strip()) for name in found)
    monkeypatch.setenv("PATH", f"{path.stdout.strip()}:{os.environ['PATH']}")
    assert cli.main(["setup"]) == 0
    assert "export PATH" not in capsys.readouterr().out


def test_a_folder_with_a_space_is_quoted() -> None:
    """A folder's name may have spaces; a folder that PATH has is left out."""
    line = setup.path_line(["/a b/terraform", "/usr/bin/node"], "/usr/bin")
    assert line == "export PATH='/a b':$PATH"


@pytest.mark.parametrize(("chosen", "lines"), [(None, 1), ("cdktf", 0)])
def test_the_archived_kit_is_named_once(
    chosen: str | None, lines: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Setting up says that cdktf is archived, with the command that installs CDK Terrain, unless somebody chose it."""
    monkeypatch.delenv("PODWRIGHT_KIT", raising=False)
    if chosen:
        monkeypatch.setenv("PODWRIGHT_KIT", chosen)
    monkeypatch.setattr("podwright.operations.deployment.setup.programs", lambda: {"terraform": "/usr/bin/terraform"})
    assert cli.main(["setup", "--json"]) == 0
    assert capsys.readouterr().err.count("PODWRIGHT_KIT=cdktn podwright setup") == lines
