"""podwright from its wheels, with the dependencies that they declare and nothing else."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from podwright.checkout import COMMON, LIFECYCLE_SCRIPTS, ROOT, TRAINING
from podwright_constructs.lifecycle_archive import pack
from podwright_stacks.wheel import build_wheel
from podwright_testing.foreign import environment

EXAMPLES = [ROOT / "cluster.yaml", *sorted((ROOT / "examples").glob("*/cluster.yaml"))]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of an environment with podwright, its constructs and its lifecycle scripts."""
    return environment(tmp_path_factory.mktemp("foreign"), "podwright", "common", "constructs", "lifecycle_scripts")


def run(python: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder; ``-I`` leaves out the folder, PYTHONPATH and the user's own packages."""
    command = [python, "-I", "-m", "podwright", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_wheels_alone_are_imported(python: Path, tmp_path: Path):
    """Our packages come from the environment itself, and the trainer and the rehearsal are not there."""
    code = (
        "from importlib.util import find_spec; ours = map(find_spec, ('podwright', 'podwright_stacks', "
        "'podwright_constructs')); absent = map(find_spec, ('podwright_training', 'podwright_rehearsal')); "
        "print([spec.origin for spec in ours], *absent)"
    )
    answer = subprocess.run([python, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert answer.stdout.count(str(python.parents[1])) == 3
    assert answer.stdout.split()[-2:] == ["None", "None"]


def test_wheels_say_what_they_are(python: Path):
    """Each wheel has licence, author, description, types and the version of all the others."""
    versions = set()
    wheels = list((python.parents[2] / "wheels").rglob("*.whl"))
    for path in wheels:
        with zipfile.ZipFile(path) as wheel:
            (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
            metadata = Parser().parsestr(wheel.read(name).decode())
            assert any(file.endswith("/py.typed") for file in wheel.namelist())
            assert wheel.read(name.replace("METADATA", "licenses/LICENSE")) == (ROOT / "LICENSE").read_bytes()
        assert metadata["License-Expression"] == "Apache-2.0"
        assert metadata["Author"]
        assert str(metadata.get_payload()).startswith("# podwright")
        versions.add(metadata["Version"])
    assert (len(wheels), len(versions)) == (4, 1)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.parent.name)
def test_check_needs_the_declared_dependencies_alone(python: Path, tmp_path: Path, example: Path):
    """`podwright check` accepts every example, away from the checkout."""
    shutil.copy(example, tmp_path / "cluster.yaml")
    answer = run(python, tmp_path, "check", "cluster.yaml")
    assert (answer.returncode, answer.stderr) == (0, ""), answer.stdout


def test_a_wrong_file_is_explained(python: Path, tmp_path: Path):
    """`podwright check` refuses a wrong file with its line, and `explain` has the rule's page."""
    text = (ROOT / "cluster.yaml").read_text(encoding="utf-8").replace("ml.", "xl.", 1)
    (tmp_path / "cluster.yaml").write_text(text, encoding="utf-8")
    answer = run(python, tmp_path, "check", "cluster.yaml")
    assert answer.returncode == 1
    assert "cluster.yaml:" in answer.stdout + answer.stderr
    assert run(python, tmp_path, "explain", "instance-group").returncode == 0


def test_what_needs_more_names_it(python: Path, tmp_path: Path):
    """A command that needs the rehearsal says which distribution to install."""
    answer = run(python, tmp_path, "rehearse")
    assert answer.returncode == 1
    assert answer.stderr.startswith("podwright: podwright-rehearsal is not installed")


def test_what_is_downloaded_goes_to_the_users_cache(python: Path, tmp_path: Path):
    """Programs, the kit and a rehearsal's supplies are kept in the user's cache; the wheel has the kit's locks."""
    code = (
        "import json; from podwright import checkout; from podwright.operations.deployment import setup; "
        "folders = [checkout.CACHE, checkout.SUPPLIES, checkout.BIN, *checkout.KIT_FOLDERS.values()]; "
        "print(json.dumps([*map(str, folders), len(setup._lock_key())]))"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    answer = subprocess.run([python, "-I", "-c", code], env=environment, capture_output=True, text=True, check=True)
    *folders, length = json.loads(answer.stdout)
    assert {Path(folder).is_relative_to(tmp_path / "podwright") for folder in folders} == {True}
    assert length == 64


@pytest.mark.slow
def test_an_empty_folder_is_enough(python: Path, tmp_path: Path):
    """From init to Terraform's JSON without a checkout: what nodes get is what the checkout would give them."""
    for words in (
        ["init", "--yes", "--model", "llama3_2_1b", "--tokens", "1B"],
        ["check", "--strict", "--run", "run.yaml"],
        ["plan", "cluster.yaml", "--run", "run.yaml"],
        ["init", "other.yaml", "--example", "production"],
        ["explain", "cluster.yaml", "-o", "architecture.svg"],
    ):
        answer = run(python, tmp_path, *words)
        assert (answer.returncode, answer.stderr) == (0, ""), (words, answer.stdout)
    app = shlex.split(json.loads((tmp_path / "cdktf.json").read_text())["app"])
    assert Path(app[0]).parent == python.parent
    answer = subprocess.run(app, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert {path.name for path in (tmp_path / "cdktf.out" / "stacks").iterdir()} == {
        "podwright-demo-cluster",
        "podwright-demo-foundation",
    }
    scripts = pack(LIFECYCLE_SCRIPTS, into=tmp_path / "pack")
    wheel = build_wheel(TRAINING, cache=tmp_path / "wheels", contained_package=COMMON / "podwright_common")
    for file in (*scripts.iterdir(), wheel):
        found = {path.read_bytes() for path in (tmp_path / "cdktf.out").rglob(file.name)}
        assert found == {file.read_bytes()}, file.name
